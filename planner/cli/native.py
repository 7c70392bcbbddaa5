"""Native code that calls Python, as it stands on the stack of a thread."""

import ctypes
from functools import cache
from typing import Any

MOST = 1 << 14  # functions on the stack
PASSES_ON = (b"/lib-dynload/", b"/highspy/")
"""Folders of extensions that return what Python raises: the standard library's, and HiGHS, which calls for long."""


class _DlInfo(ctypes.Structure):
    """Where an address is from, as dladdr(3) has it."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def native_calls() -> int:
    """Return how many native functions that have called Python are on the stack, and may not pass on what it raises.

    0 on systems that cannot say it: those other than Linux with glibc, and macOS.
    """
    library = _library()
    if library is None:
        return 0
    addresses = (ctypes.c_void_p * MOST)()
    count = library.backtrace(addresses, MOST)
    passes = [_passes_on(library, address or 0) for address in addresses[:count]]
    if True not in passes:
        return 0
    within = passes[passes.index(True) : count - passes[::-1].index(True)]
    return within.count(False)


@cache
def _library() -> Any:
    """Return the C library; None if it has no such functions."""
    try:
        library = ctypes.CDLL(None)
        library.backtrace.argtypes = [ctypes.c_void_p, ctypes.c_int]
        library.dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(_DlInfo)]
    except (AttributeError, OSError, TypeError):  # musl; Windows
        return None
    return library


def _passes_on(library: Any, address: int) -> bool:
    info = _info(library, address)
    return info.base == _interpreter(library) or any(folder in (info.file or b"") for folder in PASSES_ON)


@cache
def _interpreter(library: Any) -> int | None:
    """Return where the interpreter begins in memory."""
    address = ctypes.cast(ctypes.pythonapi.Py_GetVersion, ctypes.c_void_p).value
    base: int | None = _info(library, address or 0).base
    return base


def _info(library: Any, address: int) -> _DlInfo:
    info = _DlInfo()
    library.dladdr(address, ctypes.byref(info))
    return info
