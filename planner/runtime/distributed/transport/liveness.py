"""Heartbeats: when a peer of which nothing is heard is given up.

Silence is counted in our own looks, not in seconds: who is late himself, because his host is loaded or he was stopped,
looks as seldom as he listens, and blames nobody. Of a process of this host /proc says more: one that is stopped or dead
says so, and one that is not may be slow, so it is given much more time.
"""

from dataclasses import dataclass
from pathlib import Path

LOOK_S = 0.5  # between looks, and between heartbeats
FAR_SILENT_S = 4.0  # for a peer of which nothing else is known: told within 5 s
NEAR_SILENT_S = 30.0  # for a process of this host that is there, and not stopped
STOPPED_S = 2.0  # for one that is stopped: somebody may only have paused it for a moment
STOPPED = {"T": "it is stopped", "t": "it is stopped by a debugger", "Z": "it has ended", "X": "it has ended"}
"""States of proc(5) in which a process does nothing."""


class Silent(RuntimeError):  # noqa: N818  # what the peer is
    """Nothing was heard of a peer for too long."""


@dataclass(frozen=True)
class SilenceTimeout:
    """How long a peer may be silent.

    Attributes:
        limit_s: before it is given up.
        pid: of its process, where we see it; 0 where we do not.
        waits: do not count while its process is stopped: somebody else says what becomes of it.
    """

    limit_s: float
    pid: int = 0
    waits: bool = False


class Heartbeats:
    """What is known of a peer's life."""

    def __init__(self, silence_timeout: SilenceTimeout) -> None:
        self._silence_timeout = silence_timeout
        self._heard = False
        self._silent_looks = 0

    def hear(self) -> None:
        """It has said something."""
        self._heard = True

    def look(self) -> str:
        """To be called every `LOOK_S`: why it is to be given up, or nothing."""
        if self._heard:
            self._heard, self._silent_looks = False, 0
            return ""
        stopped = stopped_state(self._silence_timeout.pid)
        if stopped and self._silence_timeout.waits:
            return ""
        self._silent_looks += 1
        silent_s = self._silent_looks * LOOK_S
        if stopped and silent_s >= STOPPED_S:
            return stopped
        return f"nothing was heard of it for {silent_s:.3g} s" if silent_s >= self._silence_timeout.limit_s else ""


def stopped_state(pid: int) -> str:
    """How it comes that a process of this host does nothing; empty if it runs, or cannot be seen."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return STOPPED.get(stat.rpartition(")")[2].split()[0], "")  # behind the name, which may hold anything


def pid_space() -> str:
    """The same for processes that see each other under their numbers; empty where that cannot be told."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
