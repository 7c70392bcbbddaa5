"""Deadline: one limit for everything that a command or a call does; it is handed down, and nobody starts a new one."""

import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Deadline:
    """An end of the time."""

    limit_s: float  # seconds from ``start_s``
    start_s: float = field(default_factory=time.perf_counter)  # `time.perf_counter` when the clock was started

    @property
    def left_s(self) -> float:
        """Seconds that are left, 0 at least."""
        return max(0.0, self.start_s + self.limit_s - time.perf_counter())

    @property
    def over(self) -> bool:
        """Whether none are left."""
        return self.left_s <= 0
