"""Devices that no link leads to."""

from math import inf

import pytest

from planner.problem.infeasible import out_of_reach
from planner.problem.problem import Goal, Problem
from planner.problem.result import Status
from planner.solvers.solve import solve
from simulator.placement import Placement
from tests.planner.problem.problems import make_table

ALONE = [[0.0, inf], [inf, 0.0]]


@pytest.mark.attack("first-try")
@pytest.mark.parametrize("goal", [goal for goal in Goal if goal is not Goal.GENERATION])
def test_a_cluster_without_links_says_that_its_devices_cannot_be_reached(goal: Goal) -> None:
    found = solve(Problem(make_table([[1, 1]] * 4, [(op, (op + 1,), 1) for op in range(3)], ALONE), goal))
    assert found.placement == Placement((0,) * 4)
    assert found.advice == "no link joins 'dev0' to 'dev1', so nothing runs there; add a [[link]] to cluster.toml"


def test_nothing_is_said_of_devices_that_can_be_reached() -> None:
    table = make_table([[1, 1]] * 2, [(0, (1,), 99)])
    found = solve(Problem(table, Goal.LATENCY))
    assert (found.placement, found.status, found.advice) == (Placement((0, 0)), Status.OPTIMAL, "")


def test_links_lead_on_and_one_direction_is_enough() -> None:
    links = [[0, 1, inf, inf], [inf, 0, inf, inf], [inf, 1, 0, inf], [inf, inf, inf, 0]]
    table = make_table([[1] * 4] * 2, [(0, (1,), 1)], links)
    assert out_of_reach(table, Placement((0, 0))) == (
        "no link joins 'dev0' to 'dev3', so nothing runs there; add a [[link]] to cluster.toml"
    )
    assert "joins 'dev3' to 'dev0' and 'dev1' and 'dev2', so" in out_of_reach(table, Placement((3, 3)))


def test_many_devices_are_counted() -> None:
    links = [[0.0 if a == b else inf for a in range(8)] for b in range(8)]
    table = make_table([[1] * 8] * 2, [(0, (1,), 1)], links)
    assert "to 'dev1', 'dev2', 'dev3' and 4 more, so" in out_of_reach(table, Placement((0, 0)))


def test_without_tensors_no_link_is_missed() -> None:
    assert out_of_reach(make_table([[1, 1]], link_s=ALONE), Placement((0,))) == ""
