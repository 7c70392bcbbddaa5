"""Traces and charts of small runs."""

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from costmodels.cluster.cluster import Sharing
from simulator.memory import memory_of
from simulator.pipeline import simulate_schedule
from simulator.placement import Placement
from simulator.schedule import Schedule
from simulator.simulate import simulate
from simulator.timeline import Span, Timeline
from simulator.trace import chrome_trace, schedule_transfer_spans, transfer_spans
from tests.simulator.pipelines import schedules, stage_costs
from tests.simulator.tables import chain, make_table, placements, tables


def compute(device: str, micro_batch: int, start_s: float, end_s: float) -> Span:
    return Span("compute", device, "conv … relu", micro_batch, 7, start_s, end_s)


RUN = Timeline(
    ("cpu0", "gpu"),
    2,
    (
        compute("cpu0", 0, 0, 0.5),
        Span("transfer", "cpu0 → gpu", "relu", 0, 3, 0.5, 0.75),
        compute("gpu", 1, 0.75, 2),
    ),
)


def test_a_trace_has_a_track_for_each_device_and_link_and_microseconds() -> None:
    assert chrome_trace(RUN) == {
        "displayTimeUnit": "ms",
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "devices"}},
            {"ph": "M", "name": "process_sort_index", "pid": 1, "tid": 0, "args": {"sort_index": 1}},
            {"ph": "M", "name": "process_name", "pid": 2, "tid": 0, "args": {"name": "links"}},
            {"ph": "M", "name": "process_sort_index", "pid": 2, "tid": 0, "args": {"sort_index": 2}},
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "cpu0"}},
            {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": 1, "args": {"sort_index": 1}},
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "gpu"}},
            {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": 2, "args": {"sort_index": 2}},
            {"ph": "M", "name": "thread_name", "pid": 2, "tid": 3, "args": {"name": "cpu0 → gpu"}},
            {"ph": "M", "name": "thread_sort_index", "pid": 2, "tid": 3, "args": {"sort_index": 3}},
            event("compute", "conv … relu", (1, 1), (0.0, 500_000.0), {"micro_batch": 0, "index": 7}),
            event("transfer", "relu", (2, 3), (500_000.0, 250_000.0), {"micro_batch": 0, "index": 3}),
            event("compute", "conv … relu", (1, 2), (750_000.0, 1_250_000.0), {"micro_batch": 1, "index": 7}),
        ],
    }


def event(
    kind: str, name: str, track: tuple[int, int], times: tuple[float, float], args: dict[str, int]
) -> dict[str, object]:
    (pid, tid), (ts, dur) = track, times
    return {"ph": "X", "cat": kind, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def test_a_trace_without_transfers_has_no_group_of_links() -> None:
    trace = chrome_trace(Timeline(("x",), 1, (compute("x", 0, 0, 1),)))
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["name"].endswith("_name")]
    assert names == ["devices", "x"]


@given(st.data())
def test_a_trace_is_json_with_an_event_for_each_span_on_its_own_track(data: st.DataObject) -> None:
    table = data.draw(tables())
    timeline = simulate(table, data.draw(placements(table, copies=3)), micro_batches=2)
    events = json.loads(json.dumps(chrome_trace(timeline)))["traceEvents"]
    track = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    shown = [(track[e["pid"], e["tid"]], e["name"], e["ts"]) for e in events if e["ph"] == "X"]
    assert shown == [(span.resource, span.label, span.start_s * 1e6) for span in timeline.spans]


def test_arrows_lead_through_the_middles_of_the_bars_and_counters_step() -> None:
    #   0      a(2 s)              a* is 3 bytes: here from 0 to 5, there from 2 until b has ended at 9
    #   0 → 1        =3 s=
    #   1                 b(4 s)
    table, placement = make_table([2, 4], chain([2, 4], 3)), Placement((0, 1))
    timeline = simulate(table, placement)
    memory = memory_of(table, placement, timeline)
    events = chrome_trace(timeline, memory, transfer_spans(table, placement, timeline))["traceEvents"]
    arrow = {"cat": "transfer", "name": "a*", "id": 0}
    assert [event for event in events if event["ph"] in "stf"] == [
        arrow | {"ph": "s", "pid": 1, "tid": 1, "ts": 1_000_000.0},
        arrow | {"ph": "t", "pid": 2, "tid": 3, "ts": 3_500_000.0},
        arrow | {"ph": "f", "pid": 1, "tid": 2, "ts": 7_000_000.0, "bp": "e"},
    ]
    assert [(e["name"], e["ts"], e["args"]["bytes"]) for e in events if e["ph"] == "C"] == [
        ("memory of 0", 0, 3),
        ("memory of 0", 5e6, 0),
        ("memory of 1", 0, 0),
        ("memory of 1", 2e6, 3),
        ("memory of 1", 9e6, 0),
    ]


def test_a_transfer_without_time_is_passed_over_and_a_stage_without_time_has_no_arrow() -> None:
    for seconds, phases in (([2.0, 4.0], ["s", "f"]), ([0.0, 4.0], [])):
        table, placement = make_table(seconds, chain(seconds, 0.0)), Placement((0, 1))
        timeline = simulate(table, placement)
        trace = chrome_trace(timeline, transfers=transfer_spans(table, placement, timeline))
        assert [event["ph"] for event in trace["traceEvents"] if event["ph"] in "stf"] == phases


def test_transfers_that_overlap_get_tracks_of_their_own() -> None:
    spans = (Span("transfer", "x → y", "t", 0, 0, 0, 2), Span("transfer", "x → y", "u", 0, 1, 1, 3))
    events = chrome_trace(Timeline(("x", "y"), 1, spans))["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert names == ["x", "y", "x → y", "x → y (2)"]
    assert [event["tid"] for event in events if event["ph"] == "X"] == [3, 4]


def check_trace(events: list[dict[str, Any]]) -> None:
    """What makes viewers complain: bars of one track that overlap, arrows beside their bars, counters that go back."""
    bars: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for e in events:
        if e["ph"] == "X" and e["dur"] > 0:
            bars.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    for track in bars.values():
        assert all(earlier[1] <= later[0] + 1e-6 for earlier, later in pairwise(sorted(track)))
    arrows: dict[int, list[dict[str, Any]]] = {}
    for e in events:
        if e["ph"] in "stf":
            arrows.setdefault(e["id"], []).append(e)
            assert any(start <= e["ts"] < end for start, end in bars[e["pid"], e["tid"]])
    for ends in arrows.values():
        assert (ends[0]["ph"], ends[-1]["ph"]) == ("s", "f")
        assert all(earlier["ts"] < later["ts"] for earlier, later in pairwise(ends))
    for name in {e["name"] for e in events if e["ph"] == "C"}:
        times_us = [e["ts"] for e in events if e["ph"] == "C" and e["name"] == name]
        assert all(earlier < later for earlier, later in pairwise(times_us))


@given(st.data(), st.integers(1, 3), st.sampled_from(["fifo", "fair"]))
def test_viewers_have_nothing_to_complain_of(data: st.DataObject, n: int, sharing: Sharing) -> None:
    table = data.draw(tables(shared=True))
    placement = data.draw(placements(table, copies=3))
    timeline = simulate(table, placement, n, sharing=sharing)
    arrows = transfer_spans(table, placement, timeline)
    through = (placement.copies[i % len(placement.copies)] for i in range(n))
    assert len(arrows) == sum(len(list(copy.cuts(table))) for copy in through)
    check_trace(chrome_trace(timeline, memory_of(table, placement, timeline), arrows)["traceEvents"])


@given(schedules(), st.data())
def test_nor_of_a_schedule(schedule: Schedule, data: st.DataObject) -> None:
    run = simulate_schedule(schedule, data.draw(stage_costs(schedule.n_stages, whole=True)))
    arrows = schedule_transfer_spans(run)
    assert len(arrows) == sum(span.kind == "transfer" for span in run.timeline.spans)
    check_trace(chrome_trace(run.timeline, transfers=arrows)["traceEvents"])
