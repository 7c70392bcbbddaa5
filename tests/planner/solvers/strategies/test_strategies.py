"""Strategy problems: every way to solve them, against all choices."""

from collections.abc import Iterator
from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs.common.errors import InputError
from planner.problem.result import Status
from planner.problem.strategies import Edge, LiveRange, StrategyProblem
from planner.solvers.base import Budget
from planner.solvers.strategies.descent import Descent
from planner.solvers.strategies.diffusion import Diffusion
from planner.solvers.strategies.dominance import without_dominated
from planner.solvers.strategies.elimination import eliminate
from planner.solvers.strategies.relaxation import relax
from planner.solvers.strategies.solve import solve_strategies

COSTS = st.sampled_from([0.0, 0.0, 1.0, 2.0, 3.5, 7.25, inf])


def array(shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    size = int(np.prod(shape))
    return st.lists(COSTS, min_size=size, max_size=size).map(lambda values: np.reshape(values, shape))


@st.composite
def problems(draw: st.DrawFn, memory: bool = False) -> StrategyProblem:
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    nodes = st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=3, unique=True).map(tuple)
    edges = [Edge(ends, draw(array(tuple(sizes[v] for v in ends)))) for ends in draw(st.lists(nodes, max_size=8))]
    live = []
    for node, size in enumerate(sizes if memory else []):
        start = draw(st.integers(0, 4))
        usage = np.asarray(draw(st.lists(st.integers(0, 5), min_size=size, max_size=size)), float)
        live.append(LiveRange(node, start, start + draw(st.integers(0, 3)), usage))
    limit = draw(st.integers(0, 12)) if memory else inf
    return StrategyProblem(tuple(draw(array((size,))) for size in sizes), tuple(edges), tuple(live), limit)


def everything(problem: StrategyProblem) -> Iterator[tuple[int, ...]]:
    return product(*(range(len(cost)) for cost in problem.node_cost))


def least(problem: StrategyProblem) -> float:
    return min((problem.cost(choice) for choice in everything(problem) if problem.allows(choice)), default=inf)


def chain(n: int) -> StrategyProblem:
    """Nodes in a line, which cost 0 for strategy 0 and 1 for strategy 1; neighbours must differ."""
    differ = np.asarray([[inf, 0.0], [0.0, inf]])
    return StrategyProblem((np.asarray([0.0, 1.0]),) * n, tuple(Edge((v, v + 1), differ) for v in range(n - 1)))


class TestByHand:
    def test_a_chain_alternates(self) -> None:
        result = solve_strategies(chain(5))
        assert result.choice == (0, 1, 0, 1, 0)  # 0 + 1 + 0 + 1 + 0
        assert (result.status, result.objective, result.bound, result.solver) == (
            Status.OPTIMAL,
            2.0,
            2.0,
            "elimination",
        )

    def test_a_circle_of_odd_length_cannot_alternate(self) -> None:
        line = chain(5)
        circle = StrategyProblem(line.node_cost, (*line.edges, Edge((4, 0), line.edges[0].cost)))
        result = solve_strategies(circle)
        assert (result.status, result.choice, result.objective, result.bound) == (Status.INFEASIBLE, None, inf, inf)

    def test_memory_that_is_not_needed_at_once_is_not_added(self) -> None:
        """Strategy 0 costs nothing and needs 3; 1 costs 1 and needs 1. Nodes 0 and 1 meet at time 2, 2 is later."""
        own, usage = np.asarray([0.0, 1.0]), np.asarray([3.0, 1.0])
        live = (LiveRange(0, 0, 3, usage), LiveRange(1, 2, 4, usage), LiveRange(2, 4, 5, usage))
        problem = StrategyProblem((own,) * 3, live=live, limit=4.0)
        assert problem.moments == [[0, 1], [2]]
        result = solve_strategies(problem)
        assert (result.status, result.objective) == (Status.OPTIMAL, 1.0)
        assert result.choice is not None
        assert problem.peak(result.choice) == 4.0  # 3 + 1

    def test_a_limit_that_does_not_bind_needs_no_integer_program(self) -> None:
        problem = StrategyProblem(
            (np.asarray([1.0, 2.0]),), live=(LiveRange(0, 0, 9, np.asarray([5.0, 1.0])),), limit=5.0
        )
        assert solve_strategies(problem).solver == "elimination"

    def test_a_limit_that_nothing_keeps(self) -> None:
        problem = StrategyProblem(
            (np.asarray([1.0, 2.0]),), live=(LiveRange(0, 0, 9, np.asarray([5.0, 4.0])),), limit=3.0
        )
        assert solve_strategies(problem).status is Status.INFEASIBLE

    def test_a_problem_without_nodes(self) -> None:
        assert solve_strategies(StrategyProblem(())).objective == 0.0

    def test_dominated_strategies_go(self) -> None:
        """Strategy 1 costs 2 more and saves at most 1; of the equal 2 and 3 the first stays."""
        edge = Edge((0, 1), np.asarray([[1.0, 0.0], [0.0, 0.0], [0.0, 9.0], [0.0, 9.0]]))
        problem = StrategyProblem((np.asarray([0.0, 2.0, 0.5, 0.5]), np.asarray([0.0, 0.0])), (edge,))
        kept = without_dominated(problem).kept
        assert [own.tolist() for own in kept] == [[0, 2], [0, 1]]

    def test_a_table_needs_an_axis_a_node(self) -> None:
        with pytest.raises(InputError, match="an edge of nodes \\(0, 1\\) has costs of shape \\(2,\\); give each node"):
            StrategyProblem((np.zeros(2), np.zeros(2)), (Edge((0, 1), np.zeros(2)),))
        with pytest.raises(InputError, match="node 0 is live from 3 to 1 with 2 usages; give"):
            StrategyProblem((np.zeros(2),), live=(LiveRange(0, 3, 1, np.zeros(2)),))


def grid(side: int, seed: int) -> StrategyProblem:
    """A grid of nodes with three strategies and costs of 0 to 9, which small tables cannot eliminate exactly."""
    rng = np.random.default_rng(seed)
    at = np.arange(side * side).reshape(side, side)
    pairs = [*zip(at[:, :-1].flat, at[:, 1:].flat, strict=True), *zip(at[:-1].flat, at[1:].flat, strict=True)]
    edges = tuple(Edge((int(u), int(v)), rng.integers(0, 10, (3, 3)).astype(float)) for u, v in pairs)
    return StrategyProblem(tuple(rng.integers(0, 10, 3).astype(float) for _ in range(side * side)), edges)


@pytest.mark.parametrize("seed", range(3))
def test_moved_costs_leave_a_small_gap_where_tables_are_too_large(seed: int) -> None:
    problem = grid(6, seed)
    optimum, small = eliminate(problem), eliminate(problem, most_cells=9)
    assert optimum.exact
    assert not small.exact
    bound = relax(problem, 9, problem.cost, lambda: False, 1.0, exact=False)
    assert small.bound < 0.9 * optimum.bound
    assert 0.98 * optimum.bound < bound <= optimum.bound + 1e-9


class TestAgainstAllChoices:
    @given(problems())
    def test_elimination_is_exact(self, problem: StrategyProblem) -> None:
        done = eliminate(problem)
        assert done.exact
        assert done.bound == pytest.approx(least(problem))
        assert problem.cost(done.choice) == pytest.approx(least(problem))

    @given(problems())
    def test_small_tables_give_a_bound(self, problem: StrategyProblem) -> None:
        done = eliminate(problem, most_cells=4)
        assert done.bound <= least(problem) + 1e-9
        assert problem.cost(done.choice) >= least(problem) - 1e-9

    @given(problems(memory=True))
    def test_dominance_keeps_an_optimum(self, problem: StrategyProblem) -> None:
        small = without_dominated(problem)
        assert least(small.problem) == pytest.approx(least(problem))

    @given(problems(memory=True))
    def test_descent_never_leaves_the_limit(self, problem: StrategyProblem) -> None:
        start = (0,) * len(problem.node_cost)
        found = Descent(problem).improved(start)
        assert problem.cost(found) >= least(problem) or not problem.allows(found)
        if problem.allows(start):
            assert problem.allows(found)
            assert problem.cost(found) <= problem.cost(start)

    @given(problems(memory=True))
    def test_relaxation_gives_a_bound(self, problem: StrategyProblem) -> None:
        told: list[tuple[int, ...]] = []

        def tell(choice: tuple[int, ...]) -> float:
            told.append(choice)
            return min((problem.cost(choice) for choice in told if problem.allows(choice)), default=inf)

        assert relax(problem, 1 << 20, tell, lambda: False) <= least(problem) + 1e-9
        assert relax(problem, 4, tell, lambda: False, 0.1, exact=False) <= least(problem) + 1e-9

    @given(problems(), st.integers(1, 3))
    def test_no_choice_costs_more_or_less_after_costs_have_moved(self, problem: StrategyProblem, times: int) -> None:
        flow = Diffusion(problem)
        flow.sweep(problem.node_cost, times)
        moved = flow.applied(problem.node_cost)
        for choice in everything(problem):
            assert moved.cost(choice) == pytest.approx(problem.cost(choice), abs=1e-9)

    @given(problems(memory=True))
    def test_what_costs_more_than_a_choice_is_not_needed(self, problem: StrategyProblem) -> None:
        best = least(problem)
        assert least(problem.below(best)) == best
        assert problem.least_peak <= min(map(problem.peak, filter(problem.allows, everything(problem))), default=inf)
        choice = eliminate(problem.leanest).choice
        usages = [sum(live.usage[s] for live in problem.live if live.node == v) for v, s in enumerate(choice)]
        assert problem.cost(choice) == inf or sum(usages) == problem.leanest.cost(choice)
        assert (problem.cost(choice) < inf) == any(problem.cost(c) < inf for c in everything(problem))

    def test_numbers_that_stand_for_infinity(self) -> None:
        """Neighbours must differ, as 1e18 says, and memory has room for one strategy 1 at a time."""
        line = chain(6)
        dear = np.where(np.isfinite(line.edges[0].cost), 0.0, 1e18)
        live = tuple(LiveRange(v, v, v + 2, np.asarray([1.0, 2.0])) for v in range(6))
        problem = StrategyProblem(line.node_cost, tuple(Edge(e.nodes, dear) for e in line.edges), live, limit=3.0)
        result = solve_strategies(problem, most_cells=1)
        assert (result.status, result.objective) == (Status.OPTIMAL, 3.0)

    def test_the_same_input_gives_the_same_choice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Twenty nodes, each joined to three others; the limit is far below what the cheapest choice needs.

        Work ends each search, as on a machine that is quick enough for the clock never to do so.
        """
        monkeypatch.setattr(Budget, "left_s", 60.0)
        monkeypatch.setattr(Budget, "brake_s", 60.0)
        random = np.random.default_rng(3)
        own = tuple(random.integers(0, 50, 4).astype(float) for _ in range(20))
        edges = tuple(
            Edge((u, v), random.integers(0, 50, (4, 4)).astype(float))
            for v in range(20)
            for u in {v // 2, v // 3} - {v}
        )
        live = tuple(LiveRange(v, v, v + 8, random.integers(0, 50, 4).astype(float)) for v in range(20))
        problem = StrategyProblem(own, edges, live, limit=133.0)
        first, again = (solve_strategies(problem, 1.0, most_cells=1) for _ in range(2))
        assert (first.choice, first.bound) == (again.choice, again.bound)

    @settings(max_examples=40)
    @given(problems(memory=True), st.sampled_from([1, 1 << 20]))
    def test_the_whole_way(self, problem: StrategyProblem, most_cells: int) -> None:
        result = solve_strategies(problem, most_cells=most_cells)
        best = least(problem)
        assert result.objective == pytest.approx(best, rel=1e-6)
        assert result.bound == pytest.approx(best, rel=1e-5, abs=1e-5)
        assert result.status is (Status.INFEASIBLE if best == inf else Status.OPTIMAL)
        if result.choice is not None:
            assert problem.allows(result.choice)
            assert problem.cost(result.choice) == pytest.approx(result.objective)
