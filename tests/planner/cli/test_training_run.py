"""``planner run`` with a plan for training: gradients, times, and what was predicted, in tables and as JSON."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodels.workload import Workload
from planner.cli import main
from planner.cli.training_run import compare_step
from planner.plans.files import load_plan
from planner.plans.runs import load_run
from planner.problem.problem import Goal
from planner.runtime.training.prepare import stage_layout
from simulator.placement import Placement
from simulator.timeline import Timeline
from tests.costmodels.parts import table_with
from tests.planner.cli.given import MNIST, Refused, pair_here
from tests.planner.sample import PLAN

LABELS = {"optimizer", *(f"{s}{c}{i}" for s in "01" for c in "FB" for i in range(4))}


@pytest.fixture(autouse=True)
def _pair() -> None:
    Path("pair.toml").write_text(pair_here(), encoding="utf-8")


def planned(*options: str) -> None:
    training = ("--goal", "training", "--optimizer", "adam", "--micro-batches", "4", "--batch", "2")
    assert main(["plan", MNIST, "--cluster", "pair.toml", *training, *options]) == 0


def checked_run(capsys: pytest.CaptureFixture[str], *links: str) -> Timeline:
    """What run.json has, when all that people read has been seen, these links too."""
    shown = capsys.readouterr()
    assert "steps of 4 micro-batches of 2 by 1f1b" in shown.out
    for row in (
        "plan, predicted",
        "plan, measured",
        "one device, measured",
        "a: stage 0, conv2d",
        "b: stage 1",
        *links,
    ):
        assert row in shown.out
    assert "the gradients are bit-equal to the reference model's" in shown.err + shown.out
    return load_run(Path("run.json"), load_plan("plan.json")).timeline


def test_a_training_plan_is_run_checked_measured_and_compared(capsys: pytest.CaptureFixture[str]) -> None:
    planned()
    capsys.readouterr()
    assert main(["run", "plan.json", MNIST, "--rounds", "2", "-o", "run.json"]) == 0
    run = checked_run(capsys)
    assert {span.label for span in run.spans if span.kind == "compute"} == LABELS


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    planned("--schedule", "zb-h1")
    capsys.readouterr()
    assert main(["run", "plan.json", MNIST, "--rounds", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["bit_equal"], document["differences"]) == (True, [])
    assert document["predicted"]["step_s"] > 0
    assert document["measured"].keys() == {"plan", "one device"}
    assert document["speedup"]["one device"] > 0
    against = document["against_prediction"]
    assert [figure["name"] for figure in against["totals"]] == ["step"]
    assert [figure["name"] for figure in against["devices"]] == ["a", "b"]
    assert [figure["name"][:10] for figure in against["stages"]] == ["a: stage 0", "b: stage 1"]


def test_what_runs_as_predicted_is_off_by_nothing() -> None:
    """On one device the others are idle: the turn of zbv, its stages and the step are those of the prediction."""
    seconds = np.array([[3.0], [1.0], [2.0]]).repeat(3, axis=1)
    slow = np.array([[0.0], [3.0], [3.0]]).repeat(3, axis=1)
    costs = table_with(PLAN.table, forward_s=seconds, backward_s=seconds, slowdown=slow)
    work = Workload("training", micro_batches=2, schedule="zbv")
    plan = replace(PLAN, goal=Goal.TRAINING, workload=work, table=costs, placement=Placement((0, 0, 0)))
    found = compare_step(plan, plan.simulate(), 2 * 2 * (3 + 1 + 2))
    assert [(one.name, one.predicted_s) for one in found.totals] == [("step", 24)]
    assert [(one.name, one.predicted_s) for one in found.devices] == [("cpu0", 12)]
    assert [(one.name, one.predicted_s) for one in found.stages] == [
        ("cpu0: stage 0, a … a", 6),
        ("cpu0: stage 1, b … c", 6),
    ]
    assert {one.error for one in (*found.totals, *found.devices, *found.stages)} == {0}
    assert stage_layout(plan).members == ((0,), (1, 2))  # what is trained


@pytest.mark.slow
def test_each_device_in_a_process_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    planned()
    capsys.readouterr()
    assert main(["run", "plan.json", MNIST, "--processes", "--rounds", "2", "-o", "run.json"]) == 0
    run = checked_run(capsys, "a → b", "b → a")
    assert {(span.kind, span.resource) for span in run.spans} == {
        *(("compute", name) for name in "ab"),
        *(("transfer", link) for link in ("a → b", "b → a")),
    }
    assert {span.label for span in run.spans if span.kind == "compute"} == LABELS


@pytest.mark.parametrize("words", [[], ["--processes"]], ids=["threads", "processes"])
def test_replicas(words: list[str], refused: Refused) -> None:
    """They are on other hosts, so this command cannot start them."""
    Path("pair.toml").write_text(pair_here(), encoding="utf-8")
    planned("--replicas", "2")
    assert refused(["run", "plan.json", MNIST, *words]) == (
        "planner: the plan is for 2 replicas of its devices, which ranks train; start one for each "
        "device of each replica by torchrun -m planner rank, or plan without replicas"
    )
