"""Ctrl-C and SIGTERM: the first lets a command write the best result so far, the second ends it at once.

The first raises KeyboardInterrupt in the main thread, but not in a function that native code has called: C may ignore
what is raised there, as numba's compiler does, and C++ may end the process, as PyTorch does where it makes a node of
autograd. It is raised as soon as that code has returned.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from time import thread_time
from types import FrameType
from typing import Any

from planner.cli.native import native_calls
from planner.cli.statuses import INTERRUPTED

PATIENCE_S = 5.0  # of processor time, for native code to return; that may call back for minutes
SHOW_CURSOR = "\x1b[?25h"  # a line of progress hides it
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interruptible(*numbers: signal.Signals) -> Iterator[None]:
    """Handle SIGINT and SIGTERM, or these signals alone. One that is ignored or has a handler keeps that."""
    if current_thread() is not main_thread():  # signals belong to the main thread
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers or SIGNALS}
    ours = [number for number, handler in before.items() if handler in (signal.default_int_handler, signal.SIG_DFL)]
    hook, around = sys.unraisablehook, native_calls()

    def first(_number: int, frame: FrameType | None) -> None:
        for number in ours:
            signal.signal(number, _second)
        if native_calls() <= around:
            raise KeyboardInterrupt
        _raise_later(frame, around)

    def hear(lost: "sys.UnraisableHookArgs") -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            _raise_later(sys._getframe().f_back, around)
        else:
            hook(lost)

    sys.unraisablehook = hear
    for number in ours:
        signal.signal(number, first)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])
        sys.unraisablehook = hook


def _raise_later(innermost: FrameType | None, around: int) -> None:
    """Raise KeyboardInterrupt at the next line of a frame on the stack at which no more native code is ``around`` it.

    After `PATIENCE_S`, the next function that is called raises it.
    """
    until_s = thread_time() + PATIENCE_S

    def at(frame: FrameType, event: str, _argument: Any) -> None:
        if thread_time() > until_s or (event != "call" and native_calls() <= around):
            raise KeyboardInterrupt  # which ends the tracing
        frame.f_trace = None  # native code has called it, or one that has called it

    while innermost is not None:
        innermost.f_trace = at
        innermost = innermost.f_back
    sys.settrace(at)


def _second(_number: int, _frame: FrameType | None) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(SHOW_CURSOR)
        sys.stderr.flush()
    os._exit(INTERRUPTED)
