"""Bounds with pauses, by hand and against every placement; solvers beside them in tests/planner/law."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.table import CostTable
from planner.problem.bounds import lower_bound, streaming_bound, with_pauses
from planner.problem.evaluate import evaluate
from planner.problem.problem import Goal, Problem
from planner.problem.result import Status
from planner.solvers.base import Answer, Budget, objective_of
from planner.solvers.local_search.local_search import LocalSearch
from planner.solvers.milp.ilp import ILP
from planner.solvers.solve import solve
from simulator.placement import Placement
from tests.planner.problem.problems import make_table

ROUNDING = 1e-9


def contended(
    alone_s: list[list[float]],
    slowdown: list[list[float]],
    contention_group: Sequence[int] = (0, 0),
    flows: Sequence[tuple[int, tuple[int, ...], float]] = (),
) -> CostTable:
    return make_table(alone_s, flows, slowdown=np.array(slowdown), contention_group=np.array(contention_group))


def best_s(problem: Problem) -> float:
    """Of all placements."""
    every = product(range(problem.table.n_devices), repeat=problem.table.n_ops)
    return min(evaluate(problem, Placement(device)).objective_s for device in every)


def test_balanced_devices_never_pause() -> None:
    # two of four equal operators each: all of 2 · 3 s is under contention, and a third of it is due to that
    table = contended([[2, 2]] * 4, [[0.5, 0.5]] * 4)
    assert with_pauses(table, 2 * 3, 4 * 3) == 2 * 3
    assert lower_bound(Problem(table, Goal.THROUGHPUT)) == 2 * 3


def test_a_device_saves_what_company_costs_while_the_others_pause() -> None:
    # nothing is below 7 s under contention, 12 s in sum: the other one has 5 s, so 2 of the 7 s are without contention,
    # and of the 7 s with the largest shares of it the operator of 3 s has a half, four of the other 9 s a quarter
    table = contended([[1.5, 1.5], [6.75, 6.75]], [[1, 1], [1 / 3, 1 / 3]])
    assert with_pauses(table, 7, 12) == pytest.approx(7 - 2 * (3 * 1 / 2 + 4 * 1 / 4) / 7)


def test_who_has_more_to_do_in_company_than_alone_is_better_left_alone() -> None:
    # three times as long under contention: 2 · 3 s there, 4 s alone; a device that pauses from 6 s on has saved 0 s
    table = contended([[2, 2]] * 2, [[2, 2]] * 2)
    problem = Problem(table, Goal.THROUGHPUT)
    assert lower_bound(problem.contended) == 6
    assert with_pauses(table, 6, 2 * 6) == pytest.approx(12 - 12 * 2 / 3)
    assert lower_bound(problem) == best_s(problem) == 4


def test_groups_are_slowed_down_by_their_own_members_only() -> None:
    apart = contended([[2, 2]], [[1, 1]], contention_group=[0, 1])
    assert lower_bound(Problem(apart, Goal.THROUGHPUT)) == 2
    assert evaluate(Problem(apart, Goal.THROUGHPUT), Placement((1,))).objective_s == 2


def test_what_nothing_bounds_stays() -> None:
    table = contended([[2, 2]], [[1, 1]])
    assert with_pauses(table, 0.0, 4) == 0
    assert with_pauses(table, np.inf, 4) == np.inf
    assert with_pauses(table.contended, 3.0, 4) == 3


@given(st.data())
def test_no_bound_with_pauses_is_above_a_placement(data: st.DataObject) -> None:
    n_ops, n_devices = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    alike = data.draw(st.booleans())  # devices, as those of one host are

    def column(values: st.SearchStrategy[float]) -> list[list[float]]:
        rows = [[data.draw(values) for _ in range(n_devices)] for _ in range(n_ops)]
        return [row[:1] * n_devices for row in rows] if alike else rows

    seconds, shares = st.sampled_from([0.0, 1.0, 2.0, 3.0, 7.0]), st.sampled_from([-0.25, 0.0, 0.125, 0.5, 1.0, 3.0])
    contention_group = [data.draw(st.integers(0, 1)) for _ in range(n_devices)]
    problem = Problem(contended(column(seconds), column(shares), contention_group=contention_group), Goal.THROUGHPUT)
    least_s, never_idle = best_s(problem), best_s(problem.contended)
    assert streaming_bound(problem.table, never_idle) <= least_s * (1 + ROUNDING)
    assert lower_bound(problem) <= least_s * (1 + ROUNDING)


def test_solvers_that_have_proved_their_best_in_company_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> Answer:
        raise AssertionError("the cuts were proved to be best already")

    monkeypatch.setattr(LocalSearch, "search", never)
    monkeypatch.setattr(ILP, "search", never)
    # under contention 12 s on one device, 11 s on the other; 6 s of any six operators do not rule out a bit less
    slow = [[0.0, 0.0]] * 6 + [[0.5, 0.5]] * 6
    alone_s = [[2.0, 2.0]] * 6 + [[2 / 1.5] * 2] * 5 + [[1 / 1.5] * 2]
    table = contended(alone_s, slow, flows=[(op, (op + 1,), 0.0) for op in range(11)])
    found = solve(Problem(table, Goal.THROUGHPUT), gap=1e-6)
    assert found.placement == Placement((0,) * 6 + (1,) * 6)
    assert found.objective_s == 12
    assert found.bound_s == pytest.approx(12 - (2 * 12 - 23) * 1 / 3 * 11 / 12)
    assert found.status is Status.FEASIBLE


@dataclass(frozen=True)
class ProvesOnly:
    """A solver that finds nothing, but proves what is best under contention."""

    bound_s: float
    name: str = "proves-only"
    goals: frozenset[Goal] = frozenset({Goal.THROUGHPUT})

    def refuses(self, problem: Problem) -> str:  # noqa: ARG002  # the form of a solver
        return ""

    def search(self, problem: Problem, budget: Budget) -> Answer:  # noqa: ARG002  # likewise
        return Answer(None, self.bound_s)


def test_a_proof_without_a_placement_counts_pauses_too() -> None:
    # neither device has room for both operators: 12 and 6 s under contention; the first has 6 s alone, 3 of them saved
    table = replace(contended([[6, 6], [6, 6]], [[1, 1], [0, 0]]), op_bytes=np.ones(2), capacity_bytes=np.ones(2))
    problem = Problem(table, Goal.THROUGHPUT)
    divided_s = evaluate(problem, Placement((0, 1))).objective_s
    assert (divided_s, objective_of(problem, Placement((0, 0)))) == (9, np.inf)
    found = solve(problem, ProvesOnly(bound_s=12.0))
    assert found.status is Status.UNKNOWN
    assert found.bound_s <= divided_s
