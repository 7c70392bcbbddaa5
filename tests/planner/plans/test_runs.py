import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphs.common.errors import InputError
from planner.plans.files import load_plan, save_plan
from planner.plans.runs import (
    MeasuredRun,
    load_run,
    placement_fingerprint,
    run_from_dict,
    run_to_dict,
    save_run,
    streamed,
)
from simulator.placement import Placement
from tests.planner.view.samples import chain_plan, fork_plan


def test_a_run_comes_back_as_it_was(tmp_path: Path) -> None:
    plan = fork_plan()
    run = streamed(plan, plan.simulate(40), 0.25, 0.5)
    assert run.usage is not None
    assert run.timeline.micro_batches == 16
    save_run(plan, run, tmp_path / "run.json")
    assert load_run(tmp_path / "run.json", plan) == run


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    plan = fork_plan()
    for name in "ab":
        save_run(plan, MeasuredRun(plan.simulate(2)), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_fingerprint_is_of_the_network_and_the_placement() -> None:
    plan = fork_plan()
    assert placement_fingerprint(plan) == placement_fingerprint(fork_plan(bound_s=1.0))
    moved = replace(plan, placement=Placement((0, 0, 0, 0, 0, 0)))
    assert placement_fingerprint(plan) != placement_fingerprint(moved)
    reordered = replace(plan, placement=Placement(plan.placement.device, (0, 1, 3, 2, 4, 5)))
    assert placement_fingerprint(plan) != placement_fingerprint(reordered)


def document(**changes: Any) -> dict[str, Any]:
    plan = fork_plan()
    found: dict[str, Any] = json.loads(json.dumps(run_to_dict(plan, MeasuredRun(plan.simulate(1)))))
    return {name: value for name, value in {**found, **changes}.items() if changes.get(name, 0) is not None}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"version": 2}, "the run has the version 2, this planner reads 1; run the plan again"),
        ({"version": None}, "the run has the version None"),
        ({"spans": None}, "the run is damaged: KeyError('spans'); run the plan again"),
        ({"spans": [["compute"]]}, "the run is damaged: TypeError("),
        ({"spans": [["compute", "cpu0", "a", 0, 0, "now", 1.0]]}, "the run is damaged: TypeError("),
        ({"usage": {"period_s": 1.0}}, "the run is damaged: KeyError('devices')"),
        ({"seconds": "soon"}, "the run is damaged: ValueError("),
        ({"spans": []}, "the run is empty; run the plan again"),
        ({"plan": "0" * 12}, "the run of 'fork' is not one of this plan; run this one: planner run -o FILE"),
        ({"devices": ["cpu0"]}, "the run of 'fork' is not one of this plan"),
    ],
)
def test_what_is_no_run_of_this_plan_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as refused:
        run_from_dict(document(**changes), fork_plan())
    assert str(refused.value).startswith(told)


def test_a_run_of_another_plan_is_refused(tmp_path: Path) -> None:
    save_run(fork_plan(), MeasuredRun(fork_plan().simulate()), tmp_path / "run.json")
    with pytest.raises(InputError, match="is not one of this plan"):
        load_run(tmp_path / "run.json", chain_plan(["", ""], 2))
    save_plan(fork_plan(), tmp_path / "plan.json")
    with pytest.raises(InputError, match=r"plan.json' is a plan, no recorded run; make one with planner run PLAN "):
        load_run(tmp_path / "plan.json", fork_plan())
    with pytest.raises(InputError, match=r"run.json' is a recorded run, no plan; make one with planner plan MODEL "):
        load_plan(tmp_path / "run.json")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read the run '.*none\.json'"):
        load_run(tmp_path / "none.json", fork_plan())
