"""Which clock measures which device."""

import time

import pytest

from costmodels.calibrate.clock import clock_of, times_s
from tests.costmodels.calibrate.hosts import device


def test_one_core_has_the_time_of_its_thread_and_several_that_on_the_wall() -> None:
    assert clock_of(device("one", 3)).mark is time.thread_time_ns
    assert clock_of(device("two", 3, 4)).mark is time.perf_counter_ns


def test_marks_count_in_seconds() -> None:
    assert clock_of(device()).seconds(1_000_000_000, 3_500_000_000) == 2.5


class Script:
    """A clock that shows given times."""

    def __init__(self, *marks: float) -> None:
        self.marks = list(marks)
        self.settled = 0

    def mark(self) -> float:
        return self.marks.pop(0)

    def settle(self) -> None:
        self.settled += 1

    def seconds(self, start: float, end: float) -> float:
        return end - start


@pytest.mark.parametrize("marks", [(0, 5, 10, 12, 20, 23)])
def test_at_least_three_times_after_one_to_warm_up(marks: tuple[float, ...]) -> None:
    calls: list[int] = []
    clock = Script(*marks)
    assert times_s(clock, lambda: calls.append(1), limit_s=0) == [5, 2, 3]
    assert (len(calls), clock.settled, clock.marks) == (4, 4, [])
