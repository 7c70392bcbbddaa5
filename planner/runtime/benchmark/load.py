"""Load: what other processes take of this host during a measurement, and the pace of its processors."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from costmodels.calibrate.pace import PaceMeter
from costmodels.operators.pace import Paces
from planner.plans.compare import paced_devices
from planner.plans.plan import Plan

TURN_S = 0.6  # of one contender on a steady host
STEADY, LONGEST = 0.05, 2.0
"""Up to which spread of its pace a host is steady, and how many times as long a turn is at most on another."""


class Watched(Protocol):
    """A runner whose devices call a function after their stages."""

    def watch(self, behind: Callable[[], object] | None) -> None:
        """Set the function; None for nothing."""
        ...


@contextmanager
def watching(meter: PaceMeter | None, runner: Watched, n_devices: int) -> Iterator[None]:
    """Measure the pace of a runner's devices in the midst of their work, while ``n_devices`` compute at once."""
    runner.watch(partial(meter.watch, n_devices) if meter is not None else None)
    try:
        yield
    finally:
        runner.watch(None)


class Load:
    """The load of this host by other processes since this object was made, and the pace of the host.

    Attributes:
        turn_s: how long one contender should run at a time.
        meter: of the pace of a plan's devices.
    """

    def __init__(self, pids: Sequence[int] = (), plan: Plan | None = None) -> None:
        """Begin; processes of this host with these ``pids`` count as our own, and a plan's pace is measured.

        Raise InputError if this host does not have one of the devices.
        """
        self._pids = pids
        devices = paced_devices(plan) if plan else ()
        self.meter = PaceMeter(devices) if devices else None
        spread = plan.spread().pace if plan and devices else 0.0
        self.turn_s = TURN_S * min(LONGEST, max(1.0, (spread / STEADY) ** 2))  # so that its mean is as well known
        self._start = self._now()

    def sample_pace(self) -> None:
        """Measure the pace of the devices now."""
        if self.meter is not None:
            self.meter.sample()

    @property
    def paces(self) -> Paces:
        """All samples until now; empty if none was taken."""
        return tuple(self.meter.samples) if self.meter else ()

    def foreign_cores(self) -> float:
        """Return how many processors others used on average."""
        busy_s, own_s, wall_s = (now - then for now, then in zip(self._now(), self._start, strict=True))
        return max(0.0, busy_s - own_s) / wall_s if wall_s > 0 else 0.0

    def _now(self) -> tuple[float, float, float]:
        """Return busy seconds of the host, our own, and the clock; a host without /proc/stat counts as idle.

        What the machine that a virtual host runs on gave to others ("steal") is busy and not our own.
        """
        own_s = time.process_time() + sum(map(_processor_s, self._pids))
        stat = Path("/proc/stat")
        if not stat.exists():
            return own_s, own_s, time.perf_counter()
        user, nice, system, _, _, irq, softirq, steal, *_ = map(int, stat.read_text().split("\n", 1)[0].split()[1:])
        return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK"), own_s, time.perf_counter()


def _processor_s(pid: int) -> float:
    """Return the processor time that a process of this host has taken; 0 if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    fields = stat.rpartition(")")[2].split()  # after the name, which may hold anything: state is field 3 of proc(5)
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
