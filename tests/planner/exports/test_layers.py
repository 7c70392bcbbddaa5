"""torchgpipe, deepspeed and megatron-layout: numbers of layers, by hand and with the tools where they are installed."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from graphs.common.errors import InputError
from planner.exports import Export, export, map_of
from planner.exports.deepspeed import uniform_parts, with_parts
from planner.plans.plan import Plan
from tests.planner.exports.nets import GPUS, Block, Decoder, X, chain, graph_of, plan_of

CHAIN = graph_of(chain(3))  # 0 linear, 1 relu, 2 linear, 3 relu, 4 linear


def refused(plan: Plan, target: str, text: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        export(plan, target)


def test_balance() -> None:
    assert export(plan_of(CHAIN, (1, 1, 0, 0, 0), GPUS), "torchgpipe") == Export({"balance": [2, 3], "devices": [1, 0]})
    assert export(plan_of(CHAIN, (0, 1, 1, 2, 2)), "torchgpipe").document["devices"] == ["cpu:0", "cpu:1", "cpu:2"]


def test_a_layer_without_operators_counts_by_its_number() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Identity(), nn.Linear(8, 8), nn.ReLU())
    plan = plan_of(graph_of(model), {"0": 0, "2": 1, "3": 1}, GPUS)
    assert export(plan, "torchgpipe").document["balance"] == [2, 2]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))
        self.d = nn.Bilinear(8, 8, 8)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        y: Tensor = self.d(self.c(self.b(a)), a)
        return y


def test_what_is_no_chain_is_refused() -> None:
    rule = "cuts an nn.Sequential between its children"
    refused(
        plan_of(graph_of(Residual()), {"": 0}),
        "torchgpipe",
        f"'d' reads from 'a', which is not the child before it; torchgpipe {rule}: export to torch-split-spec",
    )
    refused(
        plan_of(graph_of(Block()), {"": 0}),
        "deepspeed",
        f"operator 'relu' is in no child of the model; deepspeed {rule}: put it into a module",
    )
    refused(
        plan_of(graph_of(nn.Sequential(nn.Linear(8, 8), chain(2))), {"0": 0, "1.0": 0, "1.1": 1, "1.2": 1}),
        "torchgpipe",
        f"module '1' is on cpu0 and cpu1; torchgpipe {rule}: plan with --whole '*'",
    )


def test_parts() -> None:
    note = "no partition_method comes to these parts: use planner.exports.deepspeed.with_parts(PipelineModule, parts)"
    document: dict[str, Any] = {"num_stages": 2, "partition_method": None, "parts": [0, 1, 5], "devices": [0, 1]}
    assert export(plan_of(CHAIN, (0, 1, 1, 1, 1), GPUS), "deepspeed") == Export(document, (note,))
    document = {"num_stages": 2, "partition_method": "uniform", "parts": [0, 3, 5], "devices": [1, 0]}
    assert export(plan_of(CHAIN, (1, 1, 1, 0, 0), GPUS), "deepspeed") == Export(document)


def test_a_rank_has_one_stage() -> None:
    refused(
        plan_of(CHAIN, (0, 1, 1, 0, 0), GPUS),
        "deepspeed",
        "gpu0 has two stages; deepspeed runs one stage on each rank: plan with --contiguous",
    )


class Pretended:
    """What `with_parts` reads and calls of a PipelineModule, on the rank of stage 1."""

    def __init__(self, n_layers: int) -> None:
        self._layer_specs = [None] * n_layers
        self.num_stages, self.global_rank = 2, 1
        self._topo = SimpleNamespace(get_coord=lambda rank: SimpleNamespace(pipe=rank))
        self._partition_layers("parameters")

    def _partition_layers(self, method: str) -> None:
        raise NotImplementedError(method)

    def _set_bounds(self, start: int, stop: int) -> None:
        self.bounds = (start, stop)


def test_parts_replace_the_partition_method() -> None:
    made: Any = with_parts(Pretended, [0, 1, 5])(5)
    assert (made.parts, made.bounds) == ([0, 1, 5], (1, 5))
    with pytest.raises(
        InputError, match=r"^parts \[0, 1, 5\] are for 5 layers in 2 stages, the model has 4 in 2; plan for this model$"
    ):
        with_parts(Pretended, [0, 1, 5])(4)


@given(st.integers(1, 40), st.integers(1, 8))
def test_uniform_is_deepspeed_s(n_layers: int, n_stages: int) -> None:
    utils = pytest.importorskip("deepspeed.runtime.utils")
    if n_layers > n_stages:
        assert uniform_parts(n_layers, n_stages) == utils.partition_uniform(n_layers, n_stages)


def test_torchgpipe_takes_the_balance() -> None:
    gpipe = pytest.importorskip("torchgpipe.gpipe")
    model = chain(3)
    document = export(plan_of(CHAIN, (0, 0, 1, 1, 2)), "torchgpipe").document
    devices = [torch.device(name) for name in document["devices"]]
    partitions, balance, _ = gpipe.split_module(model, document["balance"], devices)
    assert balance == [2, 2, 1]
    assert [[name for name, _ in part.named_children()] for part in partitions] == [["0", "1"], ["2", "3"], ["4"]]
    assert torch.equal(nn.Sequential(*partitions)(X), model(X))


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3).filter(lambda sizes: sum(sizes) == 5))
def test_a_balance_comes_back(sizes: list[int]) -> None:
    starts = [sum(sizes[:stage]) for stage in range(1, len(sizes))]
    plan = plan_of(CHAIN, tuple(sum(op >= start for start in starts) for op in range(5)), GPUS)
    document = export(plan, "torchgpipe").document
    assert document["balance"] == sizes
    assert map_of(document).placement(CHAIN, GPUS) == map_of(sizes).placement(CHAIN, GPUS) == plan.placement


class Pair(nn.Module):
    """Two stacks of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Decoder(), Decoder()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.first(x) + self.second(x)
        return y


def layout(**device: int) -> Any:
    placed = {path.replace("_", "."): number for path, number in device.items()}
    return export(plan_of(graph_of(Decoder()), placed, GPUS), "megatron-layout").document


def test_megatron_layout() -> None:
    assert layout(embed=0, layers=0, norm=0, head=0) == {
        "pipeline_model_parallel_size": 1,
        "pipeline_model_parallel_layout": "Et*4L",
        "decoder_layers": [4],
    }
    assert layout(embed=0, layers_0=1, layers_1=1, layers_2=1, layers_3=2, norm=2, head=2) == {
        "pipeline_model_parallel_size": 3,
        "pipeline_model_parallel_layout": "E|t*3|tL",
        "decoder_layers": [0, 3, 1],
    }


def test_megatron_deals_stages_to_ranks_in_turn() -> None:
    turns = layout(embed=0, layers_0=0, layers_1=1, layers_2=0, layers_3=1, norm=1, head=1)
    assert turns["pipeline_model_parallel_layout"] == "Et|t|t|tL"
    assert turns["pipeline_model_parallel_size"] == 2  # and so two virtual stages on each rank
    with pytest.raises(InputError, match=r"^the stages are on gpu0 gpu1 gpu0; megatron-layout deals stages to ranks"):
        layout(embed=0, layers_0=0, layers_1=1, layers_2=1, layers_3=0, norm=0, head=0)


def test_megatron_refuses() -> None:
    rule = "megatron-layout places whole decoder layers, what is before them as one and what is after them as one"
    refused(
        plan_of(graph_of(Decoder()), {"": 0, "layers.1.up": 1}, GPUS),
        "megatron-layout",
        f"module 'layers.1' is on gpu0 and gpu1; {rule}: plan with --whole 'layers.*'",
    )
    refused(
        plan_of(graph_of(Decoder()), {"": 0, "head": 1}, GPUS),
        "megatron-layout",
        f"the loss is on gpu0 and gpu1; {rule}: plan with --together 'tanh,norm,head'",
    )
    refused(
        plan_of(graph_of(Block()), {"": 0}, GPUS),
        "megatron-layout",
        f"'Block' has no numbered layers such as layers.0, layers.1; {rule}: export to torch-split-spec",
    )
    refused(
        plan_of(graph_of(Pair()), {"": 0}, GPUS),
        "megatron-layout",
        "'Pair' has layers like 'second.layers.0' besides 'first.layers.0'; megatron-layout knows one stack of layers: "
        "export to torch-split-spec",
    )


def parsed(text: str) -> list[str]:
    """Stages of a layout, written out, by the rules of Megatron's documentation."""
    return [re.sub(r"(\w)\*(\d+)", lambda m: m[1] * int(m[2]), stage).replace(",", "") for stage in text.split("|")]


@given(st.lists(st.integers(0, 2), min_size=4, max_size=4).map(sorted))
def test_megatron_s_rules_hold(homes: list[int]) -> None:
    """One E at the beginning, one L at the end, every layer once, stages a multiple of the ranks."""
    homes = [sorted(set(homes)).index(home) for home in homes]
    document = export(plan_of(DECODER, decoder_homes(homes), GPUS), "megatron-layout").document
    stages = parsed(document["pipeline_model_parallel_layout"])
    assert "".join(stages) == "EttttL"
    assert [stage.count("t") for stage in stages] == document["decoder_layers"]
    assert document["decoder_layers"] == [homes.count(stage) for stage in range(max(homes) + 1)]
    assert len(stages) % document["pipeline_model_parallel_size"] == 0


DECODER = graph_of(Decoder())


def decoder_homes(homes: list[int]) -> dict[str, int]:
    layers = {f"layers.{number}": home for number, home in enumerate(homes)}
    return {"embed": homes[0], **layers, "norm": homes[-1], "head": homes[-1]}
