"""A training plan in ranks, with the whole model on every rank and with a shard on each; see test_rank for torchrun."""

import argparse
import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]  # they are public

from costmodels.host.stores import HERE
from costmodels.tabulate import tabulate
from graphs.common.errors import InputError
from graphs.rewrites.split import Split
from planner.cli import main
from planner.cli.statuses import BROKEN
from planner.cli.training_rank import train_rank
from planner.plans.files import load_plan, save_plan
from planner.runtime.distributed.transport.rendezvous import RankEnvironment
from simulator.placement import Placement
from tests.planner.cli.given import MNIST, pair_here
from tests.planner.cli.started import Started
from tests.planner.runtime.small import PATIENCE_S


@pytest.fixture(autouse=True)
def _planned(capsys: pytest.CaptureFixture[str]) -> None:
    Path("pair.toml").write_text(pair_here(), encoding="utf-8")
    command = ["plan", MNIST, "--cluster", "pair.toml", "--goal", "training", "--micro-batches", "2"]
    assert main([*command, "--pin", "conv*=a", "--pin", "fc*=b"]) == 0
    capsys.readouterr()


def agent(started: Started) -> TCPStore:
    """The store of ranks that are started with TORCHELASTIC_USE_AGENT_STORE; it ends with the last reference."""
    return TCPStore(HERE, started.port, is_master=True, wait_for_workers=False)


def said(started: Started, *words: str, **environment: str) -> str:
    """What rank 0 of two prints, which train once and end well."""
    for rank in range(2):
        started.start(rank, 2, Path("plan.json").resolve(), *words, "--rounds", "1", **environment)
    (first, out, errors), (second, *_) = started.ends()
    assert (first, second) == (0, 0), errors
    return out


@pytest.mark.slow
def test_with_the_whole_model_on_each_rank(started: Started) -> None:
    """As torchrun starts them, whose agent serves the store."""
    _agent = agent(started)
    out = said(started, MNIST, TORCHELASTIC_USE_AGENT_STORE="True")
    assert "steps of 2 micro-batches of 1 by 1f1b" in " ".join(out.split())
    assert "the gradients are bit-equal to the reference model's" in out


@pytest.mark.slow
def test_with_a_shard_on_each_rank(started: Started, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shard", "plan.json", MNIST, "-o", "shards", "-q"]) == 0
    capsys.readouterr()
    found = json.loads(said(started, str(Path("shards").resolve()), "--json", "-o", str(Path("run.json").resolve())))
    assert found["bit_equal"] is None
    assert found["measured"]["step_s"] > 0
    assert [figure["name"] for figure in found["against_prediction"]["devices"]] == ["a", "b"]
    assert Path("run.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("shards", [False, True], ids=["whole", "shards"])
def test_operators_in_parts(shards: bool, started: Started, capsys: pytest.CaptureFixture[str]) -> None:
    plan = load_plan("plan.json")
    split = Split({op.name: ("output features", 2) for op in plan.graph.ops if op.kind.startswith("aten.linear")})
    divided = replace(plan, graph=split(plan.graph), rewrites=(split,), constraints=())
    second = divided.graph.index["linear[1/2]"]
    device = tuple(int(number >= second) for number in range(len(divided.graph.ops)))
    table = tabulate(divided.graph, plan.cluster, plan.workload, {})
    save_plan(replace(divided, table=table, placement=Placement(device), bound_s=0.0), Path("plan.json"))
    if not shards:
        assert "the gradients are the reference model's within" in said(started, MNIST)
        return
    assert main(["shard", "plan.json", MNIST, "-o", "shards", "-q"]) == 0
    capsys.readouterr()
    assert json.loads(said(started, str(Path("shards").resolve()), "--json"))["measured"]["step_s"] > 0


@pytest.mark.slow
def test_replicas(started: Started, capsys: pytest.CaptureFixture[str]) -> None:
    """Two of one device, which share the core here as they would not elsewhere."""
    command = ["plan", MNIST, "--cluster", "pair.toml", "--goal", "training", "--micro-batches", "2"]
    assert main([*command, "--replicas", "2", "--force"]) == 0
    capsys.readouterr()
    assert "the gradients are bit-equal to the reference model's" in said(started, MNIST)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "sent", "why"),
    [
        (1, signal.SIGSTOP, "it is stopped"),
        (0, signal.SIGSTOP, "it is stopped"),
        (1, signal.SIGKILL, "its connection broke"),
    ],
    ids=str,
)
def test_a_rank_that_is_gone_is_told(started: Started, victim: int, sent: signal.Signals, why: str) -> None:
    """Of two that would train for hours; torch itself would wait for one that is stopped."""
    _agent = agent(started)  # so that none of them ends it
    place = str(Path.cwd() / "plan.json")
    for rank in range(2):
        command = place, MNIST, "--rounds", "1000000", "--silence", "100"
        started.start(rank, 2, *command, TORCHELASTIC_USE_AGENT_STORE="True")
    first = started.ranks[0].stderr
    assert first is not None
    assert any("measuring" in line for line in iter(first.readline, "")), "rank 0 has ended before"
    started.ranks[victim].send_signal(sent)
    other = 1 - victim
    _, errors = started.ranks[other].communicate(timeout=PATIENCE_S)
    gone = f"planner: rank {other}: rank {victim} ('{'ab'[victim]}') is gone: {why}; start all ranks again"
    assert errors.splitlines()[-1] == gone
    assert started.ranks[other].returncode == BROKEN


def test_as_many_ranks_as_devices() -> None:
    """Before anybody waits for another."""
    with pytest.raises(InputError) as error:
        train_rank(
            argparse.Namespace(model=MNIST),
            load_plan("plan.json"),
            HashStore(),
            RankEnvironment(0, 3, HERE, 0, served=True),
        )
    assert str(error.value) == "the plan trains on 2 devices (a, b), and there are 3 ranks; start 2, one for each"
