"""Branch and bound for the latency of a host with accelerators: all placements except those that begin too slowly."""

from dataclasses import dataclass

import numpy as np

from planner.literature.placement.offload_latency import OffloadLatency, kernel_costs, step_s
from planner.problem.blocks import merge_blocks
from planner.problem.deadline import loading
from planner.problem.devices import interchangeable
from planner.problem.problem import Goal, Problem
from planner.solvers.base import Answer, Budget, Incumbent

SHARE = 0.5  # of the time limit that the steps take on the usual machine; the rest is for slower cores
FEWEST_STEPS = 1_000_000  # whatever the time limit
LOOK_S = 0.1  # between two looks at the clock, about


@dataclass(frozen=True)
class OffloadBranch:
    """Proves the least latency of one or two dozen blocks, which are placed in a topological order.

    A placement of the first blocks takes no longer than any placement that extends it: more operators on an accelerator
    lengthen its call, delay it, or make it wait in a circle.
    """

    name: str = "offload-branch"
    goals: frozenset[Goal] = frozenset({Goal.LATENCY})

    def refuses(self, problem: Problem) -> str:
        """Refuse the same problems as the annealing."""
        return OffloadLatency().refuses(problem)

    def search(self, problem: Problem, budget: Budget) -> Answer:
        """Search for the best placement and prove it, within a number of steps that follows from the time limit."""
        with loading():
            from planner.literature.placement.branch_kernel import (  # late: numba takes a moment to load
                OffloadTree,
                branch,
            )
            from planner.literature.placement.kernel import workplace

        best, blocks = Incumbent(problem, budget, self.name), merge_blocks(problem.table)
        costs, seconds = kernel_costs(blocks), step_s(problem.table)
        twin = np.full(problem.table.n_devices, -1)
        for devices in interchangeable(problem.table):
            twin[list(devices[1:])] = devices[:-1]
        tree = OffloadTree(np.zeros(1, dtype=np.int64), twin, np.asarray([best.objective_s]))
        work = workplace(costs)
        work.state.device[:] = -1
        steps, look = max(FEWEST_STEPS, int(SHARE * budget.time_limit_s / seconds)), max(1, int(LOOK_S / seconds))
        for first in range(0, steps, look):
            branch(costs, tree, work, min(look, steps - first))
            if tree.best_s[0] < best.objective_s:
                best.offer(blocks.spread(work.state.best))
            if tree.level[0] < 0 or budget.brake_s <= 0:
                break
        if tree.level[0] >= 0:
            return Answer(best.placement, spent=budget.share(steps * seconds))
        return Answer(best.placement, min(best.objective_s, float(tree.best_s[0])), complete=True)
