"""Training steps under any schedule: bounds and claims against the exhaustive solver, as far as that tries everything.

What solvers claim of all other problems is held against an independent truth in tests/planner/law.
"""

from contextlib import suppress
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.step_update import StepUpdate
from costmodels.workload import RECOMPUTE_MODES, TRAINING_SCHEDULES
from graphs.common.errors import InputError
from planner.problem.bounds import lower_bound
from planner.problem.evaluate import evaluate, step_bounds
from planner.problem.problem import Goal, Problem
from planner.problem.result import PROOF_TOLERANCE, Status
from planner.problem.schedule_bounds import memory_bound
from planner.solvers.base import Budget, objective_of
from planner.solvers.exhaustive import Exhaustive
from planner.solvers.solve import solve
from simulator.training import TrainingStep
from tests.costmodels.parts import table_with
from tests.planner.problem.problems import make_table, tables, value
from tests.simulator.tables import placements

ROUNDING = 1e-9
PLENTY_S = 20.0


@st.composite
def training_problems(draw: st.DrawFn) -> Problem:
    """Steps under any schedule, with memory by the micro-batch, perhaps recomputing, with an optimizer at the end."""
    table = draw(tables(max_ops=5))
    n, k = table.n_ops, table.n_devices
    some = st.lists(st.integers(0, 5).map(float), min_size=n, max_size=n).map(np.asarray)
    saved_bytes = draw(some)
    table = table_with(
        table,
        backward_s=np.where(np.isfinite(table.forward_s), 2 * table.forward_s, 0.0),
        saved_bytes=saved_bytes,
        ends_bytes=np.minimum(draw(some), saved_bytes),
        gradient=np.ones(len(table.flows), dtype=bool),
        update=StepUpdate(draw(some), np.ones(k), np.full(k, draw(st.integers(0, 1))), np.zeros(k)),
    )
    step = TrainingStep(
        draw(st.sampled_from(TRAINING_SCHEDULES)), draw(st.integers(1, 4)), draw(st.sampled_from(RECOMPUTE_MODES))
    )
    return Problem(table, Goal.TRAINING, step=step)


@given(training_problems())
def test_no_bound_is_above_any_placement_of_a_training_step(problem: Problem) -> None:
    bound_s = lower_bound(problem)
    placement = Exhaustive().search(problem, Budget(1e9)).placement
    best_s = inf if placement is None else value(problem, placement)
    assert bound_s <= best_s * (1 + ROUNDING)
    result = solve(problem, time_limit_s=PLENTY_S, gap=0.0)
    assert result.objective_s <= best_s * (1 + ROUNDING)
    assert result.bound_s <= result.objective_s * (1 + PROOF_TOLERANCE)
    assert result.status is not Status.INFEASIBLE or best_s == inf


@given(training_problems(), st.data())
def test_no_step_of_a_placement_is_shorter_than_its_own_bounds(problem: Problem, data: st.DataObject) -> None:
    placement = data.draw(placements(problem.table))
    with suppress(InputError):  # no link, or no pipeline that the schedule can run
        step_s = evaluate(problem, placement).objective_s
        assert all(least_s <= step_s for least_s in step_bounds(problem, placement))


@given(training_problems(), st.data())
def test_what_is_not_faster_is_told_from_what_is(problem: Problem, data: st.DataObject) -> None:
    """The objective below a limit is exact, and above it no less than the limit."""
    placement = data.draw(placements(problem.table))
    exact_s = objective_of(problem, placement)
    for below_s in (0.5 * exact_s, exact_s, 2 * exact_s + 1):
        found_s = objective_of(problem, placement, below_s)
        assert found_s == exact_s if exact_s < below_s else found_s >= below_s


def first_of_two_holds_two(capacity_bytes: float) -> Problem:
    """A line of four operators of 1 s there and 1 s back on two devices, 4 micro-batches that keep 1 byte in each."""
    table = make_table([[1.0, 1.0]] * 4, [(op, (op + 1,), 0.0) for op in range(3)], capacity_bytes=[capacity_bytes] * 2)
    table = table_with(
        table, backward_s=np.ones((4, 2)), saved_bytes=np.ones(4), gradient=np.ones(3, dtype=bool), held=1.0
    )
    return Problem(table, Goal.TRAINING, step=TrainingStep("1f1b", 4))


def test_the_first_stage_has_room_for_half_as_many_operators() -> None:
    problem = first_of_two_holds_two(3.0)
    # 1.5 operators with 2 micro-batches each in the first stage, 2.5 with one in the last: 4 * 2 * 2.5 + 2 * 1.5
    assert memory_bound(problem) == pytest.approx(23.0)
    # whole operators: one, then three, so 4 * 2 * 3 + 2 * 1
    assert solve(problem).objective_s == pytest.approx(26.0)
    assert memory_bound(first_of_two_holds_two(4.0)) == pytest.approx(20.0)  # two, then two: 4 * 2 * 2 + 2 * 2


def test_room_for_one_micro_batch_of_everything_is_too_little() -> None:
    found = solve(first_of_two_holds_two(2.0))  # one operator, then two
    assert found.status is Status.INFEASIBLE
    assert found.advice == (
        "the operators need 4 bytes in all with the activations of one micro-batch and the devices have 4 bytes, but "
        "the first stages hold several micro-batches at once; add memory or devices, or take smaller micro-batches, "
        "recomputation or another schedule"
    )
