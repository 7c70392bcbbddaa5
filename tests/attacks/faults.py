"""Faults of the machine at any point of a command: killed, interrupted, no room, no descriptors, no memory, lost ranks.

Whatever happens, a file that a command writes is either there and whole, or as it was before; a command that ends by
itself ends with a status of its own, a line that says why, and no traceback; nothing is left in its folders, and
nothing runs on. Most commands start as forks of a process that has their modules (`tests.forkserver`); one of `COLD` is
a new interpreter, so that the seconds in which modules load are attacked too.
"""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from tests.attacks import strikes
from tests.attacks.commands import COMMANDS, Command, Ready, is_shards, laid_out, settings
from tests.attacks.strikes import TOLD, Step
from tests.children import Process, running

LIMIT_S = 120.0  # of a command, on a machine that others use, too
SETTLED_S = 10.0  # until the processes of a command have ended after it
INTERRUPTED, KILLED = 130, -signal.SIGKILL
BY_ITSELF = (0, 1, 2, INTERRUPTED)
LIBRARY = "libgomp"  # ends the process, and says so
OLD = "what was here before\n"
COLD = 20
ASLEEP_S = (0.1, 1.0, 3.0, 6.0)  # of a process that is paused


@dataclass(frozen=True)
class At:
    """When and where a fault comes."""

    rng: random.Random
    folder: Path
    lasts_s: float  # the command, undisturbed
    trains: bool = False  # whether its ranks do

    def folder_of(self, *names: str) -> Path:
        """Return one of some folders."""
        return self.folder / self.rng.choice(names)


@dataclass(frozen=True)
class Fault:
    """What happens to the process of a command.

    Attributes:
        ends: statuses with which a command may end.
        before: makes what the process does before the command; other processes can import it.
        during: makes what is done to the process, with its number, at a moment of the command.
        cold: whether it may come to a new interpreter.
        ranks: whether it comes to a rank, of commands that have some.
        hides: whether it hides what the command writes.
    """

    ends: frozenset[int] = frozenset({0})
    before: Callable[[At], Step] | None = None
    during: Callable[[At], Callable[[int], None]] | None = None
    cold: bool = True
    ranks: bool = False
    hides: bool = False


def _sent(number: int, *ends: int) -> Fault:
    return Fault(frozenset({0, *ends}), during=lambda _: partial(strikes.send, number))


def _rank_sent(number: int) -> Fault:
    def during(at: At) -> Callable[[int], None]:
        return partial(strikes.strike_rank, number, at.rng.random(), at.lasts_s)

    return Fault(frozenset({0, 1}), during=during, ranks=True)


def _lie(at: At) -> Step:
    from tests.attacks.lies import lie  # late: it loads torch

    return partial(lie, str(at.rng.random()), at.trains)


def _spare(at: At) -> int:
    """Return how many bytes there are, from a fraction of a MiB to 128 MiB."""
    return int(2 ** at.rng.uniform(18, 27))


DONE_OR_BAD = frozenset({0, 2})
NO_MEMORY = DONE_OR_BAD | {1, 127, -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS}
"""Where there is no memory, a library in C may end its process, as libgomp does with 1 and the loader with 127."""

FAULTS: Mapping[str, Fault] = {
    "kill -9": _sent(signal.SIGKILL, KILLED),
    "interrupt": _sent(signal.SIGINT, INTERRUPTED, -signal.SIGINT),
    "terminated": _sent(signal.SIGTERM, INTERRUPTED, -signal.SIGTERM),
    "files end": Fault(
        DONE_OR_BAD,
        lambda at: partial(strikes.limit, resource.RLIMIT_FSIZE, at.rng.choice((0, 700, 4096, 1 << 16))),
    ),
    "few descriptors": Fault(DONE_OR_BAD, lambda _: partial(strikes.limit, resource.RLIMIT_NOFILE, 40)),
    "descriptors end": Fault(
        DONE_OR_BAD,
        during=lambda at: partial(strikes.limit_now, resource.RLIMIT_NOFILE, at.rng.randrange(4)),
        cold=False,
    ),
    "one core": Fault(before=lambda _: strikes.one_core),
    "little memory": Fault(NO_MEMORY, lambda at: partial(strikes.limit_data, _spare(at)), cold=False),
    "memory ends": Fault(
        NO_MEMORY,
        lambda _: strikes.keep_room,
        lambda at: partial(strikes.limit_now, resource.RLIMIT_DATA, _spare(at)),
        cold=False,
    ),
    "512 MiB": Fault(NO_MEMORY, lambda _: partial(strikes.limit, resource.RLIMIT_DATA, 512 << 20)),
    "full disk": Fault(
        DONE_OR_BAD,
        lambda at: partial(strikes.fill, at.folder / "out", 4096 * at.rng.choice((1, 1, 2, 4, 16))),
        hides=True,
    ),
    "no room for drafts": Fault(
        DONE_OR_BAD, lambda at: partial(strikes.fill, at.folder / "tmp", 4096 * at.rng.choice((1, 2, 4, 16)))
    ),
    "read-only folder": Fault(
        DONE_OR_BAD, lambda at: partial(strikes.protect, at.folder_of("out", "out", "cache", "tmp"))
    ),
    "no /dev/shm": Fault(before=lambda _: partial(strikes.take_away, Path("/dev/shm"))),
    "full stdout": Fault(DONE_OR_BAD, lambda _: partial(strikes.print_to, Path("/dev/full"))),
    "clock": Fault(before=lambda at: partial(strikes.jump, str(at.rng.random()), at.lasts_s), cold=False),
    "clock leaps": Fault(
        frozenset({0, 1}), lambda at: partial(strikes.leap, str(at.rng.random()), at.lasts_s), cold=False
    ),
    "pause": Fault(during=lambda at: partial(strikes.pause, at.rng.random() < 0.5, at.rng.choice(ASLEEP_S))),
    "rank pauses": Fault(
        frozenset({0, 1}),
        during=lambda at: partial(strikes.pause_rank, at.rng.random(), at.lasts_s, at.rng.choice(ASLEEP_S)),
        ranks=True,
    ),
    "rank dies": _rank_sent(signal.SIGKILL),
    "rank stalls": _rank_sent(signal.SIGSTOP),
    "rank lies": Fault(frozenset({0, 1}), _lie, cold=False, ranks=True),
}
"""With a small limit of files, Python's cache of modules is written no more either, which must not matter.

A group of processes with too little memory is no fault of its own: the kernel kills one of them, as "kill -9" does.
"""

MOUNTS = ("full disk", "no room for drafts", "read-only folder", "no /dev/shm")


@cache
def possible(name: str) -> bool:
    """Return whether this host lets a test do that: mounts need rights that few have."""
    if name not in MOUNTS:
        return True
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False, timeout=LIMIT_S)
    return done.returncode == 0


def faults_of(command: str, of: Sequence[str] = ()) -> Sequence[str]:
    """Return the faults that may come to a command on this host, of some faults or of all."""
    can = [name for name, fault in FAULTS.items() if possible(name) and (COMMANDS[command].ranks or not fault.ranks)]
    return [name for name in can if name in (of or FAULTS)]


def folder_for(folder: Path) -> None:
    """Fill an empty folder with what commands read, and with the folders that they write into."""
    shutil.copytree(laid_out(), folder, dirs_exist_ok=True)


def lasting(command: str, folder: Path) -> tuple[float, float]:
    """Return the seconds of a command without a fault, as a fork and in a new interpreter; raise if it fails."""
    found = []
    for cold in (False, True):
        start_s = time.monotonic()
        said = _judged(command, Fault(), cold, At(random.Random(0), folder, 0.0))
        assert not said, f"{command}, undisturbed: {said}"
        found.append(time.monotonic() - start_s)
    return found[0], found[1]


def attacked(command: str, name: str, seed: int, folder: Path, lasts_s: tuple[float, float]) -> str:
    """Run a command with a fault; return what is wrong with what is left, or nothing.

    ``lasts_s`` is what `lasting` has returned; what comes from outside comes at a moment before the end.
    """
    rng = random.Random(f"{command} {name} {seed}")
    cold = rng.randrange(COLD) == 0 and FAULTS[name].cold
    return _judged(command, FAULTS[name], cold, At(rng, folder, lasts_s[cold], COMMANDS[command].ranks == "train"))


def _judged(command: str, fault: Fault, cold: bool, at: At) -> str:
    what, out = COMMANDS[command], at.folder / "out"
    for folder in (out, at.folder / "tmp"):
        shutil.rmtree(folder)
        folder.mkdir()
    if what.measures:
        forgotten = "**/*.json" if cold else "*.json"  # the host too, which takes half a minute, or the model alone
        for file in (at.folder / "cache").glob(forgotten):
            file.unlink()
    target = out / what.file if what.file else None
    was_there = target is not None and what.whole is not is_shards and at.rng.random() < 0.5
    if target is not None and was_there:
        target.write_text(OLD, encoding="utf-8")
    status, err = _ended(what, fault, cold, target, at)
    if (lie := at.folder / TOLD).exists():
        said = lie.read_text(encoding="utf-8")
        lie.unlink()
        if status == 0:
            return f"a lie was believed: {said}"
    found = [*_wrong_end(fault, status, err), *_left(at.folder, target, status in BY_ITSELF and LIBRARY not in err)]
    if target is not None:
        found += _wrong_file(what, target, was_there, status == 0 and not fault.hides)
    return "; ".join(found)


def _ended(what: Command, fault: Fault, cold: bool, target: Path | None, at: At) -> tuple[int | None, str]:
    """Return the exit status of a command with a fault, and its stderr; None if it did not end."""
    line = [sys.executable, "-m", "planner", *(str(target) if word == "FILE" else word for word in what.words)]
    steps = [fault.before(at)] if fault.before else []
    begin = partial(strikes.begin, steps, bool(what.ranks) and not cold)
    strike, after_s = fault.during(at) if fault.during else None, at.rng.random() * at.lasts_s
    start: type[Process] = subprocess.Popen if cold else Ready
    with running(line, LIMIT_S + 1, start, preexec_fn=begin, **settings(at.folder)) as process:
        try:
            if strike is not None:
                time.sleep(after_s)
                strike(process.pid)
            _, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return None, ""
    return process.returncode, err


def _wrong_end(fault: Fault, status: int | None, err: str) -> Iterator[str]:
    """Yield what is wrong with how a command ended, and with what it said."""
    if status is None:
        yield f"no end in {LIMIT_S:.0f} s"
        return
    ours = [line for line in err.splitlines() if line.startswith("planner: ")]
    if err and not ours and "planner/cli" not in err:  # Python itself was met, before there was a command
        return
    if status not in fault.ends:
        yield f"ends with {status}: {err[-300:]}"
    if "Traceback" in err:
        yield f"prints a traceback: {err[-500:]}"
    if status in (1, 2) and not ours and LIBRARY not in err:
        yield f"ends with {status} and does not say why: {err[-300:]}"


def _left(folder: Path, target: Path | None, by_itself: bool) -> Iterator[str]:
    """Yield what is left of a command: processes, which are killed, and files of one that ended by itself."""
    end_s = time.monotonic() + SETTLED_S
    while (pids := _processes_in(folder)) and time.monotonic() < end_s:
        time.sleep(strikes.SOON_S)
    for pid in pids:
        strikes.send(signal.SIGKILL, pid)
    if pids:
        yield f"leaves {len(pids)} processes"
    others = [path.name for name in ("out", "tmp") for path in (folder / name).iterdir() if path != target]
    if others and by_itself:
        yield f"leaves {sorted(others)}"


def _processes_in(folder: Path) -> list[int]:
    """Return the processes that work in a folder, as those that a command starts do."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if os.readlink(path) == str(folder):
                found.append(int(path.parent.name))
        except OSError:  # it has ended since, or is not ours
            continue
    return found


def _wrong_file(what: Command, target: Path, was_there: bool, written: bool) -> Iterator[str]:
    """Yield what is wrong with the file of a command, which must be new if it was ``written``."""
    if not target.exists():
        if was_there:
            yield "the file that was there is gone"
        elif written:
            yield "ends with 0 and wrote nothing"
        return
    if target.is_file() and target.read_text(encoding="utf-8", errors="replace") == OLD:
        if not was_there:
            yield "a file that was not there has the old content"
        if written:
            yield "ends with 0 and wrote nothing"
        return
    try:
        what.whole(target)
    except Exception as error:  # whatever a reader raises
        yield f"half a file: {type(error).__name__}: {error}"
