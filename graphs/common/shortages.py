"""Shortages of the machine: an error that says that memory, disk, descriptors or threads have come to an end."""

import errno
import os
from collections.abc import Iterator

SAYINGS = (
    *(os.strerror(getattr(errno, name)) for name in ("ENOMEM", "EMFILE", "ENFILE", "ENOSPC", "EDQUOT", "EFBIG")),
    "can't allocate memory",  # PyTorch
    "std::bad_alloc",  # C++
    "No usable temporary directory",  # Python, as the next ones
    "can't start new thread",
    "can't allocate lock",
)
"""Phrases of such errors, whatever library raises them."""


def shortage(error: BaseException) -> str:
    """Return in one line what has come to an end, if the error or one that led to it says so; else an empty text."""
    return next((_said(one) for one in _led_to(error) if _said(one)), "")


def _led_to(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError):
        return text or os.strerror(errno.ENOMEM)
    return text if any(saying.casefold() in text.casefold() for saying in SAYINGS) else ""
