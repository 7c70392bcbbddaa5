"""Clocks that measure the time of a device for its own work, without the work of others on this machine."""

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from costmodels.host.affinity import Processor, check_stopped


class Clock(Protocol):
    """Marks points of time; the times between them can be read after `settle`."""

    def mark(self) -> Any:
        """A mark of the current time."""
        ...

    def settle(self) -> None:
        """Wait until the device has finished all its work."""
        ...

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds between two marks."""
        ...


class _Counter:
    """A counter of nanoseconds."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.mark = now_ns

    def settle(self) -> None:
        pass  # a CPU has finished its work when the call returns

    def seconds(self, start: int, end: int) -> float:
        return (end - start) / 1e9


class _Events:
    """Events in the current stream of a GPU."""

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch has no types here
        event.record()
        return event

    def settle(self) -> None:
        torch.cuda.synchronize()

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(start.elapsed_time(end)) / 1e3


def clock_of(device: Processor) -> Clock:
    """The clock for the thread of a device.

    With one core, it is the thread's processor time, which stops while another process has the core. With several
    cores, whose time the thread's own does not include, it is wall time.
    """
    if device.cuda is not None:
        return _Events()
    return _Counter(time.thread_time_ns if len(device.cores) == 1 else time.perf_counter_ns)


def times_s(clock: Clock, work: Callable[[], object], limit_s: float) -> list[float]:
    """Seconds of repeated calls of ``work`` for ``limit_s``, at least three, after one call to warm up."""
    work()
    clock.settle()
    times: list[float] = []
    end_s = time.perf_counter() + limit_s
    while len(times) < 3 or time.perf_counter() < end_s:
        check_stopped()
        start = clock.mark()
        work()
        stop = clock.mark()
        clock.settle()
        times.append(clock.seconds(start, stop))
    return times
