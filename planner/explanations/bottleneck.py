"""The bottleneck: the parts of the objective's seconds; for latency those of the critical path.

The critical path are the stages and transfers, without a gap, that one micro-batch waits for from start to end.

::

    cpu0       [conv1 ─────][branch1 ─────]........[cat]        conv1, x, branch2, y, cat: branch1 could take longer
    cpu0→cpu1               x┐                  ┌y
    cpu1       .............. [branch2 ────────]                cpu1 stands still before branch2: it waits for x
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

import numpy as np

from planner.explanations.regions import Region, TimeShare, parts, regions
from planner.plans.plan import Plan
from planner.problem.bottleneck import Busiest, busiest
from planner.problem.problem import Goal
from simulator.simulate import simulate
from simulator.stages import split_stages
from simulator.timeline import Kind, Span
from simulator.trace import transfer_spans

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
    """Return the legs without a gap up to the end of the last stage; their seconds add up to the latency."""
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
    """Return the key that the spans of one leg share: the device, or the link and the flow."""
    return span.resource, span.index if span.kind == "transfer" else None


TRANSFERS = "sending and receiving"
WAITING = "waiting, sending and receiving"
NEGLIGIBLE = 1e-9  # relative; the error of rounding in a sum


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The device, link or path that limits a plan."""

    kind: Literal["device", "link", "path", "total"]  # device or link for throughput, path for latency
    names: tuple[str, ...]  # the device; the links that share the busiest channel; the devices of the critical path
    seconds: float  # the objective
    parts: tuple[TimeShare, ...]  # the largest first: operators by module, and transfers; the tensors of a link
    path: tuple[Leg, ...] = ()  # the legs of the critical path; empty for other kinds


def bottleneck(plan: Plan) -> Bottleneck:
    """Return, by goal, the busiest device or channel (the first of several), the critical path, or all used devices."""
    table, placed = plan.table, np.asarray(plan.placement.device)
    if plan.minimised is Goal.LATENCY:
        path = critical_path(plan)
        devices = dict.fromkeys(leg.resource for leg in path if leg.kind == "compute")
        ops = [plan.graph.index[op] for leg in path for op in leg.ops]
        return Bottleneck("path", tuple(devices), plan.objective_s, _parts(plan, ops), path)
    if plan.minimised is Goal.COST:
        used = tuple(table.devices[device] for device in plan.placement.used)
        return Bottleneck("total", used, plan.objective_s, _parts(plan, range(table.n_ops)))
    if plan.goal is Goal.TRAINING:  # the device that computes the longest; the rest of the step is waiting
        forward_backward_s = (plan.costs.forward_s + plan.costs.backward_s)[np.arange(table.n_ops), placed]
        step_s = plan.workload.micro_batches * forward_backward_s
        longest = int(np.bincount(placed, weights=step_s, minlength=table.n_devices).argmax())
        seconds = {int(op): float(step_s[op]) for op in np.flatnonzero(placed == longest)}
        return Bottleneck("device", (table.devices[longest],), plan.objective_s, _shares(plan, seconds, WAITING))
    busy = busiest(plan.problem, plan.placement)
    if busy.device is None:
        return _channel(plan, busy)
    part, seconds = 1 / len(plan.placement.copies), dict[int, float]()
    for copy in plan.placement.copies:
        for op in np.flatnonzero(np.asarray(copy.device) == busy.device).tolist():
            seconds[op] = seconds.get(op, 0.0) + float(plan.costs.forward_s[op, busy.device]) * part
    return Bottleneck("device", (table.devices[busy.device],), busy.seconds, _shares(plan, seconds, TRANSFERS))


def _channel(plan: Plan, busy: Busiest) -> Bottleneck:
    """Return the links that share a channel, and the tensors on them."""
    table, part, seconds = plan.table, 1 / len(plan.placement.copies), dict[str, float]()
    for flow, src, dst in plan.placement.all_cuts(table):
        if (src, dst) in busy.links:
            tensor = table.flows[flow].tensor
            seconds[tensor] = seconds.get(tensor, 0.0) + table.send_s(flow, src, dst) * part
    tensors = (TimeShare(tensor, each_s, each_s / busy.seconds, 0) for tensor, each_s in seconds.items())
    return Bottleneck("link", tuple(busy.link_names(table.devices)), busy.seconds, _largest_first(tensors))


def _parts(plan: Plan, ops: Iterable[int]) -> tuple[TimeShare, ...]:
    """Return the seconds of operators where they run, by module; the rest of the objective are transfers."""
    return _shares(plan, {op: float(plan.costs.forward_s[op, plan.placement.device[op]]) for op in ops}, TRANSFERS)


def _shares(plan: Plan, seconds: Mapping[int, float], rest: str) -> tuple[TimeShare, ...]:
    """Return the seconds of operators by module, as shares of the objective, and the named rest of the objective."""
    total_s = plan.objective_s
    shares = [replace(part, share=part.seconds / total_s if total_s else 0.0) for part in parts(plan.graph, seconds)]
    rest_s = total_s - sum(seconds.values())
    if rest_s > NEGLIGIBLE * total_s:
        shares.append(TimeShare(rest, rest_s, rest_s / total_s, 0))
    return _largest_first(shares)


def _largest_first(shares: Iterable[TimeShare]) -> tuple[TimeShare, ...]:
    return tuple(sorted(shares, key=lambda part: -part.seconds))
