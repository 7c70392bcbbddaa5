"""Branch and bound beside a host: by hand, against brute force, and its partial placements against all that go on."""

from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.table import CostTable
from planner.literature.placement.kernel import latency_s, workplace
from planner.literature.placement.offload_branch import OffloadBranch
from planner.literature.placement.offload_latency import kernel_costs
from planner.problem.blocks import merge_blocks
from planner.problem.evaluate import evaluate
from planner.problem.problem import Goal, Problem
from planner.problem.result import Status
from planner.solvers.base import Budget
from planner.solvers.solve import solve
from simulator.placement import Placement
from tests.planner.literature.placement.offloads import offload_table, offload_tables
from tests.planner.problem.problems import make_table, value

SOLVER = OffloadBranch()


def best_of_all(problem: Problem) -> float:
    table = problem.table
    return min(value(problem, Placement(device)) for device in product(range(table.n_devices), repeat=table.n_ops))


@given(offload_tables(max_ops=5))
def test_it_proves_what_brute_force_finds(table: CostTable) -> None:
    problem = Problem(table, Goal.LATENCY)
    answer, expected = SOLVER.search(problem, Budget(10.0)), best_of_all(problem)
    assert answer.complete
    if expected == inf:
        assert answer.placement is None
    else:
        assert answer.placement is not None
        assert value(problem, answer.placement) == pytest.approx(expected)
        assert answer.bound_s == pytest.approx(expected)


@given(st.data())
def test_what_goes_on_takes_no_less(data: st.DataObject) -> None:
    table = data.draw(offload_tables(max_ops=6))
    costs = kernel_costs(merge_blocks(table))
    room = workplace(costs).room
    device = np.asarray([data.draw(st.integers(0, table.n_devices - 1)) for _ in table.ops])
    before_s = 0.0
    shown = np.full(table.n_ops, -1)
    for op in data.draw(st.permutations(range(table.n_ops))):
        shown[op] = device[op]
        now_s = latency_s(costs, shown, room)
        assert now_s >= before_s * (1 - 1e-12)
        before_s = now_s


def test_what_is_not_placed_takes_its_quickest_way() -> None:
    # on the accelerator 2 s and 1 to store; behind it 3 or 4 s, then 5
    table = offload_table([[2, 9], [3, 4], [5, 5]], [(0, (1,), 1), (1, (2,), 1)])
    costs = kernel_costs(merge_blocks(table))
    room = workplace(costs).room
    assert latency_s(costs, np.asarray([0, -1, -1]), room) == 2 + 3 + 5
    assert latency_s(costs, np.asarray([0, 1, -1]), room) == (2 + 1) + 4 + 5


def test_a_placement_is_proved_that_trying_all_would_take_ages_for() -> None:
    """3 ^ 20 placements of a chain that memory divides: two runs of ten, and one tensor between them."""
    table = offload_table(
        [[1, 1, 10]] * 20, [(op, (op + 1,), 2) for op in range(19)], op_bytes=[1] * 20, capacity_bytes=10
    )
    found = solve(Problem(table, Goal.LATENCY), gap=0.0)
    assert (found.status, found.objective_s) == (Status.OPTIMAL, 24)
    assert found.placement is not None
    assert evaluate(Problem(table, Goal.LATENCY), found.placement).feasible


def test_without_room_there_is_none() -> None:
    table = offload_table([[1, 1]] * 4, n_hosts=0, op_bytes=[3] * 4, capacity_bytes=5)
    answer = SOLVER.search(Problem(table, Goal.LATENCY), Budget(10.0))
    assert (answer.placement, answer.complete) == (None, True)


def test_it_refuses_what_has_no_host() -> None:
    problem = Problem(make_table([[1, 1]]), Goal.LATENCY)
    assert SOLVER.refuses(problem) == "devices that exchange tensors without a host between them"
