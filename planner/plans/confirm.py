"""confirm: what a file says of a plan's proof, as far as that can be checked without searching again.

::

    figures or a status that the placement and the costs have not  ─►  the plan was changed: by hand, with an own bound
    a bound that the plan or another placement contradicts         ─►  an error

A bound that nothing contradicts is believed: to check it is to search.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import isclose, isfinite
from typing import Any

import numpy as np

from costmodels.units import format_seconds
from graphs.errors import InputError
from planner.plans.plan import Plan, plan_by_hand
from planner.problem.result import PROOF_TOLERANCE, Status

SAME = 1e-6  # relative, of figures that were computed on another machine


def confirmed(plan: Plan, document: Mapping[str, Any]) -> Plan:
    """A plan as its file has it, or as one that was made by hand if its figures and its status are not its own.

    Args:
        plan: with the status and the bound of the file.
        document: what stands in the file.

    Raises:
        InputError: if the plan or another placement is better than the bound.
    """
    if plan.status not in (Status.OPTIMAL, Status.FEASIBLE, Status.UNKNOWN):
        raise InputError(f"the plan has a placement and the status '{plan.status}'; plan again")
    if not (isfinite(plan.bound_s) and plan.bound_s >= 0):
        raise InputError(f"the plan's bound is {plan.bound_s} s; plan again")
    feasible = plan.evaluation.feasible
    optimal = plan.objective_s <= plan.bound_s * (1 + PROOF_TOLERANCE)
    believable = (feasible or plan.status == Status.UNKNOWN) and (optimal or plan.status != Status.OPTIMAL)
    if not (believable and _has_its_figures(plan, document)):
        from planner.problem.bounds import lower_bound  # late: it needs scipy

        return plan_by_hand(replace(plan, bound_s=min(lower_bound(plan.problem), plan.objective_s)), plan.placement)
    if feasible:
        _check_bound(plan)
    return plan


def _has_its_figures(plan: Plan, document: Mapping[str, Any]) -> bool:
    """Whether the objective, the loads and the memory in the file are those of the placement and the costs."""
    predicted, judged = document["predicted"], plan.evaluation
    names = [device.name for device in plan.cluster.devices]
    return isclose(document["objective_s"], judged.objective_s, rel_tol=SAME) and all(
        np.allclose([predicted[name][device] for device in names], values, rtol=SAME, atol=0.0)
        for name, values in (("load_s", judged.load_s), ("memory_bytes", judged.memory_bytes))
    )


def _check_bound(plan: Plan) -> None:
    """No placement that is at hand is better than the bound allows."""
    least_s = plan.bound_s / (1 + PROOF_TOLERANCE)
    bound, reached = format_seconds(plan.bound_s), format_seconds(plan.objective_s)
    if plan.objective_s < least_s:
        raise InputError(f"the plan says that nothing is below {bound}, and takes {reached} itself; plan again")
    one = plan.one_device if plan.table.n_ops else None
    if one is not None and one.objective_s < least_s:
        raise InputError(
            f"the plan says that nothing is below {bound}; with all operators on "
            f"'{plan.table.devices[one.placement.device[0]]}' it is {format_seconds(one.objective_s)}; plan again"
        )
