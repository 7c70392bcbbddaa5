"""Cuts: the tensors that go from one device to another, what each costs, and what moving its ends would do."""

from dataclasses import dataclass, replace
from enum import StrEnum

from planner.explain.bottleneck import Bottleneck
from planner.explain.what_if import CutMove, move
from planner.plans.plan import Plan
from planner.problem.blocks import merge_blocks


class Effect(StrEnum):
    """What a cut does to the goal."""

    LIMITS = "limits"  # it is part of the bottleneck, or its overhead is
    HIDDEN = "hidden"  # it goes on while devices compute, and the bottleneck is elsewhere
    SLACK = "slack"  # it occupies devices, but they have time to spare


@dataclass(frozen=True, slots=True)
class Cut:
    """One tensor on its way from one device to another.

    Attributes:
        tensor: its name.
        src: name of the sending device.
        dst: name of the receiving device.
        writer: the operator that writes it.
        written_in: the module of the writer.
        readers: the operators that read it there, in the order in which they run.
        read_in: the module of the first.
        n_bytes: what is sent for each micro-batch.
        seconds: on the link.
        overhead_s: that the two devices are occupied besides, together.
        effect: what it does to the goal.
        moves: with the writer on the readers' side, and with the first reader on the writer's; empty if not tried.
    """

    tensor: str
    src: str
    dst: str
    writer: str
    written_in: str
    readers: tuple[str, ...]
    read_in: str
    n_bytes: float
    seconds: float
    overhead_s: float
    effect: Effect
    moves: tuple[CutMove, ...] = ()


def cuts(plan: Plan, limit: Bottleneck, n_moved: int) -> tuple[Cut, ...]:
    """Every cut: those that limit first, then those that take longest.

    Args:
        plan: the plan.
        limit: its bottleneck.
        n_moved: for how many of them, from the first, moves are judged; each takes two calls of the evaluator.
    """
    table, rank, device = plan.table, plan.placement.rank, plan.placement.device
    found: list[Cut] = []
    for flow, src, dst in plan.placement.cuts(table):
        record = table.flows[flow]
        readers = sorted((op for op in record.readers if device[op] == dst), key=rank.__getitem__)
        cut = Cut(
            tensor=record.tensor,
            src=table.devices[src],
            dst=table.devices[dst],
            writer=table.ops[record.writer],
            written_in=plan.graph.ops[record.writer].module,
            readers=tuple(table.ops[op] for op in readers),
            read_in=plan.graph.ops[readers[0]].module,
            n_bytes=float(table.flow_bytes[flow]),
            seconds=table.send_s(flow, src, dst),
            overhead_s=float(table.overhead_s[src] + table.overhead_s[dst]),
            effect=Effect.HIDDEN if table.overlap else Effect.SLACK,
        )
        found.append(replace(cut, effect=Effect.LIMITS) if _limits(plan, limit, cut) else cut)
    found.sort(key=lambda cut: (cut.effect is not Effect.LIMITS, -(cut.seconds + cut.overhead_s)))
    return (*_with_moves(plan, found[:n_moved]), *found[n_moved:])


def _limits(plan: Plan, limit: Bottleneck, cut: Cut) -> bool:
    """Whether the transfer or its overhead is part of the bottleneck."""
    link = f"{cut.src} → {cut.dst}"
    if limit.kind == "link":
        return link in limit.names
    busy = {end for end in (cut.src, cut.dst) if plan.table.overhead_s[plan.cluster.index[end]] > 0}
    if limit.kind == "device":
        return limit.names[0] in (busy if plan.table.overlap else (cut.src, cut.dst))
    if any((leg.tensor, leg.resource) == (cut.tensor, link) for leg in limit.path):
        return True
    ends = {cut.src: cut.writer, cut.dst: cut.readers[0]}  # the stages that hand over
    return any(end in busy and any(op in leg.ops for leg in limit.path) for end, op in ends.items())


def _with_moves(plan: Plan, found: list[Cut]) -> list[Cut]:
    blocks, index, number = merge_blocks(plan.table), plan.graph.index, plan.cluster.index
    return [
        replace(
            cut,
            moves=(
                move(plan, blocks, index[cut.writer], number[cut.dst]),
                move(plan, blocks, index[cut.readers[0]], number[cut.src]),
            ),
        )
        for cut in found
    ]
