"""Ctrl-C and SIGTERM: the first signal lets a command write the best result so far, the second ends it at once."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType

from planner.cli.statuses import INTERRUPTED

SHOW_CURSOR = "\x1b[?25h"  # a line of progress hides it


@contextmanager
def interruptible() -> Iterator[None]:
    """Handle signals while a command runs. A signal that is ignored or has a handler keeps that."""
    if current_thread() is not main_thread():  # signals belong to the main thread
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ours = [number for number, handler in before.items() if handler in (signal.default_int_handler, signal.SIG_DFL)]
    for number in ours:
        signal.signal(number, _first)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def _first(_number: int, _frame: FrameType | None) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is _first:
            signal.signal(number, _second)
    raise KeyboardInterrupt


def _second(_number: int, _frame: FrameType | None) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(SHOW_CURSOR)
        sys.stderr.flush()
    os._exit(INTERRUPTED)
