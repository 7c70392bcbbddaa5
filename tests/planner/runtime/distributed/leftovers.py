"""What the processes of one test may leave behind, apart from those of tests that run beside it."""

import gc
import os
import tempfile
from contextlib import suppress
from pathlib import Path


def processes() -> set[int]:
    """Those that run a rank for this test: our children that lead a session."""
    lists = Path("/proc/self/task").glob("*/children")
    children: set[int] = set()
    for pids in lists:
        with suppress(FileNotFoundError, ProcessLookupError):  # of a thread that has ended since
            children |= {int(pid) for pid in pids.read_text().split()}
    return {pid for pid in children if _leads_session(pid)}


def _leads_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:  # it has ended since
        return False


def descriptors() -> int:
    """How many this process has open, without those that only garbage holds.

    Threads of a connection that broke hold its descriptors until they have noticed, which may be after `close`.
    """
    gc.collect()  # the traceback of an expected failure holds a runner
    return len(os.listdir("/proc/self/fd"))


def left() -> set[Path]:
    """Folders of this test."""
    return set(Path(tempfile.gettempdir()).glob("planner-*"))
