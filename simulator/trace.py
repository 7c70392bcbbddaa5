"""A timeline for the eye: a trace for Perfetto (or chrome://tracing), and a chart for the terminal."""

from math import ceil
from typing import Any

from graphs.errors import InputError
from simulator.timeline import Timeline

DEVICES, LINKS = 1, 2  # the two groups of tracks; viewers call them processes
US_PER_S = 1e6


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """A timeline in the Trace Event Format: one track for each device and for each link, times in microseconds.

    Links stand in the order in which they are first used.
    """
    links = dict.fromkeys(span.resource for span in timeline.spans if span.kind == "transfer")
    tracks = {name: (DEVICES, i) for i, name in enumerate(timeline.devices)}
    tracks |= {name: (LINKS, i) for i, name in enumerate(links)}
    events: list[dict[str, Any]] = [_heading("process", DEVICES, 0, "devices")]
    if links:
        events.append(_heading("process", LINKS, 0, "links"))
    events += [_heading("thread", *track, name) for name, track in tracks.items()]
    for span in timeline.spans:
        group, track = tracks[span.resource]
        events.append(
            {
                "ph": "X",  # a complete event: begin and duration in one
                "cat": span.kind,
                "name": span.label,
                "pid": group,
                "tid": track,
                "ts": span.start_s * US_PER_S,
                "dur": (span.end_s - span.start_s) * US_PER_S,
                "args": {"micro_batch": span.micro_batch, "index": span.index},
            }
        )
    return {"displayTimeUnit": "ms", "traceEvents": events}


def ascii_chart(timeline: Timeline, width: int) -> str:
    """One row for each device; a character for each of ``width`` equal pieces of the makespan.

    It is the last digit of the micro-batch that runs in the middle of the piece, or a dot::

        cpu0  0011223344....
        cpu1  ..0.1.2.3.444.

    Raises:
        InputError: if the width is less than 1.
    """
    if width < 1:
        raise InputError(f"the chart's width is {width}; it must be 1 or more")
    row = {name: ["."] * width for name in timeline.devices}
    columns_per_s = width / timeline.makespan_s if timeline.makespan_s > 0 else 0.0
    for span in timeline.spans:
        if span.kind == "compute":
            first, behind = (ceil(second * columns_per_s - 0.5) for second in (span.start_s, span.end_s))
            row[span.resource][first:behind] = str(span.micro_batch % 10) * (behind - first)
    margin = max(len(name) for name in timeline.devices)
    return "\n".join(f"{name:<{margin}}  {''.join(characters)}" for name, characters in row.items())


def _heading(kind: str, group: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": f"{kind}_name", "pid": group, "tid": track, "args": {"name": name}}
