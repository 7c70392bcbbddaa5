"""Links between threads of this host."""

import threading
from dataclasses import replace
from math import isfinite

import pytest
import torch

from costmodels.calibrate import links
from costmodels.calibrate.links import measure_link
from costmodels.calibrate.linktimes import pattern
from costmodels.host.affinity import Processor
from graphs.common.errors import InputError
from tests.costmodels.calibrate.hosts import CORE, OTHER, device

A, B = device("a", CORE), device("b", OTHER)


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "ROUNDS", 3)
    monkeypatch.setattr(links, "SIZES", (2**12, 2**16))


def test_a_link_between_two_threads() -> None:
    times = measure_link(A, B)
    assert [n_bytes for n_bytes, _ in times.points] == [0, 2**12, 2**16]
    assert all(seconds > 0 and isfinite(seconds) for _, seconds in times.points)
    assert times.latency_s == times.points[0][1]
    assert times.bytes_per_s > 0
    assert times.spread.keys() == {4, 2**12, 2**16}


def test_what_is_sent_is_what_is_received() -> None:
    seen: list[torch.Tensor] = []

    def received(_: Processor, sent_s: float, tensor: torch.Tensor, number: int) -> tuple[float, torch.Tensor]:
        seen.append(tensor)
        return number + sent_s, tensor

    times = links._exchange(A, B, 64, received)
    assert all(torch.equal(tensor, pattern(64, number)) for number, tensor in enumerate(seen))
    assert len(times) == 2  # without the first round
    assert times == sorted(times)


def test_large_messages_have_fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "LARGE", 64)
    monkeypatch.setattr(links, "ROUNDS_LARGE", 2)
    assert [len(links._exchange(A, B, n_bytes, links._waking)) for n_bytes in (60, 64)] == [2, 1]


def test_a_link_that_corrupts_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def corrupt(_: Processor, __: float, tensor: torch.Tensor, number: int) -> tuple[float, torch.Tensor]:
        return 0.0, tensor + (number == 2)

    monkeypatch.setattr(links, "_reading", corrupt)
    before = threading.active_count()
    with pytest.raises(InputError) as error:
        measure_link(A, B)
    assert str(error.value) == (
        "the link from 'a' to 'b' corrupts data: of 4 KiB, element 0 arrived as -1021 instead of -1022; "
        "mend it, or leave out one of the devices"
    )
    assert threading.active_count() <= before  # the sender waits for nobody


def test_an_error_of_the_receiver_reaches_the_caller() -> None:
    def received(*_: object) -> tuple[float, torch.Tensor]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        links._exchange(A, B, 4, received)


def test_nobody_waits_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "PATIENCE_S", 0.01)
    monkeypatch.setattr(links, "LOOK_S", 0.01)
    box: links._Box[int] = links._Box()
    with pytest.raises(InputError, match="a thread was not scheduled for 0 s; calibrate on a quieter host"):
        box.take()


@pytest.mark.usefixtures("gpu")
def test_reading_and_copying_take_time() -> None:
    tensor = pattern(4000, 1)
    seconds, copy = links._copying(replace(device(), cores=(), cuda=0), 0, tensor, 1)
    assert seconds > 0
    assert copy.is_cuda
    seconds, back = links._copying(device(), 0, copy, 1)
    assert seconds > 0
    assert torch.equal(back, tensor)
    seconds, arrived = links._reading(device(), 0, tensor, 1)
    assert isfinite(seconds)
    assert arrived is tensor
