"""Parts of strategy problems: they cost what the whole costs beside the rest, and small problems are one part."""

from math import inf

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.problem.strategies import Edge, LiveRange, StrategyProblem
from planner.solvers.base import Budget
from planner.solvers.strategies.descent import Descent
from planner.solvers.strategies.neighbourhoods import Neighbourhoods
from tests.planner.solvers.strategies.test_strategies import everything, problems


@given(problems(memory=True), st.data())
def test_a_part_costs_and_needs_what_the_whole_does(problem: StrategyProblem, data: st.DataObject) -> None:
    """What the part says of two choices for its nodes differs as the whole does, and the limit is the same one."""
    n = len(problem.node_cost)
    here, there = ([data.draw(st.integers(0, len(own) - 1)) for own in problem.node_cost] for _ in range(2))
    nodes = sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1)))
    part = Neighbourhoods(problem, 0).part(nodes, here)
    there = [there[node] if node in nodes else here[node] for node in range(n)]
    own, other = ((*(choice[node] for node in nodes), 0) for choice in (here, there))
    assume(problem.cost(here) < inf)
    assert part.cost(own) < inf
    assert part.cost(other) - part.cost(own) == pytest.approx(problem.cost(there) - problem.cost(here))
    if problem.allows(here):
        assert part.allows(own)
        assert part.allows(other) == problem.allows(there)


@settings(max_examples=30)
@given(problems(memory=True))
def test_every_choice_is_allowed_and_better(problem: StrategyProblem) -> None:
    first = next((choice for choice in everything(problem) if problem.allows(choice)), None)
    assume(first is not None)
    assert first is not None
    told = [first]
    Neighbourhoods(problem, 0).search(first, Budget(0.05, gap=0.0), told.append)
    costs = [problem.cost(choice) for choice in told]
    assert all(problem.allows(choice) for choice in told)
    assert costs == sorted(set(costs), reverse=True)


def test_two_nodes_change_together() -> None:
    """Both on 1 are free, one alone costs 20, and both need 3 bytes together either way."""
    edge = Edge((0, 1), np.asarray([[10.0, 20.0], [20.0, 0.0]]))
    usage = np.asarray([2.0, 1.0])
    live = (LiveRange(0, 0, 3, usage), LiveRange(1, 1, 4, usage[::-1]))
    problem = StrategyProblem((np.zeros(2), np.zeros(2)), (edge,), live, limit=3.0)
    assert Descent(problem).improved((0, 0)) == (0, 0)
    told: list[tuple[int, ...]] = []
    Neighbourhoods(problem, 0).search((0, 0), Budget(0.3, gap=0.0), told.append)
    assert told == [(1, 1)]
