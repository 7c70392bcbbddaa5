"""Local search for latency: from the best list schedule on, it moves operators and changes their order."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from planner.problem.blocks import merge_blocks
from planner.problem.deadline import loading
from planner.problem.problem import Goal, Problem
from planner.solvers.base import Answer, Budget, Incumbent
from planner.solvers.list_scheduling.heft import LIST_SCHEDULERS
from simulator.placement import Placement

LOOK_S = 0.1  # between two looks at the clock, about
STEP_S = 1.5e-7  # for each operator and flow, measured on one core of 2.5 GHz
SHARE = 0.5  # of the time limit that the steps take there; the rest is for slower cores
FIRST_HEATS = (0.1, 1.0, 0.5, 0.25)  # temperature at the start of each round, in mean operators; first a cold round
FEWEST_STEPS = 1_000  # of each round, whatever the time limit
LAST_HEAT = 0.01  # temperature at the end of every round


@dataclass(frozen=True)
class LatencySearch:
    """Annealing with the simulator's makespan, within memory, links and groups; it begins at the best list schedule.

    Each round begins hot at the best placement so far and ends after a number of steps, so that a seed gives the same
    answer unless time runs out. If no other search follows, further cycles of rounds take twice as many steps each, for
    as long as there is time.
    """

    name: str = "latency-search"
    goals: frozenset[Goal] = frozenset({Goal.LATENCY})
    steps: int = 60_000  # moves of each round of the first cycle, as far as the time limit goes

    def refuses(self, problem: Problem) -> str:
        """Refuse fair sharing, which the makespan lacks; the moves ignore contiguity."""
        if problem.table.sharing == "fair":
            return "channels that are shared fairly"
        return "contiguous operators" if problem.contiguous else ""

    def search(self, problem: Problem, budget: Budget) -> Answer:
        """Search for a better placement than the list schedulers find; if they find none, there is no answer."""
        best = Incumbent(problem, budget, self.name)
        for scheduler in () if budget.planned_s else LIST_SCHEDULERS:  # a search that goes on has theirs
            answer = scheduler.search(problem, budget)
            if answer.placement is not None:
                best.offer(answer.placement)
        anneals = best.placement is not None and problem.table.n_devices > 1
        spent = self._anneal(problem, budget, best) if anneals else 0.0
        return Answer(best.placement, spent=spent)

    def _anneal(self, problem: Problem, budget: Budget, best: Incumbent) -> float:
        """Anneal round after round from the best placement on; return the share of the time limit that this takes."""
        with loading():
            from planner.solvers.compiled import seed_of  # late: numba takes half a second to load
            from planner.solvers.latency.makespan_data import costs_of, work_for
            from planner.solvers.latency.search_kernel import Heat, anneal, start_walk

        table = problem.table
        costs, work, blocks, seed = costs_of(table), work_for(table), merge_blocks(table), seed_of(budget.seed)
        step_s = STEP_S * (table.n_ops + len(table.flows))
        look, spent_s = max(1, int(LOOK_S / step_s)), 0.0
        operator_s = float(table.forward_s.min(axis=1).mean()) or best.objective_s or 1.0
        for first, steps in self._rounds(budget.time_limit_s / step_s, budget.last, budget.planned_s / step_s):
            if best.placement is None or best.objective_s * (1 - budget.gap) <= budget.bound_s or budget.brake_s <= 0:
                break
            heat = Heat(first * operator_s, LAST_HEAT * operator_s, steps)
            walk = start_walk(blocks, best.placement, best.objective_s)
            for step in range(0, steps, look):
                if budget.brake_s <= 0:
                    break
                anneal(costs, work, walk, heat, (step, min(steps, step + look)), seed)
            if walk.seconds[1] < best.objective_s:
                best.offer(Placement(tuple(walk.best_device.tolist()), tuple(walk.best_order.tolist())))
            spent_s += steps * step_s
        return budget.share(spent_s)

    def _rounds(self, most: float, last: bool, planned: float = 0.0) -> Iterator[tuple[float, int]]:
        """Yield the first temperature and the steps of each round: one cycle, then more if no other search follows.

        Args:
            most: steps that the time limit is enough for.
            last: whether no other search follows.
            planned: steps that it plans with, if that is more; it then ends once the time limit is reached.
        """
        done, fewest = 0, min(self.steps, max(FEWEST_STEPS, int(max(most, planned) / len(FIRST_HEATS))))
        for cycle in count():
            steps = fewest << cycle
            for first in FIRST_HEATS:
                if cycle and not last:
                    return
                if (cycle or planned > most) and done + steps > SHARE * most:
                    return
                done += steps
                yield first, steps
