"""``planner run``: what is recorded of a run is all there, each time that it is asked for."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import planner
from graphs.importers.from_torch import program_from_module
from planner.cli import main
from planner.cli.run_ import record_run
from simulator.placement import Placement


def test_every_recording_has_its_micro_batches() -> None:
    core = min(os.sched_getaffinity(0))
    device = planner.Device("cpu0", "cpu", 1e9, {"float32": 1e9}, 1e9, cores=(core,))
    program = program_from_module(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.ones(2, 4),))
    plan = planner.plan(program, cluster=planner.Cluster("one", (device,)))
    with planner.start(plan, program) as runner:
        for count in (3, 5):
            recorded = record_run(runner, count)
            assert recorded.micro_batches == count
            assert {span.micro_batch for span in recorded.spans} == set(range(count))


@pytest.mark.slow
def test_a_process_for_each_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    core = min(os.sched_getaffinity(0))
    devices = tuple(planner.Device(f"cpu{i}", "cpu", 1e9, {"float32": 1e9}, 1e9, cores=(core,)) for i in range(2))
    links = (planner.Link("cpu0", "cpu1", 1e9), planner.Link("cpu1", "cpu0", 1e9))
    model, inputs = factory()
    plan = planner.plan(program_from_module(model, inputs), cluster=planner.Cluster("two", devices, links))
    plan = replace(plan, placement=Placement(tuple(i % 2 for i in range(len(plan.graph.ops)))))
    planner.save_plan(plan, tmp_path / "plan.json")
    here = "tests.planner.cli.test_run:factory"
    assert main(["run", str(tmp_path / "plan.json"), here, "--processes", "--rounds", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["bit_equal"] is True
    assert {row["name"] for row in document["against_prediction"]["devices"]} == {"cpu0", "cpu1"}


@pytest.mark.parametrize("processes", [pytest.param(["--processes"], marks=pytest.mark.slow), []])
def test_random_numbers_by_seed(processes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    core = min(os.sched_getaffinity(0))
    devices = tuple(planner.Device(f"cpu{i}", "cpu", 1e9, {"float32": 1e9}, 1e9, cores=(core,)) for i in range(2))
    links = (planner.Link("cpu0", "cpu1", 1e9), planner.Link("cpu1", "cpu0", 1e9))
    model, inputs = noisy()
    plan = planner.plan(program_from_module(model, inputs), cluster=planner.Cluster("two", devices, links))
    plan = replace(plan, placement=Placement(tuple(i % 2 for i in range(len(plan.graph.ops)))))
    planner.save_plan(plan, tmp_path / "plan.json")
    run = ["run", str(tmp_path / "plan.json"), "tests.planner.cli.test_run:noisy", "--rounds", "1", *processes]
    assert main([*run, "--json", "--seed", "9"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["bit_equal"] is True
    # every operator is on another device than the one before, so each link is used
    assert {row["name"] for row in document["against_prediction"]["links"]} == {"cpu0 → cpu1", "cpu1 → cpu0"}
    assert main([*run, "--seed", "-1"]) == 2
    assert "the seed is -1; it must be 0 or more, and less than 2**63" in capsys.readouterr().err


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


def factory(batch: int = 2) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A MODEL for the command line."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)), (torch.ones(batch, 4),)
