"""One device for everything: every one that could be best is tried; devices that gain nothing are left out."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given

from costmodels.step_update import StepUpdate
from costmodels.table import CostTable
from planner.problem.evaluate import evaluate
from planner.problem.problem import Goal, Problem
from planner.problem.result import Status
from planner.solvers.fewer_devices import best_single_device, on_fewer, worth_one_device
from planner.solvers.solve import solve
from simulator.placement import Placement
from simulator.training import TrainingStep
from tests.costmodels.parts import table_with
from tests.planner.literature.placement.offloads import make_offload
from tests.planner.problem.problems import brute_force, make_table, tables, value


def with_a_fifth(n_full: int = 4) -> CostTable:
    """Quick devices without room to work, and one that is slow under contention and by far the best alone."""
    quick = [1 + device / 10 for device in range(n_full)]
    return make_table(
        [[*quick, 2]] * 3,
        [(0, (1,), 60), (1, (2,), 60)],
        op_bytes=[1] * 3,
        capacity_bytes=[*[3] * n_full, 100],
        working_bytes=2.0,
        slowdown=np.asarray([[0.0] * n_full + [49.0]] * 3),
    )


@pytest.mark.attack("proof")
@pytest.mark.parametrize(
    ("goal", "solver"),
    [
        (Goal.LATENCY, "ilp"),
        (Goal.LATENCY, "branch-and-bound"),
        (Goal.LATENCY, "auto"),
        (Goal.COST, "ilp"),
        (Goal.THROUGHPUT, "ilp"),
    ],
)
def test_devices_without_room_do_not_hide_the_best_one(goal: Goal, solver: str) -> None:
    problem = Problem(with_a_fifth(), goal)
    found = solve(problem, solver, time_limit_s=60.0, gap=0.0)
    assert found.placement == Placement((4,) * 3)
    assert found.objective_s == brute_force(problem) == 6


@pytest.mark.attack("proof")
def test_a_device_with_the_quicker_optimizer_is_not_taken_for_the_same_as_another() -> None:
    update = StepUpdate(np.ones(2), np.asarray([9.0, 1.0]), np.zeros(2), np.zeros(2))
    problem = Problem(
        table_with(make_table([[1, 1]] * 2, [(0, (1,), 99)]), update=update), Goal.TRAINING, step=TrainingStep()
    )
    assert solve(problem, time_limit_s=60.0).placement == Placement((1, 1))


@given(tables(max_ops=4))
def test_the_best_device_is_the_best_of_all(table: CostTable) -> None:
    for goal in (Goal.THROUGHPUT, Goal.LATENCY, Goal.COST):
        problem = Problem(table, goal)
        least_s = min(value(problem, Placement((device,) * table.n_ops)) for device in range(table.n_devices))
        found = best_single_device(problem)
        assert (inf if found is None else found[1]) == pytest.approx(least_s)


def test_one_of_devices_alike_is_tried_and_none_that_cannot_be_better() -> None:
    problem = Problem(make_table([[3, 2, 2, 5]] * 2), Goal.THROUGHPUT)
    assert [one.device for one in worth_one_device(problem, lambda: inf)] == [(1, 1), (0, 0), (3, 3)]
    assert [one.device for one in worth_one_device(problem, lambda: 5.9)] == [(1, 1)]
    assert best_single_device(problem) == (Placement((1, 1)), 4)


def test_a_host_runs_everything_at_once() -> None:
    # 9 s one after the other on the accelerator; on the host 4 s each, at the same time
    problem = Problem(make_offload([[3, 4]] * 3, hosts=[1]), Goal.LATENCY)
    assert best_single_device(problem) == (Placement((1,) * 3), 4)


def test_no_device_has_room() -> None:
    assert (
        best_single_device(Problem(make_table([[1, 1]] * 2, op_bytes=[2, 2], capacity_bytes=[3, 3]), Goal.COST)) is None
    )


def row(seconds: Sequence[float], n_devices: int) -> Problem:
    """Operators that feed the next one, for nothing, alike on all devices."""
    flows = [(op, (op + 1,), 0.0) for op in range(len(seconds) - 1)]
    return Problem(make_table([[one] * n_devices for one in seconds], flows), Goal.THROUGHPUT)


@pytest.mark.attack("first-try")
def test_a_device_that_gains_nothing_is_not_used() -> None:
    # 67.5 s and 0.1 s on another device; 67.6 s on one are within the gap
    problem = row([67.5, 0.1], 2)
    found = solve(problem, gap=0.05)
    assert found.placement is not None
    assert (set(found.placement.device), found.objective_s, found.bound_s) == ({0}, 67.6, 67.5)
    assert (found.status, found.solver) == (Status.FEASIBLE, "one device")
    assert solve(problem, gap=0.0).objective_s == 67.5


@pytest.mark.attack("first-try")
def test_of_three_devices_the_one_that_gains_nothing_is_not_used() -> None:
    found = solve(row([5.0, 0.1, 5.0], 3), gap=0.05)
    assert found.placement is not None
    assert (len(set(found.placement.device)), found.objective_s) == (2, 5.1)
    assert found.gap <= 0.05


def test_devices_are_given_up_as_long_as_the_objective_allows() -> None:
    problem = row([1.0] * 6, 6)
    apart = Placement(tuple(range(6)))
    for most_s, n_used in ((1.0, 6), (2.0, 3), (3.0, 3), (4.0, 2), (6.0, 1)):
        fewer = on_fewer(problem, apart, most_s, lambda: False)
        assert len(set(fewer.device)) == n_used
        assert evaluate(problem, fewer).objective_s <= most_s
    assert on_fewer(problem, apart, 6.0, lambda: True) == apart


def test_what_has_no_room_elsewhere_keeps_its_device() -> None:
    table = replace(row([5.0, 0.1], 2).table, op_bytes=np.ones(2), capacity_bytes=np.ones(2))
    found = solve(Problem(table, Goal.THROUGHPUT), gap=0.05)
    assert found.placement is not None
    assert len(set(found.placement.device)) == 2
