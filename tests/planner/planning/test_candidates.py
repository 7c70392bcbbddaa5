"""The one rule by which plans are compared."""

import pytest

from planner.planning.candidates import Candidate, best_of
from planner.plans.plan import Plan
from planner.problem.problem import Goal
from simulator.placement import Placement
from tests.planner.explanations.small import plan_of
from tests.planner.problem.problems import make_table

# the second device has room for two operators
TABLE = make_table([[4, 4], [1, 1], [5, 5]], op_bytes=[1, 1, 1], capacity_bytes=[3, 2])
PLAN = plan_of(TABLE, Placement((0, 0, 0)), Goal.LATENCY)


def plan(*device: int) -> Plan:
    return PLAN.placed(Placement(device))


def test_a_later_candidate_has_to_be_faster_by_its_margin() -> None:
    table = make_table([[10, 9.6]])
    slow = plan_of(table, Placement((0,)), Goal.LATENCY)
    fast = slow.placed(Placement((1,)))
    assert best_of([Candidate(slow), Candidate(fast, 0.03)]) is fast  # 4 % faster
    assert best_of([Candidate(slow), Candidate(fast, 0.05)]) is slow
    assert best_of([Candidate(fast), Candidate(slow)]) is fast


def test_the_margin_counts_from_the_best_one_before() -> None:
    table = make_table([[10, 9.6, 9.3]])
    one, two, three = (plan_of(table, Placement((device,)), Goal.LATENCY) for device in range(3))
    assert best_of([Candidate(one), Candidate(two, 0.03), Candidate(three, 0.05)]) is two  # 7 % and 3 % faster
    assert best_of([Candidate(one), Candidate(two, 0.05), Candidate(three, 0.05)]) is three


def test_a_plan_that_breaks_a_constraint_is_none() -> None:
    too_much = plan(1, 1, 1)
    assert not too_much.evaluation.feasible
    assert best_of([Candidate(too_much), Candidate(PLAN)]) is PLAN
    assert best_of([Candidate(too_much)]) is None


@pytest.mark.parametrize("device", [(0, 0, 0), (0, 1, 1)])
def test_plans_of_a_task_share_its_problem(device: tuple[int, ...]) -> None:
    other = plan(*device)
    assert other.task is PLAN.task
    assert other.problem is PLAN.problem
    assert other.placement.device == device
