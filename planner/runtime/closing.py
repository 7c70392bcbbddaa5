"""Closing: what holds threads or processes ends them.

That is behind a ``with`` statement, when nobody refers to the holder any more, or when Python ends: a thread that is in
the middle of an operator then would abort the process. A forked process has none of them, and ends nothing.
"""

import _thread
import atexit
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self


class Closing(ABC):
    """For a ``with`` statement, at the end of which it is closed."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything. May be called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Ending:
    """The end of threads or processes that somebody holds."""

    def __init__(self, holder: object, what: str, end: Callable[[], None]) -> None:
        """Nothing ends yet.

        Args:
            holder: when nobody refers to it any more, the end comes, a moment later on a thread of its own.
            what: a noun for messages, such as "runner".
            end: ends them; it may be called again, and does not refer to the holder.
        """
        self._what, self._end = what, end
        self._pid = os.getpid()
        self._lock = threading.RLock()
        _OPEN.add(self)
        weakref.finalize(holder, _end_later, self).atexit = False

    def check(self) -> None:
        """The threads or processes can be there.

        Raises:
            RuntimeError: if the calling process is a fork of the one that has them.
        """
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"the {self._what} was started in process {self._pid}, and this one, a fork of it, has none of its "
                f"threads; start a {self._what} here"
            )

    def now(self) -> None:
        """End them, and wait until they have ended; in a forked process, do nothing."""
        if os.getpid() == self._pid:
            with self._lock:
                self._end()
            _OPEN.discard(self)


_OPEN: set[Ending] = set()


def _end_later(ending: Ending) -> None:
    """Garbage may be collected in the middle of anything, on any thread, so nothing is waited for here."""
    if ending in _OPEN:
        with suppress(RuntimeError):  # Python ends and starts no more threads; `_end_all` is next
            _thread.start_new_thread(ending.now, ())


@atexit.register
def _end_all() -> None:
    with ExitStack() as ends:
        for ending in tuple(_OPEN):
            ends.callback(ending.now)


os.register_at_fork(after_in_child=_OPEN.clear)
