"""elsewhere: what an operator would take on each device, what the plan would take then, and what forbids it."""

from dataclasses import dataclass

import numpy as np

from graphs.common.brief import brief
from graphs.rewrites.imported_names import number_of
from planner.explanations.cuts import move
from planner.plans.given import Named, given_plan
from planner.plans.plan import Plan
from planner.problem.blocks import merge_blocks
from planner.problem.constraints import CollisionError, constrained


@dataclass(frozen=True, slots=True)
class DevicePrice:
    """An operator on one device."""

    device: str
    here: bool  # whether the plan has it there
    seconds: float | None  # of the operator for each micro-batch; None if the device cannot run it
    objective_s: float | None  # of the plan with the operator there; None if it could not run
    obstacle: str  # why it cannot be there; empty if it can


@dataclass(frozen=True)
class DeviceAlternatives:
    """An operator on every device."""

    op: str
    kind: str
    module: str
    along: int  # operators that share its device, because they share its parameters or a constraint says so
    objective_s: float  # of the plan
    prices: tuple[DevicePrice, ...]  # in the order of the cluster

    __repr__ = brief


def elsewhere(plan: Plan | Named, op: str) -> DeviceAlternatives:
    """Return what an operator costs on each device; in a plan with several copies, the first copy's operator moves.

    Args:
        plan: a plan, or the path of a plan.json.
        op: name of an operator of its graph, or of the imported network.

    Raises:
        InputError: if there is no operator of that name, whose error names the nearest, or it is split into several.
    """
    plan = given_plan(plan)
    number = number_of(plan.graph, op)
    record, home = plan.graph.ops[number], plan.device_of(op)
    blocks, forbidden = merge_blocks(plan.problem.table), _forbidden(plan, number)
    seconds = plan.costs.forward_s[number] + plan.costs.backward_s[number]
    prices = []
    for to, device in enumerate(plan.table.devices):
        takes_s = float(seconds[to]) if np.isfinite(seconds[to]) else None
        if takes_s is None or to in forbidden:
            obstacle = f"a constraint: {forbidden[to]}" if to in forbidden else "the device cannot run it"
            prices.append(DevicePrice(device, device == home, takes_s, None, obstacle))
        else:
            moved = move(plan, blocks, number, to)
            prices.append(DevicePrice(device, device == home, takes_s, moved.objective_s, moved.obstacle))
    along = len(blocks.members[blocks.block[number]]) - 1
    return DeviceAlternatives(record.name, record.kind, record.module, along, plan.objective_s, tuple(prices))


def _forbidden(plan: Plan, op: int) -> dict[int, str]:
    """Map each device that an operator cannot have to the constraint that forbids it."""
    kinds, found = [device.kind for device in plan.cluster.devices], dict[int, str]()
    for constraint in plan.constraints:
        try:
            alone = constrained(plan.table, plan.graph, plan.minimised, (constraint,), kinds)
        except CollisionError:  # with what the devices cannot run, it leaves some other operator no device
            continue
        for device in np.flatnonzero(np.isfinite(plan.table.forward_s[op]) & ~np.isfinite(alone.table.forward_s[op])):
            found.setdefault(int(device), str(constraint))
    return found
