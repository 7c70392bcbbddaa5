"""Links between threads of this host, and the line through their times."""

from math import isfinite

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from costmodels.calibrate import links
from costmodels.calibrate.links import fit_line, measure_link
from costmodels.calibrate.pinned import Processor
from graphs.errors import InputError
from tests.costmodels.calibrate.hosts import CORE, OTHER, device


@given(latency_s=st.floats(1e-7, 1e-3), s_per_byte=st.floats(1e-12, 1e-6))
def test_points_on_a_line_give_the_line(latency_s: float, s_per_byte: float) -> None:
    sizes = [2.0**16, 2.0**18, 2.0**20]
    fitted = fit_line(sizes, [latency_s + size * s_per_byte for size in sizes])
    assert fitted == pytest.approx((latency_s, s_per_byte), rel=1e-6, abs=1e-12)


def test_times_that_fall_with_the_size_are_a_latency() -> None:
    # least squares of (4 - a) / 4 and (2 - a) / 2: a = (1/4 + 1/2) / (1/16 + 1/4) = 2.4
    assert fit_line([1, 3], [4, 2]) == pytest.approx((2.4, 0))


def test_times_that_grow_faster_than_the_size_are_a_bandwidth() -> None:
    # the line through (1, 1) and (2, 4) starts at -2; least squares of 1 - b and (4 - 2 b) / 4:
    # b = (1 + 1/2) / (1 + 1/4) = 1.2
    assert fit_line([1, 2], [1, 4]) == pytest.approx((0, 1.2))


def test_a_link_between_two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "ROUNDS", 4)
    latency_s, bytes_per_s = measure_link(device("a", CORE), device("b", OTHER))
    assert latency_s >= 0
    assert isfinite(latency_s)
    assert bytes_per_s > 0


def test_what_is_sent_is_what_is_received(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "ROUNDS", 3)
    seen: list[torch.Size] = []

    def received(_: Processor, sent_s: float, tensor: torch.Tensor) -> float:
        seen.append(tensor.shape)
        return sent_s

    times = links._exchange(device("a", CORE), device("b", OTHER), 64, received)
    assert seen == [(16,), (16,), (16,)]  # of four bytes each
    assert len(times) == 2  # without the first round
    assert times == sorted(times)


def test_an_error_of_the_receiver_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "PATIENCE_S", 0.1)

    def received(*_: object) -> float:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        links._exchange(device("a", CORE), device("b", OTHER), 4, received)


def test_nobody_waits_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "PATIENCE_S", 0.01)
    box: links._Box[int] = links._Box()
    with pytest.raises(InputError, match="a thread was not scheduled for 0 s; calibrate on a quieter host"):
        box.take()


def test_reading_and_copying_take_time() -> None:
    tensor = torch.ones(1000)
    assert links._copying(device(), 0, tensor) > 0
    assert isfinite(links._reading(device(), 0, tensor))
