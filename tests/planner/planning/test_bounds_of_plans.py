"""What plans say that nothing is below, held against every plan that is found for the same operators."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf

import pytest

from planner.explanations.what_if import replanned
from planner.planning.make_plan import Search, search_plan
from planner.plans.files import plan_from_dict, plan_to_dict
from planner.plans.plan import Plan
from planner.problem.problem import Goal
from planner.solvers.copies import copies_of_everything, copies_of_stages
from simulator.placement import Placement
from tests.planner.explanations.small import make_graph, make_plan, plan_of
from tests.planner.solvers.law.random_problems import random_problem

ROUNDING = 1e-9  # relative
SEARCH = Search(time_limit_s=0.2, gap=0.05)
REWRITES = ("none", "auto")
KINDS = ("throughput", "contiguous")
PROBLEMS = 80


def asked(kind: str, seed: int, goal: Goal = Goal.THROUGHPUT) -> Plan:
    """A plan without an answer for a random table."""
    table = random_problem(kind, seed).table
    return plan_of(table, Placement((0,) * table.n_ops), goal)


def plans_of(question: Plan) -> Iterator[Plan]:
    """The plans that are found without and with copies, then copies of everything and of stages, taken or not."""
    for rewrites in REWRITES:
        yield search_plan(question.task, replace(SEARCH, rewrites=rewrites))
    everything = copies_of_everything(question.problem, 0.0)
    stages = copies_of_stages(question.problem, SEARCH.solve, inf, 0.0)
    for placement in [*([everything] if everything else []), *stages]:
        tried = replace(question, placement=placement, bound_s=0.0)
        if tried.evaluation.feasible:
            yield tried


@pytest.mark.attack("proof")
@pytest.mark.parametrize("kind", KINDS)
def test_no_plan_is_better_than_a_bound_of_any(kind: str) -> None:
    for seed in range(PROBLEMS):
        question = asked(kind, seed)
        solved = SEARCH.solve(question.problem)
        plans = list(plans_of(question)) if solved.placement else []
        for said_s in (solved.bound_s, *(plan.bound_s for plan in plans)):
            for plan in plans:
                assert plan.objective_s >= said_s * (1 - ROUNDING), f"{kind} {seed}"


@pytest.mark.attack("proof")
@pytest.mark.parametrize("goal", list(Goal)[:2])
@pytest.mark.parametrize("rewrites", REWRITES)
def test_searching_again_never_beats_what_is_proved(goal: Goal, rewrites: str) -> None:
    for seed in range(10):
        question = asked("throughput", seed, goal)
        if not SEARCH.solve(question.problem).placement:
            continue
        plan = search_plan(question.task, replace(SEARCH, rewrites=rewrites))
        again_s = replanned(plan, (), replace(SEARCH, gap=0.0)).again_s
        assert again_s >= plan.bound_s * (1 - ROUNDING), f"{goal} {seed}"


@pytest.mark.parametrize("n", [3, 4, 5, 15])
def test_a_plan_of_one_copy_says_what_copies_could_do(n: int) -> None:
    """Of n operators of a second one of two devices has half of them, rounded up; copies take n / 2."""
    names = [f"op{i}" for i in range(n)]
    line = make_graph(dict.fromkeys(names, "m"), dict(zip(names[1:], names, strict=False)), dict.fromkeys(names, 0))
    question = make_plan(line, (1,) * n, "0" * n, n_devices=2)
    found = search_plan(question.task, replace(SEARCH, rewrites="none"))
    assert (found.objective_s, found.bound_s) == (-(-n // 2), n / 2)
    assert found.status == ("feasible" if n % 2 else "optimal")
    assert plan_from_dict(plan_to_dict(found)).bound_s == found.bound_s
