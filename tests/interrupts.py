"""Interrupts at chosen moments."""

import signal
from collections.abc import Callable

AGAIN_S = 1.0  # Python ignores exceptions in callbacks of its collector, and so an interrupt that comes there


def interrupted(work: Callable[[], object], after_s: float) -> bool:
    """Call a function that an interrupt ends after some time, unless it ends before; return whether it did not."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, after_s, AGAIN_S)
        work()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return False
