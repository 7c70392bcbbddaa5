"""Closing: an object that holds threads or processes ends them.

They end after its ``with`` statement, when nothing refers to the object any more, or when Python ends: a thread that is
in the middle of an operator at that moment would abort the process. A forked process has none of them and ends nothing.
"""

import _thread
import atexit
import os
import threading
import weakref
from abc import ABC
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, Self


class Closing(ABC):
    """Something that is used in a ``with`` statement and closed at its end."""

    _ending: "Ending"

    def close(self) -> None:
        """End the threads and processes; what is on its way fails. May be called again.

        They also end when nobody refers to this any more.
        """
        self._ending.now()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Ending:
    """Ends the threads or processes that an object holds."""

    def __init__(self, holder: object, what: str, end: Callable[[], None]) -> None:
        """Watch the holder: when nobody refers to it any more, ``end`` is called a moment later on a thread of its own.

        ``what`` is a noun for messages, such as "runner"; ``end`` may be called again and knows no holder.
        """
        self._what, self._end = what, end
        self._pid = os.getpid()
        self._lock = threading.RLock()
        _OPEN.add(self)
        weakref.finalize(holder, _end_later, self).atexit = False

    def check(self) -> None:
        """Raise RuntimeError if this process is a fork of the one that has the threads or processes."""
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"the {self._what} was started in process {self._pid}, and this one, a fork of it, has none of its "
                f"threads; start a {self._what} here"
            )

    def now(self) -> None:
        """End the threads or processes and wait until they have ended; do nothing in a forked process."""
        if os.getpid() == self._pid:
            with self._lock:
                self._end()
            _OPEN.discard(self)


_OPEN: set[Ending] = set()


def _end_later(ending: Ending) -> None:
    """End without waiting: garbage may be collected in the middle of anything, on any thread."""
    if ending in _OPEN:
        with suppress(RuntimeError):  # Python ends and starts no more threads; `_end_all` is next
            _thread.start_new_thread(ending.now, ())


@atexit.register
def _end_all() -> None:
    with ExitStack() as ends:
        for ending in tuple(_OPEN):
            ends.callback(ending.now)


os.register_at_fork(after_in_child=_OPEN.clear)
