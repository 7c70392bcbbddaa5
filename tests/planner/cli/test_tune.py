"""``planner tune``: what it prints and writes. Times are made up; the loop has tests of its own."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from costmodels.cluster.writer import write_cluster
from graphs.files import write_graph
from graphs.importers.load import load_graph
from graphs.program.program import Program
from planner.cli import main
from planner.planning import tune as tuning
from planner.planning.autotune import TimedTurn
from planner.plans.files import load_plan
from planner.plans.plan import PlacementTask, Plan
from planner.problem.result import Status
from planner.runtime.benchmark.load import Load
from simulator.placement import Placement
from tests.planner.cli.given import MNIST, Refused
from tests.planner.planning.test_autotune import here

TUNE = ["tune", MNIST, "--cluster", "here.toml", "--goal", "throughput", "--time-limit", "1"]


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two devices here, on which the first plan takes twice as long as predicted, and others as long."""
    cluster = here(2)
    devices = tuple(replace(device, host=device.name) for device in cluster.devices)  # both on one core
    write_cluster(replace(cluster, devices=devices), Path("here.toml"))
    first: list[Plan] = []

    def run(plan: Plan, _: Program) -> TimedTurn:
        first[:] = first or [plan]
        return TimedTurn(first[0].predicted_s * (2 if plan.placement == first[0].placement else 1), plan.simulate(16))

    def contiguous(task: PlacementTask, _: object) -> Plan:
        return task.plan(Placement((0,) * 5 + (1,) * 5), Status.FEASIBLE, "by hand", 0.0)

    monkeypatch.setattr(tuning, "run_turn", run)
    monkeypatch.setattr(tuning, "search_plan", contiguous)
    monkeypatch.setattr(Load, "foreign_cores", lambda _: 0.0)


def test_every_turn_is_shown_and_the_fastest_plan_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TUNE, "-o", "tuned.json"]) == 0
    captured = capsys.readouterr()
    head, first, second, third, summary, learned, title, *_ = captured.out.splitlines()
    assert head.split() == ["turn", "predicted", "measured", "over", "the", "first", "operators", "moved"]
    assert (first.split()[0], first.split()[5:]) == ("1", ["1.000×", "kept"])
    assert (second.split()[0], second.split()[5], second.split()[-1]) == ("2", "2.000×", "kept")
    assert third.split()[5:] == ["2.000×", "0", "kept"]
    assert summary == f"tuned: 2.000 × as fast as the plan that it began with; {tuning.TRIED}"
    assert learned == "the profile has learned from it; `planner calibrate MODEL --again` forgets that"
    assert title == "mnist for throughput → tuned.json"
    assert load_plan("tuned.json").placement.device == (0,) * 5 + (1,) * 5
    assert captured.err.splitlines() == [
        f"importing {MNIST} …",
        "running the plan …",
        "planning with what 1 turn has shown …",
        "trying 2 plans in turns …",
        "planning with what 2 turns have shown …",
        "planning with what 3 turns have shown …",
    ]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TUNE, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(turn["speedup"], turn["kept"]) for turn in told["turns"]] == [(1.0, True), (2.0, True), (2.0, True)]
    assert told["turns"][0]["moved"] == 0 < told["turns"][1]["moved"]
    assert told["turns"][0]["measured_s"] == pytest.approx(2 * told["turns"][0]["predicted_s"])
    assert (told["speedup"], told["learned"], told["foreign_cores"]) == (2.0, True, 0.0)
    assert (told["why"], told["output"]) == (tuning.TRIED, "plan.json")


def test_a_disturbed_machine_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Load, "foreign_cores", lambda _: 0.5)
    assert main(TUNE) == 0
    told = "other processes used 0.50 cores meanwhile: the figures are disturbed, and the profile has not learned from"
    assert f"{told} them" in capsys.readouterr().out


def test_an_interrupt_leaves_the_best_plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> TimedTurn:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "run_turn", interrupted)
    assert main(TUNE) == 130
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0] == "tuned: this is the plan that it began with; interrupted"
    assert captured.err.splitlines()[-1] == "planner: interrupted: 'plan.json' is the best plan until then"
    assert load_plan("plan.json").evaluation.feasible


def test_no_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TUNE, "--pin", "fc2=cpu1", "--forbid", "fc2=cpu1"]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("planner: no plan (infeasible): ")
    assert not Path("plan.json").exists()


@pytest.mark.usefixtures("_paper")
def test_what_cannot_run_is_refused(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a search, of which a busy machine might report that its clock has stopped it."""
    monkeypatch.setattr("planner.planning.tune.make_plan", None)
    assert refused(["tune", MNIST, "--cluster", "paper.toml", "--goal", "latency", "--time-limit", "1"]) == (
        "planner: device 'a' has neither cores nor cuda in cluster.toml; it can be planned for and simulated, "
        "but neither measured nor run"
    )
    write_graph(load_graph(MNIST), Path("graph.json"))
    assert refused(["tune", "graph.json", "--cluster", "paper.toml", "--goal", "latency"]) == (
        "planner: 'graph.json' is a graph, which can be planned for but not run; give the model it came from"
    )
    assert refused(["tune", MNIST, "--split-cpu", "auto", "--goal", "latency"]) == (
        f"planner: tuning is for one division of the CPU; `planner plan {MNIST} --split-cpu auto` finds the best one, "
        "give its number of devices"
    )
