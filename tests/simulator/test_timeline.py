"""What a timeline says about a run, computed by hand."""

import numpy as np
import pytest

from simulator.timeline import Span, Timeline


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
