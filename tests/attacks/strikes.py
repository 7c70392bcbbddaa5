"""What a fault does to a process: in it before the command begins, as `preexec_fn` does, or from outside while it runs.

Nothing here loads torch, so that a new interpreter is struck as soon as a fork.
"""

import ctypes
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

from tests.forkserver import fork_as_it_is

LIBC = ctypes.CDLL(None, use_errno=True)
SET_DEATH_SIGNAL = 1  # of prctl(2)
NEW_NAMESPACE = 0x00020000  # of unshare(2)
READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 32, 4096, 16384, 1 << 18  # of mount(2)
DETACH = 2  # of umount2(2)
JUMPS_S = (-26 * 3600.0, -3600.0, -1.0, 3600.0, 26 * 3600.0)  # of the clock, each from where it was
N_JUMPS = 5
TOLD = "a-lie-was-told"  # a file that is there after a lie that others have to notice
LEAPS_S = (1.0, 60.0, 3600.0, 26 * 3600.0)  # of clocks that only go forwards
SOON_S = 0.002
BEGUN_S = 0.05  # after which a process has begun its program; who starts one that is stopped before waits for it
SMALL, ARENA, ROOM = 400, 1 << 20, 32 << 20  # bytes; smaller objects than 513 bytes are in arenas
KEPT: list[bytes | bytearray] = []

Step = Callable[[], None]


def begin(steps: Iterable[Step], forks: bool) -> None:
    """Take the steps in a process that is about to run a command; ``forks``: its Python modules start as its forks."""
    end_with_parent()
    for step in steps:
        step()
    if forks:
        fork_as_it_is()


def end_with_parent() -> None:
    """Have the kernel kill this process, and what it becomes by exec, as soon as its parent has ended."""
    LIBC.prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def limit(what: int, value: int) -> None:
    """Set a limit of `resource` for good."""
    resource.setrlimit(what, (value, value))


def keep_room() -> None:
    """Have some free memory for small objects, as a process that has worked for a while has.

    So the limit of data is met by what is large: tensors, stacks of threads, libraries. Without any room for a lock,
    Python's own `Thread.start` waits forever for a thread that could not begin, and no program can help that.
    """
    objects = [bytes(SMALL) for _ in range(ROOM // SMALL)]  # in Python's arenas
    chunks = [bytearray(4 * SMALL) for _ in range(ROOM // SMALL // 4)]  # in the heap of C
    KEPT.extend((*objects[:: ARENA // SMALL], chunks[-1]))  # so that neither is given back


def limit_data(spare: int) -> None:
    """Let the process have so many bytes of data more than it has."""
    keep_room()
    limit_now(resource.RLIMIT_DATA, spare, os.getpid())


def one_core() -> None:
    """Leave one core of those that the process may use."""
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])


def fill(folder: Path, n_bytes: int) -> None:
    """Let the process see an empty file system with so much room in place of a folder."""
    _own_mounts()
    _called(LIBC.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, f"size={n_bytes}".encode()))


def protect(folder: Path) -> None:
    """Let the process read a folder and not write into it, whoever it is."""
    _own_mounts()
    name = os.fsencode(folder)
    _called(LIBC.mount(name, name, None, BIND, None))
    _called(LIBC.mount(None, name, None, REMOUNT | READ_ONLY | BIND, None))


def take_away(folder: Path) -> None:
    """Unmount a folder for the process alone."""
    _own_mounts()
    _called(LIBC.umount2(os.fsencode(folder), DETACH))


def _own_mounts() -> None:
    """Let this process mount what no other one sees."""
    _called(LIBC.unshare(NEW_NAMESPACE))
    _called(LIBC.mount(None, b"/", None, RECURSIVE | PRIVATE, None))


def _called(status: int) -> None:
    if status:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def print_to(path: Path) -> None:
    """Let stdout lead into a file or device."""
    file = os.open(path, os.O_WRONLY)
    os.dup2(file, 1)
    os.close(file)


def jump(seed: str, lasts_s: float) -> None:
    """Let the clock of this process jump forwards and backwards at random moments of so many seconds."""
    rng, now, now_ns, start_s = random.Random(seed), time.time, time.time_ns, time.monotonic()
    moments = sorted(lasts_s * rng.random() for _ in range(N_JUMPS))
    ahead = [0.0, *accumulate(rng.choice(JUMPS_S) for _ in moments)]

    def ahead_s() -> float:
        return ahead[sum(moment < time.monotonic() - start_s for moment in moments)]

    time.time = lambda: now() + ahead_s()
    time.time_ns = lambda: now_ns() + round(ahead_s() * 1e9)


def leap(seed: str, lasts_s: float) -> None:
    """Let clocks that cannot go back leap forwards at a random moment, as where a virtual machine was asleep."""
    rng = random.Random(seed)
    monotonic, perf, perf_ns = time.monotonic, time.perf_counter, time.perf_counter_ns
    asleep_s, wakes_s = rng.choice(LEAPS_S), monotonic() + lasts_s * rng.random()

    def ahead_s() -> float:
        return asleep_s if monotonic() > wakes_s else 0.0

    time.monotonic = lambda: monotonic() + ahead_s()
    time.perf_counter = lambda: perf() + ahead_s()
    time.perf_counter_ns = lambda: perf_ns() + round(ahead_s() * 1e9)


def send(number: int, pid: int) -> None:
    """Send a signal to a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def limit_now(what: int, spare: int, pid: int) -> None:
    """Let a running process have so much more than it has: of data in bytes, or of descriptors."""
    with suppress(ProcessLookupError, FileNotFoundError):
        if what == resource.RLIMIT_DATA:
            status = Path(f"/proc/{pid}/status").read_text("ascii")
            has = next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData")), 0)
        else:
            has = 1 + max(map(int, os.listdir(f"/proc/{pid}/fd")), default=0)
        resource.prlimit(pid, what, (has + spare, has + spare))


def strike_rank(number: int, which: float, until_s: float, pid: int) -> None:
    """Send a signal to one of the ranks that a process has started, as soon as there is one."""
    for rank in _awaited_rank(which, until_s, pid):
        send(number, rank)


def pause_rank(which: float, until_s: float, asleep_s: float, pid: int) -> None:
    """Stop one of the ranks that a process has started for some seconds, as soon as there is one."""
    _pause(_awaited_rank(which, until_s, pid), asleep_s)


def pause(alone: bool, asleep_s: float, pid: int) -> None:
    """Stop a process for some seconds, ``alone`` or with all that it has started."""
    _pause([pid] if alone else [pid, *_descendants_of(pid)], asleep_s)


def _pause(pids: Sequence[int], asleep_s: float) -> None:
    for pid in pids:
        send(signal.SIGSTOP, pid)
    time.sleep(asleep_s)
    for pid in pids:
        send(signal.SIGCONT, pid)


def _awaited_rank(which: float, until_s: float, pid: int) -> list[int]:
    """Return one of the ranks that a process has started, as soon as there is one; none if none comes in time."""
    end_s = time.monotonic() + until_s
    while time.monotonic() < end_s and Path(f"/proc/{pid}").exists():
        if ranks := ranks_of(pid):
            time.sleep(BEGUN_S)
            return [ranks[int(which * len(ranks))]]
        time.sleep(SOON_S)
    return []


def ranks_of(pid: int) -> list[int]:
    """Return the children of a process that lead a session, as ranks do."""
    return [child for child in children_of(pid) if _leads(child)]


def children_of(pid: int) -> list[int]:
    """Return the children of a process, of all its threads."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # of a thread that has ended since
            found += map(int, path.read_text("ascii").split())
    return sorted(found)


def _descendants_of(pid: int) -> list[int]:
    children = children_of(pid)
    return [*children, *(each for child in children for each in _descendants_of(child))]


def _leads(pid: int) -> bool:
    with suppress(ProcessLookupError):
        return os.getsid(pid) == pid
    return False
