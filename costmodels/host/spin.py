"""Waiting for another thread: a short wait on a core of one's own spins, since sleeping and waking up takes 13 µs."""

import ctypes
import os
from functools import cache
from itertools import count
from queue import SimpleQueue
from typing import Any

from graphs.common.compiled import compiled_kernel

POSSIBLE = hasattr(os, "sched_yield")  # not on Windows
TURNS = 2500  # of 0.4 µs; a longer wait may as well sleep
LEAVING = 10  # turns until the thread that has changed the number runs no Python, which only one thread can run


class EventCount:
    """A number that any threads change, and that one thread waits for (Reed and Kanodia 1979).

    That thread reads the number, looks for work, and if there is none waits for another number. So it misses no work,
    although nobody holds a lock: a thread that has added work changes the number afterwards.
    """

    def __init__(self, spins: bool) -> None:
        """Begin at 0. ``spins`` is whether a thread that waits spins first."""
        self._number = ctypes.c_int64()
        self._numbers = count(1)  # threads that change the number at the same time get different ones
        self._spin = _compiled() if spins else None
        self._asleep = False
        self._wake: SimpleQueue[None] = SimpleQueue()  # an interrupt of a thread that puts leaves nothing locked

    @property
    def value(self) -> int:
        """The number now."""
        return self._number.value

    def advance(self) -> None:
        """Change the number, and wake the thread that waits."""
        self._number.value = next(self._numbers)
        if self._asleep and self._wake.empty():
            self._wake.put(None)

    def wait(self, seen: int, spins: bool = True) -> None:
        """Wait until the number is another one than ``seen``; other threads of Python run meanwhile."""
        if self._spin and spins:
            self._spin(ctypes.addressof(self._number), seen, TURNS)
        if self._number.value != seen:
            return
        self._asleep = True  # before the number is read again: a thread that changes it then sees this
        while self._number.value == seen:
            self._wake.get()  # it may be there for an earlier change
        self._asleep = False


@cache
def _compiled() -> Any:
    from numba import types  # late: numba takes half a second to load

    rest = types.ExternalFunction("sched_yield", types.int32())  # other threads of the core may run

    def spin(number: Any, seen: int, turns: int) -> None:
        for _ in range(turns):
            if number[0] != seen:
                for _ in range(LEAVING):
                    rest()
                break
            rest()

    return compiled_kernel(spin, "cnn")
