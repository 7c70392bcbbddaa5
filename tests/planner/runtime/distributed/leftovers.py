"""What the processes of one test may leave behind, apart from those of tests that run beside it."""

import gc
import os
import tempfile
from pathlib import Path

OURS = "TEST_OF_HOSTING"  # in the environment of what a test starts


def processes() -> set[int]:
    """Those that run a rank for this test."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            ours = f"{OURS}={os.environ[OURS]}".encode() in (path / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if ours and b"planner" in words and b"--hosted" in words:
            found.add(int(path.name))
    return found


def descriptors() -> int:
    """How many this process has open, without those that only garbage holds.

    Threads of a connection that broke hold its descriptors until they have noticed, which may be after `close`.
    """
    gc.collect()  # the traceback of an expected failure holds a runner
    return len(os.listdir("/proc/self/fd"))


def left() -> set[Path]:
    """Folders of this test."""
    return set(Path(tempfile.gettempdir()).glob("planner-*"))
