"""Which clock measures which device."""

import time

import pytest

from costmodels.calibrate.clock import Clock, clock_of, times_s
from tests.costmodels.calibrate.hosts import device


def test_one_core_has_the_time_of_its_thread_and_several_that_on_the_wall() -> None:
    assert clock_of(device("one", 3)).mark is time.thread_time_ns
    assert clock_of(device("two", 3, 4)).mark is time.perf_counter_ns


def test_marks_count_in_seconds() -> None:
    assert clock_of(device()).seconds(1_000_000_000, 3_500_000_000) == 2.5


def test_waits_for_the_interpreter_count_and_waits_for_a_core_do_not() -> None:
    clock = clock_of(device(), waits=True)
    assert clock.seconds((0, 0), (2_000_000, 2_500_000)) == 2.5e-3
    assert clock.seconds((0, 0), (2_000_000, 6_000_000)) == 2e-3  # other processes had the core for 4 ms
    assert clock_of(device("two", 3, 4), waits=True).mark is time.perf_counter_ns


def test_a_short_sleep_counts_as_a_wait() -> None:
    clock, own = clock_of(device(), waits=True), clock_of(device())

    def counts() -> bool:
        start = clock.mark()
        time.sleep(2e-4)
        end = clock.mark()
        return clock.seconds(start, end) > own.seconds(start[0], end[0])

    assert any(counts() for _ in range(100))  # not if another process has the core meanwhile


def test_a_call_that_took_no_time_does_not_count() -> None:
    left = [0, 5, 7, 7, 10, 12, 20, 23]
    script = Clock(lambda: left.pop(0), lambda: None, lambda start, end: float(end - start))
    assert times_s(script, lambda: None, limit_s=0) == [5, 2, 3]


@pytest.mark.parametrize("marks", [(0, 5, 10, 12, 20, 23)])
def test_at_least_three_times_after_one_to_warm_up(marks: tuple[float, ...]) -> None:
    left, calls, settled = list(marks), list[int](), list[int]()
    script = Clock(lambda: left.pop(0), lambda: settled.append(1), lambda start, end: float(end - start))
    assert times_s(script, lambda: calls.append(1), limit_s=0) == [5, 2, 3]
    assert (len(calls), len(settled), left) == (4, 4, [])
