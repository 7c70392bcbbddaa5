"""Usage: what devices and links do for one micro-batch in the steady part of a stream.

The steady part lies between the ends of two micro-batches, and the seconds of each device add up to it::

    a ends ─┐                                        ┌─ b ends
    cpu0  ██│██ ─ ████████ · ██████ ─ ███████ · █████│██        █ computes   ─ waits   · has a stage that could start
            └───── as many periods as micro-batches ─┘
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from graphs.common.brief import Brief
from simulator.stages import Stage
from simulator.timeline import Timeline


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """The seconds of a device for one micro-batch; all but ``processor_s`` add up to the period.

    What ``processor_s`` lacks of ``busy_s`` was spent waiting for the interpreter or for a processor.
    """

    busy_s: float = 0.0  # computing
    input_s: float = 0.0  # waiting for a tensor of another device
    admission_s: float = 0.0  # waiting for the next micro-batch, which enters when an earlier one has ended
    between_s: float = 0.0  # between two stages of which the second could start: runtime and interpreter are at work
    processor_s: float = 0.0  # of the computing thread; 0 in a prediction

    @property
    def idle_s(self) -> float:
        """Seconds in which the device does not compute."""
        return self.input_s + self.admission_s + self.between_s


@dataclass(frozen=True)
class Usage(Brief):
    """The steady part of a stream."""

    period_s: float  # seconds from one micro-batch to the next
    devices: Mapping[str, DeviceUsage]  # by name, those with a stage
    links: Mapping[str, float]  # seconds in which a link sends, by name


def usage(timeline: Timeline, stages: Sequence[Stage], in_flight: int) -> Usage | None:
    """Return how busy devices and links are for one micro-batch in the steady part of a stream.

    The first and the last ``in_flight`` micro-batches fill and drain the devices, so the steady part is between them.

    Args:
        timeline: timeline of a stream.
        stages: stages, numbered as in the spans.
        in_flight: how many micro-batches are on their way at once.

    Returns:
        None if the stream is too short for a steady part.
    """
    ends_s = sorted(timeline.finish_s)
    first, last = in_flight - 1, len(ends_s) - 1 - in_flight
    if (turns := last - first) > (copies := 1 + max((stage.copy for stage in stages), default=0)):
        last -= turns % copies  # a whole number of turns of the copies
    if first >= last or ends_s[first] >= ends_s[last]:
        return None
    start_s, end_s, count = ends_s[first], ends_s[last], last - first
    steady = timeline.clipped(start_s, end_s)
    entered_s = [0.0] * in_flight + list(accumulate(timeline.finish_s, max))  # once all earlier ones have ended
    waits = _waits(timeline, stages, entered_s, start_s, end_s)
    processor_s = dict.fromkeys(timeline.devices, 0.0)
    for span in (span for span in steady.spans if span.kind == "compute"):
        processor_s[span.resource] += span.processor_s
    devices = {
        name: DeviceUsage(busy_s / count, *(each / count for each in (*waits[name], processor_s[name])))
        for name, busy_s in zip(timeline.devices, steady.busy_s.tolist(), strict=True)
        if name in waits
    }
    links = {name: busy_s / count for name, busy_s in steady.link_busy_s.items()}
    return Usage((end_s - start_s) / count, devices, links)


def _waits(
    timeline: Timeline, stages: Sequence[Stage], entered_s: Sequence[float], start_s: float, end_s: float
) -> Mapping[str, Sequence[float]]:
    """Return for each device with a stage the seconds from ``start_s`` to ``end_s`` that it waits, by their reasons.

    ``entered_s`` says when each micro-batch enters: when those that are ``in_flight`` or more before it have ended.
    """
    arrived_s = {(span.index, span.micro_batch): span.end_s for span in timeline.spans if span.kind == "transfer"}
    before_s: dict[str, float] = {}  # device -> end of its stage before
    waits: dict[str, list[float]] = {}
    for span in (span for span in timeline.spans if span.kind == "compute"):
        parts = waits.setdefault(span.resource, [0.0, 0.0, 0.0])
        from_s, until_s = max(start_s, before_s.get(span.resource, 0.0)), min(end_s, span.start_s)
        before_s[span.resource] = span.end_s
        if from_s >= until_s:
            continue
        received = [arrived_s.get((flow, span.micro_batch), 0.0) for flow, _ in stages[span.index].receives]
        came_s = max(received, default=entered_s[span.micro_batch])
        ready_s = min(until_s, max(from_s, came_s))
        parts[0 if received else 1] += ready_s - from_s
        parts[2] += until_s - ready_s
    for resource, parts in waits.items():  # no later micro-batch comes through its copy of the network
        parts[1] += max(0.0, end_s - max(start_s, before_s[resource]))
    return waits
