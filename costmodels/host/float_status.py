"""Whether the calling thread took a larger or smaller one of two numbers of which one is NaN: the processor notes it.

That raises the flag "invalid" of IEEE 754 on x86, as do inf - inf and whatever else has no number for a result. A
kernel that loses NaN finds out so in 0.1 µs, without a look at its results. Flags are read by the C library's `fenv.h`
(https://en.cppreference.com/w/c/numeric/fenv).
"""

import ctypes
from collections.abc import Callable

INVALID = ctypes.c_int(1)

_library = ctypes.PyDLL(None)  # the C library of Python itself; too short for others to run meanwhile
_is_raised, _clear = _library.fetestexcept, _library.feclearexcept


def raised_invalid() -> bool:
    """Return whether the flag was raised since it was cleared, and clear it if it was."""
    if not _is_raised(INVALID):
        return False
    _clear(INVALID)
    return True


def raising_invalid(run: Callable[..., object]) -> Callable[..., bool]:
    """Return a function that runs a kernel and returns whether that raises the flag.

    An earlier operator may have raised it; so the kernel then runs again, which it must be able to.
    """

    def watched(*addresses: int) -> bool:
        run(*addresses)
        if not raised_invalid():
            return False
        run(*addresses)
        return raised_invalid()

    return watched
