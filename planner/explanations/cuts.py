"""Cuts: the tensors that go from one device to another, what each costs, and what moving its ends would change."""

from dataclasses import dataclass, replace
from enum import StrEnum

from graphs.common.errors import InputError
from planner.explanations.bottleneck import Bottleneck
from planner.planning.last_moves import is_better
from planner.plans.plan import Plan
from planner.problem.blocks import Blocks, merge_blocks
from planner.problem.evaluate import OVER, evaluate
from planner.solvers.single_moves import LEAST_GAIN, moved_to


class CutEffect(StrEnum):
    """Effect of a cut on the objective."""

    LIMITS = "limits"  # the transfer or its overhead is part of the bottleneck
    HIDDEN = "hidden"  # the transfer goes on while devices compute, and the bottleneck is elsewhere
    SLACK = "slack"  # the transfer occupies devices that have time to spare


@dataclass(frozen=True, slots=True)
class CutMove:
    """One end of a cut moved to the other device."""

    op: str  # the operator that is moved, with those that must share its device
    n_ops: int  # number of moved operators
    to: str  # name of the device
    objective_s: float | None  # of the plan with the move; None if it could not run
    obstacle: str  # why the move is impossible; empty if it is possible
    better: bool = False  # whether the search would take it, see `planner.planning.last_moves`

    @property
    def roomless(self) -> bool:
        """Whether the device lacks memory for the move."""
        return OVER in self.obstacle


@dataclass(frozen=True, slots=True)
class Cut:
    """A tensor that goes from one device to another."""

    tensor: str
    src: str  # name of the sending device
    dst: str  # name of the receiving device
    writer: str  # name of the operator
    written_in: str  # module of the writer
    readers: tuple[str, ...]  # names of the operators on the receiving device, in the order in which they run
    read_in: str  # module of the first reader
    n_bytes: float  # for each micro-batch
    seconds: float  # on the link
    overhead_s: float  # of the two devices together
    effect: CutEffect
    moves: tuple[CutMove, ...] = ()  # the writer moved to dst, and the first reader to src; empty if not tried
    copy: int = 0  # the first copy of the network in which the tensor goes there


def move(plan: Plan, blocks: Blocks, op: int, to: int, copy: int = 0) -> CutMove:
    """Evaluate the plan with an operator, and all that must share its device, on another device in one copy.

    The other operators and the order, which is topological for any devices, stay the same.
    """
    members = blocks.members[blocks.block[op]]
    moved = moved_to(plan.placement, members, to, copy)
    objective_s, obstacle, better = None, "", False
    try:
        evaluation = evaluate(plan.problem, moved)
        objective_s, obstacle = evaluation.objective_s, "; ".join(evaluation.violations)
        better = objective_s < plan.objective_s * (1 - LEAST_GAIN) and is_better(plan, moved)
    except InputError as error:  # there is no link, or the device cannot run one of the operators
        obstacle = str(error)
    return CutMove(plan.table.ops[op], len(members), plan.table.devices[to], objective_s, obstacle, better)


def cuts(plan: Plan, limit: Bottleneck, n_moved: int) -> tuple[Cut, ...]:
    """Return every cut of any copy once: those that limit first, then those that take longest.

    Moves are evaluated for ``n_moved`` cuts, from the first; each takes two calls of the evaluator.
    """
    table, copies = plan.table, plan.placement.copies
    cuts: list[Cut] = []
    same = {cut: number for number in reversed(range(len(copies))) for cut in copies[number].cuts(table)}
    for (flow, src, dst), copy in sorted(same.items()):
        record, rank, device = table.flows[flow], copies[copy].rank, copies[copy].device
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
            effect=CutEffect.HIDDEN if table.overlap else CutEffect.SLACK,
            copy=copy,
        )
        cuts.append(replace(cut, effect=CutEffect.LIMITS) if _limits(plan, limit, cut) else cut)
    cuts.sort(key=lambda cut: (cut.effect is not CutEffect.LIMITS, -(cut.seconds + cut.overhead_s)))
    blocks, index, number = merge_blocks(table), plan.graph.index, plan.cluster.index
    for i, cut in enumerate(cuts[:n_moved]):
        ends = (cut.writer, cut.dst), (cut.readers[0], cut.src)
        moves = tuple(move(plan, blocks, index[op], number[to], cut.copy) for op, to in ends)
        cuts[i] = replace(cut, moves=moves)
    return tuple(cuts)


def _limits(plan: Plan, limit: Bottleneck, cut: Cut) -> bool:
    """Return whether the transfer or its overhead is part of the bottleneck."""
    link = f"{cut.src} → {cut.dst}"
    if limit.kind == "link":
        return link in limit.names
    busy = {end for end in (cut.src, cut.dst) if plan.table.overhead_s[plan.cluster.index[end]] > 0}
    if limit.kind == "device":
        return limit.names[0] in (busy if plan.table.overlap else (cut.src, cut.dst))
    if any((leg.tensor, leg.resource) == (cut.tensor, link) for leg in limit.path):
        return True
    ends = {cut.src: cut.writer, cut.dst: cut.readers[0]}
    return any(end in busy and any(op in leg.ops for leg in limit.path) for end, op in ends.items())
