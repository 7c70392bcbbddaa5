"""The limit of how long an attack may take."""

import faulthandler
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def limited(seconds: int, error: type[Exception]) -> Iterator[None]:
    """Raise the error in a block that takes longer, after the stack of every thread is on standard error."""

    def over(*_: object) -> None:
        faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr)  # a block may have redirected it
        raise error(f"no end in {seconds} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
