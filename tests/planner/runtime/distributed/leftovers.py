"""What the processes of one test may leave behind, apart from those of tests that run beside it."""

import gc
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.planner.runtime.small import eventually

OPENED_ONCE = 3  # a pipe for signals of libuv, both of its ends, and the socket of the server of forks


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


def descriptors() -> dict[int, str]:
    """What this process has open, by number, without what only garbage holds."""
    gc.collect()  # the traceback of an expected failure holds a runner
    opened = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the folder that is being listed, or closed by another thread since
            opened[int(link.name)] = str(link.readlink())
    return opened


def wait_until_closed(before: dict[int, str]) -> None:
    """Wait until a process has open what it had before, and at most what libraries open once; name what is too many.

    Threads of a connection that broke hold its descriptors until they have noticed, which may be after `close`.
    """

    def opened_since() -> list[str]:
        return sorted(what for number, what in descriptors().items() if before.get(number) != what)

    eventually(lambda: len(opened_since()) <= OPENED_ONCE, lambda: f"still open: {', '.join(opened_since())}")


def left() -> set[Path]:
    """Folders of this test."""
    return set(Path(tempfile.gettempdir()).glob("planner-*"))
