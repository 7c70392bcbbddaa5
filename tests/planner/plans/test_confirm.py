"""A plan's proof as it stands in a file: what is honest is believed, what contradicts itself or a placement is not."""

import json
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from graphs.common.errors import InputError
from planner.plans.files import plan_from_dict, plan_to_dict
from planner.plans.plan import Plan
from planner.problem.problem import Goal
from planner.solvers.solve import solve
from simulator.placement import Placement
from tests.planner.explanations.small import make_graph, make_plan
from tests.planner.view.samples import MS, chain_plan, fork_plan, training_plan

Document = dict[str, Any]


def solved(plan: Plan, goal: Goal) -> Plan:
    asked = replace(plan, goal=goal)
    found = solve(asked.problem, time_limit_s=1)
    assert found.placement is not None
    return replace(
        asked, placement=found.placement, status=str(found.status), solver=found.solver, bound_s=found.bound_s
    )


def read(plan: Plan, change: Callable[[Document], object] = lambda _: None) -> Plan:
    """What is read of a plan's file after a change by hand."""
    document = json.loads(json.dumps(plan_to_dict(plan)))
    change(document)
    return plan_from_dict(document)


@pytest.mark.parametrize("goal", [Goal.THROUGHPUT, Goal.LATENCY, Goal.COST])
def test_what_a_solver_has_proved_is_believed(goal: Goal) -> None:
    plan = solved(chain_plan([""] * 5, 2), goal)
    again = read(plan)
    assert (again.status, again.solver, again.bound_s) == (plan.status, plan.solver, plan.bound_s)
    assert again.status == ("feasible" if goal is Goal.THROUGHPUT else "optimal")  # 2 and 3 of 5 operators; copies 2.5


def test_a_training_plan_is_believed() -> None:
    plan = solved(read(training_plan()), Goal.TRAINING)
    assert (read(plan).status, read(plan).bound_s) == (plan.status, plan.bound_s)


FORGED: dict[str, tuple[Document, str]] = {
    "bound": ({"bound_s": 0.02}, "the plan says that nothing is below 20 ms, and takes 10 ms itself"),
    "no bound": ({"bound_s": -1.0}, "the plan's bound is -1.0 s"),
    "infinite": ({"bound_s": "inf"}, "the plan's bound is inf s"),
    "status": ({"status": "infeasible"}, "the plan has a placement and the status 'infeasible'"),
    "no status": (
        {"status": "perfect"},
        "the plan is damaged: ValueError(\"'perfect' is not a valid Status\")",
    ),
}


@pytest.mark.attack("proof")
@pytest.mark.parametrize("name", FORGED)
def test_a_proof_that_contradicts_its_own_plan(name: str) -> None:
    change, said = FORGED[name]
    with pytest.raises(InputError) as error:
        read(fork_plan(), lambda document: document.update(change))
    assert str(error.value) == f"{said}; plan again"


@pytest.mark.attack("proof")
def test_a_proof_that_one_device_contradicts() -> None:
    """All its figures are those of a bad placement, which is called the best."""
    bad = Placement((0, 1, 0, 1, 0))
    plan = replace(chain_plan([""] * 5, 2), placement=bad, goal=Goal.LATENCY)
    forged = replace(plan, status="optimal", bound_s=plan.objective_s)
    with pytest.raises(InputError) as error:
        read(forged)
    assert str(error.value) == (
        "the plan says that nothing is below 9.06 ms; with all operators on 'cpu0' it is 5 ms; plan again"
    )


@pytest.mark.attack("proof")
def test_a_network_before_its_split_is_no_placement_of_its_parts() -> None:
    """However fast it was on one device, a bound of the parts holds; it has to have taken some time."""
    plan = solved(chain_plan([""] * 5, 2), Goal.LATENCY)
    assert read(replace(plan, whole_share=1e-9)).bound_s == plan.bound_s
    for share in (0.0, -1.0, inf):
        with pytest.raises(InputError) as error:
            read(replace(plan, whole_share=share))
        assert str(error.value) == f"the plan's whole_share is {share:g}; plan again"


@pytest.mark.attack("file")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"solver": 0}, "the plan has solver = 0; give a text"),
        (
            {"robustness": {"scenarios": "x", "worst_regret": 0, "mean_regret": 0, "nominal_regret": 0}},
            "the robustness has scenarios = 'x'; give a whole number",
        ),
    ],
    ids=["solver", "robustness"],
)
def test_a_field_of_another_type(change: Document, said: str) -> None:
    with pytest.raises(InputError) as error:
        read(solved(chain_plan([""] * 5, 2), Goal.LATENCY), lambda document: document.update(change))
    assert str(error.value) == said


@pytest.mark.attack("proof")
def test_a_bound_that_copies_of_everything_contradict() -> None:
    """The best of one copy takes 3 of 5 operators of a millisecond; two copies let one leave every 2.5 ms."""
    plan = solved(chain_plan([""] * 5, 2), Goal.THROUGHPUT)
    assert (plan.objective_s, plan.bound_s) == (3 * MS, 2.5 * MS)
    with pytest.raises(InputError) as error:
        read(replace(plan, status="optimal", bound_s=plan.objective_s))
    assert str(error.value) == (
        "the plan says that nothing is below 3 ms; with copies of everything it is 2.5 ms; plan again"
    )


@pytest.mark.attack("proof")
def test_a_bound_that_does_not_follow_where_no_device_holds_everything() -> None:
    """Three operators of 2, 10 and 2 s, of which a device holds two: copies of b make less than 10 s possible."""
    line = make_graph(dict.fromkeys("abc", "m"), {"b": "a", "c": "b"}, None, {name: f"w{name}" for name in "abc"})
    plan = make_plan(line, (2, 10, 2), "010", n_devices=3, memory_bytes=35.0, bound_s=14 / 3)
    assert plan.evaluation.feasible
    assert read(plan).bound_s == 14 / 3  # 14 s of work on three devices
    with pytest.raises(InputError) as error:
        read(replace(plan, bound_s=10.0))
    assert str(error.value) == (
        "the plan says that nothing is below 10 s; "
        "for any number of copies its costs prove no more than 4.67 s; plan again"
    )


def moved(document: Document) -> None:
    document["placement"]["op0"] = "cpu1"


def slower(document: Document) -> None:
    document["costs"][0]["forward_s"][0] = 1.0


def doubled(document: Document) -> None:
    document["predicted"]["load_s"]["cpu0"] *= 2


def loosened(document: Document) -> None:
    document["bound_s"] /= 2  # and is optimal nevertheless


@pytest.mark.attack("proof")
@pytest.mark.parametrize("change", [moved, slower, doubled, loosened])
def test_a_plan_that_was_changed_has_no_proof_any_more(change: Callable[[Document], None]) -> None:
    plan = solved(chain_plan([""] * 5, 2), Goal.COST)
    again = read(plan, change)
    assert (again.status, again.solver) == ("feasible", "by hand")
    assert 0 < again.bound_s <= again.objective_s


@pytest.mark.attack("proof")
def test_a_plan_that_does_not_fit_any_more_is_none() -> None:
    def smaller(document: Document) -> None:
        for device in document["cluster"]["devices"]:
            device["memory_bytes"] = 1.0

    assert read(solved(chain_plan([""] * 5, 2), Goal.COST), smaller).status == "unknown"


def test_a_bound_that_is_too_low_does_no_harm() -> None:
    assert read(replace(fork_plan(), bound_s=1 * MS)).bound_s == 1 * MS
