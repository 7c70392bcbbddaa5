"""Local search: moves cells between devices as long as that helps, on every scale from large clusters to one block."""

from dataclasses import dataclass
from math import inf

import numpy as np

from planner.problem.blocks import merge_blocks
from planner.problem.problem import Goal, Problem
from planner.solvers.base import Answer, Budget
from planner.solvers.incumbent import Incumbent
from planner.solvers.netlist import netlist

WORK_PER_S = 25e6  # pins looked at in a second, about, measured on one core of 2.5 GHz with others at work
SHARE = 0.5  # of the time limit that the work would take there; the rest is for slower cores
WORK_PER_CELL = 30_000  # on a cycle; more brings less than further cycles
CYCLE_WORK = 500_000  # that a cycle takes besides, however small the problem is
FEWEST_CYCLES = 2  # that there is time for, with less work each if need be
FRESH = 6  # every so many cycles begin afresh, and the others go on from the best one since
PATIENCE = 12, 3  # if others come, it gives up after so many cycles, and so many times those for the best placement
PROGRESS = 1e-9  # relative; less is rounding


@dataclass(frozen=True)
class LocalSearch:
    """Simulated annealing on every level of a hierarchy of clusters (see `multilevel`), compiled (see `kernel`).

    It stops after an amount of work that depends on the time limit, so that the same input gives the same answer; the
    clock is the emergency brake. If others come after it, it gives up earlier where it finds nothing more. It proves
    nothing.
    """

    name: str = "local-search"
    goals: frozenset[Goal] = frozenset({Goal.THROUGHPUT, Goal.COST})

    def refuses(self, problem: Problem) -> str:
        """Its moves do not look at the order of devices."""
        return "contiguous operators" if problem.contiguous else ""

    def search(self, problem: Problem, budget: Budget) -> Answer:
        """Look for better and better placements."""
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
        nets = netlist(blocks, problem.goal)
        seed = seed_of(budget.seed)
        most_work = int(SHARE * budget.time_limit_s * WORK_PER_S)
        effort = SearchEffort(
            work=min(WORK_PER_CELL * nets.n_cells, most_work // FEWEST_CYCLES),
            enough_s=budget.bound_s * (1 + budget.gap),
            stop=lambda: budget.left_s <= 0,
        )
        start = CellPlacement(inf, np.zeros(0, dtype=np.int64), 0)
        if best.placement is not None:
            start = CellPlacement(best.objective_s, blocks.devices_of(best.placement), 0)
        work = number = found_in = 0
        while work < most_work and best.objective_s > effort.enough_s and not effort.stop():
            if not budget.last and number >= PATIENCE[0] + PATIENCE[1] * found_in:
                break
            fresh = number % FRESH == 0
            found = cycle(nets, problem.goal, None if fresh else start.device, effort, seed)
            if found.value_s <= start.value_s or (fresh and number):
                start = found
            if found.value_s < best.objective_s * (1 - PROGRESS):
                best.offer(blocks.spread(found.device))
                found_in = number
            work, number = work + found.work + CYCLE_WORK, number + 1
        return Answer(best.placement, spent=SHARE * min(1.0, work / max(1, most_work)))
