"""Local search for latency: from the best list schedule on, by moving operators and changing their order."""

from dataclasses import dataclass

from planner.problem.blocks import merge_blocks
from planner.problem.problem import Goal, Problem
from planner.solvers.base import Answer, Budget
from planner.solvers.incumbent import Incumbent
from planner.solvers.list_scheduling.etf import MemoryETF, MemorySCT
from planner.solvers.list_scheduling.heft import Cpop, Heft, Peft
from simulator.placement import Placement

LIST_SCHEDULERS = (Heft(), Cpop(), Peft(), MemoryETF(), MemorySCT())
LOOK_S = 0.1  # about so long between two looks at the clock
FIRST_HEATS = (0.1, 1.0, 0.5, 0.25)  # of each round: temperature at its beginning, in mean operators; first a cold one
LAST_HEAT = 0.01  # at the end of every round


@dataclass(frozen=True)
class LatencySearch:
    """Annealing with the simulator's makespan, within memory, links and groups; it begins at the best list schedule.

    Each round begins hot at the best placement so far. The number of steps decides where it ends, so that a seed has
    one answer wherever the time limit does not cut it short.

    Attributes:
        steps: moves of each round.
    """

    name: str = "latency-search"
    goals: frozenset[Goal] = frozenset({Goal.LATENCY})
    steps: int = 60_000

    def refuses(self, problem: Problem) -> str:
        """The compiled makespan knows direct links alone, and the moves nothing of contiguity."""
        if problem.table.offload:
            return "accelerators beside a host"
        if problem.table.sharing == "fair":
            return "channels that are shared fairly"
        return "contiguous operators" if problem.contiguous else ""

    def search(self, problem: Problem, budget: Budget) -> Answer:
        """Look for a better placement than the list schedulers find; none if they find none."""
        best = Incumbent(problem, budget, self.name)
        for scheduler in LIST_SCHEDULERS:
            answer = scheduler.search(problem, budget)
            if answer.placement is not None:
                best.offer(answer.placement)
        if best.placement is not None and problem.table.n_devices > 1:
            self._anneal(problem, budget, best)
        return Answer(best.placement)

    def _anneal(self, problem: Problem, budget: Budget, best: Incumbent) -> None:
        from planner.solvers.compiled import seed_of  # late: numba takes half a second to load
        from planner.solvers.latency.makespan_data import costs_of, work_for
        from planner.solvers.latency.search_kernel import Heat, anneal, start_walk

        table = problem.table
        costs, work, blocks, seed = costs_of(table), work_for(table), merge_blocks(table), seed_of(budget.seed)
        look = max(1, 1_000_000 // (table.n_ops + len(table.flows)))  # steps that take about `LOOK_S`
        operator_s = float(table.forward_s.min(axis=1).mean()) or best.objective_s or 1.0
        for first in FIRST_HEATS:
            if best.placement is None or best.objective_s * (1 - budget.gap) <= budget.bound_s:
                return
            heat = Heat(first * operator_s, LAST_HEAT * operator_s, self.steps)
            walk = start_walk(blocks, best.placement, best.objective_s)
            for step in range(0, self.steps, look):
                if budget.left_s <= 0:
                    break
                anneal(costs, work, walk, heat, (step, min(self.steps, step + look)), seed)
            if walk.seconds[1] < best.objective_s:
                best.offer(Placement(tuple(walk.best_device.tolist()), tuple(walk.best_order.tolist())))
