"""Diffusion: moves costs between nodes and edges, so that the cheapest entries of all tables add up to a high bound.

::

    cost_v[s] + cost_e[s, t]  =  (cost_v[s] + m[s]) + (cost_e[s, t] - m[s])        for any m

No choice costs anything else afterwards. A node takes from each of its edges all that the edge costs in any case, and
gives each edge to a later node an equal part of what it then has; sweeps go forward and backward in turns.

Sources: Kolmogorov, Convergent Tree-Reweighted Message Passing, IEEE PAMI 2006; for edges of more than two nodes, A New
Look at Reweighted Message Passing, IEEE PAMI 2015.
"""

import numpy as np

from graphs.common.arrays import Floats
from planner.problem.strategies import Edge, StrategyProblem

ROUNDING = 1e-12  # relative


class Diffusion:
    """The costs that have moved from the edges of a problem to its nodes.

    Forbidden strategies cost more than all else together, so that sums stay finite; that lowers no bound of a problem
    with a choice.
    """

    def __init__(self, problem: StrategyProblem) -> None:
        self._edges = problem.edges
        costs = [*problem.node_cost, *(edge.cost for edge in problem.edges)]
        self._most = 1.0 + sum(float(np.abs(cost[np.isfinite(cost)]).max(initial=0.0)) for cost in costs)
        self._swept = False
        self._left = [np.minimum(edge.cost, self._most) for edge in problem.edges]
        self._moved = [[np.zeros(size) for size in edge.cost.shape] for edge in problem.edges]
        self._at: list[list[tuple[int, int, bool]]] = [[] for _ in problem.node_cost]
        """For each node, its edges, the axis there, and whether a later node is on the edge as well."""
        for number, edge in enumerate(problem.edges):
            for axis, node in enumerate(edge.nodes):
                self._at[node].append((number, axis, node < max(edge.nodes)))

    @property
    def size(self) -> int:
        """The nodes of all edges."""
        return sum(map(len, self._at))

    @property
    def rounding(self) -> float:
        """How far sums in another order may differ."""
        return ROUNDING * self._most if self._swept else 0.0

    def sweep(self, node_cost: tuple[Floats, ...], times: int) -> None:
        """Move costs in some sweeps forward and backward, for these costs of nodes."""
        self._swept = True
        own = [np.minimum(cost, self._most) for cost in node_cost]
        for moved, edge in zip(self._moved, self._edges, strict=True):
            for node, part in zip(edge.nodes, moved, strict=True):
                own[node] = own[node] + part
        nodes = range(len(own))
        for _ in range(times):
            for node in nodes:
                self._pass(node, own, ahead=True)
            for node in reversed(nodes):
                self._pass(node, own, ahead=False)

    def _pass(self, node: int, own: list[Floats], ahead: bool) -> None:
        """Take from all edges of a node, and give to those that lead ahead."""
        at = self._at[node]
        for number, axis, _ in at:
            left = self._left[number]
            self._move(number, axis, left.min(axis=tuple(other for other in range(left.ndim) if other != axis)), own)
        n_ahead = sum(later is ahead for _, _, later in at)
        share = own[node] / max(1, n_ahead, len(at) - n_ahead)
        for number, axis, later in at:
            if later is ahead:
                self._move(number, axis, -share, own)

    def _move(self, number: int, axis: int, part: Floats, own: list[Floats]) -> None:
        """Move a part of the cost of an edge to the node on one of its axes."""
        left = self._left[number]
        left -= part.reshape([-1 if other == axis else 1 for other in range(left.ndim)])
        self._moved[number][axis] += part
        node = self._edges[number].nodes[axis]
        own[node] = own[node] + part

    def applied(self, node_cost: tuple[Floats, ...]) -> StrategyProblem:
        """Return the problem with costs of nodes, from which all has moved as in the sweeps; without memory."""
        own, edges = list(node_cost), []
        for (nodes, cost), moved in zip(self._edges, self._moved, strict=True):
            for axis, (node, part) in enumerate(zip(nodes, moved, strict=True)):
                own[node] = own[node] + part
                cost = cost - part.reshape([-1 if other == axis else 1 for other in range(cost.ndim)])
            edges.append(Edge(nodes, cost))
        return StrategyProblem(tuple(own), tuple(edges))
