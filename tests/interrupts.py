"""Interrupts at chosen moments."""

import signal
from collections.abc import Callable


def interrupted(work: Callable[[], object], after_s: float) -> bool:
    """Call a function that an interrupt ends after some time, unless it ends before; return whether it did not."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, after_s)
        work()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return True
    finally:
        signal.signal(signal.SIGALRM, before)
    return False
