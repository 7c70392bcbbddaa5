"""Clocks that measure the time of a device for its own work, without the work of others on this machine."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from costmodels.host.affinity import Processor, check_stopped
from graphs.common.arrays import Floats

STALL = 2.0  # times the median, above which a time shows an event that will not recur as often
LONG_S = 1e-3  # a thread of this process has the interpreter for a shorter time; other processes have a core for longer


class Clock(NamedTuple):
    """Marks points of time; the times between them can be read after `settle`."""

    mark: Callable[[], Any]  # a mark of the current time
    settle: Callable[[], object]  # waits until the device has finished all its work
    seconds: Callable[[Any, Any], float]  # between two marks


def clock_of(device: Processor, waits: bool = False) -> Clock:
    """The clock for the thread of a device: events in the current stream of a GPU, else a counter of nanoseconds.

    With one core, it is the thread's processor time, which stops while another process has the core. With ``waits``, it
    goes on while the thread waits for Python's interpreter, which one thread has at a time. With several cores, whose
    time the thread's own does not include, it is wall time.
    """
    if device.cuda is not None:
        return Clock(_event, torch.cuda.synchronize, lambda start, end: float(start.elapsed_time(end)) / 1e3)
    if waits and len(device.cores) == 1:
        return Clock(lambda: (time.thread_time_ns(), time.perf_counter_ns()), lambda: None, _with_waits)
    now_ns = time.thread_time_ns if len(device.cores) == 1 else time.perf_counter_ns
    # A CPU has finished its work when the call returns.
    return Clock(now_ns, lambda: None, lambda start_ns, end_ns: float(end_ns - start_ns) / 1e9)


def _with_waits(start_ns: tuple[int, int], end_ns: tuple[int, int]) -> float:
    """Return the seconds between two pairs of processor and wall time."""
    processor_s, wall_s = ((end - start) / 1e9 for start, end in zip(start_ns, end_ns, strict=True))
    return wall_s if wall_s < processor_s + LONG_S else processor_s


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch has no types here
    event.record()
    return event


def times_s(clock: Clock, work: Callable[[], object], limit_s: float) -> list[float]:
    """Return the seconds of repeated calls of ``work`` for ``limit_s``, at least three, after one call to warm up."""
    work()
    clock.settle()
    times: list[float] = []
    end_s, calls = time.perf_counter() + limit_s, calls_s(clock, work)
    while len(times) < 3 or time.perf_counter() < end_s:
        times.append(next(calls))
    return times


def calls_s(clock: Clock, work: Callable[[], object]) -> Iterator[float]:
    """Yield the seconds of one call of ``work`` after the other, without end.

    A call that took no time does not count: a thread's clock on a virtual host stands still now and then.
    """
    while True:
        check_stopped()
        start = clock.mark()
        work()
        stop = clock.mark()
        clock.settle()
        if (seconds := clock.seconds(start, stop)) > 0:
            yield seconds


def mean_s(times: Sequence[float] | Floats) -> float:
    """The mean of repeated times, in which one that stalled counts as `STALL` medians.

    It holds the small disturbances that work meets all the time, which a median leaves out.
    """
    return float(np.minimum(times, STALL * np.median(times)).mean())
