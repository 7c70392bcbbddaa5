"""Deadline: one time limit for everything that a command or a call does; callees receive it and start no other one.

The clock of searches stands still while libraries are loaded or code is compiled: that is no search, and takes seconds
in one process and nothing in the next.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

BRAKE = 1.0
"""The multiple of its limit after which the clock stops a search. Searches count their work, so that a slow machine
finds the same as a fast one, unless the clock stops the search first; tests raise the multiple."""


class _Loading:
    """The seconds of loading so far, and the present depth of nested calls of `loading`."""

    seconds = 0.0
    depth = 0


@contextmanager
def loading() -> Iterator[None]:
    """Stop the clock of searches while something is loaded or compiled."""
    start_s = time.perf_counter()
    _Loading.depth += 1
    try:
        yield
    finally:
        _Loading.depth -= 1
        if not _Loading.depth:
            _Loading.seconds += time.perf_counter() - start_s


def now_s() -> float:
    """Return the seconds on the clock of searches."""
    return time.perf_counter() - _Loading.seconds


@dataclass(frozen=True)
class Deadline:
    """The time at which everything must be over."""

    limit_s: float  # seconds from ``start_s``
    start_s: float = field(default_factory=now_s)

    @property
    def left_s(self) -> float:
        """Seconds that are left, 0 or more."""
        return max(0.0, self.start_s + self.limit_s - now_s())

    @property
    def over(self) -> bool:
        """Whether the clock stops the search."""
        return now_s() >= self.start_s + BRAKE * self.limit_s
