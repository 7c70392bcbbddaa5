"""Whether the calling thread took a larger or smaller one of two numbers of which one is NaN: the processor notes it.

That raises the flag "invalid" of IEEE 754 on x86, as do inf - inf and whatever else has no number for a result. A
kernel that loses NaN finds out so in 0.1 µs, without a look at its results. Flags are read by the C library's `fenv.h`
(https://en.cppreference.com/w/c/numeric/fenv).
"""

import ctypes

INVALID = ctypes.c_int(1)

_library = ctypes.PyDLL(None)  # the C library of Python itself; too short for others to run meanwhile
raised, clear = _library.fetestexcept, _library.feclearexcept
"""Functions of flags: those of them that were raised since they were cleared."""
