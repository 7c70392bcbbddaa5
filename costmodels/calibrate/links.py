"""Measures the time of a tensor from one device of this process to another.

Threads copy nothing. The time is that of waking the receiver, and of reading from the sender's caches::

    sender     ── compute ── put ─┐
    receiver   ── asleep ─────────┴─ wakes ── reads (slower than its own tensors)
                                  ◄────────►

For a GPU, the time of a copy replaces that of reading. Every arrived tensor is compared with the one that was sent.
"""

import statistics
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

import torch

from costmodels.calibrate.clock import clock_of
from costmodels.calibrate.linktimes import EMPTY, LARGE, SIZES, LinkTimes, check_arrived, link_times, pattern
from costmodels.host.affinity import Processor, check_stopped, copied_to, start_on, torch_device_of
from graphs.common.errors import InputError

T = TypeVar("T")

Carry: TypeAlias = Callable[[Processor, float, torch.Tensor, int], tuple[float, torch.Tensor]]
"""(receiver, second at which it was sent, tensor, its number) to (seconds, tensor that arrived)."""

ROUNDS, ROUNDS_LARGE = 21, 7
ASLEEP_S = 1e-3  # after this time, an idle processor sleeps, as it does between two stages
PATIENCE_S = 20.0
LOOK_S = 0.1  # between two polls of whether the thread was stopped


def measure_link(src: Processor, dst: Processor) -> LinkTimes:
    """One-way times of messages from 64 KiB to 64 MiB.

    Raise InputError if this host does not have both devices, is too busy to schedule both threads, or the link corrupts
    data.
    """
    wakes_s = _exchange(src, dst, EMPTY, _waking)
    wake_s = statistics.median(wakes_s)
    carry = _reading if src.cuda is None and dst.cuda is None else _copying
    carried_s = {size: _exchange(src, dst, size, carry) for size in SIZES}
    return link_times({EMPTY: wakes_s} | {n: [wake_s + extra_s for extra_s in all_s] for n, all_s in carried_s.items()})


class _Box(Generic[T]):
    """Passes values from one thread to another."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._values: list[T] = []

    def put(self, value: T) -> None:
        with self._changed:
            self._values.append(value)
            self._changed.notify()

    def take(self) -> T:
        end_s = time.monotonic() + PATIENCE_S
        with self._changed:
            while not self._changed.wait_for(lambda: bool(self._values), LOOK_S):
                check_stopped()
                if time.monotonic() > end_s:
                    raise InputError(f"a thread was not scheduled for {PATIENCE_S:.0f} s; calibrate on a quieter host")
            return self._values.pop()


def _exchange(src: Processor, dst: Processor, n_bytes: int, carry: Carry) -> list[float]:
    """[n_rounds], the seconds that ``carry`` measured for each tensor from ``src`` to ``dst``."""
    rounds = ROUNDS if n_bytes < LARGE else ROUNDS_LARGE
    tensors: _Box[tuple[float, torch.Tensor]] = _Box()
    receipts: _Box[None] = _Box()

    def send() -> None:
        for number in range(rounds):
            check_stopped()
            _compute(src)
            tensor = pattern(n_bytes, number, torch_device_of(src))
            if src.cuda is not None:
                torch.cuda.synchronize()
            tensors.put((time.perf_counter(), tensor))
            del tensor
            receipts.take()

    def receive() -> list[float]:
        times = []
        for number in range(rounds):
            sent_s, tensor = tensors.take()
            seconds, arrived = carry(dst, sent_s, tensor, number)
            check_arrived(src, dst, pattern(n_bytes, number), arrived)
            times.append(seconds)
            del tensor, arrived
            receipts.put(None)
        return times

    sent, taken = start_on(src, send), start_on(dst, receive)
    try:
        times = taken.result()
        sent.result()
    except BaseException:
        taken.stop()
        sent.stop()
        raise
    return times[1:]  # the first round includes the start of both threads


def _compute(device: Processor) -> None:
    """Keep a device busy for `ASLEEP_S` without holding Python's lock."""
    a = torch.ones(128, 128, device=torch_device_of(device))
    end_s = time.perf_counter() + ASLEEP_S
    while time.perf_counter() < end_s:
        torch.mm(a, a)


def _waking(_: Processor, sent_s: float, tensor: torch.Tensor, __: int) -> tuple[float, torch.Tensor]:
    return time.perf_counter() - sent_s, tensor


def _reading(device: Processor, _: float, tensor: torch.Tensor, number: int) -> tuple[float, torch.Tensor]:
    """The additional time to read a tensor, compared with one of the same size that the device wrote itself."""
    clock = clock_of(device)
    marks = [clock.mark()]
    tensor.sum()
    marks.append(clock.mark())
    own = pattern(tensor.nbytes, number)
    marks.append(clock.mark())
    own.sum()
    marks.append(clock.mark())
    return clock.seconds(marks[0], marks[1]) - clock.seconds(marks[2], marks[3]), tensor


def _copying(device: Processor, _: float, tensor: torch.Tensor, __: int) -> tuple[float, torch.Tensor]:
    """The wall time of a copy, as the runtime makes it, until the device can use it."""
    start_s = time.perf_counter()
    copy = copied_to(tensor, torch_device_of(device), None)
    if device.cuda is not None:
        torch.cuda.current_stream(device.cuda).synchronize()
    return time.perf_counter() - start_s, copy
