"""Branch and bound for latency: all schedules, without those that begin too slowly."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from costmodels.table import CostTable
from planner.problem.blocks import merge_blocks
from planner.problem.deadline import loading
from planner.problem.problem import Goal, Problem
from planner.solvers.base import Answer, Budget, Incumbent
from planner.solvers.latency.latency_search import LatencySearch
from simulator.placement import Placement

if TYPE_CHECKING:
    from planner.solvers.latency.branch_kernel import Branch

MOST_OPS = 40  # with more operators, it makes no progress
LOOK = 200_000  # steps between two looks at the clock
STEP_S = 1e-6  # measured on one core of 2.5 GHz, with 40 operators on eight devices
SHARE = 0.5  # of the time limit that the steps take there; the rest is for slower cores
FEWEST_STEPS = 10_000_000  # whatever the time limit
FIRST = LatencySearch(steps=5_000)  # whose placement prunes much of the tree


@dataclass(frozen=True)
class BranchAndBound:
    """The least latency of all placements, for a dozen or two of operators.

    It is exact where devices compute while they send and each pair of devices has its own channel. There the order of
    each device determines the schedule, and the tree contains all such orders. Elsewhere, the order in which transfers
    share a channel depends on the order across devices too; then it proves a bound, which ignores that they wait.

    Source: the tree of all semi-active schedules (Giffler, Thompson, Algorithms for solving production-scheduling
    problems, Operations Research 8(4), 1960), sorted by their starts; the bound is the longest path that is left.
    """

    name: str = "branch-and-bound"
    goals: frozenset[Goal] = frozenset({Goal.LATENCY})
    steps: int | None = None  # partial schedules to consider; None for as many as there is time for

    def refuses(self, problem: Problem) -> str:
        """Refuse a host with accelerators and fair sharing, as the makespan does, and contiguity."""
        return FIRST.refuses(problem)

    def search(self, problem: Problem, budget: Budget) -> Answer:
        """Search for the best placement and prove it."""
        best = Incumbent(problem, budget, self.name)
        if budget.incumbent is None and (first := FIRST.search(problem, budget).placement) is not None:
            best.offer(first)
        if problem.table.n_ops > MOST_OPS:
            return Answer(best.placement)
        most = max(FEWEST_STEPS, int(SHARE * budget.time_limit_s / STEP_S)) if self.steps is None else self.steps
        tree = self._search(problem.table, budget, best, most)
        path_s = float(tree.tail_s.min(axis=1).max())
        if tree.depth[0] >= 0:
            bound_s, by_clock = min(path_s, best.objective_s), budget.left_s <= 0
            return Answer(best.placement, bound_s, spent=budget.share(most * STEP_S), by_clock=by_clock)
        bound_s = min(best.objective_s, float(tree.seconds[0]))  # sums are rounded otherwise
        if not channels_apart(problem.table):
            bound_s = min(bound_s, float(tree.seconds[1]))
        return Answer(best.placement, bound_s, complete=bound_s >= best.objective_s)

    def _search(self, table: CostTable, budget: Budget, best: Incumbent, most: int) -> "Branch":
        """Search the tree in at most some steps; return its state."""
        with loading():
            from planner.solvers.latency.branch_kernel import explore, root  # late: numba takes half a second to load
            from planner.solvers.latency.makespan_data import costs_of, work_for

        costs, work = costs_of(table), work_for(table)
        tree = root(merge_blocks(table), costs, best.objective_s)
        for _ in range(0, most, LOOK):
            explore(costs, work, tree, LOOK, True)
            if tree.seconds[0] < best.objective_s:
                best.offer(Placement(tuple(tree.best_device.tolist()), tuple(tree.best_order.tolist())))
            if tree.depth[0] < 0 or budget.left_s <= 0:
                break
        return tree


def channels_apart(table: CostTable) -> bool:
    """Return whether a transfer waits only for transfers between the same two devices in the same direction."""
    channels = table.channel[table.channel >= 0]
    apart = table.sharing == "fifo" and len(np.unique(channels)) == len(channels)
    return table.overlap and (apart or table.sharing == "unlimited")
