"""Forked processes, which have none of the threads of the one that they are a copy of."""

import os
import signal
import time
import warnings
from collections.abc import Callable

from tests.planner.runtime.small import PATIENCE_S


def in_fork(work: Callable[[], object]) -> str:
    """What a forked process says of some work; it has to end by itself."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads, which is what is tried
        pid = os.fork()
    if pid == 0:
        try:
            said = str(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    end_s = time.monotonic() + PATIENCE_S
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > end_s:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError("the forked process hangs")
        time.sleep(0.005)
    with os.fdopen(read) as pipe:
        return pipe.read()


def refusal(what: str) -> str:
    return (
        f"RuntimeError: the {what} was started in process {os.getpid()}, and this one, a fork of it, has none of its "
        f"threads; start a {what} here"
    )
