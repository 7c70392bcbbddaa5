"""Local search: simulated annealing on many levels, from large clusters to single blocks."""

from dataclasses import dataclass
from math import inf

import numpy as np

from planner.problem.blocks import merge_blocks
from planner.problem.deadline import loading
from planner.problem.problem import Goal, Problem
from planner.solvers.base import Answer, Budget, Incumbent
from planner.solvers.netlist import Netlist, netlist

NETLIST = "netlist"  # kept with a problem
WORK_PER_S = 25e6  # pins visited in a second, about, measured on one core of 2.5 GHz with other cores busy
SHARE = 0.9  # of the time limit that the work takes at that speed; the rest is for slower cores
WORK_PER_CELL = 30_000  # of a cycle; more work gains less than more cycles
CYCLE_WORK = 500_000  # of a cycle besides, whatever the size of the problem
FEWEST_CYCLES = 2  # for which time must suffice, if need be with less work each
FRESH = 6  # every sixth cycle begins afresh; the others start at the best placement since
PATIENCE = 12, 3  # cycles in all, and for each until the best placement, after which it ends if other solvers follow
PROGRESS = 1e-9  # relative; smaller improvements are rounding


@dataclass(frozen=True)
class LocalSearch:
    """Simulated annealing on every level of a hierarchy of clusters (see `multilevel`), compiled (see `kernel`).

    It stops after an amount of work that depends on the time limit, so that the same input gives the same answer; the
    clock stops it only on a slow machine. If other solvers follow, it ends earlier when it makes no more progress. A
    search that is cut off begins as the one that was planned: with the same cycles. It proves no bound.
    """

    name: str = "local-search"
    goals: frozenset[Goal] = frozenset({Goal.THROUGHPUT, Goal.COST})

    def refuses(self, problem: Problem) -> str:
        """Its moves ignore the order of devices."""
        return "contiguous operators" if problem.contiguous else ""

    def search(self, problem: Problem, budget: Budget) -> Answer:
        """Search for the best placement, cycle after cycle."""
        with loading():
            from planner.solvers.compiled import seed_of
            from planner.solvers.local_search.multilevel import (  # late: numba takes a second to load
                CellPlacement,
                SearchEffort,
                cycle,
            )

        best = Incumbent(problem, budget, self.name)
        blocks = merge_blocks(problem.table)
        if not blocks.fits.any(axis=1).all():
            return Answer(best.placement)
        nets = _netlist_of(problem)
        seed = seed_of(budget.seed)
        most_work = int(SHARE * budget.time_limit_s * WORK_PER_S)
        planned_work = max(most_work, int(SHARE * budget.planned_s * WORK_PER_S))
        effort = SearchEffort(
            work=min(WORK_PER_CELL * nets.n_cells, planned_work // FEWEST_CYCLES),
            enough_s=budget.bound_s * (1 + budget.gap),
            stop=lambda: budget.brake_s <= 0,
        )
        start = CellPlacement(inf, np.zeros(0, dtype=np.int64), 0)
        if best.placement is not None:
            start = CellPlacement(best.objective_s, blocks.devices_of(best.placement), 0)
        work = number = improved_in = 0
        cut = planned_work > most_work
        while work < most_work and best.objective_s > effort.enough_s and not effort.stop():
            if cut and work + effort.work // 2 > most_work:
                break
            if not budget.last and number >= PATIENCE[0] + PATIENCE[1] * improved_in:
                break
            fresh = number % FRESH == 0
            trial = cycle(nets, problem.goal, None if fresh else start.device, effort, seed)
            if trial.value_s <= start.value_s or (fresh and number):
                start = trial
            if trial.value_s < best.objective_s * (1 - PROGRESS):
                best.offer(blocks.spread(trial.device))
                improved_in = number
            work, number = work + trial.work + CYCLE_WORK, number + 1
        return Answer(best.placement, spent=SHARE * min(1.0, work / max(1, most_work)))


def _netlist_of(problem: Problem) -> Netlist:
    """Return the netlist of a problem's own blocks, which is kept with it."""
    if NETLIST not in problem.worked_out:
        problem.worked_out[NETLIST] = netlist(merge_blocks(problem.table), problem.goal)
    nets: Netlist = problem.worked_out[NETLIST]
    return nets
