"""What commands say of rewrites that nothing can be done with: one line, and the way out."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from torch import nn

from graphs.files import write_graph
from graphs.importers.from_torch import program_from_module
from planner.cli import main
from tests.planner.cli.given import PAPER, Refused, pair_here

Model: TypeAlias = tuple[nn.Module, tuple[torch.Tensor, ...]]

LATENCY = ("--cluster", "cluster.toml", "--goal", "latency")
WITHOUT_LINKS = PAPER.partition("\n[[link]]")[0]
UNLIKE = PAPER.replace('kind = "cpu"', 'kind = "gpu"', 1)
FAST = pair_here().replace('"10 us"', '"0 s"').replace('"20 GB/s"', '"1 TB/s"')  # where to split pays


class Recurrent(nn.Module):
    """An LSTM, which nobody can split."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 64)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.lstm(x, (h, c))[0]
        return y


def recurrent() -> Model:
    return Recurrent().eval(), (torch.randn(3, 2, 4), torch.zeros(1, 2, 64), torch.zeros(1, 2, 64))


def layer() -> Model:
    torch.manual_seed(0)
    return nn.Linear(1024, 256).eval(), (torch.randn(64, 1024),)


def graph_of(factory: Callable[[], Model]) -> None:
    write_graph(program_from_module(*factory(), name="net").graph, Path("graph.json"))


@pytest.mark.parametrize(
    ("cluster", "options", "said"),
    [
        (
            WITHOUT_LINKS,
            ("--rewrites", "split"),
            "the rewrite 'split' divides operators between equal devices, and no links lead from 'a' to 'b' and back; "
            "add a [[link]] to cluster.toml, or leave the rewrite out",
        ),
        (
            UNLIKE,
            ("--rewrites", "fuse,split"),
            "the rewrite 'fuse' is for CPUs with quick kernels, and 'a' has none; calibrate with --kernels quick, or "
            "leave --rewrites out",
        ),
        (
            UNLIKE,
            ("--rewrites", "split"),
            "the rewrite 'split' divides operators between equal devices, and all devices of 'cluster' are of "
            "different kinds; leave it out",
        ),
        (
            PAPER,
            ("--rewrites", "split"),
            "the rewrite 'split' changes nothing: no operator of 'net' can be split (aten.lstm.input); leave it out",
        ),
        (
            PAPER.replace("flops", 'kernels = "quick"\nflops'),
            ("--rewrites", "fuse"),
            "the rewrite 'fuse' changes nothing: no kernel computes several operators of 'net' at once; leave it out",
        ),
    ],
    ids=["no link", "exact kernels", "other kinds", "nobody splits", "nothing fuses"],
)
def test_a_rewrite_that_can_do_nothing(refused: Refused, cluster: str, options: tuple[str, ...], said: str) -> None:
    graph_of(recurrent)
    Path("cluster.toml").write_text(cluster, encoding="utf-8")
    assert refused(["plan", "graph.json", *LATENCY, *options]) == f"planner: {said}"


def test_a_rewrite_that_does_not_pay_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    graph_of(layer)
    Path("cluster.toml").write_text(PAPER.replace('"10 us"', '"1 s"'), encoding="utf-8")
    assert main(["plan", "graph.json", *LATENCY, "--rewrites", "split"]) == 0
    assert "--rewrites split changes nothing in the plan of net: it would save nothing" in capsys.readouterr().out
    Path("cluster.toml").write_text(PAPER, encoding="utf-8")
    assert main(["plan", "graph.json", *LATENCY, "--devices", "1", "--rewrites", "split", "--force"]) == 0
    assert "--rewrites split changes nothing in the plan of net" in capsys.readouterr().out


def test_a_layer_too_large_for_any_device_that_nobody_splits(capsys: pytest.CaptureFixture[str]) -> None:
    graph_of(recurrent)
    Path("cluster.toml").write_text(PAPER.replace('"1 GiB"', '"50 kB"'), encoding="utf-8")
    assert main(["plan", "graph.json", *LATENCY]) == 1
    said = capsys.readouterr().err
    assert "'lstm' (aten.lstm.input) cannot be split, no operator of this network can be" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda _: {"linear": ["output features", 300]}, "by output features into 2 to 256 parts, not 300"),
        (
            lambda _: {"linear": ["heads", 2]},
            "'linear' (aten.linear.default) cannot be split by heads; it can",
        ),
        (lambda _: {"lstm": ["batch", 2]}, "operator 'lstm' is to be split, and 'layer' has none; plan for this model"),
        (lambda _: {}, "a split of no operator changes nothing in 'layer'; leave it out"),
    ],
    ids=["parts", "axis", "operator", "none"],
)
def test_a_split_that_a_plan_asks_for_in_vain(refused: Refused, change: Callable[[Any], Any], said: str) -> None:
    Path("cluster.toml").write_text(FAST, encoding="utf-8")
    model = f"{__name__}:layer"
    assert main(["plan", model, *LATENCY]) == 0
    document = json.loads(Path("plan.json").read_text(encoding="utf-8"))
    (split,) = document["rewrites"]
    assert split["rewrite"] == "split"
    split["choices"] = change(split["choices"])
    Path("plan.json").write_text(json.dumps(document), encoding="utf-8")
    assert said in refused(["verify", "plan.json", model])
