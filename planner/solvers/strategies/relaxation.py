"""Relaxation: a bound, and choices, for a strategy problem whose memory limit binds or whose tables are too large.

Every moment has a price a byte. With prices p, memory becomes a part of the nodes' costs, and elimination minimises

::

    cost(s) + sum over moments m of  p_m * (usage_m(s) - limit)   <=   the optimum,   for all p >= 0

Prices rise where a choice needs too much memory and fall where it leaves some, by subgradient steps of Polyak's length.
Where tables are too large to eliminate exactly, costs move between nodes and edges first (`Diffusion`), and tables of a
round stay small; the last round takes tables as large as allowed.

Source: Held, Wolfe and Crowder, Mathematical Programming 1974.
"""

from collections.abc import Callable
from itertools import count
from math import inf, isfinite

import numpy as np

from graphs.common.arrays import Floats
from planner.problem.strategies import StrategyProblem
from planner.solvers.strategies.diffusion import Diffusion
from planner.solvers.strategies.elimination import eliminate

ROUNDS = 80  # of exact eliminations
TOLD = 3  # times of an elimination that a round takes, in which the caller also improves its choice
AIM = 0.02  # relative; how far above the best bound the optimum is taken to be while no choice is known
HALVE = 6  # rounds without a better bound, after which steps become half as long
SHORTEST = 1e-3  # step, of Polyak's length
SWEEPS, SWEEP_S = 2, 6e-5  # in a round, and seconds of a sweep forward and backward for a node of an edge
ROUND_CELLS = 1 << 12  # of the largest table in a round with sweeps
LAST_SHARE = 0.3  # of the time, which such rounds keep for one with tables as large as allowed


def relax(
    problem: StrategyProblem,
    most_cells: int,
    tell: Callable[[tuple[int, ...]], float],
    enough: Callable[[], bool],
    most_s: float = inf,
    exact: bool = True,
) -> float:
    """Raise the prices of memory round by round, and return the best bound.

    Args:
        problem: what there is to choose.
        most_cells: the largest table of an elimination.
        tell: receives every choice, and returns the cost of the best feasible one.
        enough: returns whether to stop, before every round.
        most_s: seconds of all rounds on the usual machine, by `EliminationResult.work_s`; one round at least.
        exact: whether an elimination with such tables is exact. If not, costs move between nodes and edges.
    """
    prices, flow = _MemoryPrices(problem), Diffusion(problem)
    cells, sweeps_s = (most_cells, 0.0) if exact else (min(most_cells, ROUND_CELLS), SWEEPS * SWEEP_S * flow.size)
    last_s, best = 0.0 if exact else LAST_SHARE * most_s, -inf
    for _ in range(ROUNDS) if exact else count():
        if enough() or most_s <= last_s:
            break
        node_cost = prices.node_cost
        if not exact:
            flow.sweep(node_cost, SWEEPS)
        done = eliminate(flow.applied(node_cost), cells)
        most_s -= TOLD * done.work_s + sweeps_s
        bound = done.bound - prices.earned - flow.rounding
        known = tell(done.choice)
        if not isfinite(bound):
            return max(best, bound)
        best = max(best, bound)
        if (not prices.step(done.choice, bound, known) and exact) or prices.tired:
            break
    if not exact and not enough():
        done = eliminate(flow.applied(prices.best_node_cost), most_cells)
        tell(done.choice)
        best = max(best, done.bound - prices.best_earned - flow.rounding)
    return best


class _MemoryPrices:
    """The price of memory at every moment."""

    def __init__(self, problem: StrategyProblem) -> None:
        self._problem, self._moments = problem, problem.moments if problem.limit < inf else []
        self._price = self._best_price = np.zeros(len(self._moments))
        self._best, self._length, self._since = -inf, 1.0, 0

    @property
    def node_cost(self) -> tuple[Floats, ...]:
        """The costs of nodes with what their memory costs."""
        return self._priced(self._price)

    @property
    def best_node_cost(self) -> tuple[Floats, ...]:
        """The same for the prices of the best bound."""
        return self._priced(self._best_price)

    @property
    def earned(self) -> float:
        """The price of all memory."""
        return self._limit_costs(self._price)

    @property
    def best_earned(self) -> float:
        """The same for the prices of the best bound."""
        return self._limit_costs(self._best_price)

    @property
    def tired(self) -> bool:
        """Whether the bound has not risen for some rounds, however short the steps."""
        return self._since >= HALVE or self._length < SHORTEST

    def step(self, choice: tuple[int, ...], bound: float, known: float) -> bool:
        """Change the prices after a choice with a bound; False if nothing asks for it."""
        if bound > self._best:
            self._best, self._best_price, self._since = bound, self._price, 0
        else:
            self._since += 1
        if self._since == HALVE and len(self._moments):
            self._length, self._since = self._length / 2, 0
        live = self._problem.live
        used = [sum(live[i].usage[choice[live[i].node]] for i in together) for together in self._moments]
        excess = np.asarray(used) - self._problem.limit
        excess[(self._price == 0) & (excess < 0)] = 0.0  # no price goes below 0
        norm = float(excess @ excess)
        if norm == 0:
            return False
        target = known if isfinite(known) else self._best + AIM * max(1.0, abs(self._best))
        self._price = np.maximum(0.0, self._price + self._length * max(0.0, target - bound) / norm * excess)
        return True

    def _limit_costs(self, price: Floats) -> float:
        return float(price.sum()) * self._problem.limit if len(price) else 0.0

    def _priced(self, price: Floats) -> tuple[Floats, ...]:
        """Return the costs of nodes with memory as a cost."""
        live = self._problem.live
        rate = np.zeros(len(live))
        for together, cost in zip(self._moments, price.tolist(), strict=True):
            rate[together] += cost
        node_cost = list(self._problem.node_cost)
        for one, cost in zip(live, rate.tolist(), strict=True):
            if cost > 0:
                node_cost[one.node] = node_cost[one.node] + cost * one.usage
        return tuple(node_cost)
