"""Compiles kernels that are written in Python: they take addresses, and other threads of Python run meanwhile.

A call from Python takes two microseconds; one with arrays takes ten, most of it for the descriptions of the arrays.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import FunctionType
from typing import Any

from graphs.common.signals import signals_held

PARAMETERS: dict[str, tuple[str, Any]] = {
    "p": ("CPointer(float32)", ctypes.c_void_p),
    "c": ("CPointer(int64)", ctypes.c_void_p),
    "n": ("int64", ctypes.c_int64),
    "x": ("float32", ctypes.c_float),
}

RETURNED: dict[type | None, tuple[str, Any]] = {None: ("void", None), int: ("int64", ctypes.c_int64)}
"""The type in numba and in ctypes of what a kernel returns, by its annotation."""

FREEDOMS = {"reassoc", "contract", "arcp", "nsz"}
"""Liberties of compilers with arithmetic: sum in another order, multiply by a reciprocal, lose the sign of zero. They
must not assume that there is no NaN or infinity, which have to appear wherever PyTorch computes them.
"""


@cache
def compiled_kernel(kernel: Callable[..., int | None], parameters: str) -> Any:
    """Return the compiled kernel, which reads and writes elements of pointers by index, and may return a whole number.

    ``parameters`` has a letter for each parameter: "p" for the address of dense float32 numbers, "c" for that of whole
    numbers, "n" for a whole number, "x" for a float32 number. Functions of the kernel's module that it calls are
    compiled into it. Compiled code is cached until one of its source files changes.
    """
    from numba import cfunc  # late: numba takes half a second to load
    from numba.extending import register_jitable

    types, prototype = zip(*(PARAMETERS[letter] for letter in parameters), strict=True)
    returned, c_returned = RETURNED[kernel.__annotations__["return"]]
    options: dict[str, Any] = {"fastmath": FREEDOMS, "error_model": "numpy"}
    for each in _called(kernel):
        register_jitable(**options)(each)
    with signals_held():
        made = cfunc(f"{returned}({', '.join(types)})", cache=True, **options)(versioned(kernel))
    function = ctypes.CFUNCTYPE(c_returned, *prototype)(made.address)
    function.kernel = made  # type: ignore[attr-defined]  # keeps the code in memory
    return function


def _called(kernel: Callable[..., object]) -> set[FunctionType]:
    """Return the functions that a kernel calls by name, and those that they call."""
    found: set[FunctionType] = set()
    waiting = [kernel]
    while waiting:
        function = waiting.pop()
        called = {function.__globals__.get(name) for name in function.__code__.co_names}
        new = {each for each in called if isinstance(each, FunctionType)} - found
        found |= new
        waiting += new
    return found


def versioned(kernel: Callable[..., object]) -> FunctionType:
    """Return a function named by a digest of the files that it and what it calls are made of, for numba's cache.

    The cache itself knows the function's own file only, and cannot read entries with classes that have been renamed.
    """
    assert isinstance(kernel, FunctionType)
    files = sorted({__file__, *(each.__code__.co_filename for each in (kernel, *_called(kernel)))})
    digest = sha256(b"".join(map(_digest, files))).hexdigest()[:12]
    copy = FunctionType(kernel.__code__, kernel.__globals__, kernel.__name__, kernel.__defaults__, kernel.__closure__)
    copy.__qualname__ = f"{kernel.__qualname__}_{digest}"
    return copy


@cache
def _digest(file: str) -> bytes:
    """Return the digest of a file, which is read once for all functions that it holds."""
    return sha256(Path(file).read_bytes()).digest()
