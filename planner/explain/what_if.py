"""What if: the objective of this placement after one move, with free transfers, more memory or more in flight."""

from collections.abc import Iterable
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

NOTICEABLE = 1e-3  # relative; smaller differences are ignored


class How(StrEnum):
    """How a figure was computed."""

    BOUND = "bound"  # `planner.problem.bounds.lower_bound`: no plan is below it, but perhaps none reaches it
    JUDGED = "same placement"  # `planner.evaluate` of this placement with other costs
    SIMULATED = "simulated"  # a stream of micro-batches through this placement
    REPLANNED = "planned again"  # the best placement with other costs, see `planner.explain.replanned`


@dataclass(frozen=True, slots=True)
class CutMove:
    """One end of a cut moved to the other device."""

    op: str  # the operator that is moved, with those that must share its device
    n_ops: int  # number of moved operators
    to: str  # name of the device
    objective_s: float | None  # of the plan with the move; None if it could not run
    obstacle: str  # why the move is impossible; empty if it is possible

    @property
    def roomless(self) -> bool:
        """Whether the device lacks memory for the move."""
        return OVER in self.obstacle


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change, apart from the placement, and what it would bring."""

    change: str  # in words
    seconds: float  # with the change
    now_s: float  # without the change
    how: How  # how both times were computed
    remark: str = ""


def move(plan: Plan, blocks: Blocks, op: int, to: int) -> CutMove:
    """Evaluate the plan with an operator, and all that must share its device, on another device.

    The other operators and the order, which is topological for any devices, stay the same.
    """
    members = blocks.members[blocks.block[op]]
    device = list(plan.placement.device)
    for member in members:
        device[member] = to
    objective_s, obstacle = None, ""
    try:
        evaluation = evaluate(plan.problem, Placement(tuple(device), plan.placement.order))
        objective_s, obstacle = evaluation.objective_s, "; ".join(evaluation.violations)
    except InputError as error:  # there is no link, or the device cannot run one of the operators
        obstacle = str(error)
    return CutMove(plan.table.ops[op], len(members), plan.table.devices[to], objective_s, obstacle)


def helps(plan: Plan, moves: Iterable[CutMove]) -> tuple[Remedy, ...]:
    """Remedies for this very placement: free transfers, memory for a move, more micro-batches in flight.

    Args:
        plan: the plan.
        moves: those that were evaluated; a better move that has no room shows that memory limits.
    """
    remedies, table = [], plan.problem.table
    if plan.n_used > 1:
        link_s, latency_s, overhead_s = map(np.zeros_like, (table.link_s, table.link_latency_s, table.overhead_s))
        free = replace(table, link_s=link_s, link_latency_s=latency_s, overhead_s=overhead_s)
        free_s = evaluate(replace(plan.problem, table=free), plan.placement).objective_s
        remedies.append(Remedy("transfers that cost nothing", free_s, plan.objective_s, How.JUDGED))
    if barred := kept_out(plan, moves):
        objective_s, moved = min(barred, key=lambda pair: pair[0])
        change = f"more memory on {moved.to}, for {moved.op}"
        remedies.append(Remedy(change, objective_s, plan.objective_s, How.JUDGED, moved.obstacle))
    if plan.goal is Goal.THROUGHPUT and plan.period_s > plan.objective_s * (1 + NOTICEABLE):
        remedies.append(_more_in_flight(plan))
    return tuple(remedies)


def kept_out(plan: Plan, moves: Iterable[CutMove]) -> list[tuple[float, CutMove]]:
    """The moves that would improve the objective if there was memory for them, with that objective."""
    return [
        (moved.objective_s, moved)
        for moved in moves
        if moved.roomless and moved.objective_s is not None and moved.objective_s < plan.objective_s * (1 - NOTICEABLE)
    ]


def _more_in_flight(plan: Plan) -> Remedy:
    table, twice = plan.costs, 2 * plan.workload.in_flight
    period_s = simulate(table, plan.placement, STEADY_ROUNDS * twice, twice).period_s
    roomier = replace(table, working_bytes=2 * table.working_bytes)
    full = memory(roomier, plan.placement) > table.capacity_bytes * (1 + MEMORY_TOLERANCE)
    remark = f"{format_bytes(table.working_bytes)} more on each device"
    if full.any():
        remark += f", for which '{table.devices[int(full.argmax())]}' has no room"
    change = f"{twice} micro-batches in flight, not {plan.workload.in_flight}"
    return Remedy(change, period_s, plan.period_s, How.SIMULATED, remark)
