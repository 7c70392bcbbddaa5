"""Bounds by hand; that none is ever above the truth is tested in tests/planner/law."""

import numpy as np
import pytest

from costmodels.table import CostTable
from planner.problem.blocks import merge_blocks
from planner.problem.bounds import load_bound, lower_bound, packing_bound, path_bound
from planner.problem.evaluate import evaluate
from planner.problem.problem import Goal, Problem
from simulator.placement import Placement
from simulator.training import TrainingStep
from tests.costmodels.parts import table_with
from tests.planner.problem.problems import make_table


def packing(table: CostTable) -> float:
    return packing_bound(merge_blocks(table))


def test_operators_cannot_be_torn() -> None:
    # two of the three must share one of the two devices; five of 3, 3, 2, 2, 2 have three on one: 2 + 2 + 2
    assert packing(make_table([[2, 2]] * 3)) == 2 + 2
    assert packing(make_table([[3, 3], [3, 3], [2, 2], [2, 2], [2, 2]])) == max(3, 3 + 2, 2 + 2 + 2)
    assert packing(make_table([[5, 7, 6], [1, 1, 1]])) == 5  # alone, on its fastest device


def test_a_group_is_one_operator() -> None:
    table = make_table([[2, 2], [1, 1], [4, 4]], together=((0, 2),))
    assert load_bound(merge_blocks(table)) == 2 + 4


def test_a_path_must_be_worked_through() -> None:
    # op0 ─► op1 ─► op3, op0 ─► op2 ─► op3, each on its fastest device: 2 + max(3, 1) + 5
    table = make_table([[2, 4], [9, 3], [1, 1], [5, 6]], [(0, (1, 2), 9), (1, (3,), 9), (2, (3,), 9)])
    assert path_bound(table) == 2 + 3 + 5
    assert lower_bound(Problem(table, Goal.LATENCY)) == 10
    assert lower_bound(Problem(table, Goal.THROUGHPUT)) < 10


def test_many_independent_operators_bound_the_latency_by_the_load() -> None:
    table = make_table([[1, 1]] * 10)
    assert path_bound(table) == 1
    assert lower_bound(Problem(table, Goal.LATENCY)) == pytest.approx(5)


def test_nothing_to_do_takes_no_time() -> None:
    assert load_bound(merge_blocks(make_table(np.zeros((0, 2))))) == 0
    assert lower_bound(Problem(make_table([[0, 0], [0, 0]]), Goal.LATENCY)) == 0


@pytest.mark.parametrize(
    ("goal", "step_s"), [(Goal.THROUGHPUT, 5), (Goal.LATENCY, 5), (Goal.COST, 5), (Goal.TRAINING, 8 * 10)]
)
def test_one_device_finds_the_others_idle(goal: Goal, step_s: float) -> None:
    # op0 ─► op1: isolated 2 + 4 s, or 1 + 4; contended 4 + 16 s on either device
    seconds, slow = np.array([[2.0, 1.0], [4.0, 4.0]]), np.array([[1.0, 3.0], [3.0, 3.0]])
    table = make_table(seconds, [(0, (1,), 0)], slowdown=slow, backward_s=seconds)
    assert lower_bound(Problem(table, goal)) == step_s
    assert lower_bound(Problem(table.contended, goal)) > step_s


def test_company_is_no_reason_for_a_placement_without_room() -> None:
    table = make_table([[4, 4]], op_bytes=[5], capacity_bytes=[4, 4], slowdown=np.ones((1, 2)))
    assert lower_bound(Problem(table, Goal.THROUGHPUT)) == np.inf


@pytest.mark.parametrize(("schedule", "step_s"), [("1f1b", 21), ("zb-h1", 19)])
def test_the_gradients_of_weights_are_worked_out_beside_the_way_back(schedule: str, step_s: float) -> None:
    """One micro-batch on two devices; F, I and W take 1 s on the first one and 6 s on the second.

    In halves: F 1, F 6, I 6, then W 6 there, while I 1 and W 1 are done here: 19. Whole: F 1, F 6, B 12, B 2: 21.
    """
    table = make_table([[1, 1], [6, 6]], [(0, (1,), 0)])
    table = table_with(table, backward_s=2 * table.forward_s, gradient=np.ones(1, dtype=bool))
    problem = Problem(table, Goal.TRAINING, step=TrainingStep(schedule, micro_batches=1))
    assert evaluate(problem, Placement((0, 1))).objective_s == step_s
    assert lower_bound(problem) == (21 if schedule == "1f1b" else 18)  # there all work of the second operator
