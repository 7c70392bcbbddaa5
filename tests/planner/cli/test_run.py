"""``planner run``: what is recorded of a run is all there, each time that it is asked for."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import planner
from graphs.importers.from_torch import program_from_module
from planner.cli import main
from planner.cli.console import Console
from planner.cli.figures import show_figures
from planner.plans.compare import Comparison, Figure
from planner.runtime.benchmark.measure import PlannedContender
from planner.runtime.errors import RankError
from simulator.placement import Placement
from tests.planner.cli.given import Refused, pair_here
from tests.planner.runtime.small import CORE


def test_every_recording_has_its_micro_batches() -> None:
    device = planner.Device("cpu0", "cpu", 1e9, {"float32": 1e9}, 1e9, cores=(CORE,))
    program = program_from_module(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.ones(2, 4),))
    plan = planner.plan(program, cluster=planner.Cluster("one", (device,)))
    with planner.start(plan, program) as runner:
        planned = PlannedContender(runner)
        for count in (3, 5):
            planned.stream(count)
            recorded, in_all = planned.recorded, count + 2 * plan.workload.in_flight
            assert recorded is not None
            assert recorded.micro_batches == in_all
            assert {span.micro_batch for span in recorded.spans} == set(range(in_all))


@pytest.mark.slow
def test_a_process_for_each_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_alternating(factory, tmp_path / "plan.json")
    here = "tests.planner.cli.test_run:factory"
    assert main(["run", str(tmp_path / "plan.json"), here, "--processes", "--rounds", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["bit_equal"] is True
    assert document["pace"] is None  # nobody has measured these devices
    assert all(row["error_after_pace"] is None for row in document["against_prediction"]["totals"])
    assert {row["name"] for row in document["against_prediction"]["devices"]} == {"cpu0", "cpu1"}
    used = document["usage"]
    for device in used["devices"].values():
        seconds = sum(device[part] for part in ("busy_s", "input_s", "admission_s", "between_s"))
        assert seconds == pytest.approx(used["period_s"], rel=0.01)
    batch = document["measured"]["plan"]["samples_per_s"] * used["period_s"]
    assert batch == pytest.approx(2), "the period of the table is that of the devices"


@pytest.mark.parametrize("processes", [pytest.param(["--processes"], marks=pytest.mark.slow), []])
def test_random_numbers_by_seed(processes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_alternating(noisy, tmp_path / "plan.json")
    run = ["run", str(tmp_path / "plan.json"), "tests.planner.cli.test_run:noisy", "--rounds", "1", *processes]
    assert main([*run, "--json", "--seed", "9"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["bit_equal"] is True
    # every operator is on another device than the one before, so each link is used
    assert {row["name"] for row in document["against_prediction"]["links"]} == {"cpu0 → cpu1", "cpu1 → cpu0"}
    assert main([*run, "--seed", str(2**63)]) == 2
    assert f"the seed is {2**63}; it must be 0 or more, and less than 2**63" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([*run, "--seed", "-1"])
    assert "'-1' is not a whole number of 0 or more" in capsys.readouterr().err


def test_what_goes_by_reference_is_there_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """If its reader did not sleep; nobody is told that the prediction is off by -100 %."""
    figures = Figure("a → b", 1e-5, 0.0), Figure("b → a", 1e-5, 2e-5)
    show_figures(Comparison((), (), (), figures), "per micro-batch", Console())
    head, *rows = capsys.readouterr().out.splitlines()[1:]
    assert head.split() == ["per", "micro-batch", "predicted", "measured", "off", "by"]
    assert [row.split() for row in rows] == [
        ["a", "→", "b", "10", "us", "at", "once"],
        ["b", "→", "a", "10", "us", "20", "us", "+100.0%"],
    ]


def test_a_model_that_does_not_take_its_example_inputs(capsys: pytest.CaptureFixture[str], refused: Refused) -> None:
    Path("pair.toml").write_text(pair_here(), encoding="utf-8")
    model, why = "tests.planner.cli.test_run:beyond", "IndexError: index out of range in self"
    fails = f"fails with the example inputs: {why}; give inputs that it takes"
    for goal in ("latency", "training"):
        assert main(["plan", model, "--cluster", "pair.toml", "--goal", goal, "-o", f"{goal}.json"]) == 0
    assert refused(["run", "latency.json", model]) == f"planner: the model {fails}"
    assert refused(["verify", "latency.json", model]) == (
        f"planner: operator 'embedding' (aten.embedding.default) {fails}"
    )
    assert main(["run", "training.json", model]) == 1
    assert capsys.readouterr().err.endswith(f"planner: stage 0 on 'a' failed in 0F0: {why}\n")


def test_a_rank_that_is_gone_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> int:
        raise RankError("rank 1 ('cpu0') is gone: killed")

    monkeypatch.setattr("planner.cli.run_.run", gone)
    assert main(["run", "plan.json", "model.onnx", "--processes"]) == 1
    assert capsys.readouterr() == ("", "planner: rank 1 ('cpu0') is gone: killed\n")


def beyond() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A MODEL that has ten words and is given the 40th."""
    return nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4)), (torch.tensor([3, 40]),)


class Noisy(nn.Module):
    """Draws random numbers though it is in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dropped = nn.functional.dropout(self.linear(x), 0.5, training=True)
        return torch.relu(dropped + torch.rand_like(x))


def noisy(batch: int = 2) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A MODEL for the command line."""
    torch.manual_seed(0)
    return Noisy(), (torch.ones(batch, 4),)


def save_alternating(make: Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]], path: Path) -> None:
    """A plan for two devices on one core of this host, every operator on another one than the one before."""
    devices = tuple(planner.Device(f"cpu{i}", "cpu", 1e9, {"float32": 1e9}, 1e9, cores=(CORE,)) for i in range(2))
    links = (planner.Link("cpu0", "cpu1", 1e9), planner.Link("cpu1", "cpu0", 1e9))
    plan = planner.plan(program_from_module(*make()), cluster=planner.Cluster("two", devices, links))
    placement = Placement(tuple(i % 2 for i in range(len(plan.graph.ops))))
    planner.save_plan(replace(plan, placement=placement), path)


def factory(batch: int = 2) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A MODEL for the command line."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)), (torch.ones(batch, 4),)
