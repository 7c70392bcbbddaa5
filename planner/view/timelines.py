"""The timelines of a page and what devices hold over time, in few bytes."""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from graphs.common.arrays import Floats
from planner.plans.plan import Plan
from planner.view.numbers import Numbers, number
from simulator.memory import DeviceMemory
from simulator.timeline import Span, Timeline

MOST_STEPS = 1500  # of a curve, about one for each pixel
MOST_IN_ALL = 12_000  # of the curves of all devices
SCHEDULED = re.compile(r"\d+(SEND_)?[FBIW]\d+")
"""Labels of what a schedule does: the stage, what it does, and the micro-batch."""


def packed(timeline: Timeline) -> dict[str, Any]:
    """Return a timeline in few bytes. Lanes: the devices, then the links in the order of their ends.

    ``what`` has the lane, the label, the index, and whether the number of the micro-batch ends the label. ``spans``, by
    lane and then time, has which of ``what`` each is, the micro-batch, and the nanoseconds since the one before it in
    its lane and of its own.
    """
    order = {name: i for i, name in enumerate(timeline.devices)}
    used = {span.resource for span in timeline.spans if span.kind == "transfer"}
    links = sorted(used, key=lambda name: ([order.get(end, len(order)) for end in name.split(" → ")], name))
    lane = {name: i for i, name in enumerate([*timeline.devices, *links])}
    labels, whats, end_ns = Numbers(), Numbers(), dict[str, int]()
    spans: dict[str, list[int]] = {name: [] for name in ("what", "micro_batch", "wait_ns", "takes_ns")}
    for span in sorted(timeline.spans, key=lambda span: (lane[span.resource], span.start_s)):
        start_ns = round(span.start_s * 1e9)
        numbered = span.label.endswith(f"{span.micro_batch}") and SCHEDULED.fullmatch(span.label) is not None
        label = span.label.removesuffix(f"{span.micro_batch}") if numbered else span.label
        what = whats[lane[span.resource], labels[label], span.index, int(numbered)]
        wait_ns, end_ns[span.resource] = start_ns - end_ns.get(span.resource, 0), round(span.end_s * 1e9)
        row = what, span.micro_batch, wait_ns, end_ns[span.resource] - start_ns
        for column, value in zip(spans.values(), row, strict=True):
            column.append(value)
    fill_s, drain_s = steady_part(timeline) or (timeline.makespan_s, 0.0)
    return {
        "lanes": list(lane),
        "micro_batches": timeline.micro_batches,
        "makespan_s": number(timeline.makespan_s),
        "period_s": number(timeline.period_s),
        "bubble": number(timeline.bubble),
        "steady_s": [number(fill_s), number(drain_s)],
        "labels": list(labels),
        "what": list(whats),
        "spans": spans,
    }


def idle_shares(timeline: Timeline) -> list[float]:
    """Return [n_devices], the share of the steady part, or of the whole without one, in which a device is idle."""
    from_s, until_s = steady_part(timeline) or (0.0, timeline.makespan_s)
    busy_s = timeline.clipped(from_s, until_s).busy_s
    return [max(0.0, 1 - each_s / (until_s - from_s)) if until_s > from_s else 0.0 for each_s in busy_s.tolist()]


def steady_part(timeline: Timeline) -> tuple[float, float] | None:
    """Return when the last device has begun and when the first one ends its last stage; None if never all compute."""
    fill_s, drain_s = _steady(timeline)
    busy, used = timeline.clipped(fill_s, drain_s).busy_s > 0, timeline.busy_s > 0
    return (fill_s, drain_s) if fill_s < drain_s and (busy == used).all() else None


def _steady(timeline: Timeline) -> tuple[float, float]:
    """Return when the last device begins its first stage, and when the first device ends its last one."""
    first_s, last_s = dict[str, float](), dict[str, float]()
    for span in timeline.spans:
        if span.kind == "compute":
            first_s.setdefault(span.resource, span.start_s)
            last_s[span.resource] = max(last_s.get(span.resource, 0.0), span.end_s)
    return max(first_s.values(), default=0.0), min(last_s.values(), default=0.0)


def curves(plan: Plan, memory: Iterable[DeviceMemory]) -> list[dict[str, Any]]:
    """Return for each device in use the bytes that it holds from each point in time on."""
    shown, most = [], min(MOST_STEPS, max(48, MOST_IN_ALL // plan.n_used))
    for device in memory:
        index = plan.cluster.index[device.device]
        if index in plan.placement.used:
            time_s, held_bytes = thinned(*device.steps, most)
            shown.append(
                {
                    "device": index,
                    "peak_bytes": number(device.peak_bytes),
                    "peak_s": round(device.peak_s, 9),
                    "time_s": [number(seconds) for seconds in time_s.tolist()],
                    "bytes": [round(n_bytes) for n_bytes in held_bytes.tolist()],
                }
            )
    return shown


def thinned(time_s: Floats, held_bytes: Floats, most: int = MOST_STEPS) -> tuple[Floats, Floats]:
    """Return a curve with at most ``most`` steps: the maximum in each of equally long intervals of time.

    Args:
        time_s: [n_steps], ascending.
        held_bytes: [n_steps], held from each of these times on.
        most: number of steps.
    """
    if len(time_s) <= most:
        return time_s, held_bytes
    edges_s = np.linspace(time_s[0], time_s[-1], most, endpoint=False)
    first = np.searchsorted(time_s, edges_s, side="right") - 1  # the step at the beginning of each interval
    within = np.searchsorted(time_s, edges_s, side="left")  # the first step inside each interval
    most_bytes = np.maximum.reduceat(np.append(held_bytes, 0.0), within)
    return edges_s, np.maximum(held_bytes[first], np.where(np.diff(within, append=len(time_s)), most_bytes, 0.0))


def with_transfers(plan: Plan, run: Timeline) -> Timeline:
    """Return a recorded run with a span for every cut: a tensor that was not copied takes no time."""
    copies = plan.placement.copies
    stage_of = {(stage.copy, op): place for place, stage in enumerate(plan.stages) for op in stage.ops}
    end_s = {(span.index, span.micro_batch): span.end_s for span in run.spans if span.kind == "compute"}
    seen = {(span.resource, span.index, span.micro_batch) for span in run.spans if span.kind == "transfer"}
    added = []
    sent = ((turn, cut) for turn, copy in enumerate(copies) for cut in copy.cuts(plan.table))
    for turn, (number_of, src, dst) in sent:
        flow = plan.table.flows[number_of]
        link = f"{plan.table.devices[src]} → {plan.table.devices[dst]}"
        for batch in range(turn, run.micro_batches, len(copies)):
            at_s = end_s.get((stage_of[turn, flow.writer], batch))
            if (link, number_of, batch) not in seen and at_s is not None:
                added.append(Span("transfer", link, flow.tensor, batch, number_of, at_s, at_s))
    return replace(run, spans=tuple(sorted((*run.spans, *added), key=lambda span: span.start_s)))
