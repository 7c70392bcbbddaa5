"""The memory of devices over time, as curves of the page."""

from collections.abc import Iterable
from dataclasses import replace
from math import isfinite
from typing import Any

import numpy as np

from costmodels.table import Floats
from planner.plans.plan import Plan
from simulator.memory import DeviceMemory
from simulator.stages import split_stages
from simulator.timeline import Span, Timeline

DIGITS = 6  # significant; no cost model is more precise
MOST_STEPS = 1500  # of a curve, about one for each pixel


def number(value: float | None) -> float | int | None:
    """The number rounded for JSON, an int if it is whole; None for infinity and NaN."""
    if value is None or not isfinite(value):
        return None
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded


def curves(plan: Plan, memory: Iterable[DeviceMemory]) -> list[dict[str, Any]]:
    """For each device in use, the bytes that it holds from each point in time on."""
    shown = []
    for device in memory:
        index = plan.cluster.index[device.device]
        if index in plan.placement.device:
            time_s, held_bytes = thinned(*device.steps)
            shown.append(
                {
                    "device": index,
                    "peak_bytes": number(device.peak_bytes),
                    "peak_s": round(device.peak_s, 9),
                    "time_s": [round(seconds, 9) for seconds in time_s.tolist()],
                    "bytes": [round(n_bytes) for n_bytes in held_bytes.tolist()],
                }
            )
    return shown


def thinned(time_s: Floats, held_bytes: Floats, most: int = MOST_STEPS) -> tuple[Floats, Floats]:
    """A curve with at most ``most`` steps: the maximum in each of equally long intervals of time.

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
    """A recorded run with a span for every cut: a tensor that was not copied takes no time."""
    stages = split_stages(plan.table, plan.placement)
    stage_of = {op: number for number, stage in enumerate(stages) for op in stage.ops}
    end_s = {(span.index, span.micro_batch): span.end_s for span in run.spans if span.kind == "compute"}
    seen = {(span.resource, span.index, span.micro_batch) for span in run.spans if span.kind == "transfer"}
    added = []
    for number_of, src, dst in plan.placement.cuts(plan.table):
        flow = plan.table.flows[number_of]
        link = f"{plan.table.devices[src]} → {plan.table.devices[dst]}"
        for batch in range(run.micro_batches):
            at_s = end_s.get((stage_of[flow.writer], batch))
            if (link, number_of, batch) not in seen and at_s is not None:
                added.append(Span("transfer", link, flow.tensor, batch, number_of, at_s, at_s))
    return replace(run, spans=tuple(sorted((*run.spans, *added), key=lambda span: span.start_s)))
