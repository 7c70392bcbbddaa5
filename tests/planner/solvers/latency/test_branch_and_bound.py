"""Branch and bound by hand and against the literature; against all placements it is tested in tests/planner/law."""

import json
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from costmodels.table import CostTable
from planner.problem.blocks import merge_blocks
from planner.problem.problem import Goal, Problem
from planner.problem.result import Status
from planner.solvers.base import Budget
from planner.solvers.latency.branch_and_bound import BranchAndBound, channels_apart
from planner.solvers.latency.branch_kernel import explore, root, tails
from planner.solvers.latency.makespan_data import costs_of, work_for
from planner.solvers.solve import solve
from tests.planner.problem.problems import make_table, value
from tests.planner.solvers.literature import ARABNEJAD, TOPCUOGLU, Example, table_of

CANONICAL = Path(__file__).parents[5] / "shared" / "bench" / "dag" / "canonical.json"
FOREVER = Budget(time_limit_s=1e9, gap=0.0)


def least_without_waiting(table: CostTable) -> float:
    """The least makespan if transfers never wait for each other, as in the literature."""
    costs, work = costs_of(table), work_for(table)
    tree = root(merge_blocks(table), costs, inf)
    explore(costs, work, tree, 10_000_000, False)
    assert tree.depth[0] == -1
    return float(tree.seconds[0])


@pytest.mark.parametrize(("example", "least"), [(TOPCUOGLU, 73), (ARABNEJAD, 113)])
def test_the_optima_of_the_literature(example: Example, least: float) -> None:
    """There, transfers have a channel to themselves; the front door proves what the papers give."""
    assert least_without_waiting(table_of(example)) == least
    result = solve(Problem(replace(table_of(example), sharing="unlimited"), Goal.LATENCY), time_limit_s=60.0, gap=0.0)
    assert (result.status, result.objective_s) == (Status.OPTIMAL, least)


@pytest.mark.parametrize(("example", "least"), [(TOPCUOGLU, 75), (ARABNEJAD, 117)])
def test_with_one_channel_for_each_pair_the_optima_are_later(example: Example, least: float) -> None:
    # no hand sum: the tree without waiting has 73 and 113 as above, and small trees are compared with all placements
    problem = Problem(table_of(example), Goal.LATENCY)
    answer = BranchAndBound().search(problem, FOREVER)
    assert answer.complete
    assert answer.placement is not None
    assert value(problem, answer.placement) == answer.bound_s == least


def test_nothing_fits() -> None:
    table = make_table([[1, 1]] * 3, op_bytes=[6, 6, 6], capacity_bytes=[10, 10])
    answer = BranchAndBound().search(Problem(table, Goal.LATENCY), FOREVER)
    assert (answer.placement, answer.complete) == (None, True)


def test_without_steps_the_longest_path_remains() -> None:
    # from op0 on dev0: 2 + min(3, 4 sent + 9) = 5; on dev1: 1 + min(9, 4 sent + 3) = 8
    table = make_table([[2, 1], [3, 9]], [(0, (1,), 4)])
    assert tails(merge_blocks(table), costs_of(table)).tolist() == [[5, 8], [3, 9]]
    answer = BranchAndBound(steps=0).search(Problem(table, Goal.LATENCY), FOREVER)
    assert (answer.bound_s, answer.complete) == (5, False)


def test_what_shares_a_channel() -> None:
    assert channels_apart(make_table([[1, 1, 1]]))
    assert not channels_apart(make_table([[1, 1, 1]], channel="bus"))
    assert not channels_apart(make_table([[1, 1]], overlap=False))
    assert channels_apart(make_table([[1]]))


def test_ties_on_a_bus_leave_a_bound() -> None:
    # dev0 and dev1 both send 4 s to dev2 at 1; without waiting 1 + 4 + 1, on one bus 1 + 4 + 4 + 1
    table = make_table([[1, inf, inf], [inf, 1, inf], [inf, inf, 1]], [(0, (2,), 4), (1, (2,), 4)], channel="bus")
    answer = BranchAndBound().search(Problem(table, Goal.LATENCY), FOREVER)
    assert answer.placement is not None
    assert (value(Problem(table, Goal.LATENCY), answer.placement), answer.bound_s, answer.complete) == (10, 6, False)


@pytest.mark.attack("proof")
def test_a_device_that_is_slower_alone_hides_nothing() -> None:
    # isolated 4 + 4 on one device; on two devices, contended, 2, 1 sent, 2
    table = make_table([[4, 4], [4, 4]], [(0, (1,), 1)], slowdown=np.full((2, 2), -0.5))
    found = solve(Problem(table, Goal.LATENCY), BranchAndBound(), gap=0.0)
    assert found.bound_s <= 2 + 1 + 2
    assert found.status is not Status.OPTIMAL or found.objective_s == 2 + 1 + 2


@pytest.mark.skipif(not CANONICAL.exists(), reason="needs the literature's examples beside the repository")
@pytest.mark.parametrize("name", ["topcuoglu_2002", "arabnejad_2014"])
def test_the_optima_that_are_handed_down(name: str) -> None:
    example = json.loads(CANONICAL.read_text())[name]
    table = make_table(example["compute"], [(writer, (reader,), cost) for writer, reader, cost in example["edges"]])
    assert least_without_waiting(table) == example["makespan"]["optimum"]
