"""Waiting for another thread on a core of one's own: a short wait spins, since to sleep and wake up takes 13 µs."""

import ctypes
import os
from functools import cache
from typing import Any

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
    from numba import cfunc, types  # late: numba takes half a second to load

    rest = types.ExternalFunction("sched_yield", types.int32())  # other threads of the core may run

    @cfunc("void(CPointer(int64), int64, int64)")  # type: ignore[untyped-decorator]  # numba has no types
    def spin(number: Any, seen: int, turns: int) -> None:
        for _ in range(turns):
            if number[0] != seen:
                break
            rest()

    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(spin.address)
    function.kernel = spin  # type: ignore[attr-defined]  # keeps the code in memory
    return function
