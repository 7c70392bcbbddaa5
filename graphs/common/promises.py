"""Promises: results of work on other threads, which an interrupt of the one that waits cannot spoil.

`concurrent.futures.Future` guards its result by a condition of Python code. An interrupt that comes while the waiting
thread enters the condition leaves the condition locked, and the thread that has the result waits for it forever.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

LOOK_S = 0.2  # the longest time until an interrupt just before the caller blocks is noticed


class Promise(Generic[T]):
    """The result or the exception of a thread, set once; others wait for it, or have a function called with it."""

    def __init__(self) -> None:
        self._value: T
        self._error: BaseException | None = None
        self._over = False
        self._pending = threading.Lock()  # held until the result is there
        self._pending.acquire()
        self._calls: deque[Callable[[Promise[T]], None]] = deque()

    def set_result(self, value: T) -> None:
        """Set the result."""
        self._value = value
        self._end()

    def set_exception(self, error: BaseException) -> None:
        """Set the exception."""
        self._error = error
        self._end()

    def done(self) -> bool:
        """Return whether the result is there."""
        return self._over

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the result is there, but no longer than ``timeout_s``; return whether it is there."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._over:
            left_s = LOOK_S if end_s is None else min(LOOK_S, end_s - time.monotonic())
            if left_s <= 0:
                break
            if self._pending.acquire(timeout=left_s):
                self._pending.release()  # for others that wait
        return self._over

    def result(self, timeout_s: float | None = None) -> T:
        """Wait as `wait` does; return what was returned, or raise what was raised.

        Raises:
            TimeoutError: if the result is not there in time.
        """
        error = self.exception(timeout_s)
        if error is not None:
            try:
                raise error
            finally:
                del error, self  # the traceback holds this frame, which would hold the error
        return self._value

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """Wait as `wait` does; return what was raised, if anything.

        Raises:
            TimeoutError: if the result is not there in time.
        """
        if not self.wait(timeout_s):
            raise TimeoutError
        return self._error

    def add_done_callback(self, call: Callable[["Promise[T]"], None]) -> None:
        """Call a function with this result as soon as it is there: on the thread that sets it, or now."""
        self._calls.append(call)
        if self._over:
            self._tell()

    def _end(self) -> None:
        self._over = True
        self._pending.release()
        self._tell()

    def _tell(self) -> None:
        """Call each function once; both threads may be here."""
        while self._calls:
            try:
                call = self._calls.popleft()
            except IndexError:  # the other one was quicker
                return
            call(self)
