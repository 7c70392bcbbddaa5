"""Signals that wait until work is done which they would leave half done."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import current_thread, main_thread
from types import FrameType


@contextmanager
def signals_held() -> Iterator[None]:
    """Handle a signal, as that of Ctrl-C, at the end of the block; the second one is handled at once, after the first.

    It holds back the signals that have a handler in Python. Numba's compiler needs it: C that calls Python ignores what
    a handler raises, and the compiler goes on with half of the code.
    """
    if current_thread() is not main_thread():  # handlers run in the main thread
        yield
        return
    handlers = {number: handler for number in signal.valid_signals() if callable(handler := signal.getsignal(number))}
    held: list[int] = []

    def hold(number: int, _frame: FrameType | None) -> None:
        held.append(number)
        if len(held) > 1:
            handle()

    def handle() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        with ExitStack() as each:  # whatever the handler of another one raises
            while held:
                each.callback(signal.raise_signal, held.pop())

    try:
        for number in handlers:
            signal.signal(number, hold)
        yield
    finally:
        handle()
