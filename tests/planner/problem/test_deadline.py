"""The clock of searches: what is loaded or compiled meanwhile does not count."""

import time

import pytest

from planner.problem import deadline
from planner.problem.deadline import Deadline, loading, now_s

NAP_S = 0.05


def test_the_clock_stands_still_while_something_is_loaded() -> None:
    start_s = now_s()
    with loading():
        with loading():
            time.sleep(NAP_S)
        time.sleep(NAP_S)
    assert now_s() - start_s < NAP_S
    time.sleep(NAP_S)
    assert now_s() - start_s >= NAP_S


def test_what_fails_to_load_stops_no_clock() -> None:
    with pytest.raises(ImportError), loading():
        raise ImportError
    start_s = now_s()
    time.sleep(NAP_S)
    assert now_s() - start_s >= NAP_S


def test_the_brake_is_for_what_ends_by_the_clock_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "BRAKE", 100.0)
    late = Deadline(1.0, start_s=now_s() - 2.0)
    assert (late.left_s, late.over) == (0.0, False)
    monkeypatch.setattr(deadline, "BRAKE", 1.0)
    assert late.over
