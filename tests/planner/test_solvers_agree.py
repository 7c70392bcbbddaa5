"""Every solver against the exhaustive one: exact ones equal it, none beats it, no bound is above it."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.table import CostTable, Update
from planner.bounds import lower_bound
from planner.infeasible import infeasible_because
from planner.portfolio import AUTO, SOLVERS
from planner.problem import Goal, Problem
from planner.result import Status
from planner.solve import PROOF_TOLERANCE, solve
from planner.solvers.base import Budget
from planner.solvers.exhaustive import Exhaustive
from planner.solvers.programs.ilp import ILP
from simulator.placement import Placement
from simulator.training import TRAINING_SCHEDULES, TrainingStep
from tests.planner.problems import brute_force, make_table, tables, value

ROUNDING = 1e-9
PLENTY_S = 20.0


def truth_s(problem: Problem) -> float:
    answer = Exhaustive().search(problem, Budget(1e9))
    assert answer.complete
    return inf if answer.placement is None else value(problem, answer.placement)


def some_placement(problem: Problem) -> Placement | None:
    """A feasible placement on one device, if there is one."""
    table = problem.table
    alone = (Placement((device,) * table.n_ops) for device in range(table.n_devices))
    return next((placement for placement in alone if value(problem, placement) < inf), None)


@settings(deadline=None)
@given(tables(max_ops=5), st.sampled_from(Goal))
def test_no_bound_is_above_the_truth_and_no_advice_is_given_in_vain(table: CostTable, goal: Goal) -> None:
    problem = Problem(table, goal)
    truth, bound_s = truth_s(problem), lower_bound(problem)
    assert bound_s <= truth * (1 + ROUNDING)
    assert not infeasible_because(table, bound_s) or truth == inf


@settings(deadline=None)
@given(tables(max_ops=4), st.sampled_from(Goal), st.data())
def test_what_company_costs_is_counted_once_and_for_all(table: CostTable, goal: Goal, data: st.DataObject) -> None:
    """A device alone is quicker than the same one beside others, which every search and proof has to bear in mind."""
    shares = st.sampled_from([0.0, 0.25, 1.0, 3.0])
    slowdown = [[data.draw(shares) for _ in table.devices] for _ in table.ops]
    company = np.array([data.draw(st.integers(0, 1)) for _ in table.devices])
    problem = Problem(replace(table, slowdown=np.array(slowdown), company=company), goal)
    truth = brute_force(problem)
    assert lower_bound(problem) <= truth * (1 + ROUNDING)
    assert truth_s(problem) == pytest.approx(truth)
    able = [name for name, known in SOLVERS.items() if goal in known.goals and not known.refuses(problem)]
    found = solve(problem, data.draw(st.sampled_from([AUTO, *able])), time_limit_s=PLENTY_S, gap=0.0)
    assert found.bound_s <= truth * (1 + ROUNDING)
    assert found.objective_s >= truth * (1 - ROUNDING)
    assert found.status is not Status.OPTIMAL or found.objective_s == pytest.approx(truth)


@settings(deadline=None)
@given(tables(max_ops=5), st.sampled_from(Goal), st.booleans())
def test_no_solver_beats_the_truth(table: CostTable, goal: Goal, warm: bool) -> None:
    problem = Problem(table, goal)
    truth, bound_s = truth_s(problem), lower_bound(problem)
    if bound_s == inf:
        return
    start = some_placement(problem) if warm else None
    for solver in SOLVERS.values():
        if goal not in solver.goals or solver.refuses(problem):
            continue
        answer = solver.search(problem, Budget(PLENTY_S, gap=0.0, incumbent=start, bound_s=bound_s))
        assert answer.bound_s <= truth * (1 + ROUNDING)
        if answer.placement is not None:
            found = value(problem, answer.placement)
            assert truth * (1 - ROUNDING) <= found < inf
            assert not answer.complete or found <= truth * (1 + PROOF_TOLERANCE)
        else:
            assert start is None
            assert not answer.complete or truth == inf


@settings(deadline=None)
@given(tables(max_ops=6), st.booleans())
def test_the_integer_program_for_throughput_is_exact(table: CostTable, warm: bool) -> None:
    problem = Problem(table, Goal.THROUGHPUT)
    truth = truth_s(problem)
    start = some_placement(problem) if warm else None
    if (bound_s := lower_bound(problem)) == inf:
        return
    answer = ILP().search(problem, Budget(1e9, gap=0.0, incumbent=start, bound_s=bound_s))
    if truth == inf:
        assert (answer.placement, answer.complete) == (None, True)
    else:
        assert answer.placement is not None
        assert value(problem, answer.placement) == pytest.approx(truth)
        assert answer.bound_s == pytest.approx(truth, rel=PROOF_TOLERANCE)


@settings(deadline=None)
@given(tables(max_ops=5, overlap=True))
def test_the_integer_program_for_latency_is_exact_where_nothing_is_sent(table: CostTable) -> None:
    flows = [(flow.writer, flow.readers, 0.0) for flow in table.flows]
    free = make_table(table.forward_s, flows, together=table.together)
    problem = Problem(free, Goal.LATENCY)
    truth = truth_s(problem)
    if (bound_s := lower_bound(problem)) == inf:
        return
    answer = ILP().search(problem, Budget(1e9, gap=0.0, bound_s=bound_s))
    assert answer.placement is not None
    assert value(problem, answer.placement) == pytest.approx(truth, rel=PROOF_TOLERANCE)
    assert answer.bound_s == pytest.approx(truth, rel=PROOF_TOLERANCE)


@settings(deadline=None)
@given(tables(max_ops=5), st.sampled_from(Goal), st.sampled_from(["auto", *SOLVERS]))
def test_what_solve_claims_is_true(table: CostTable, goal: Goal, solver: str) -> None:
    problem = Problem(table, goal)
    if solver != "auto" and (goal not in SOLVERS[solver].goals or SOLVERS[solver].refuses(problem)):
        return
    truth, result = truth_s(problem), solve(problem, solver, time_limit_s=PLENTY_S, gap=0.0)
    assert result.bound_s <= truth * (1 + ROUNDING)
    assert result.objective_s >= truth * (1 - ROUNDING)
    if result.placement is not None:
        assert result.objective_s == value(problem, result.placement)
    if result.status is Status.OPTIMAL:
        assert result.objective_s == pytest.approx(truth, rel=PROOF_TOLERANCE)
    if result.status is Status.INFEASIBLE:
        assert truth == inf
    if truth == inf:
        assert result.placement is None
        assert result.advice
    elif solver == "auto":
        assert result.status is Status.OPTIMAL


@st.composite
def training_problems(draw: st.DrawFn) -> Problem:
    """Steps under any schedule, with memory by the micro-batch, perhaps recomputing, with an optimizer at the end."""
    table = draw(tables(max_ops=5))
    n, k = table.n_ops, table.n_devices
    some = st.lists(st.integers(0, 5).map(float), min_size=n, max_size=n).map(np.asarray)
    saved_bytes = draw(some)
    table = replace(
        table,
        backward_s=np.where(np.isfinite(table.forward_s), 2 * table.forward_s, 0.0),
        saved_bytes=saved_bytes,
        ends_bytes=np.minimum(draw(some), saved_bytes),
        gradient=np.ones(len(table.flows), dtype=bool),
        update=Update(draw(some), np.ones(k), np.full(k, draw(st.integers(0, 1))), np.zeros(k)),
    )
    step = TrainingStep(draw(st.sampled_from(TRAINING_SCHEDULES)), draw(st.integers(1, 4)), draw(st.booleans()))
    return Problem(table, Goal.TRAINING, step=step)


@settings(deadline=None)
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
