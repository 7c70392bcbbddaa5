"""What a timeline says about a run, computed by hand."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.simulate import simulate
from simulator.timeline import Span, Timeline
from tests.simulator.tables import placements, tables


def compute(device: str, micro_batch: int, start_s: float, end_s: float) -> Span:
    return Span("compute", device, "a", micro_batch, 0, start_s, end_s)


#   x  0011..
#   y  ...000111
#      --0          in flight from 2 to 3
RUN = Timeline(
    ("x", "y", "z"),
    2,
    (
        compute("x", 0, 0, 2),
        compute("x", 1, 2, 4),
        Span("transfer", "x → y", "t", 0, 0, 2, 3),
        compute("y", 0, 3, 6),
        compute("y", 1, 6, 9),
    ),
)


def test_the_makespan_is_the_last_end() -> None:
    assert RUN.makespan_s == 9


def test_only_computing_counts_as_busy() -> None:
    np.testing.assert_array_equal(RUN.busy_s, [2 + 2, 3 + 3, 0])


def test_the_bubble_is_the_idle_share_of_all_devices() -> None:
    assert RUN.bubble == pytest.approx(1 - (4 + 6 + 0) / (9 * 3))


def test_a_micro_batch_finishes_with_its_last_span() -> None:
    assert RUN.finish_s == (6, 9)


def test_the_period_of_two_is_the_time_between_them() -> None:
    assert RUN.period_s == 9 - 6


def test_the_period_leaves_the_first_half_out() -> None:
    # finishes 5, 6, 10, 12, 14: the last three took 14 - 6, a period of 8 / 3
    finish = (5, 6, 10, 12, 14)
    timeline = Timeline(("x",), 5, tuple(compute("x", i, end - 1, end) for i, end in enumerate(finish)))
    assert timeline.period_s == pytest.approx(8 / 3)


def test_the_period_of_a_single_micro_batch_is_its_latency() -> None:
    assert Timeline(("x",), 1, (compute("x", 0, 0, 7),)).period_s == 7


def test_an_empty_run_takes_no_time() -> None:
    timeline = Timeline(("x",), 1, ())
    assert (timeline.makespan_s, timeline.bubble, timeline.period_s) == (0, 0, 0)


def test_a_link_is_busy_while_anything_is_on_its_way() -> None:
    # x → y: 0 to 3 and, under contention, 1 to 5, then 6 to 7: 5 + 1 s
    spans = [Span("transfer", "x → y", "t", 0, 0, start, end) for start, end in ((0, 3), (1, 5), (2, 4), (6, 7))]
    spans.append(Span("transfer", "y → x", "t", 0, 0, 6, 9))
    assert Timeline(("x", "y"), 1, tuple(spans)).link_busy_s == {"x → y": 6, "y → x": 3}


def test_the_critical_path_has_no_gap() -> None:
    # from its end: y's second stage waits for y's first, that for the transfer, that for x's first
    assert [(span.resource, span.start_s) for span in RUN.critical_path] == [("x", 0), ("x → y", 2), ("y", 3), ("y", 6)]


def test_the_critical_path_ends_where_nothing_ended_before() -> None:
    late = compute("y", 0, 5, 7)
    assert Timeline(("x", "y"), 1, (compute("x", 0, 0, 2), late)).critical_path == (late,)
    assert Timeline(("x",), 1, ()).critical_path == ()


def test_the_critical_path_prefers_the_same_micro_batch() -> None:
    other, own = compute("y", 1, 0, 2), Span("transfer", "x → y", "t", 0, 0, 0, 2)
    last = compute("y", 0, 2, 4)
    assert Timeline(("x", "y"), 2, (other, own, last)).critical_path == (own, last)


@given(st.data(), st.integers(1, 3))
def test_the_critical_path_explains_the_whole_run(data: st.DataObject, n: int) -> None:
    table = data.draw(tables(shared=True))
    timeline = simulate(table, data.draw(placements(table, copies=3)), n, in_flight=2)
    path = timeline.critical_path
    assert path[0].start_s == 0
    assert path[-1].end_s == timeline.makespan_s
    assert all(before.end_s == after.start_s for before, after in pairwise(path))
