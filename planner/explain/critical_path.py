"""The critical path: the stages and transfers, without a gap, that one micro-batch waits for from start to end.

::

    cpu0       [conv1 ─────][branch1 ─────]........[cat]        conv1, x, branch2, y, cat: branch1 could take longer
    cpu0→cpu1               x┐                  ┌y
    cpu1       .............. [branch2 ────────]                cpu1 stands still before branch2: it waits for x
"""

from dataclasses import dataclass
from itertools import groupby

from planner.explain.regions import Region, regions
from planner.plans.plan import Plan
from simulator.simulate import simulate
from simulator.stages import split_stages
from simulator.timeline import Kind, Span
from simulator.transfer_spans import transfer_spans

REGIONS = 3  # that describe a leg


@dataclass(frozen=True, slots=True)
class Leg:
    """One piece of the path: consecutive stages of one device, or one transfer."""

    kind: Kind  # compute or transfer
    resource: str  # name of the device, or "src → dst"
    ops: tuple[str, ...]  # names of the operators in the order in which they run; empty for a transfer
    tensor: str  # empty for stages
    holds: tuple[Region, ...]  # the operators by module; empty for a transfer
    start_s: float  # since the micro-batch began
    seconds: float  # until the next leg starts
    wait_s: float  # of the device before its stages, or of the tensor before its transfer


def critical_path(plan: Plan) -> tuple[Leg, ...]:
    """The legs, which follow each other without a gap and end with the last stage; their seconds sum to the latency."""
    table = plan.costs
    timeline, stages = simulate(table, plan.placement, 1), split_stages(table, plan.placement)
    sent_s = {pair.transfer: pair.sender.end_s for pair in transfer_spans(table, plan.placement, timeline)}
    holding = [span for span in timeline.spans if span.kind == "compute" or not table.overlap]  # devices
    legs: list[Leg] = []
    for spans in (list(group) for _, group in groupby(timeline.critical_path, _leg)):
        first, resource, sends = spans[0], spans[0].resource, spans[0].kind == "transfer"
        ops = [] if sends else [op for span in spans for op in stages[span.index].ops]
        mine = [span for span in holding if span != first and resource in span.resource.split(" → ")]
        free_s = max((span.end_s for span in mine if span.end_s <= first.start_s), default=0.0)
        legs.append(
            Leg(
                kind=first.kind,
                resource=resource,
                ops=tuple(table.ops[op] for op in ops),
                tensor=first.label if sends else "",
                holds=regions(plan.graph, ops, REGIONS),
                start_s=first.start_s,
                seconds=spans[-1].end_s - first.start_s,
                wait_s=first.start_s - (sent_s[first] if sends else free_s),
            )
        )
    return tuple(legs)


def _leg(span: Span) -> tuple[str, int | None]:
    """What the spans of one leg have in common: the device, or the link and the flow."""
    return span.resource, span.index if span.kind == "transfer" else None
