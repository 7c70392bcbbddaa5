"""How long a tensor takes from one device of this process to another.

Between threads nothing is copied. What takes time is to wake the receiver, and to read what lies in the sender's
caches::

    sender     ── compute ── put ─┐
    receiver   ── asleep ─────────┴─ wakes ── reads (slower than what it wrote itself)
                                  ◄────────►

To or from a GPU, a copy takes the place of the reading.
"""

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np
import torch

from costmodels.calibrate.clock import clock_of
from costmodels.calibrate.pinned import Processor, place_of, start_on
from graphs.errors import InputError

T = TypeVar("T")

SIZES = (2**16, 2**18, 2**20, 2**22)
ROUNDS = 30
ASLEEP_S = 1e-3  # long enough for an idle processor to have gone to sleep, as it has between two stages
PATIENCE_S = 20.0


def measure_link(src: Processor, dst: Processor) -> tuple[float, float]:
    """Latency in seconds, and bytes per second, which is infinite if the size does not matter.

    Raises:
        InputError: if this host does not have both, or the threads cannot meet because the host is too busy.
    """
    wake_s = statistics.median(_exchange(src, dst, 1, _waking))
    carry = _reading if src.cuda is None and dst.cuda is None else _copying
    seconds = [max(0.0, statistics.median(_exchange(src, dst, size, carry))) for size in SIZES]
    latency_s, s_per_byte = fit_line(SIZES, [wake_s + extra_s for extra_s in seconds])
    return latency_s, 1 / s_per_byte if s_per_byte > 0 else float("inf")


def fit_line(n_bytes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """The line ``latency_s + n_bytes * s_per_byte`` of least squared relative error, neither number below 0.

    Args:
        n_bytes: [n], sizes.
        seconds: [n], times above 0.
    """
    x, y = np.asarray(n_bytes, dtype=float), np.asarray(seconds, dtype=float)
    columns, ones = np.column_stack([1 / y, x / y]), np.ones(len(y))
    latency_s, s_per_byte = np.linalg.lstsq(columns, ones, rcond=None)[0]
    if s_per_byte < 0:
        return float(columns[:, 0].sum() / (columns[:, 0] ** 2).sum()), 0.0
    if latency_s < 0:
        return 0.0, float(columns[:, 1].sum() / (columns[:, 1] ** 2).sum())
    return float(latency_s), float(s_per_byte)


class _Box(Generic[T]):
    """Room for one value, which a thread puts there and another takes out."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._values: list[T] = []

    def put(self, value: T) -> None:
        with self._changed:
            self._values.append(value)
            self._changed.notify()

    def take(self) -> T:
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._values), PATIENCE_S):
                raise InputError(f"a thread was not scheduled for {PATIENCE_S:.0f} s; calibrate on a quieter host")
            return self._values.pop()


def _exchange(
    src: Processor, dst: Processor, n_bytes: int, received: Callable[[Processor, float, torch.Tensor], float]
) -> list[float]:
    """[ROUNDS], what ``received`` made of each tensor that ``src`` wrote and ``dst`` took."""
    there: _Box[tuple[float, torch.Tensor]] = _Box()
    back: _Box[None] = _Box()

    def send() -> None:
        for _ in range(ROUNDS):
            _compute(src)
            tensor = torch.ones(max(1, n_bytes // 4), device=place_of(src))
            if src.cuda is not None:
                torch.cuda.synchronize()
            there.put((time.perf_counter(), tensor))
            del tensor
            back.take()

    def receive() -> list[float]:
        times = []
        for _ in range(ROUNDS):
            sent_s, tensor = there.take()
            times.append(received(dst, sent_s, tensor))
            del tensor
            back.put(None)
        return times

    sent, taken = start_on(src, send), start_on(dst, receive)
    times = taken.result()
    sent.result()
    return times[1:]  # the first round waits for both threads to be there


def _compute(device: Processor) -> None:
    """Keep a device busy for a while, without holding Python's lock."""
    a = torch.ones(128, 128, device=place_of(device))
    end_s = time.perf_counter() + ASLEEP_S
    while time.perf_counter() < end_s:
        torch.mm(a, a)


def _waking(_: Processor, sent_s: float, __: torch.Tensor) -> float:
    return time.perf_counter() - sent_s


def _reading(device: Processor, _: float, tensor: torch.Tensor) -> float:
    """How much longer it takes to read than a tensor of the same size that the device wrote itself."""
    clock = clock_of(device)
    marks = [clock.mark()]
    tensor.sum()
    marks.append(clock.mark())
    own = torch.ones_like(tensor)
    marks.append(clock.mark())
    own.sum()
    marks.append(clock.mark())
    return clock.seconds(marks[0], marks[1]) - clock.seconds(marks[2], marks[3])


def _copying(device: Processor, _: float, tensor: torch.Tensor) -> float:
    """A copy, on the wall, until the device can use it."""
    start_s = time.perf_counter()
    copy = tensor.to(place_of(device))
    for place in (tensor.device, copy.device):
        if place.type == "cuda":
            torch.cuda.synchronize(place)
    return time.perf_counter() - start_s
