"""The clock of a device: what it spends on a piece of work, not what others on this machine spend meanwhile."""

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from costmodels.host.affinity import Processor, check_stopped


class Clock(Protocol):
    """Marks points of time; the times between them can be read after `settle`."""

    def mark(self) -> Any:
        """Now."""
        ...

    def settle(self) -> None:
        """Wait until everything that was asked of the device is done."""
        ...

    def seconds(self, start: Any, end: Any) -> float:
        """Between two marks."""
        ...


class _Counter:
    """A counter of nanoseconds."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.mark = now_ns

    def settle(self) -> None:
        pass  # a CPU has done its work when the call returns

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
    """The clock to use on a device's own thread.

    With one core that is the thread's processor time, which stands still while another process has the core. Several
    cores work for one thread, so there it is the time on the wall.
    """
    if device.cuda is not None:
        return _Events()
    return _Counter(time.thread_time_ns if len(device.cores) == 1 else time.perf_counter_ns)


def times_s(clock: Clock, work: Callable[[], object], limit_s: float) -> list[float]:
    """The times that ``work`` takes: at least three, for ``limit_s``, after one to warm up."""
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
