"""Large neighbourhood search: chooses again for a few dozen nodes at a time, while the others stay as they are.

::

    ── a ══ b ── c ══ d ──        of b and c, the costs of the edges to a and d are costs of a node,
                                  and at every moment the memory of a and d is gone

Neighbours in the graph are chosen together, or nodes that need memory at a moment at which little is left.

Source: Shaw, Using constraint programming and local search methods to solve vehicle routing problems, CP 1998.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from planner.problem.strategies import Edge, LiveRange, StrategyProblem
from planner.solvers.base import Budget
from planner.solvers.strategies.elimination import eliminate
from planner.solvers.strategies.strategy_ilp import StrategyILP

MOST_CELLS = 1 << 16  # of a table, where a part is solved by elimination
CELLS = 300, 1_500  # of the nodes and edges of a part, from and to
PART_S = 0.25  # that the integer program of a part takes at most
TOLD = 3  # times the seconds of an elimination that a part takes besides its program
SHARE = 0.8  # of the time limit that the parts take on the usual machine; the rest is for slower cores
TIGHT = 0.5  # share of the rounds that begin at a moment


class Neighbourhoods:
    """The neighbours and the moments of every node."""

    def __init__(self, problem: StrategyProblem, seed: int) -> None:
        self._problem, self._random = problem, np.random.default_rng(seed)
        self._edges: list[list[Edge]] = [[] for _ in problem.node_cost]
        for edge in problem.edges:
            for node in edge.nodes:
                self._edges[node].append(edge)
        self._moments = [[problem.live[i] for i in together] for together in problem.moments]
        self._at: list[list[int]] = [[] for _ in problem.node_cost]  # for each node, moments
        for moment, together in enumerate(self._moments):
            for live in together:
                self._at[live.node].append(moment)

    def search(self, choice: tuple[int, ...], budget: Budget, tell: Callable[[tuple[int, ...]], None]) -> None:
        """Improve a choice that is allowed, part by part, and tell of every better one.

        The number of parts follows from the time limit; the clock stops it only on a slow machine.
        """
        left_s = SHARE * budget.time_limit_s
        while left_s > 0 and budget.left_s > 0:
            nodes = self._part(choice)
            part, start = self.part(nodes, choice), (*(choice[node] for node in nodes), 0)
            done = eliminate(part, MOST_CELLS)
            left_s -= TOLD * done.work_s
            found = [done.choice]
            if not (done.exact and part.allows(done.choice)):
                program = StrategyILP(part, max(1.0, abs(part.cost(start))))
                program.solve(Budget(PART_S, gap=0.0, end_s=budget.start_s + budget.time_limit_s), start, found.append)
                left_s -= program.spent_s
            best = min(filter(part.allows, found), key=part.cost, default=start)
            if part.cost(best) < part.cost(start):
                changed = dict(zip(nodes, best, strict=False))
                choice = tuple(changed.get(node, strategy) for node, strategy in enumerate(choice))
                tell(choice)

    def part(self, nodes: Sequence[int], choice: Sequence[int]) -> StrategyProblem:
        """Return the problem of some nodes, given the choice for the others; its last node holds the others' memory."""
        place = {node: number for number, node in enumerate(nodes)}
        node_cost = [self._problem.node_cost[node].copy() for node in nodes]
        edges: dict[int, Edge] = {}
        for node in nodes:
            for edge in self._edges[node]:
                inside = tuple(other for other in edge.nodes if other in place)
                if inside[0] != node:
                    continue
                cost = edge.cost[tuple(slice(None) if other in place else choice[other] for other in edge.nodes)]
                if len(inside) == 1:
                    node_cost[place[node]] += cost
                else:
                    edges[len(edges)] = Edge(tuple(place[other] for other in inside), cost)
        live = tuple(self._live(place, choice))
        return StrategyProblem((*node_cost, np.zeros(1)), tuple(edges.values()), live, self._problem.limit)

    def _live(self, place: Mapping[int, int], choice: Sequence[int]) -> Iterator[LiveRange]:
        """Yield the memory of a part's nodes, and at the same times, as its last node, the memory of all others."""
        for moment in sorted({moment for node in place for moment in self._at[node]}):
            gone = 0.0
            for own in self._moments[moment]:
                if own.node in place:
                    yield LiveRange(place[own.node], moment, moment + 1, own.usage)
                else:
                    gone += float(own.usage[choice[own.node]])
            yield LiveRange(len(place), moment, moment + 1, np.asarray([gone]))

    def _part(self, choice: Sequence[int]) -> list[int]:
        """Return nodes to choose for again."""
        if self._moments and self._random.random() < TIGHT:
            used = [sum(live.usage[choice[live.node]] for live in together) for together in self._moments]
            weight = np.asarray(used) ** 8
            moment = self._random.choice(len(used), p=weight / weight.sum()) if weight.sum() > 0 else 0
            first = self._random.permutation([live.node for live in self._moments[moment]]).tolist()
        else:
            first = [int(self._random.integers(len(choice)))]
        nodes: dict[int, None] = {}
        cells, most = 0, self._random.uniform(*CELLS)
        waiting = first[: max(1, len(first) // 2)]
        while waiting and cells < most:
            node = waiting.pop(0)
            if node in nodes:
                continue
            nodes[node] = None
            cells += len(self._problem.node_cost[node])
            for edge in self._edges[node]:
                cells += edge.cost.size // len(edge.nodes)
                waiting += [other for other in edge.nodes if other not in nodes]
        return list(nodes)
