"""Waiting for another thread on a core of one's own: a short wait spins, since to sleep and wake up takes 13 µs."""

import ctypes
import os
from functools import cache
from typing import Any

from costmodels.host.native import compiled

POSSIBLE = hasattr(os, "sched_yield")  # not on Windows
TURNS = 300  # of 0.4 µs; who waits longer may as well sleep


class Count:
    """A number that one thread at a time increases, and that others wait for."""

    def __init__(self) -> None:
        self._number = ctypes.c_int64()
        self._address = ctypes.addressof(self._number)
        self._spin = _compiled()

    @property
    def value(self) -> int:
        """The number now."""
        return self._number.value

    def increase(self) -> None:
        """Add one."""
        self._number.value += 1

    def spin(self, seen: int) -> None:
        """Wait until the number is another one than ``seen``, but not long; other threads of Python run meanwhile."""
        self._spin(self._address, seen, TURNS)


@cache
def _compiled() -> Any:
    from numba import types  # late: numba takes half a second to load

    rest = types.ExternalFunction("sched_yield", types.int32())  # other threads of the core may run

    def spin(number: Any, seen: int, turns: int) -> None:
        for _ in range(turns):
            if number[0] != seen:
                break
            rest()

    return compiled(spin, "cnn")
