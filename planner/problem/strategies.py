"""Strategy problems: one strategy for each node, with costs of nodes and of edges, and perhaps a memory limit.

::

    minimise   sum_v cost_v[s_v]  +  sum_e cost_e[s_u, s_v, ..]
    so that    sum of usage_v[s_v] over the nodes v that are live at t  <=  limit        for every time t

An infinite cost forbids. A tie, which asks two nodes for equal strategies, is an edge that costs 0 or infinity.

Sources: the intra-operator problem of Alpa (Zheng et al., OSDI 2022); with live intervals and a limit, the contest of
ASPLOS 2025 on intra-operator parallelism (Moffitt and Fegade, IOPDDL). Compilers know the problem without a limit as
partitioned boolean quadratic programming (Scholz and Eckstein, LCTES 2002).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from math import inf
from typing import NamedTuple

import numpy as np

from graphs.common.arrays import Floats
from graphs.common.brief import Brief
from graphs.common.errors import InputError
from planner.problem.result import Status


class Edge(NamedTuple):
    """A cost that depends on the strategies of several nodes, mostly of two."""

    nodes: tuple[int, ...]
    cost: Floats  # an axis for each of the nodes


class LiveRange(NamedTuple):
    """The memory that a node needs from one time to another."""

    node: int
    start: int
    end: int  # the first time at which the node needs no memory
    usage: Floats  # [n_strategies]


@dataclass(frozen=True)
class StrategyProblem(Brief):
    """The strategies to choose from, with their costs."""

    node_cost: tuple[Floats, ...]  # for each node, [n_strategies]; infinite where a strategy is forbidden
    edges: tuple[Edge, ...] = ()  # costs of strategies together
    live: tuple[LiveRange, ...] = ()  # when nodes need memory, and how much
    limit: float = inf  # the most that may be used at any time

    def __post_init__(self) -> None:
        sizes = [len(cost) for cost in self.node_cost]
        for nodes, cost in self.edges:
            if len(set(nodes)) < len(nodes) or cost.shape != tuple(sizes[node] for node in nodes):
                raise InputError(
                    f"an edge of nodes {nodes} has costs of shape {cost.shape}; give each node its own axis"
                )
        for node, start, end, usage in self.live:
            if len(usage) != sizes[node] or start > end:
                raise InputError(
                    f"node {node} is live from {start} to {end} with {len(usage)} usages; give one a strategy"
                )

    def cost(self, choice: Sequence[int]) -> float:
        """Return the cost of a strategy for each node; infinite if one is forbidden. Memory is not checked."""
        own = sum(float(cost[chosen]) for cost, chosen in zip(self.node_cost, choice, strict=True))
        return own + sum(float(cost[tuple(choice[node] for node in nodes)]) for nodes, cost in self.edges)

    def peak(self, choice: Sequence[int]) -> float:
        """Return the most memory that a choice uses at any time."""
        used = [float(live.usage[choice[live.node]]) for live in self.live]
        return max((sum(used[i] for i in together) for together in self.moments), default=0.0)

    @property
    def least_peak(self) -> float:
        """The most memory that is used at any time if every node takes its smallest strategy then."""
        least = [float(live.usage[self.node_cost[live.node] < inf].min(initial=inf)) for live in self.live]
        return max((sum(least[i] for i in together) for together in self.moments), default=0.0)

    @property
    def leanest(self) -> "StrategyProblem":
        """The problem whose costs are memory, added up over time: other costs are 0, or stay infinite."""
        node_cost = [_only_forbidden(cost) for cost in self.node_cost]
        for live in self.live:
            node_cost[live.node] = node_cost[live.node] + live.usage
        return StrategyProblem(
            tuple(node_cost), tuple(Edge(nodes, _only_forbidden(cost)) for nodes, cost in self.edges)
        )

    def below(self, most: float) -> "StrategyProblem":
        """Return the problem with strategies forbidden that alone cost more than ``most``, if no cost is negative."""
        if (
            min((float(cost.min(initial=0.0)) for cost in (*self.node_cost, *(e.cost for e in self.edges))), default=0)
            < 0
        ):
            return self
        node_cost = tuple(np.where(cost > most, inf, cost) for cost in self.node_cost)
        edges = tuple(Edge(nodes, np.where(cost > most, inf, cost)) for nodes, cost in self.edges)
        return StrategyProblem(node_cost, edges, self.live, self.limit)

    @cached_property
    def moments(self) -> list[list[int]]:
        """The indices in ``live`` of all that is live at once, for every time at which something begins.

        Memory grows at these times only. A moment whose nodes are all live at another moment is left out.
        """
        starts = np.asarray([live.start for live in self.live])
        ends = np.asarray([live.end for live in self.live])
        begun = np.unique(starts[starts < ends]) if len(starts) else starts
        found = [frozenset(np.flatnonzero((starts <= time) & (time < ends)).tolist()) for time in begun.tolist()]
        # Something begins at every moment, so that a moment can only be within a later one, and then within the next.
        kept = [moment for moment, after in zip_longest(found, found[1:]) if after is None or not moment <= after]
        return [sorted(moment) for moment in kept]

    def allows(self, choice: Sequence[int]) -> bool:
        """Return whether a choice is within the limit and has no forbidden strategy."""
        return self.cost(choice) < inf and (self.limit == inf or self.peak(choice) <= self.limit)


def _only_forbidden(cost: Floats) -> Floats:
    return np.where(np.isfinite(cost), 0.0, inf)


@dataclass(frozen=True)
class StrategyResult(Brief):
    """An answer with its proof."""

    status: Status  # how the search ended
    choice: tuple[int, ...] | None  # the strategy of each node; None without an answer
    objective: float  # its cost; infinite without an answer
    bound: float  # no choice costs less
    wall_s: float  # seconds that the search took
    solver: str  # what found the answer
