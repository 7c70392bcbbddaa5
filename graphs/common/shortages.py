"""Shortages of the machine: an error that says that memory, disk, descriptors or threads have come to an end."""

import errno
import mmap
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

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

HUNGRY = ("scipy.linalg", "scipy.special")
"""Modules with an OpenBLAS, which tries forever to get the memory that it wants when it is loaded."""

FOR_IT, FOR_EACH_THREAD = 64 << 20, 40 << 20  # bytes of it
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")  # variables that say how many it starts; else one for each core


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


class MemoryGuard:
    """A finder of modules that finds none, and lets no library begin that would wait forever for memory."""

    def find_spec(self, name: str, _: Sequence[str] | None, __: ModuleType | None = None) -> None:
        """Raise OSError if a module is about to be loaded for which there is too little memory."""
        if name in HUNGRY:
            said = next((os.environ[each] for each in THREADS if os.environ.get(each, "").isdigit()), "")
            n_threads = int(said) if said else os.cpu_count() or 1
            wanted = FOR_IT + n_threads * FOR_EACH_THREAD
            mmap.mmap(-1, wanted, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()


def guard_imports() -> None:
    """Let libraries that would wait forever for memory raise an error instead, in this process."""
    sys.meta_path.insert(0, MemoryGuard())
