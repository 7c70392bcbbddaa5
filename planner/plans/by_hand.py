"""by_hand: a plan out of a placement that no solver made, judged as any other."""

from dataclasses import replace

from planner.plans.plan import Plan
from planner.problem.result import Status
from simulator.placement import Placement

SOLVER = "by hand"


def plan_by_hand(found: Plan, placement: Placement) -> Plan:
    """The same question as that of a plan, with another answer.

    Its status is "feasible", or "unknown" if it breaks what the plan keeps (memory, parameters shared between devices).

    Args:
        found: what a solver answered; its bound holds for every placement.
        placement: of the same operators.

    Raises:
        InputError: if an operator cannot run where it is placed, or a tensor has no link to take.
    """
    placement.check(found.table)
    plan = replace(found, placement=placement, solver=SOLVER, status=str(Status.FEASIBLE), robustness=None)
    return plan if plan.evaluation.feasible else replace(plan, status=str(Status.UNKNOWN))
