"""Cuts for a training step: closed forms, memory by the stage, and the exhaustive solver."""

from itertools import combinations
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.step_update import StepUpdate
from costmodels.table import CostTable
from costmodels.workload import RECOMPUTE_MODES, TRAINING_SCHEDULES, RecomputeMode
from planner.problem.bounds import lower_bound
from planner.problem.problem import Goal, Problem
from planner.problem.schedule_bounds import held_micro_batches
from planner.solvers.base import Budget
from planner.solvers.dp.chains.pipeline import Pipeline
from planner.solvers.solve import solve
from simulator.placement import Placement
from simulator.training import TrainingStep, simulate_training
from tests.costmodels.parts import table_with
from tests.planner.problem.problems import make_table, value


def line(seconds: list[list[float]], sent: float = 0.0, **fields: Any) -> CostTable:
    """Operators in a row; backward takes twice as long as forward."""
    n = len(seconds)
    table = make_table(seconds, [(i, (i + 1,), sent) for i in range(n - 1)], **fields)
    return table_with(table, backward_s=2 * table.forward_s, gradient=np.ones(n - 1, dtype=bool))


def answer(
    table: CostTable, schedule: str = "1f1b", micro_batches: int = 4, recompute: RecomputeMode = "none"
) -> tuple[Placement | None, float]:
    problem = Problem(table, Goal.TRAINING, step=TrainingStep(schedule, micro_batches, recompute))
    found = Pipeline().search(problem, Budget(20.0, gap=0.0)).placement
    return found, inf if found is None else value(problem, found)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_equal_operators_are_cut_in_halves(schedule: str) -> None:
    found, seconds = answer(line([[1, 1]] * 6), schedule)
    assert found is not None
    assert sorted(map(found.device.count, (0, 1))) == [3, 3]
    assert seconds == pytest.approx((4 + 1) * 9)  # (m + p - 1) (F + B)


def test_interleaving_shortens_the_step() -> None:
    # m v (F + B) + (p - 1) (F + B) with stages of one operator each: 4 · 3 · 3 + 3, or of two
    found, seconds = answer(line([[1, 1]] * 6), "interleaved")
    assert found is not None
    assert seconds == pytest.approx(4 * 3 * 3 + 3)


def test_a_fast_device_gets_more() -> None:
    found, _ = answer(line([[1, 2]] * 6), micro_batches=16)
    assert found is not None
    assert found.device.count(0) == 4


def test_early_stages_have_less_room() -> None:
    # 10 bytes saved each, 1F1B: the first stage holds them twice. 60 bytes: 3 operators in front, 6 behind
    table = table_with(line([[1, 1]] * 8, capacity_bytes=[60, 60]), saved_bytes=np.full(8, 10.0))
    found, _ = answer(table)
    assert found is not None
    run = simulate_training(table, found, TrainingStep("1f1b", 4))
    assert sorted(map(len, run.stages)) == [3, 5]
    assert max(run.memory_bytes) <= 60


def test_what_recomputes_fits_where_nothing_else_does() -> None:
    # 10 bytes saved each, nothing received: GPipe holds 4 times 40 on each device, or once if it recomputes
    table = table_with(line([[1, 1]] * 8, capacity_bytes=[45, 45]), saved_bytes=np.full(8, 10.0))
    assert answer(table, "gpipe") == (None, inf)
    found, seconds = answer(table, "gpipe", recompute="full")
    assert found is not None
    assert seconds == pytest.approx((4 + 1) * 4 * (2 * 1 + 2))  # (m + p - 1) (2 F + B)


def test_the_optimizer_counts_when_work_is_divided() -> None:
    # the last of 6 operators has 60 bytes of parameters, a second each, and waits for F of 5 and of 1, and its B of 2
    table = line([[1, 1]] * 6)
    update = StepUpdate(np.array([0, 0, 0, 0, 0, 60.0]), np.ones(2), np.zeros(2), np.zeros(2))
    found, seconds = answer(table_with(table, update=update), micro_batches=1)
    assert found is not None
    assert seconds == pytest.approx(5 + 1 + 2 + 60)


def test_a_v_is_cut_so_that_both_ends_meet() -> None:
    found, seconds = answer(line([[1, 1]] * 8), "zbv", micro_batches=8)
    assert found is not None
    first, second = found.device[0], found.device[3]
    assert found.device == (first, first, second, second, second, second, first, first)
    assert seconds < answer(line([[1, 1]] * 8), "1f1b", micro_batches=8)[1]


def test_no_room_is_no_answer() -> None:
    table = table_with(line([[1, 1]] * 4, capacity_bytes=[25, 25]), saved_bytes=np.full(4, 10.0))
    assert answer(table, "gpipe") == (None, inf)


@pytest.mark.parametrize(
    ("schedule", "per_device", "held"),
    [
        ("1f1b", 1, (3, 2, 1)),
        ("gpipe", 1, (8, 8, 8)),
        ("zb-h1", 1, (3, 3, 3)),  # p - r until I has ended, and r more until W has
        ("zb-h2", 1, (5, 5, 5)),  # 2 p - 2 r - 1, and 2 r
        ("breadth-first", 2, (8,) * 6),
        ("1f1b", 2, None),
        ("interleaved", 2, None),  # 8 is no multiple of 3
    ],
)
def test_held_micro_batches(schedule: str, per_device: int, held: tuple[int, ...] | None) -> None:
    assert held_micro_batches(schedule, 3, 8, per_device) == held


@pytest.mark.parametrize("schedule", TRAINING_SCHEDULES)
def test_every_schedule_gets_an_answer_that_runs(schedule: str) -> None:
    found, seconds = answer(line([[1, 1]] * 9, sent=0.1), schedule, micro_batches=6)
    assert found is not None
    assert seconds < 6 * 27  # faster than on one device


def test_solve_reports_a_gap() -> None:
    problem = Problem(line([[1, 1]] * 12), Goal.TRAINING, step=TrainingStep("1f1b", 8))
    result = solve(problem, time_limit_s=5)
    assert result.objective_s == pytest.approx(9 * 18)  # (8 + 1) (6 + 12)
    assert result.bound_s == pytest.approx(36 / (1 - (7 / 8) ** 2))
    assert result.solver == "pipeline"


def interval_optimum(problem: Problem) -> float:
    """The best of all ways to cut the operators' own order into runs on different devices."""
    n, k = problem.table.n_ops, problem.table.n_devices
    best = inf
    for parts in range(1, k + 1):
        for cuts in combinations(range(1, n), parts - 1):
            sizes = np.diff([0, *cuts, n])
            for first in range(2):
                devices = [(first + i) % k for i in range(parts)]
                best = min(best, value(problem, Placement(tuple(np.repeat(devices, sizes).tolist()))))
    return best


@given(st.data())
def test_it_is_near_the_best_of_all_cuts_of_a_line_and_no_bound_is_above(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 6))
    cost = st.integers(1, 9).map(float)
    seconds = [
        [data.draw(cost)] * 2 if data.draw(st.booleans()) else [data.draw(cost), data.draw(cost)] for _ in range(n)
    ]
    table = line(seconds, data.draw(st.integers(0, 3)), op_bytes=[1.0] * n, capacity_bytes=[40, 40])
    table = table_with(table, saved_bytes=np.asarray(data.draw(st.lists(cost, min_size=n, max_size=n))))
    update = StepUpdate(
        np.asarray(data.draw(st.lists(cost, min_size=n, max_size=n))), np.ones(2), np.zeros(2), np.zeros(2)
    )
    table = table_with(table, update=update if data.draw(st.booleans()) else None)
    m, recompute = data.draw(st.integers(1, 6)), data.draw(st.sampled_from(RECOMPUTE_MODES))
    problem = Problem(table, Goal.TRAINING, step=TrainingStep("1f1b", m, recompute))
    best_s, (found, seconds_s) = interval_optimum(problem), answer(table, "1f1b", m, recompute)
    if best_s < inf:
        assert lower_bound(problem) <= best_s * (1 + 1e-9)
    assert (found is None) == (best_s == inf)
    if found is not None:
        assert best_s * (1 - 1e-9) <= seconds_s <= best_s * 1.1


def test_work_can_be_counted_instead_of_time() -> None:
    table = line([[c, c] for c in (1, 5, 2, 4, 3, 1, 6, 2)], sent=0.5)
    problem = Problem(table, Goal.TRAINING, step=TrainingStep("interleaved", 4))
    found = [Pipeline(most_work=work).search(problem, Budget(100.0, gap=0.0)).placement for work in (1, 20, 10_000)]
    values = [value(problem, placement) for placement in found if placement is not None]
    assert len(values) == 3
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1]
    assert found[-1] == Pipeline().search(problem, Budget(100.0, gap=0.0)).placement
