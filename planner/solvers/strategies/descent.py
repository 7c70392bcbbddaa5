"""Descent: makes a choice keep the memory limit, then better, one node at a time.

Where too much is live, the node changes that pays least for each byte that it frees; afterwards every node in turn
takes its cheapest strategy within the limit, until none changes.
"""

from collections.abc import Sequence
from math import inf

import numpy as np

from graphs.common.arrays import Floats
from planner.problem.strategies import Edge, StrategyProblem

PASSES = 10  # over all nodes


class Descent:
    """The neighbours and the moments of every node."""

    def __init__(self, problem: StrategyProblem) -> None:
        self._problem = problem
        n = len(problem.node_cost)
        self._edges: list[list[Edge]] = [[] for _ in range(n)]
        for edge in problem.edges:
            for node in edge.nodes:
                self._edges[node].append(edge)
        moments = problem.moments
        self._at: list[list[tuple[int, Floats]]] = [[] for _ in range(n)]  # for each node, moments and usages
        self._there: list[list[int]] = []  # for each moment, its nodes
        for moment, together in enumerate(moments):
            self._there.append([problem.live[i].node for i in together])
            for i in together:
                self._at[problem.live[i].node].append((moment, problem.live[i].usage))

    def improved(self, start: Sequence[int]) -> tuple[int, ...]:
        """Return a choice no worse than the start, within the limit if one is found."""
        choice = list(start)
        used = np.zeros(len(self._there))
        for node, at in enumerate(self._at):
            for moment, usage in at:
                used[moment] += usage[choice[node]]
        self._repair(choice, used)
        for _ in range(PASSES):
            changed = [self._change(node, self._best(node, choice, used), choice, used) for node in range(len(choice))]
            if not any(changed):
                break
        return tuple(choice)

    def _repair(self, choice: list[int], used: Floats) -> None:
        """Free memory at every moment that is over the limit, as far as that succeeds."""
        for moment, nodes in enumerate(self._there):
            while used[moment] > self._problem.limit:
                _, node, strategy = min(
                    (self._cheapest_freed(node, moment, choice) for node in nodes), default=(inf, 0, 0)
                )
                if not self._change(node, strategy, choice, used):
                    break

    def _cheapest_freed(self, node: int, moment: int, choice: list[int]) -> tuple[float, int, int]:
        """Return the least cost for each byte that a node frees at a moment, with the node and its strategy."""
        usage = np.sum([own for at, own in self._at[node] if at == moment], axis=0)
        freed = usage[choice[node]] - usage
        cost = self._costs(node, choice)
        with np.errstate(invalid="ignore", divide="ignore"):
            rate = np.where(freed > 0, (cost - cost[choice[node]]) / freed, inf)
        rate[np.isnan(rate)] = inf
        strategy = int(np.argmin(rate))
        return float(rate[strategy]), node, strategy if rate[strategy] < inf else choice[node]

    def _best(self, node: int, choice: list[int], used: Floats) -> int:
        """Return the cheapest strategy within the limit; the present one if no other is cheaper."""
        cost = self._costs(node, choice)
        present = choice[node]
        for moment, usage in self._at[node]:
            cost[(used[moment] - usage[present] + usage > self._problem.limit) & (usage > usage[present])] = inf
        best = int(np.argmin(cost))
        return best if cost[best] < cost[present] else present

    def _change(self, node: int, strategy: int, choice: list[int], used: Floats) -> bool:
        """Give a node a strategy; False if it has it already."""
        present = choice[node]
        if strategy == present:
            return False
        for moment, usage in self._at[node]:
            used[moment] += usage[strategy] - usage[present]
        choice[node] = strategy
        return True

    def _costs(self, node: int, choice: list[int]) -> Floats:
        """Return [n_strategies], the costs of a node's strategies, given the choice for its neighbours."""
        cost = self._problem.node_cost[node].copy()
        for nodes, table in self._edges[node]:
            cost += table[tuple(slice(None) if other == node else choice[other] for other in nodes)]
        return cost
