"""What if: what this placement would be worth with one border moved, free transfers, more memory or more in flight."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from costmodels.units import format_bytes
from graphs.errors import InputError
from planner.plans.plan import STEADY_ROUNDS, Plan
from planner.problem.blocks import Blocks
from planner.problem.evaluate import MEMORY_TOLERANCE, OVER, evaluate, memory
from planner.problem.problem import Goal
from simulator.placement import Placement
from simulator.simulate import simulate

NOTICEABLE = 1e-3  # relative; less than this is as it was


class How(StrEnum):
    """How a figure was computed."""

    BOUND = (
        "bound"  # `planner.problem.bounds.lower_bound`: no plan can be below it, and there may be none that reaches it
    )
    JUDGED = "same placement"  # `planner.evaluate` of this placement with other costs
    SIMULATED = "simulated"  # the stream of this placement
    REPLANNED = "planned again"  # the best placement that was found with other costs, see `planner.explain.replanned`


@dataclass(frozen=True, slots=True)
class CutMove:
    """One end of a cut on the other side."""

    op: str  # the operator that is moved; what must share its device is moved along
    n_ops: int  # how many that are
    to: str  # name of the device
    objective_s: float | None  # what the plan would be worth; None where it could not run
    obstacle: str  # why it cannot be; else empty

    @property
    def roomless(self) -> bool:
        """Whether memory is in its way."""
        return OVER in self.obstacle


@dataclass(frozen=True, slots=True)
class Remedy:
    """What something else than another placement would bring."""

    change: str  # what would be different
    seconds: float  # the figure then
    now_s: float  # the same figure as it is
    how: How  # how both were computed
    remark: str = ""  # what else there is to know; often empty


def move(plan: Plan, blocks: Blocks, op: int, to: int) -> CutMove:
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
    return CutMove(plan.table.ops[op], len(members), plan.table.devices[to], objective_s, obstacle)


def helps(plan: Plan, moves: Iterable[CutMove]) -> tuple[Remedy, ...]:
    """What other means would bring to this very placement: free transfers, memory for a move, more in flight.

    Args:
        plan: the plan.
        moves: those that were judged; one that is better but for the memory shows that memory binds.
    """
    found = []
    if len(set(plan.placement.device)) > 1:
        found.append(_free_transfers(plan))
    found += _memory_for_a_move(plan, moves)
    if plan.goal is Goal.THROUGHPUT and plan.period_s > plan.objective_s * (1 + NOTICEABLE):
        found.append(_more_in_flight(plan))
    return tuple(found)


def kept_out(plan: Plan, moves: Iterable[CutMove]) -> list[tuple[float, CutMove]]:
    """The moves that would be better if there was room for them, with what they would be worth."""
    return [
        (moved.objective_s, moved)
        for moved in moves
        if moved.roomless and moved.objective_s is not None and moved.objective_s < plan.objective_s * (1 - NOTICEABLE)
    ]


def _free_transfers(plan: Plan) -> Remedy:
    table = plan.problem.table
    free = replace(
        table,
        link_s=np.zeros_like(table.link_s),
        link_latency_s=np.zeros_like(table.link_latency_s),
        overhead_s=np.zeros_like(table.overhead_s),
    )
    judged = evaluate(replace(plan.problem, table=free), plan.placement)
    return Remedy("transfers that cost nothing", judged.objective_s, plan.objective_s, How.JUDGED)


def _memory_for_a_move(plan: Plan, moves: Iterable[CutMove]) -> Iterator[Remedy]:
    """The best move that has no room."""
    if barred := kept_out(plan, moves):
        objective_s, moved = min(barred, key=lambda pair: pair[0])
        change = f"more memory on {moved.to}, for {moved.op}"
        yield Remedy(change, objective_s, plan.objective_s, How.JUDGED, moved.obstacle)


def _more_in_flight(plan: Plan) -> Remedy:
    table, twice = plan.costs, 2 * plan.workload.in_flight
    period_s = simulate(table, plan.placement, STEADY_ROUNDS * twice, twice).period_s
    roomier = replace(table, working_bytes=2 * table.working_bytes)
    full = memory(roomier, plan.placement) > table.capacity_bytes * (1 + MEMORY_TOLERANCE)
    remark = f"{format_bytes(table.working_bytes)} more on each device"
    if full.any():
        remark += f", for which '{table.devices[int(full.argmax())]}' has no room"
    return Remedy(
        f"{twice} micro-batches in flight, not {plan.workload.in_flight}",
        period_s,
        plan.period_s,
        How.SIMULATED,
        remark,
    )
