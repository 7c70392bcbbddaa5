"""Cuts for a training step: closed forms, memory by the stage, and the exhaustive solver."""

from dataclasses import replace
from itertools import combinations
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.table import CostTable
from planner.bounds import lower_bound
from planner.problem import Goal, Problem
from planner.solve import solve
from planner.solvers.base import Budget
from planner.solvers.chains.pipeline import Pipeline, held_micro_batches
from simulator.placement import Placement
from simulator.schedules import SCHEDULES
from simulator.training import TrainingStep, simulate_training
from tests.planner.problems import make_table, value


def line(seconds: list[list[float]], sent: float = 0.0, **fields: Any) -> CostTable:
    """Operators in a row; backward takes twice as long as forward."""
    n = len(seconds)
    table = make_table(seconds, [(i, (i + 1,), sent) for i in range(n - 1)], **fields)
    return replace(table, backward_s=2 * table.forward_s, gradient=np.ones(n - 1, dtype=bool))


def answer(table: CostTable, schedule: str = "1f1b", micro_batches: int = 4) -> tuple[Placement | None, float]:
    problem = Problem(table, Goal.TRAINING, step=TrainingStep(schedule, micro_batches))
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
    table = replace(line([[1, 1]] * 8, capacity_bytes=[60, 60]), saved_bytes=np.full(8, 10.0))
    found, _ = answer(table)
    assert found is not None
    run = simulate_training(table, found, TrainingStep("1f1b", 4))
    assert sorted(map(len, run.stages)) == [3, 5]
    assert max(run.memory_bytes) <= 60


def test_no_room_is_no_answer() -> None:
    table = replace(line([[1, 1]] * 4, capacity_bytes=[25, 25]), saved_bytes=np.full(4, 10.0))
    assert answer(table, "gpipe") == (None, inf)


@pytest.mark.parametrize(("schedule", "held"), [("1f1b", [3, 2, 1]), ("gpipe", [8, 8, 8]), ("zb-h2", [1, 1, 1])])
def test_held_micro_batches(schedule: str, held: list[int]) -> None:
    assert [held_micro_batches(schedule, stage, 3, 8) for stage in range(3)] == held


@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if name not in ("forward-only", "zbv")])
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


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_it_is_near_the_best_of_all_cuts_of_a_line_and_no_bound_is_above(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 6))
    cost = st.integers(1, 9).map(float)
    seconds = [
        [data.draw(cost)] * 2 if data.draw(st.booleans()) else [data.draw(cost), data.draw(cost)] for _ in range(n)
    ]
    table = line(seconds, data.draw(st.integers(0, 3)), op_bytes=[1.0] * n, capacity_bytes=[40, 40])
    table = replace(table, saved_bytes=np.asarray(data.draw(st.lists(cost, min_size=n, max_size=n))))
    problem = Problem(table, Goal.TRAINING, step=TrainingStep("1f1b", data.draw(st.integers(1, 6))))
    best_s, (found, seconds_s) = interval_optimum(problem), answer(table, "1f1b", problem.step.micro_batches)
    if best_s < inf:
        assert lower_bound(problem) <= best_s * (1 + 1e-9)
    assert (found is None) == (best_s == inf)
    if found is not None:
        assert best_s * (1 - 1e-9) <= seconds_s <= best_s * 1.1
