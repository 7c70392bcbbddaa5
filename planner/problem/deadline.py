"""Deadline: one time limit for everything that a command or a call does; callees receive it and start no other one."""

import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Deadline:
    """The time at which everything must be over."""

    limit_s: float  # seconds from ``start_s``
    start_s: float = field(default_factory=time.perf_counter)  # seconds on `time.perf_counter`

    @property
    def left_s(self) -> float:
        """Seconds that are left, 0 or more."""
        return max(0.0, self.start_s + self.limit_s - time.perf_counter())

    @property
    def over(self) -> bool:
        """Whether no time is left."""
        return self.left_s <= 0
