"""Elimination: minimises over one node after another, which leaves a table over the node's neighbours.

::

    u ── v ── w      min over s_v of (cost_v + cost_uv + cost_vw)  is a table [s_u, s_w] that joins u and w

The next node is always the one with the smallest table, so that nodes with one or two neighbours go first. Where a
table would be larger than a limit, the node's costs are divided among several smaller tables, each minimised by itself:
their sum is a lower bound, and the choice made backwards is a good one. Otherwise choice and bound are the optimum.

Sources: bucket elimination (Dechter, Artificial Intelligence 1999); mini-buckets (Dechter and Rish, JACM 2003); for
nodes of degree 0 to 2 the reductions of Scholz and Eckstein, LCTES 2002.
"""

from collections.abc import Sequence
from math import inf, prod
from typing import NamedTuple

import numpy as np

from graphs.common.arrays import Floats
from planner.problem.strategies import Edge, StrategyProblem

MOST_CELLS = 1 << 22  # of one table: 32 MiB
NODE_S, CELL_S = 1.5e-4, 5e-9  # of `EliminationResult.work_s`
MOST_AXES = 24  # of one table; numpy has at most 64


class EliminationResult(NamedTuple):
    """The result of an elimination."""

    choice: tuple[int, ...]
    bound: float  # no choice costs less; infinite if everything is forbidden
    exact: bool  # whether no table was divided, so that the choice is the optimum
    work_s: float  # what it takes on one core of 2.5 GHz, by the nodes and the cells of all joint tables


def eliminate(problem: StrategyProblem, most_cells: int = MOST_CELLS) -> EliminationResult:
    """Eliminate all nodes, then choose backwards. It does not look at memory."""
    sizes = [len(cost) for cost in problem.node_cost]
    buckets = _Buckets(
        [Edge((node,), cost) for node, cost in enumerate(problem.node_cost)] + list(problem.edges), sizes
    )
    bound, exact, work_s = 0.0, True, NODE_S * len(sizes)
    order: list[tuple[int, list[Edge]]] = []
    while buckets.left:
        node = buckets.cheapest()
        tables = buckets.take(node)
        order.append((node, tables))
        groups = _groups(tables, sizes, most_cells)
        exact = exact and len(groups) == 1
        for group in groups:
            work_s += CELL_S * prod(sizes[other] for other in {other for table in group for other in table.nodes})
            left = _minimum(group, node)
            if left.nodes:
                buckets.put(left)
            else:
                bound += float(left.cost)
    choice = [0] * len(sizes)
    for node, tables in reversed(order):
        choice[node] = int(np.argmin(_given(tables, node, choice)))
    return EliminationResult(tuple(choice), bound, exact, work_s)


class _Buckets:
    """The tables that are left, by their nodes."""

    def __init__(self, tables: Sequence[Edge], sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._tables: list[dict[int, Edge]] = [{} for _ in sizes]  # of each node, by a number
        self._count = 0
        self.left = dict.fromkeys(range(len(sizes)), 0.0)  # the cells of each node's joint table
        for table in tables:
            self._enter(table)
        for node in self.left:
            self.left[node] = self._cells(node)

    def cheapest(self) -> int:
        """Return the node with the smallest joint table; the first of equals."""
        return min(self.left, key=self.left.__getitem__)

    def take(self, node: int) -> list[Edge]:
        """Remove a node with its tables."""
        tables = self._tables[node]
        for number, table in tables.items():
            for other in table.nodes:
                if other != node:
                    del self._tables[other][number]
        del self.left[node]
        self._changed = {other for table in tables.values() for other in table.nodes} - {node}
        self._refresh()
        return list(tables.values())

    def put(self, table: Edge) -> None:
        """Add a table."""
        self._enter(table)
        self._changed = set(table.nodes)
        self._refresh()

    def _enter(self, table: Edge) -> None:
        self._count += 1
        for node in table.nodes:
            self._tables[node][self._count] = table

    def _refresh(self) -> None:
        for node in self._changed:
            self.left[node] = self._cells(node)

    def _cells(self, node: int) -> float:
        around = {other for table in self._tables[node].values() for other in table.nodes}
        return prod((float(self._sizes[other]) for other in sorted(around)), start=1.0)


def _groups(tables: Sequence[Edge], sizes: Sequence[int], most_cells: int) -> list[list[Edge]]:
    """Return the tables in groups: each table joins the first group whose joint table stays small."""
    groups: list[tuple[set[int], list[Edge]]] = []
    for table in sorted(tables, key=lambda table: -table.cost.size):
        for nodes, members in groups:
            joint = nodes.union(table.nodes)
            if prod(sizes[node] for node in joint) <= most_cells and len(joint) <= MOST_AXES:
                nodes.update(joint)
                members.append(table)
                break
        else:
            groups.append((set(table.nodes), [table]))
    return [members for _, members in groups]


def _minimum(tables: Sequence[Edge], node: int) -> Edge:
    """Return the sum of tables, minimised over one node."""
    nodes = [*sorted({other for table in tables for other in table.nodes} - {node}), node]
    total: Floats = sum((_spread(table, nodes) for table in tables), start=np.zeros(()))
    return Edge(tuple(nodes[:-1]), np.asarray(total.min(axis=-1)))


def _spread(table: Edge, nodes: Sequence[int]) -> Floats:
    """Return a table with an axis for each of the nodes, of length 1 where it has none."""
    place = {node: axis for axis, node in enumerate(table.nodes)}
    turned = table.cost.transpose([place[node] for node in nodes if node in place])
    return turned[tuple(slice(None) if node in place else None for node in nodes)]


def _given(tables: Sequence[Edge], node: int, choice: Sequence[int]) -> Floats:
    """Return the costs of a node's strategies, given the choice for the other nodes of its tables."""
    total = np.zeros(())
    for nodes, cost in tables:
        total = total + cost[tuple(slice(None) if other == node else choice[other] for other in nodes)]
    return np.where(np.isnan(total), inf, total)
