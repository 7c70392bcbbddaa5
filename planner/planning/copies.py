"""Copies: whether micro-batches that stream had better take turns among several copies of the network."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from planner.planning.candidates import Candidate
from planner.planning.rewriting import COPIES
from planner.plans.plan import PlacementTask, Plan
from planner.problem.bounds import lower_bound
from planner.problem.problem import Goal, Problem
from planner.problem.result import PROOF_TOLERANCE, Result, Status
from planner.solvers.copies import copies_of_everything, copies_of_stages
from simulator.placement import Placement

LEAST_GAIN = 0.01  # in throughput, for which a single copy is given up


@dataclass(frozen=True)
class Copies:
    """Plans with copies of the whole network, which send no tensors, or of stages if those are not good enough."""

    task: PlacementTask
    gap: float  # that is good enough
    whole: Plan | None  # the plan with copies of everything; None if fewer than two devices can hold and run everything

    @classmethod
    def of(cls, task: PlacementTask, gap: float) -> "Copies | None":
        """Return the copies of a task; None for other goals than throughput, and for one device."""
        if task.goal is not Goal.THROUGHPUT or task.table.n_devices == 1 or not task.table.n_ops:
            return None
        everything = copies_of_everything(task.problem, gap)
        whole = everything and _answered(task, everything)
        return cls(task, gap, whole if whole and whole.evaluation.feasible else None)

    @property
    def enough(self) -> Plan | None:
        """The plan with copies of everything, if it is within the gap."""
        whole = self.whole
        return whole if whole and whole.period_s * (1 - self.gap) <= lower_bound(self.task.problem) else None

    def candidates(self, single: Plan, solve: Callable[[Problem], Result]) -> Iterator[Candidate]:
        """Yield copies of the network, then copies of stages, where they may be better than ``single``, without copies.

        Copies must be better by more than the gap and more than `LEAST_GAIN`.
        """
        margin = max(self.gap, LEAST_GAIN)
        if self.whole:
            yield Candidate(self.whole, margin)
        reached_s = min(plan.period_s for plan in (single, self.whole) if plan)
        for placement in copies_of_stages(self.task.problem, solve, reached_s, self.gap):
            yield Candidate(_answered(self.task, placement), margin)


def _answered(task: PlacementTask, placement: Placement) -> Plan:
    """Return the plan with a placement, and the bound for any number of copies."""
    plan = task.plan(placement, Status.FEASIBLE, COPIES, 0.0)
    bound_s = min(lower_bound(task.problem), plan.objective_s)
    proved = plan.objective_s <= bound_s * (1 + PROOF_TOLERANCE)
    return task.plan(placement, Status.OPTIMAL if proved else Status.FEASIBLE, COPIES, bound_s)
