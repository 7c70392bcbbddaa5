"""Copies: whether micro-batches that stream had better take turns among several copies of the network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from planner.planning.rewriting import COPIES
from planner.plans.plan import Plan
from planner.problem.bounds import lower_bound
from planner.problem.problem import Goal, Problem
from planner.problem.result import PROOF_TOLERANCE, Result, Status
from planner.solvers.copies import copies_of_everything, copies_of_stages
from simulator.placement import Placement

LEAST_GAIN = 0.01  # in throughput, for which a single copy is given up


@dataclass(frozen=True)
class Copies:
    """Plans with copies of the whole network, which send no tensors, or of stages if those are not good enough."""

    asked: Plan  # the plan that asks
    gap: float  # that is good enough
    bound_s: float  # seconds, a lower bound for any number of copies
    whole: Plan | None  # the plan with copies of everything; None if fewer than two devices can hold and run everything

    @classmethod
    def of(cls, asked: Plan, gap: float) -> Copies | None:
        """Return the copies of a plan; None for other goals than throughput, one device, or accelerators of a host."""
        table = asked.table
        if asked.goal is not Goal.THROUGHPUT or table.n_devices == 1 or not table.n_ops:
            return None
        bound_s = lower_bound(asked.problem)
        everything = copies_of_everything(asked.problem, gap)
        whole = everything and _answered(asked, everything, COPIES, bound_s)
        return cls(asked, gap, bound_s, whole if whole and whole.evaluation.feasible else None)

    @property
    def enough(self) -> Plan | None:
        """The plan with copies of everything, if it is within the gap."""
        whole = self.whole
        return whole if whole and whole.period_s * (1 - self.gap) <= self.bound_s else None

    def or_better(self, single: Plan, solve: Callable[[Problem], Result]) -> Plan:
        """Return the best plan: copies of the network, copies of stages, or ``single``, which has none.

        Copies must be better by more than the gap and more than `LEAST_GAIN`.
        """
        best, problem = single, self.asked.problem
        reached_s = min(plan.period_s for plan in (best, self.whole) if plan)
        found = copies_of_stages(problem, solve, reached_s, self.gap)
        plans = [_answered(self.asked, placement, COPIES, self.bound_s) for placement in found]
        for plan in (self.whole, *plans):
            if plan and plan.evaluation.feasible and plan.period_s < best.period_s * (1 - max(self.gap, LEAST_GAIN)):
                best = plan
        return best


def _answered(asked: Plan, placement: Placement, solver: str, bound_s: float) -> Plan:
    """Return the plan with a placement, and the bound for any number of copies."""
    plan = replace(asked, placement=placement, solver=solver, robustness=None, simplification=None)
    bound_s = min(bound_s, plan.objective_s)
    proved = plan.objective_s <= bound_s * (1 + PROOF_TOLERANCE)
    return replace(plan, bound_s=bound_s, status=str(Status.OPTIMAL if proved else Status.FEASIBLE))
