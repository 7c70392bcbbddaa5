"""A timeline as a trace for Perfetto (or chrome://tracing), with arrows between the bars of each transfer.

::

    gpu0          [a]              the stage that writes a tensor, its transfer, and the stage that reads it
    gpu0 → gpu1       ==a*==
    gpu1                    [b]
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from costmodels.table import CostTable
from simulator.lower_schedule import message_name
from simulator.memory import DeviceMemory
from simulator.pipeline import PipelineRun
from simulator.placement import Placement
from simulator.stages import split_stages
from simulator.timeline import Span, Timeline


class TransferSpans(NamedTuple):
    """The spans of a sender, a transfer and a receiver, one after the other."""

    sender: Span
    transfer: Span
    receiver: Span


def transfer_spans(table: CostTable, placement: Placement, timeline: Timeline) -> list[TransferSpans]:
    """Return the transfers of a predicted or measured run of a placement, in the order in which they start."""
    senders: dict[tuple[int, str, int], int] = {}  # (copy, link, flow) -> stage
    receivers: dict[tuple[int, str, int], int] = {}
    for index, stage in enumerate(split_stages(table, placement)):
        device = table.devices[stage.device]
        senders |= {(stage.copy, f"{device} → {table.devices[dst]}", flow): index for flow, dst in stage.sends}
        receivers |= {(stage.copy, f"{table.devices[src]} → {device}", flow): index for flow, src in stage.receives}
    stages = {(span.index, span.micro_batch): span for span in timeline.spans if span.kind == "compute"}
    transfers = []
    for span in timeline.spans:
        if span.kind == "transfer":
            key = (span.micro_batch % len(placement.copies), span.resource, span.index)
            sender, receiver = senders[key], receivers[key]
            transfers.append(TransferSpans(stages[sender, span.micro_batch], span, stages[receiver, span.micro_batch]))
    return transfers


def schedule_transfer_spans(run: PipelineRun) -> list[TransferSpans]:
    """Return the transfers of a run of a schedule, one sending device after the other."""
    lowered, span = run.lowered, {span.label: span for span in run.timeline.spans}
    feeds = lowered.feeds.tolist()
    transfers = []
    for number in lowered.senders:
        sender, reader = lowered.actions[number], lowered.actions[feeds[number]]
        transfers.append(TransferSpans(span[str(sender)], span[message_name(sender)], span[str(reader)]))
    return transfers


DEVICES, LINKS = 1, 2  # the two groups of tracks; viewers call them processes
NS_PER_S, NS_PER_US = 1e9, 1e3


def chrome_trace(
    timeline: Timeline, memory: Sequence[DeviceMemory] = (), transfers: Sequence[TransferSpans] = ()
) -> dict[str, Any]:
    """Return a timeline in the Trace Event Format: tracks of devices and links, microseconds with three digits.

    Devices come before links, which are in the order of their first use. All tracks have different numbers above 0,
    since 0 is the idle thread in viewers. A link with overlapping transfers has several tracks, because the bars of one
    track must not overlap. Spans become bars, the memory of each device a counter, and transfers of the same timeline
    arrows between bars.

    Source: Duca and Sinclair, Trace Event Format, 2016.
    """
    lanes = _lanes(timeline)
    of_links = {lane: None for lane, span in zip(lanes, timeline.spans, strict=True) if span.kind == "transfer"}
    of_devices = dict.fromkeys([(name, 1) for name in timeline.devices] + lanes)
    order = [lane for lane in of_devices if lane not in of_links] + list(of_links)
    tracks = {lane: (LINKS if lane in of_links else DEVICES, i) for i, lane in enumerate(order, 1)}
    events: list[dict[str, Any]] = [*_headings("process", (DEVICES, 0), DEVICES, "devices")]
    if of_links:
        events += _headings("process", (LINKS, 0), LINKS, "links")
    for (name, n), track in tracks.items():
        events += _headings("thread", track, track[1], name if n == 1 else f"{name} ({n})")
    track_of: dict[Span, tuple[int, int]] = {}
    for lane, span in zip(lanes, timeline.spans, strict=True):
        track_of[span] = tracks[lane]
        events.append(_bar(span, tracks[lane]))
    for number, transfer in enumerate(transfers):
        events += _arrow(number, transfer, track_of)
    for device in memory:
        events += _counter(device)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _lanes(timeline: Timeline) -> list[tuple[str, int]]:
    """Return [n_spans], the resource of each span, and the number (from 1) of its first track that is free."""
    free_ns: dict[tuple[str, int], int] = Counter()
    lanes = []
    for span in timeline.spans:
        start_ns, end_ns = _ns(span.start_s), _ns(span.end_s)
        number = 1
        while free_ns[span.resource, number] > start_ns:
            number += 1
        lanes.append((span.resource, number))
        free_ns[lanes[-1]] = end_ns
    return lanes


def _bar(span: Span, track: tuple[int, int]) -> dict[str, Any]:
    start_ns = _ns(span.start_s)
    return {
        "ph": "X",  # a complete event with begin and duration
        "cat": span.kind,
        "name": span.label,
        "pid": track[0],
        "tid": track[1],
        "ts": start_ns / NS_PER_US,
        "dur": (_ns(span.end_s) - start_ns) / NS_PER_US,
        "args": {"micro_batch": span.micro_batch, "index": span.index},
    }


def _arrow(number: int, spans: TransferSpans, track_of: dict[Span, tuple[int, int]]) -> Iterator[dict[str, Any]]:
    """Yield a flow event through the middles of the bars, which identifies the bars unambiguously.

    An arrow cannot point at a bar shorter than a nanosecond, and is left out if its sender or receiver is so short.
    """
    bars = [span for span in spans if _ns(span.end_s) > _ns(span.start_s)]
    if {spans.sender, spans.receiver} <= set(bars):
        for phase, span in zip("stf" if len(bars) == len(spans) else "sf", bars, strict=True):
            group, track = track_of[span]
            event = {"ph": phase, "cat": "transfer", "name": spans.transfer.label, "id": number}
            middle_ns = (_ns(span.start_s) + _ns(span.end_s)) // 2
            event |= {"pid": group, "tid": track, "ts": middle_ns / NS_PER_US}
            yield event | ({"bp": "e"} if phase == "f" else {})  # bind to the enclosing bar, not to the next one


def _counter(device: DeviceMemory) -> Iterator[dict[str, Any]]:
    """Yield a counter event for each nanosecond at which the memory changes."""
    values = {
        _ns(time_s): n_bytes for time_s, n_bytes in zip(*(column.tolist() for column in device.steps), strict=True)
    }
    for time_ns, n_bytes in values.items():
        args = {"bytes": int(n_bytes)}
        yield {"ph": "C", "name": f"memory of {device.device}", "pid": DEVICES, "ts": time_ns / NS_PER_US, "args": args}


def _ns(seconds: float) -> int:
    """Whole nanoseconds, as viewers count them, so that adjacent bars stay adjacent."""
    return round(seconds * NS_PER_S)


def _headings(kind: str, track: tuple[int, int], place: int, name: str) -> Iterator[dict[str, Any]]:
    """Yield the name of a group or a track, and its position among the others."""
    for event, args in (("name", {"name": name}), ("sort_index", {"sort_index": place})):
        yield {"ph": "M", "name": f"{kind}_{event}", "pid": track[0], "tid": track[1], "args": args}
