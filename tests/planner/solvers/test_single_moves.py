"""Moves of single operators: by hand, and that none is left that helps."""

from dataclasses import replace

import pytest

from planner.planning.make_plan import Search, search_plan
from planner.problem.blocks import merge_blocks
from planner.problem.problem import Goal, Problem
from planner.solvers.base import objective_of
from planner.solvers.portfolio import SOLVERS
from planner.solvers.single_moves import LEAST_GAIN, climbed, is_scattered, single_moves
from planner.solvers.solve import solve
from simulator.placement import Placement
from tests.planner.explanations.small import plan_of
from tests.planner.problem.problems import make_table
from tests.planner.solvers.law.random_problems import random_problem

PLENTY_S = 60.0
SEEDS = range(25)
LINE = [(i, (i + 1,), 0.0) for i in range(3)]


def test_a_move_over_a_cut_and_then_another() -> None:
    # 4 | 1 1 1 1: the first three on device 0 take 6 of 8, moved one by one to the other side 5, then 4
    table = make_table([[4.0, 4.0], [1, 1], [1, 1], [1, 1], [1, 1]], [(i, (i + 1,), 0.0) for i in range(4)])
    found = climbed(Problem(table, Goal.THROUGHPUT), Placement((0, 0, 0, 1, 1)), PLENTY_S)
    assert found.device == (0, 1, 1, 1, 1)


def test_no_device_is_used_that_is_not() -> None:
    table = make_table([[1.0] * 3] * 4, LINE)
    found = climbed(Problem(table, Goal.THROUGHPUT), Placement((0, 1, 1, 1)), PLENTY_S)
    assert found.device == (0, 0, 1, 1)


def test_what_shares_a_device_moves_together() -> None:
    table = make_table([[1.0, 1.0]] * 4, LINE, together=((1, 2),))
    found = climbed(Problem(table, Goal.THROUGHPUT), Placement((0, 0, 0, 0), others=()), PLENTY_S)
    assert found.device == (0, 0, 0, 0)
    assert climbed(Problem(table, Goal.THROUGHPUT), Placement((0, 0, 0, 1)), PLENTY_S).device == (0, 0, 0, 1)
    table = make_table([[1.0, 1.0], [1, 1], [1, 1], [3, 3]], LINE, together=((1, 2),))
    assert climbed(Problem(table, Goal.THROUGHPUT), Placement((0, 1, 1, 1)), PLENTY_S).device == (0, 0, 0, 1)


def test_a_micro_batch_does_not_come_back_for_a_move() -> None:
    # 2 2 1 | 3: the third of 1 s is best on device 1, the second one would have to come back
    table = make_table([[2.0, 2.0], [0.5, 0.5], [2, 2], [3, 3]], LINE)
    problem, start = Problem(table, Goal.THROUGHPUT), Placement((0, 0, 0, 1))
    assert objective_of(problem, Placement((0, 1, 0, 1))) == 4.0
    assert not is_scattered(problem, climbed(problem, start, PLENTY_S))
    assert climbed(problem, start, PLENTY_S, lambda _: True).device == (0, 1, 0, 1)


def test_as_many_moves_are_judged_as_the_time_is_enough_for() -> None:
    table = make_table([[1.0, 1.0]] * 60, [(i, (i + 1,), 0.0) for i in range(59)])
    problem, start = Problem(table, Goal.THROUGHPUT), Placement((0,) * 50 + (1,) * 10)
    few, many = (objective_of(problem, climbed(problem, start, seconds)) for seconds in (0.0, PLENTY_S))
    assert many == 30.0 < few < 50.0


@pytest.mark.parametrize("kind", ["throughput", "cost", "latency", "contiguous"])
def test_no_search_leaves_a_move_that_helps(kind: str) -> None:
    for seed in SEEDS:
        problem = random_problem(kind, seed)
        found = solve(problem, time_limit_s=0.05, gap=0.5)
        if found.placement is None:
            continue
        scattered = is_scattered(problem, found.placement)
        for moved in single_moves(merge_blocks(problem.table), found.placement):
            if scattered or not is_scattered(problem, moved):
                assert objective_of(problem, moved) >= found.objective_s * (1 - LEAST_GAIN), f"{kind} {seed}"


@pytest.mark.parametrize("goal", [Goal.THROUGHPUT, Goal.LATENCY, Goal.COST])
def test_no_plan_leaves_a_move_that_explain_would_call_better(goal: Goal) -> None:
    from planner.explanations.explain import explain

    for seed in SEEDS[:8]:
        table = random_problem("throughput", seed).table
        question = plan_of(table, Placement((0,) * table.n_ops), goal)
        search = Search(time_limit_s=0.05, gap=0.5)
        if search.solve(question.problem).placement is None:
            continue
        for solver in ("auto", next(name for name in SOLVERS if goal in SOLVERS[name].goals)):
            found = search_plan(question.task, replace(search, solver=solver))
            assert not any(move.better for move in explain(found, 100, Search(time_limit_s=0.01)).moves), (
                f"{goal} {seed}"
            )
