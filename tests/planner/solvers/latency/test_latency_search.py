"""The local search for latency."""

from dataclasses import replace
from math import inf

import numpy as np
from hypothesis import given

from costmodels.table import CostTable
from planner.problem.blocks import merge_blocks
from planner.problem.problem import Goal, Problem
from planner.solvers.base import Budget
from planner.solvers.compiled import below, random, seed_of
from planner.solvers.exhaustive import Exhaustive
from planner.solvers.latency.latency_search import FEWEST_STEPS, FIRST_HEATS, LatencySearch
from planner.solvers.latency.makespan_data import costs_of, work_for
from planner.solvers.latency.search_kernel import Heat, anneal, start_walk
from planner.solvers.list_scheduling.heft import LIST_SCHEDULERS
from simulator.placement import Placement
from tests.planner.problem.problems import make_table, tables, value
from tests.planner.solvers.literature import ARABNEJAD, TOPCUOGLU, table_of

FOREVER = Budget(time_limit_s=1e9, gap=0.0)
QUICK = LatencySearch(steps=500)


def found_s(problem: Problem, search: LatencySearch, budget: Budget = FOREVER) -> float:
    answer = search.search(problem, budget)
    return inf if answer.placement is None else value(problem, answer.placement)


def test_it_finds_the_optima_that_branch_and_bound_proves() -> None:
    assert found_s(Problem(table_of(TOPCUOGLU), Goal.LATENCY), LatencySearch()) == 75
    assert found_s(Problem(table_of(ARABNEJAD), Goal.LATENCY), LatencySearch()) == 117


def test_a_seed_has_one_answer() -> None:
    problem = Problem(table_of(TOPCUOGLU), Goal.LATENCY)
    first, again = (QUICK.search(problem, replace(FOREVER, seed=7)) for _ in range(2))
    assert first == again


def test_rounds_grow_with_the_time_limit() -> None:
    # half of the time is for 4 rounds of 100 steps, then for those of 200
    search = LatencySearch(steps=100)
    once = [(first, 100) for first in FIRST_HEATS]
    assert list(search._rounds(1e9, last=False)) == list(search._rounds(1199.0, last=True)) == once
    assert list(search._rounds(1200.0, last=True)) == [*once, (FIRST_HEATS[0], 200)]
    assert list(search._rounds(2400.0, last=True)) == [*once, *((first, 200) for first in FIRST_HEATS)]
    problem = Problem(table_of(TOPCUOGLU), Goal.LATENCY)
    spent = [search.search(problem, Budget(10.0, gap=0.0, last=last, end_s=1e9)).spent for last in (False, True)]
    assert 0 < spent[0] < 0.01 < 0.1 < spent[1] <= 0.5


def test_rounds_are_shorter_where_the_time_is_not_enough() -> None:
    assert [steps for _, steps in LatencySearch()._rounds(40_000.0, last=False)] == [10_000] * len(FIRST_HEATS)
    assert [steps for _, steps in LatencySearch()._rounds(0.0, last=True)] == [FEWEST_STEPS] * len(FIRST_HEATS)


def test_without_time_the_list_schedules_remain() -> None:
    problem = Problem(table_of(TOPCUOGLU), Goal.LATENCY)
    placement = LIST_SCHEDULERS[0].search(problem, FOREVER).placement
    assert LatencySearch().search(problem, Budget(time_limit_s=0.0, incumbent=placement)).placement == placement


def test_what_it_refuses() -> None:
    problem = Problem(make_table([[1, 1]] * 2), Goal.LATENCY, contiguous=frozenset({0, 1}))
    assert QUICK.refuses(problem) == "contiguous operators"
    assert QUICK.refuses(replace(problem, contiguous=frozenset())) == ""


def test_the_dice_are_even_and_repeat() -> None:
    # 10,000 throws of six faces: about 1,667 each, with a standard deviation of 37
    seed = seed_of(3)
    counts = np.bincount([below(seed, 6) for _ in range(10_000)], minlength=6)
    assert abs(counts - 1667).max() < 5 * 37
    assert [random(seed_of(1)) for _ in range(2)] == [random(seed_of(1))] * 2


@given(tables(max_ops=9))
def test_a_walk_never_leaves_what_is_feasible(table: CostTable) -> None:
    problem = Problem(table, Goal.LATENCY)
    begin = next((p for d in range(table.n_devices) if value(problem, p := Placement((d,) * table.n_ops)) < inf), None)
    if begin is None:
        return
    costs, work, seed = costs_of(table), work_for(table), seed_of(0)
    walk = start_walk(merge_blocks(table), begin, value(problem, begin))
    for step in range(0, 100, 20):
        anneal(costs, work, walk, Heat(5.0, 1.0, 100), (step, step + 20), seed)
        here = Placement(tuple(walk.device.tolist()), tuple(walk.order.tolist()))
        best = Placement(tuple(walk.best_device.tolist()), tuple(walk.best_order.tolist()))
        assert value(problem, here) == walk.seconds[0]
        assert value(problem, best) == walk.seconds[1] <= walk.seconds[0]


@given(tables(max_ops=5))
def test_it_never_beats_the_truth_nor_loses_against_list_schedules(table: CostTable) -> None:
    problem = Problem(table, Goal.LATENCY)
    best = Exhaustive().search(problem, FOREVER).placement
    listed = [scheduler.search(problem, FOREVER).placement for scheduler in LIST_SCHEDULERS]
    truth = inf if best is None else value(problem, best)
    assert truth <= found_s(problem, QUICK) <= min(inf if p is None else value(problem, p) for p in listed)
