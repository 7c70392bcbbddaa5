"""More time: a search with more time never ends with a worse answer, a worse bound or a wider gap.

Limits are those of users, on a machine that counts 400 times as many seconds for the same work.
"""

from itertools import pairwise

import numpy as np
import pytest

from costmodels.workload import TRAINING_SCHEDULES
from planner.problem.problem import Goal, Problem
from planner.problem.result import Result
from planner.solvers.milp.highs import MINIMISING
from planner.solvers.solve import solve
from simulator.training import TrainingStep
from tests.benchmarks.scale import layered
from tests.costmodels.parts import table_with
from tests.planner.problem.problems import make_table

SLOWER = 400.0
LIMITS_S = (5.0, 20.0, 60.0)


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.problem.deadline.BRAKE", 1e6)  # only work counts
    monkeypatch.setattr("planner.solvers.local_search.local_search.WORK_PER_S", 25e6 / SLOWER)
    monkeypatch.setattr("planner.solvers.local_search.local_search.WORK_PER_CELL", 30_000 / SLOWER)
    monkeypatch.setattr("planner.solvers.local_search.local_search.CYCLE_WORK", 500_000 / SLOWER)
    monkeypatch.setattr("planner.solvers.latency.latency_search.STEP_S", SLOWER * 1.5e-7)
    monkeypatch.setattr("planner.solvers.solve.CLIMB", 0.1 / SLOWER)
    for figure, seconds in {"JUDGED_S": 3e-4, "ITEM_S": 1.5e-6, "PASS_S": 3e-6}.items():
        monkeypatch.setattr(f"planner.solvers.base.{figure}", SLOWER * seconds)
    slow = MINIMISING._replace(step_s=SLOWER * MINIMISING.step_s)
    monkeypatch.setattr("planner.solvers.milp.model.MINIMISING", slow)


def hard(seed: int, goal: Goal, n_ops: int = 32, n_devices: int = 3) -> Problem:
    """A layered graph whose gap stays open for longer than the largest limit."""
    rng = np.random.default_rng(seed)
    readers = layered(n_ops, rng)
    flows = [(op, found, float(rng.lognormal(-2.5, 0.7))) for op, found in enumerate(readers) if found]
    seconds = rng.lognormal(0.0, 0.8, n_ops)[:, None] * rng.uniform(1.0, 1.3, n_devices)
    room = [1.1 * n_ops / n_devices] * n_devices  # so that no device holds all
    return Problem(make_table(seconds.tolist(), flows, op_bytes=[1] * n_ops, capacity_bytes=room, overlap=False), goal)


def training(seed: int, schedule: str) -> Problem:
    """A training step on unlike devices, which hold hardly more than their part; every other one without transfers."""
    rng = np.random.default_rng(seed)
    flows = [
        (op, found, float(seed % 2 * rng.lognormal(-3.0, 0.7))) for op, found in enumerate(layered(24, rng)) if found
    ]
    seconds = rng.lognormal(0.0, 0.8, 24)[:, None] * rng.uniform(1.0, 2.0, 3)
    table = make_table(seconds.tolist(), flows, op_bytes=[1] * 24, capacity_bytes=[14.0] * 3, overlap=False)
    table = table_with(table, backward_s=2 * table.forward_s, gradient=np.ones(len(flows), dtype=bool))
    return Problem(table, Goal.TRAINING, step=TrainingStep(schedule, 6))


@pytest.mark.parametrize("schedule", TRAINING_SCHEDULES)
@pytest.mark.parametrize("seed", range(4))
def test_more_time_never_gives_a_slower_step_or_a_worse_gap(seed: int, schedule: str) -> None:
    problem = training(seed, schedule)
    found = [solve(problem, time_limit_s=limit_s, gap=0.0) for limit_s in LIMITS_S]
    for less, more in pairwise(found):
        assert more.objective_s <= less.objective_s
        assert more.gap <= less.gap


@pytest.mark.parametrize(("goal", "seed"), [(Goal.THROUGHPUT, 0), (Goal.COST, 2), (Goal.LATENCY, 3)])
def test_more_time_never_gives_a_worse_answer_or_a_worse_gap(goal: Goal, seed: int) -> None:
    problem = hard(seed, goal, n_ops=140 if goal is Goal.LATENCY else 32)  # too many to prove
    found: list[Result] = [solve(problem, time_limit_s=limit_s, gap=0.0) for limit_s in LIMITS_S]
    assert not any(result.by_clock for result in found)
    for less, more in pairwise(found):
        assert more.objective_s <= less.objective_s
        assert more.bound_s >= less.bound_s
        assert more.gap <= less.gap
