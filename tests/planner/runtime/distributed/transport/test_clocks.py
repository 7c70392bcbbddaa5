"""What another clock shows, from messages there and back."""

import pytest

from planner.runtime.distributed.transport.liveness import Echo, clock_ahead_s, clock_name


def test_the_fastest_answer_counts() -> None:
    # sent at 10, back at 12: the other's 111 was read at about 11, so it is 100 ahead; the slow one says 101
    assert clock_ahead_s([Echo(20.0, 123.0, 24.0), Echo(10.0, 111.0, 12.0)]) == pytest.approx(100.0)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_it_errs_by_half_of_the_way_at_most(share: float) -> None:
    ahead_s, there_and_back_s = -5.0, 0.2
    echo = Echo(1.0, 1.0 + share * there_and_back_s + ahead_s, 1.0 + there_and_back_s)
    assert abs(clock_ahead_s([echo]) - ahead_s) <= there_and_back_s / 2 + 1e-12


def test_a_host_has_one_name() -> None:
    assert clock_name() == clock_name()
