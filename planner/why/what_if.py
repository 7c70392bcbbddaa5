"""What if: what a plan would be worth with one border moved, one more device, faster links, more memory."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf

import numpy as np

from costmodels.table import CostTable
from costmodels.units import format_bytes
from graphs.errors import InputError
from planner.bounds import lower_bound
from planner.evaluate import MEMORY_TOLERANCE, evaluate, memory
from planner.plans import STEADY_ROUNDS, Plan
from planner.problem import Goal, Problem
from planner.solvers.blocks import Blocks
from simulator.placement import Placement
from simulator.simulate import simulate

NOTICEABLE = 1e-3  # relative; less than this is as it was


class How(StrEnum):
    """How a figure was computed."""

    BOUND = "bound"  # `planner.bounds.lower_bound`: no plan can be below it, and there may be none that reaches it
    JUDGED = "same placement"  # `planner.evaluate` of this placement with other costs
    SIMULATED = "simulated"  # the stream of this placement


@dataclass(frozen=True, slots=True)
class Move:
    """One end of a cut on the other side.

    Attributes:
        op: the operator that is moved; what must share its device is moved along.
        n_ops: how many that are.
        to: name of the device.
        objective_s: what the plan would be worth; None where it could not run.
        obstacle: why it cannot be; else empty.
    """

    op: str
    n_ops: int
    to: str
    objective_s: float | None
    obstacle: str


@dataclass(frozen=True, slots=True)
class Help:
    """What something else than another placement would bring.

    Attributes:
        change: what would be different.
        seconds: the figure then.
        now_s: the same figure as it is.
        how: how both were computed.
        remark: what else there is to know; often empty.
    """

    change: str
    seconds: float
    now_s: float
    how: How
    remark: str = ""


def move(plan: Plan, blocks: Blocks, op: int, to: int) -> Move:
    """Judge the plan with an operator, and all that must share its device, on another device.

    Every other operator and the order of all stay as they are; that order is a topological one on any devices.
    """
    members = blocks.members[blocks.block[op]]
    device = list(plan.placement.device)
    for member in members:
        device[member] = to
    objective_s, obstacle = None, ""
    try:
        judged = evaluate(plan.problem, Placement(tuple(device), plan.placement.order))
        objective_s, obstacle = judged.objective_s, "; ".join(judged.violations)
    except InputError as error:  # there is no link, or the device cannot run one of them
        obstacle = str(error)
    return Move(plan.table.ops[op], len(members), plan.table.devices[to], objective_s, obstacle)


def helps(plan: Plan, moves: Iterable[Move]) -> tuple[Help, ...]:
    """What other means would bring: devices, links, memory where it binds, micro-batches in flight where they are few.

    Args:
        plan: the plan.
        moves: those that were judged; one that is better but for the memory shows that memory binds.
    """
    bound_s = lower_bound(plan.problem)
    found = [_another_device(plan, bound_s)]
    if len(set(plan.placement.device)) > 1:
        found += _faster_links(plan)
    found += _more_memory(plan, bound_s, moves)
    if plan.goal is Goal.THROUGHPUT and plan.period_s > plan.objective_s * (1 + NOTICEABLE):
        found.append(_more_in_flight(plan))
    return tuple(found)


def _another_device(plan: Plan, bound_s: float) -> Help:
    """One more of the kind that lowers the bound the most; the first of those that are alike."""
    firsts = {device.kind: number for number, device in reversed(list(enumerate(plan.cluster.devices)))}
    bounds = {
        number: lower_bound(_on(plan, _with_another(plan.problem.table, number))) for number in sorted(firsts.values())
    }
    best = min(bounds, key=bounds.__getitem__)
    device = plan.cluster.devices[best]
    return Help(f"one more device like {device.name}", bounds[best], bound_s, How.BOUND)


def _with_another(table: CostTable, device: int) -> CostTable:
    """The table with a device twice. Between the two nothing is defined: the bounds leave transfers out."""
    index = [*range(table.n_devices), device]
    square = np.ix_(index, index)
    return replace(
        table,
        devices=(*table.devices, f"another {table.devices[device]}"),
        forward_s=table.forward_s[:, index],
        backward_s=table.backward_s[:, index],
        spread=table.spread[:, index],
        source=table.source[:, index],
        wire=table.wire[square],
        channel=table.channel[square],
        capacity_bytes=table.capacity_bytes[index],
        handover_s=table.handover_s[index],
    )


def _on(plan: Plan, table: CostTable) -> Problem:
    """The plan's problem with other costs."""
    return replace(plan.problem, table=table)


def _faster_links(plan: Plan) -> Iterator[Help]:
    table = plan.problem.table
    faster = {
        "links of twice the bandwidth": replace(table, wire_s=(table.wire_s + table.wire_latency_s) / 2),
        "transfers that cost nothing": replace(
            table,
            wire_s=np.zeros_like(table.wire_s),
            wire_latency_s=np.zeros_like(table.wire_latency_s),
            handover_s=np.zeros_like(table.handover_s),
        ),
    }
    for change, there in faster.items():
        judged = evaluate(_on(plan, there), plan.placement)
        yield Help(change, judged.objective_s, plan.objective_s, How.JUDGED)


def _more_memory(plan: Plan, bound_s: float, moves: Iterable[Move]) -> Iterator[Help]:
    """Only where it binds: a bound without limits is lower, or a better neighbour has no room."""
    unlimited = replace(plan.problem.table, capacity_bytes=np.full(plan.table.n_devices, inf))
    roomy_s = lower_bound(_on(plan, unlimited))
    if roomy_s < bound_s * (1 - NOTICEABLE):
        yield Help("memory without limits", roomy_s, bound_s, How.BOUND)
    kept_out = [
        (moved.objective_s, moved)
        for moved in moves
        if moved.obstacle and moved.objective_s is not None and moved.objective_s < plan.objective_s * (1 - NOTICEABLE)
    ]
    if kept_out:
        objective_s, moved = min(kept_out, key=lambda pair: pair[0])
        change = f"more memory on {moved.to}, for {moved.op}"
        yield Help(change, objective_s, plan.objective_s, How.JUDGED, moved.obstacle)


def _more_in_flight(plan: Plan) -> Help:
    table, twice = plan.table, 2 * plan.workload.in_flight
    period_s = simulate(table, plan.placement, STEADY_ROUNDS * twice, twice).period_s
    roomier = replace(table, working_bytes=2 * table.working_bytes)
    full = memory(roomier, plan.placement) > table.capacity_bytes * (1 + MEMORY_TOLERANCE)
    remark = f"{format_bytes(table.working_bytes)} more on each device"
    if full.any():
        remark += f", for which '{table.devices[int(full.argmax())]}' has no room"
    return Help(
        f"{twice} micro-batches in flight, not {plan.workload.in_flight}",
        period_s,
        plan.period_s,
        How.SIMULATED,
        remark,
    )
