"""Relaxation: a bound, and choices, for a strategy problem whose memory limit binds.

Every moment has a price a byte. With prices p, memory becomes a part of the nodes' costs, and elimination minimises

::

    cost(s) + sum over moments m of  p_m * (usage_m(s) - limit)   <=   the optimum,   for all p >= 0

Prices rise where a choice needs too much memory and fall where it leaves some, by subgradient steps of Polyak's length.

Source: Held, Wolfe and Crowder, Mathematical Programming 1974.
"""

from collections.abc import Callable
from math import inf, isfinite

import numpy as np

from graphs.common.arrays import Floats
from planner.problem.strategies import StrategyProblem
from planner.solvers.strategies.elimination import eliminate

ROUNDS = 80
TOLD = 3  # times of an elimination that a round takes, in which the caller also improves its choice
AIM = 0.02  # relative; how far above the best bound the optimum is taken to be while no choice is known
HALVE = 6  # rounds without a better bound, after which steps become half as long


def relax(
    problem: StrategyProblem,
    most_cells: int,
    tell: Callable[[tuple[int, ...]], float],
    enough: Callable[[], bool],
    most_s: float = inf,
) -> float:
    """Raise the prices of memory round by round, and return the best bound.

    Args:
        problem: with a limit.
        most_cells: the largest table of an elimination.
        tell: receives every choice, and returns the cost of the best feasible one.
        enough: returns whether to stop, before every round.
        most_s: seconds of all rounds on the usual machine, by `EliminationResult.work_s`; one round at least.
    """
    moments = problem.moments
    price = np.zeros(len(moments))
    best, length, since = -np.inf, 1.0, 0
    for _ in range(ROUNDS):
        if enough() or most_s <= 0:
            break
        done = eliminate(_priced(problem, moments, price), most_cells)
        most_s -= TOLD * done.work_s
        bound = done.bound - float(price.sum()) * problem.limit
        known = tell(done.choice)
        if not isfinite(bound):
            return max(best, bound)
        best, since = (bound, 0) if bound > best else (best, since + 1)
        if since == HALVE:
            length, since = length / 2, 0
        used = [sum(problem.live[i].usage[done.choice[problem.live[i].node]] for i in together) for together in moments]
        excess = np.asarray(used) - problem.limit
        excess[(price == 0) & (excess < 0)] = 0.0  # no price goes below 0
        norm = float(excess @ excess)
        if norm == 0:
            break
        target = known if isfinite(known) else best + AIM * max(1.0, abs(best))
        price = np.maximum(0.0, price + length * max(0.0, target - bound) / norm * excess)
    return best


def _priced(problem: StrategyProblem, moments: list[list[int]], price: Floats) -> StrategyProblem:
    """Return the problem with memory as a cost."""
    rate = np.zeros(len(problem.live))
    for together, cost in zip(moments, price.tolist(), strict=True):
        rate[together] += cost
    node_cost = list(problem.node_cost)
    for live, cost in zip(problem.live, rate.tolist(), strict=True):
        if cost > 0:
            node_cost[live.node] = node_cost[live.node] + cost * live.usage
    return StrategyProblem(tuple(node_cost), problem.edges)
