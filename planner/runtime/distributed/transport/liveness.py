"""Liveness: when a peer that nothing is heard of is given up, and what its clock shows.

A rank counts silence in its own looks, not in seconds: a rank that is late itself, because its host is loaded or it was
stopped, looks less often, and gives nobody up for that. For a process of the same host, /proc says whether it is
stopped or dead; if it is neither, it may be slow, and gets much more time.

Processes of one host have one clock (``time.perf_counter`` counts from its start). The clock of another host is best
known from its fastest answer: it was read half-way, give or take half of that time (as in NTP, RFC 5905).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

LOOK_S = 0.5  # between looks, and between heartbeats
FAR_SILENT_S = 4.0  # for a peer on another host: noticed within 5 s
NEAR_SILENT_S = 30.0  # for a process of this host that is there, and not stopped
STOPPED_S = 2.0  # for a stopped process: it may only have been paused for a moment
STOPPED = {"T": "it is stopped", "t": "it is stopped by a debugger", "Z": "it has ended", "X": "it has ended"}
"""States of proc(5) in which a process does nothing."""


class SilentPeer(RuntimeError):  # noqa: N818  # what the peer is
    """Nothing was heard of a peer for too long."""


@dataclass
class Heartbeats:
    """How long a peer may be silent, and whether it was heard of."""

    limit_s: float  # after which it is given up
    pid: int = 0  # of its process, if it is visible here; else 0
    waits: bool = False  # do not count while its process is stopped: another rank decides what becomes of it
    heard: bool = field(default=False, compare=False)  # since the last look
    silent_looks: int = field(default=0, compare=False)  # in a row

    def hear(self) -> None:
        """Note that the peer has sent something."""
        self.heard = True

    def look(self) -> str:
        """Return why the peer is to be given up, empty if it is not; to be called every `LOOK_S`."""
        if self.heard:
            self.heard, self.silent_looks = False, 0
            return ""
        stopped = stopped_state(self.pid)
        if stopped and self.waits:
            return ""
        self.silent_looks += 1
        silent_s = self.silent_looks * LOOK_S
        if stopped and silent_s >= STOPPED_S:
            return stopped
        return f"nothing was heard of it for {silent_s:.3g} s" if silent_s >= self.limit_s else ""


def stopped_state(pid: int) -> str:
    """Return why a process of this host does nothing; empty if it runs, or is not visible."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return STOPPED.get(stat.rpartition(")")[2].split()[0], "")  # after the name, which may hold anything


def pid_space() -> str:
    """Return the same text for processes that see each other's numbers; empty where that is unknown."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


LOOKS = 8  # at another clock
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def measured_ahead_s(read_clock: Callable[[], float]) -> float:
    """Return by how much the other clock, which a function asks for, is ahead of the own one."""
    echoes = []  # how long each answer took, and by how much it is ahead if it was read half-way
    for _ in range(LOOKS):
        sent_s, answered_s, received_s = time.perf_counter(), read_clock(), time.perf_counter()
        echoes.append((received_s - sent_s, answered_s - (sent_s + received_s) / 2))
    return min(echoes)[1]


def clock_name() -> str:
    """Return the same text for all processes that share a clock; empty where that is unknown."""
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""
