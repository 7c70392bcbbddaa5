"""The limit of how long an attack may take."""

import faulthandler
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

ASLEEP = 20  # times as long by the clock, for a block that waits for something and does not compute


@contextmanager
def limited(seconds: int, error: type[Exception]) -> Iterator[None]:
    """Raise the error in a block that takes more processor time, after the stack of every thread is on standard error.

    How busy the machine is does not matter, unless the block takes `ASLEEP` times as long by the clock.
    """

    def over(*_: object) -> None:
        faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr)  # a block may have redirected it
        raise error(f"no end in {seconds} s")

    timers = {
        signal.SIGPROF: (signal.ITIMER_PROF, seconds),
        signal.SIGALRM: (signal.ITIMER_REAL, ASLEEP * seconds),
    }
    before = {number: signal.signal(number, over) for number in timers}
    for timer, after_s in timers.values():
        signal.setitimer(timer, after_s)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])
