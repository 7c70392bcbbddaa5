"""Shortages of the machine: an error that says that memory, disk, descriptors or threads have come to an end."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from graphs.common.causes import led_to

SAYINGS = (
    *(
        os.strerror(getattr(errno, name))
        for name in ("ENOMEM", "EMFILE", "ENFILE", "ENOSPC", "EDQUOT", "EFBIG", "EAGAIN")
    ),
    "can't allocate memory",  # PyTorch
    "std::bad_alloc",  # C++
    "No usable temporary directory",  # Python, as the next ones
    "can't start new thread",
    "can't allocate lock",
)
"""Phrases of such errors, whatever library raises them."""


def shortage(error: BaseException) -> str:
    """Return in one line what has come to an end, if the error or one that led to it says so; else an empty text."""
    return next(filter(None, map(_said, led_to(error))), "")


@contextmanager
def failures() -> Iterator[list[BaseException]]:
    """Run code of others, which may raise anything; yield a list that gets what it raises.

    A shortage is raised, since the machine is at fault and not that code.
    """
    found: list[BaseException] = []
    try:
        yield found
    except (Exception, SystemExit) as error:
        if shortage(error):
            raise
        found.append(error)


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError):
        return text or os.strerror(errno.ENOMEM)
    return text if any(saying.casefold() in text.casefold() for saying in SAYINGS) else ""
