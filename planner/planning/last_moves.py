"""The last step of planning: single operators move as long as the plan gets better by the rule that chose it."""

from dataclasses import replace

from planner.plans.plan import Plan
from planner.problem.problem import Goal
from planner.problem.result import PROOF_TOLERANCE, Status
from planner.solvers.single_moves import climbed, is_scattered
from simulator.placement import Placement

SCATTER_MARGIN = 0.05
"""By how much a placement must stream faster, simulated, than the best contiguous one. Where a micro-batch comes back
to a device, devices wait for each other as soon as times differ from the predicted ones."""


def is_better(plan: Plan, placement: Placement) -> bool:
    """Return whether a placement takes less time than the plan's.

    A stream must take less in the simulator too, by `SCATTER_MARGIN` if only in the new placement micro-batches come
    back to a device that they have left.
    """
    moved = plan.placed(placement)
    if not moved.evaluation.feasible or moved.objective_s >= plan.objective_s:
        return False
    if plan.minimised is not Goal.THROUGHPUT:
        return True
    scattered = is_scattered(plan.problem, placement) and not is_scattered(plan.problem, plan.placement)
    return moved.period_s < plan.period_s * (1 - SCATTER_MARGIN * scattered)


def settled(plan: Plan, time_limit_s: float) -> Plan:
    """Return the plan after the moves of single operators that make it better, with its bound.

    In training, the search has made all that help.
    """
    if plan.goal is Goal.TRAINING or plan.objective_s <= plan.bound_s * (1 + PROOF_TOLERANCE):
        return plan
    current = plan

    def helps(placement: Placement) -> bool:
        """Make a move if it makes the plan better, and return whether it does."""
        nonlocal current
        if not is_better(current, placement):
            return False
        current = current.placed(placement)
        return True

    climbed(plan.problem, plan.placement, time_limit_s, helps)
    if current.objective_s <= current.bound_s * (1 + PROOF_TOLERANCE):
        current = replace(current, status=str(Status.OPTIMAL))
    return replace(current, bound_s=min(current.bound_s, current.objective_s))
