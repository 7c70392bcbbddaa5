"""Simulated runs against sums by hand, closed forms, a recurrence and the throughput objective."""

from dataclasses import replace
from itertools import pairwise
from textwrap import dedent

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.table import CostTable
from graphs.common.errors import InputError
from planner.problem.evaluate import loads
from simulator.chart import ascii_chart
from simulator.placement import Placement
from simulator.simulate import simulate
from simulator.timeline import Span, Timeline
from tests.simulator.tables import chain, make_table, placements, tables


def picture(timeline: Timeline) -> str:
    """One character for each second."""
    return ascii_chart(timeline, round(timeline.makespan_s))


def drawn(text: str) -> str:
    return dedent(text).strip()


# --- by hand ---------------------------------------------------------------------------------------------------------


def test_spans_name_what_they_show() -> None:
    #   device 0  a a b b          a and b are one stage; b is sent in 1 s
    #   device 1          . c c c
    table = make_table([2, 2, 3], [(0, (1,), 5), (1, (2,), 1)])
    timeline = simulate(table, Placement((0, 0, 1)))
    assert timeline == Timeline(
        devices=("0", "1"),
        micro_batches=1,
        spans=(
            Span("compute", "0", "a … b", 0, 0, 0.0, 4.0),
            Span("transfer", "0 → 1", "b*", 0, 1, 4.0, 5.0),
            Span("compute", "1", "c", 0, 1, 5.0, 8.0),
        ),
    )


def test_one_device_takes_the_sum() -> None:
    # 2 + 3 + 4 seconds, for each of 3 micro-batches: 27
    table = make_table([2, 3, 4], chain([2, 3, 4], 7), n_devices=1)
    timeline = simulate(table, Placement((0, 0, 0)), micro_batches=3)
    assert timeline.makespan_s == 27
    assert timeline.bubble == 0


def test_a_device_that_is_met_twice_works_on_the_oldest_micro_batch() -> None:
    # a and c on device 0, b and d on device 1, 2 seconds each, free links. c of micro-batch 0 goes before a of 2.
    table = make_table([2, 2, 2, 2], chain([2, 2, 2, 2]))
    timeline = simulate(table, Placement((0, 1, 0, 1)), micro_batches=3)
    assert picture(timeline) == drawn("""
        0  0011001122..22..
        1  ..0011001122..22
        """)
    assert timeline.finish_s == (8, 10, 16)


def test_a_stage_waits_for_a_tensor_from_the_other_device() -> None:
    # order a b c d e f on devices 0 1 0 1 0 0; stages [a c] [b] [d] [e f]. b goes to device 1's d and to e.
    #   device 0  a a c c c e f      b ends at 4, arrives at 5: e starts at 5 = max(2 + 3, 4 + 1)
    #   device 1  b b b b d          d needs no transfer
    table = make_table([2, 4, 3, 1, 1, 1], [(0, (2,), 1), (1, (3, 4), 1), (2, (4,), 1), (4, (5,), 1)])
    timeline = simulate(table, Placement((0, 1, 0, 1, 0, 0)))
    assert picture(timeline) == drawn("""
        0  0000000
        1  00000..
        """)
    assert [(span.label, span.start_s, span.end_s) for span in timeline.spans] == [
        ("a … c", 0, 5),
        ("b", 0, 4),
        ("b*", 4, 5),
        ("d", 4, 5),
        ("e … f", 5, 7),
    ]


def test_the_order_of_the_placement_is_the_order_on_the_device() -> None:
    # a takes 3 s, b 1 s on device 0; c, which reads b, 5 s on device 1
    #   order a b c   0  aaab         order b a c   0  baaa
    #                 1  ....ccccc                  1  .ccccc
    table = make_table([3, 1, 5], [(1, (2,), 0)])
    assert simulate(table, Placement((0, 0, 1))).makespan_s == 3 + 1 + 5
    assert simulate(table, Placement((0, 0, 1), (1, 0, 2))).makespan_s == 1 + 5


# a takes 2 s on device 0, is sent in 1 s, b takes 3 s on device 1
TWO_STAGES = ([2, 3], chain([2, 3], 1))


def test_with_overlap_a_device_computes_while_it_sends() -> None:
    # 2 + 1 + 3, and 3 for each of two more: 12
    timeline = simulate(make_table(*TWO_STAGES), Placement((0, 1)), micro_batches=3)
    assert picture(timeline) == drawn("""
        0  001122......
        1  ...000111222
        """)


def test_without_overlap_a_transfer_waits_for_both_ends() -> None:
    # Device 1 is free at 6, but device 0 has begun a of micro-batch 2 at 5 and sends only at 7.
    # 2 + 1 + 3, then 1 (waiting) + 1 (sending) + 3, then 1 (sending) + 3: 15
    timeline = simulate(make_table(*TWO_STAGES, overlap=False), Placement((0, 1)), micro_batches=3)
    assert picture(timeline) == drawn("""
        0  00.1122........
        1  ...000..111.222
        """)
    sent = [(span.start_s, span.end_s) for span in timeline.spans if span.kind == "transfer"]
    assert sent == [(2, 3), (7, 8), (11, 12)]


def test_fewer_in_flight_may_be_faster_without_overlap() -> None:
    # At 6, micro-batch 2 may enter, but the older one is sent first: 2 + 1 + 3, and 1 + 3 for each of two more: 14
    table = make_table(*TWO_STAGES, overlap=False)
    timeline = simulate(table, Placement((0, 1)), micro_batches=3, in_flight=2)
    assert picture(timeline) == drawn("""
        0  00.11..22.....
        1  ...000.111.222
        """)


@pytest.mark.parametrize(("shared", "makespan_s"), [(False, 1 + 2 + 1), (True, 1 + 2 + 2 + 1)])
def test_links_of_one_channel_take_turns(shared: bool, makespan_s: float) -> None:
    # a (device 0) and b (device 1) take 1 s, each is sent to device 2 in 2 s, c takes 1 s
    table = make_table([1, 1, 1], [(0, (2,), 2), (1, (2,), 2)], n_devices=3, shared=shared)
    assert simulate(table, Placement((0, 1, 2))).makespan_s == makespan_s


def test_a_shared_channel_goes_to_the_one_who_asks_first() -> None:
    # Device 1's b comes later in the order but is ready at 1, a at 3: b* has the channel from 1 to 5, a* from 5 to 7.
    # In the placement's order a* would go first: 3 + 2 + 4 + 1 = 10 instead of 7 + 1 = 8.
    table = make_table([3, 1, 1], [(0, (2,), 2), (1, (2,), 4)], n_devices=3, shared=True)
    timeline = simulate(table, Placement((0, 1, 2)))
    assert [(span.label, span.start_s) for span in timeline.spans if span.kind == "transfer"] == [("b*", 1), ("a*", 5)]
    assert timeline.makespan_s == 8


def test_a_tensor_is_sent_once_to_each_device_that_reads_it() -> None:
    # a goes to b and c on device 1 together, and to d on device 2: two transfers
    table = make_table([1, 1, 1, 1], [(0, (1, 2, 3), 2)], n_devices=3)
    timeline = simulate(table, Placement((0, 1, 1, 2)))
    assert [span.resource for span in timeline.spans if span.kind == "transfer"] == ["0 → 1", "0 → 2"]
    assert timeline.makespan_s == 1 + 2 + 1 + 1


def test_one_in_flight_is_one_after_the_other() -> None:
    # (2 + 1 + 3) · 3 = 18
    timeline = simulate(make_table(*TWO_STAGES), Placement((0, 1)), micro_batches=3, in_flight=1)
    assert picture(timeline) == drawn("""
        0  00....11....22....
        1  ...000...111...222
        """)


def test_a_micro_batch_enters_only_when_all_of_the_older_one_has_finished() -> None:
    # a and b do not talk. Device 0 finishes a of micro-batch 0 at 1, but b of 0 takes until 4.
    timeline = simulate(make_table([1, 4]), Placement((0, 1)), micro_batches=2, in_flight=1)
    assert picture(timeline) == drawn("""
        0  0...1...
        1  00001111
        """)


@pytest.mark.parametrize(
    ("micro_batches", "in_flight", "message"),
    [
        (0, None, "0 micro-batches; it must be 1 or more"),
        (1, 0, "0 micro-batches in flight; it must be 1 or more, or left out for no limit"),
    ],
)
def test_counts_are_checked(micro_batches: int, in_flight: int | None, message: str) -> None:
    with pytest.raises(InputError) as error:
        simulate(make_table([1]), Placement((0,)), micro_batches, in_flight)
    assert str(error.value) == message


def test_a_placement_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="the placement has 2 operators, the graph has 1"):
        simulate(make_table([1]), Placement((0, 1)))


# --- closed forms ----------------------------------------------------------------------------------------------------

STATIONS = st.lists(st.integers(0, 6), min_size=1, max_size=5)


@given(STATIONS, st.integers(1, 9))
def test_a_chain_with_free_links_takes_the_sum_and_the_slowest_for_each_further_one(t: list[int], m: int) -> None:
    table = make_table(t, chain(t), n_devices=len(t))
    timeline = simulate(table, Placement(tuple(range(len(t)))), m)
    assert timeline.makespan_s == sum(t) + (m - 1) * max(t)


@given(STATIONS, st.data(), st.integers(1, 9))
def test_with_overlap_a_link_is_one_more_stage(t: list[int], data: st.DataObject, m: int) -> None:
    x = data.draw(st.lists(st.integers(0, 8), min_size=len(t) - 1, max_size=len(t) - 1))
    table = make_table(t, chain(t, x), n_devices=len(t))
    timeline = simulate(table, Placement(tuple(range(len(t)))), m)
    assert timeline.makespan_s == sum(t) + sum(x) + (m - 1) * max(t + x)
    assert timeline.finish_s == tuple(sum(t) + sum(x) + i * max(t + x) for i in range(m))


@given(STATIONS, st.integers(1, 9))
def test_one_after_the_other_takes_the_latency_times_their_number(t: list[int], m: int) -> None:
    table = make_table(t, chain(t, 2), n_devices=len(t))
    placement = Placement(tuple(range(len(t))))
    assert simulate(table, placement, m, in_flight=1).makespan_s == m * simulate(table, placement).makespan_s


# --- laws ------------------------------------------------------------------------------------------------------------


def recurrence(table: CostTable, placement: Placement) -> float:
    """The latency of one micro-batch in one walk over the placement's order: operators on devices, tensors on links."""
    device_free = [0.0] * table.n_devices
    link_free: dict[tuple[int, int], float] = {}
    arrival: dict[tuple[int, int], float] = {}  # (flow, device)
    for op in placement.order:
        device = placement.device[op]
        reads = [arrival[f, device] for f, flow in enumerate(table.flows) if op in flow.readers]
        end = max([device_free[device], *reads]) + table.forward_s[op, device]
        device_free[device] = end
        for f, flow in enumerate(table.flows):
            if flow.writer == op:
                arrival[f, device] = end
                for dst in sorted({placement.device[reader] for reader in flow.readers} - {device}):
                    begin = max(end, link_free.get((device, dst), 0.0))
                    arrival[f, dst] = link_free[device, dst] = begin + table.transfer_s[f, device, dst]
    return max([*device_free, *arrival.values()])


@given(st.data())
def test_one_micro_batch_is_a_recurrence_when_every_link_has_its_own_channel(data: st.DataObject) -> None:
    """True however many tensors share a link: its sender writes them in its order, so they queue in that order.

    Not true for links that share a channel (see the one who asks first, above), nor without overlap.
    """
    table = data.draw(tables(overlap=True))
    placement = data.draw(placements(table, copies=3))
    assert simulate(table, placement).makespan_s == recurrence(table, placement)


RUNS = st.tuples(st.integers(1, 6), st.none() | st.integers(1, 4))


@given(st.data(), st.booleans(), RUNS)
def test_no_resource_is_used_twice_and_work_is_conserved(
    data: st.DataObject, shared: bool, run: tuple[int, int | None]
) -> None:
    table = data.draw(tables(shared=shared))
    placement = data.draw(placements(table, copies=3))
    timeline = simulate(table, placement, *run)
    used: dict[str, list[tuple[float, float]]] = {}
    for span in timeline.spans:
        resources = [span.resource]
        if span.kind == "transfer":
            resources += ["the channel"] if shared else []
            resources += [] if table.overlap else span.resource.split(" → ")
        for resource in resources:
            used.setdefault(resource, []).append((span.start_s, span.end_s))
    for spans in used.values():
        assert all(end <= start for (_, end), (start, _) in pairwise(sorted(spans)))
    through = [placement.copies[i % len(placement.copies)] for i in range(run[0])]
    np.testing.assert_array_equal(timeline.busy_s, sum(replace(copy, others=()).busy_s(table) for copy in through))
    transfers_s = sum(span.end_s - span.start_s for span in timeline.spans if span.kind == "transfer")
    assert transfers_s == sum(table.transfer_s[cut] for copy in through for cut in copy.cuts(table))


@given(st.data(), RUNS)
def test_nothing_runs_before_its_inputs_are_there(data: st.DataObject, run: tuple[int, int | None]) -> None:
    table = data.draw(tables())
    placement = data.draw(placements(table, copies=3))
    timeline = simulate(table, placement, *run)
    stage_of_op: dict[tuple[int, int], Span] = {}
    arrived: dict[tuple[int, int, str], float] = {}
    for span in timeline.spans:
        if span.kind == "transfer":
            arrived[span.micro_batch, span.index, span.resource.split(" → ")[1]] = span.end_s
        else:
            first, last = (table.ops.index(name) for name in (span.label.split(" … ")[0], span.label.split(" … ")[-1]))
            copy = placement.copies[span.micro_batch % len(placement.copies)]
            between = copy.order[copy.rank[first] : copy.rank[last] + 1]
            stage_of_op |= {(span.micro_batch, op): span for op in between if str(copy.device[op]) == span.resource}
    assert len(stage_of_op) == run[0] * table.n_ops
    for micro_batch in range(run[0]):
        for f, flow in enumerate(table.flows):
            writer = stage_of_op[micro_batch, flow.writer]
            for reader in (stage_of_op[micro_batch, op] for op in flow.readers):
                if reader.resource == writer.resource:
                    assert reader is writer or writer.end_s <= reader.start_s
                else:
                    assert writer.end_s <= arrived[micro_batch, f, reader.resource] <= reader.start_s


@given(st.data(), st.integers(1, 8), st.integers(1, 4))
def test_never_more_in_flight_than_allowed(data: st.DataObject, micro_batches: int, in_flight: int) -> None:
    table = data.draw(tables())
    timeline = simulate(table, data.draw(placements(table, copies=3)), micro_batches, in_flight)
    begin = [min(s.start_s for s in timeline.spans if s.micro_batch == i) for i in range(micro_batches)]
    assert all(begin[i] >= timeline.finish_s[i - in_flight] for i in range(in_flight, micro_batches))


@given(st.data(), st.integers(1, 8))
def test_a_limit_that_nobody_reaches_changes_nothing(data: st.DataObject, micro_batches: int) -> None:
    table = data.draw(tables())
    placement = data.draw(placements(table, copies=3))
    assert simulate(table, placement, micro_batches, micro_batches) == simulate(table, placement, micro_batches)


@given(st.data(), st.booleans(), RUNS)
def test_no_run_beats_the_throughput_objective(data: st.DataObject, shared: bool, run: tuple[int, int | None]) -> None:
    """The busiest device or channel has to do its load once for each micro-batch, whatever the placement."""
    table = data.draw(tables(shared=shared))
    placement = data.draw(placements(table, copies=3))
    each = len(placement.copies)  # so many micro-batches go through all copies once
    makespan_s = simulate(table, placement, each * run[0], run[1]).makespan_s
    assert makespan_s >= each * run[0] * objective_s(table, placement) * (1 - 1e-12)


@given(st.data())
def test_many_micro_batches_of_a_chain_stream_at_the_throughput_objective(data: st.DataObject) -> None:
    """For contiguous pieces that overlap sending; without overlap the devices may have to wait for each other."""
    table = data.draw(tables(overlap=True))
    placement = data.draw(placements(table, contiguous=True))
    timeline = simulate(table, placement, micro_batches=200)
    assert timeline.period_s == pytest.approx(objective_s(table, placement), rel=0.05)


def objective_s(table: CostTable, placement: Placement) -> float:
    load_s, channel_s = loads(table, placement)
    return float(max(load_s.max(), channel_s.max(initial=0.0)))
