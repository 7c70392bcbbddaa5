"""Dominance: leaves out strategies that another strategy of the node can replace at no higher cost, whatever is around.

Strategy ``a`` of node ``v`` goes if some ``b`` satisfies

::

    cost_v[a] - cost_v[b]  +  sum over edges e of v of min over the rest of (cost_e[a, ..] - cost_e[b, ..])  >=  0

and ``b`` needs no more memory than ``a``. Of two that replace each other the first stays.

Source: dead-end elimination (Desmet et al., Nature 1992; Goldstein, Biophysical Journal 1994); Cooper, 1997, calls it
substitutability.
"""

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from graphs.common.arrays import Floats
from planner.problem.strategies import Edge, LiveRange, StrategyProblem

MOST_CELLS = 4_000_000  # of a table of differences; larger edges count as if every strategy could be the better one


@dataclass(frozen=True)
class ReducedStrategies:
    """A problem with fewer strategies, and the strategies of the full problem that it kept."""

    problem: StrategyProblem
    kept: tuple[NDArray[np.int64], ...]  # for each node

    def restored(self, choice: tuple[int, ...]) -> tuple[int, ...]:
        """Return a choice in the numbers of the full problem."""
        return tuple(int(kept[chosen]) for kept, chosen in zip(self.kept, choice, strict=True))


def without_dominated(problem: StrategyProblem) -> ReducedStrategies:
    """Leave out dominated and forbidden strategies until none is left; a node keeps all if all are forbidden."""
    n = len(problem.node_cost)
    kept = [np.flatnonzero(cost < inf) if (cost < inf).any() else np.arange(len(cost)) for cost in problem.node_cost]
    around: list[list[Edge]] = [[] for _ in range(n)]
    for edge in problem.edges:
        for node in edge.nodes:
            around[node].append(edge)
    usage: list[list[LiveRange]] = [[] for _ in range(n)]
    for live in problem.live:
        usage[live.node].append(live)
    waiting = dict.fromkeys(range(n))
    while waiting:
        node = next(iter(waiting))
        del waiting[node]
        if len(kept[node]) < 2:
            continue
        keep = _undominated(problem.node_cost[node], [live.usage for live in usage[node]], around[node], node, kept)
        if len(keep) < len(kept[node]):
            kept[node] = keep
            waiting.update(dict.fromkeys(other for edge in around[node] for other in edge.nodes if other != node))
    return ReducedStrategies(_restricted(problem, kept), tuple(kept))


def _undominated(
    cost: Floats, usages: list[Floats], edges: list[Edge], node: int, kept: list[NDArray[np.int64]]
) -> NDArray[np.int64]:
    """Return the strategies of a node that no other strategy dominates."""
    own = kept[node]
    margin = _difference(cost[own][:, None]) if len(own) else np.zeros((0, 0))
    for usage in usages:
        margin = np.where(usage[own][:, None] >= usage[own], margin, -inf)
    for nodes, table in edges:
        axis = nodes.index(node)
        part = np.moveaxis(table[np.ix_(*(kept[other] for other in nodes))], axis, 0).reshape(len(own), -1)
        with np.errstate(invalid="ignore"):
            margin = margin + (_difference(part) if part.size * len(own) <= MOST_CELLS else -inf)
        margin[np.isnan(margin)] = inf  # what an edge forbids whatever is around it, anything replaces
    replaces = margin >= 0  # [a, b]: b replaces a
    alive = np.ones(len(own), bool)
    for a in reversed(range(len(own))):  # the last of equals goes first
        others = alive & replaces[a]
        others[a] = False
        alive[a] = not others.any()
    return own[alive]


def _difference(part: Floats) -> Floats:
    """[a, b]: the least of ``part[a, j] - part[b, j]`` over j; infinite where ``a`` is forbidden with every j."""
    one, other = part[:, None, :], part[None, :, :]
    forbidden = np.isinf(one)
    with np.errstate(invalid="ignore"):
        difference = np.where(forbidden, inf, one - other)
    least: Floats = difference.min(axis=2)
    return least


def _restricted(problem: StrategyProblem, kept: list[NDArray[np.int64]]) -> StrategyProblem:
    """Return the problem with these strategies only."""
    return StrategyProblem(
        tuple(cost[own] for cost, own in zip(problem.node_cost, kept, strict=True)),
        tuple(Edge(nodes, cost[np.ix_(*(kept[node] for node in nodes))]) for nodes, cost in problem.edges),
        tuple(live._replace(usage=live.usage[kept[live.node]]) for live in problem.live),
        problem.limit,
    )
