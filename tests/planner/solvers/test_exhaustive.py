"""The reference solver by hand; that it finds the least of all placements is tested in tests/planner/law."""

from math import inf

import pytest

from planner.problem.problem import Goal, Problem
from planner.solvers.base import Budget
from planner.solvers.exhaustive import Exhaustive, count_placements
from simulator.placement import Placement
from tests.planner.literature.placement.offloads import make_offload
from tests.planner.problem.problems import make_table

FOREVER = Budget(time_limit_s=1e9)


def test_the_best_of_sixteen() -> None:
    # 4 + 1 against 3 + 2, no transfers
    problem = Problem(make_table([[4, 4], [3, 3], [2, 2], [1, 1]]), Goal.THROUGHPUT)
    answer = Exhaustive().search(problem, FOREVER)
    assert answer.complete
    assert answer.placement == Placement((0, 1, 1, 0))  # the first of those worth 5
    assert answer.bound_s == 5


def test_the_best_order() -> None:
    # op1 first, so that op2 can start on the other device: 1 + 5
    problem = Problem(make_table([[5, 5], [1, 1], [5, 5]], [(1, (2,), 0)]), Goal.LATENCY)
    answer = Exhaustive().search(problem, FOREVER)
    assert (answer.bound_s, answer.complete) == (6, True)
    assert answer.placement == Placement((0, 0, 1), (1, 0, 2))


def test_nothing_fits() -> None:
    table = make_table([[1, 1]] * 3, op_bytes=[6, 6, 6], capacity_bytes=[10, 10])
    answer = Exhaustive().search(Problem(table, Goal.THROUGHPUT), FOREVER)
    assert (answer.placement, answer.complete) == (None, True)


def test_out_of_time_it_tries_so_many_that_take_no_time_and_claims_nothing() -> None:
    # of 2 ** 12 placements the first 2,000 have the first operator on device 0
    problem = Problem(make_table([[1, 0.5], *[[1, 1]] * 11]), Goal.THROUGHPUT)
    answer = Exhaustive().search(problem, Budget(time_limit_s=0.0))
    assert answer.placement is not None
    assert (answer.placement.device[0], answer.complete, answer.bound_s, answer.by_clock) == (0, False, 0, True)


def test_few_placements_are_all_tried_whatever_the_clock_says() -> None:
    problem = Problem(make_table([[1, 1]] * 5), Goal.THROUGHPUT)
    answer = Exhaustive().search(problem, Budget(time_limit_s=0.0, incumbent=Placement((0,) * 5)))
    assert (answer.bound_s, answer.complete, answer.by_clock) == (3.0, True, False)


def test_it_works_on_more_operators_than_python_can_nest() -> None:
    problem = Problem(make_table([[1, 1]] * 1500), Goal.THROUGHPUT)
    answer = Exhaustive().search(problem, Budget(time_limit_s=0.5))
    assert answer.placement is not None
    assert not answer.complete


def test_how_many_placements_there_are() -> None:
    table = make_table([[1, 1], [1, inf], [1, 1], [1, 1]], [(0, (1,), 1)], together=((2, 3),))
    # op0: 2, op1: 1, op2 and op3: 2
    assert count_placements(Problem(table, Goal.THROUGHPUT), 99) == 2 * 1 * 2
    # and 4! / 2 orders with op0 before op1
    assert count_placements(Problem(table, Goal.LATENCY), 99) == 2 * 1 * 2 * 12
    assert count_placements(Problem(table, Goal.LATENCY), 30) == 30
    assert count_placements(Problem(table, Goal.THROUGHPUT), 3) == 3


@pytest.mark.attack("proof")
def test_a_host_runs_its_operators_at_once() -> None:
    # one after the other the accelerator takes 8 s, and the host would take 10 s
    table = make_offload([[4, 5], [4, 5]], hosts=[1])
    answer = Exhaustive().search(Problem(table, Goal.LATENCY), FOREVER)
    assert (answer.bound_s, answer.complete) == (5, True)
