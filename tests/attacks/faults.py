"""Faults of the machine at any point of a command: killed, interrupted, no room, no descriptors, no memory, one core.

Whatever happens, a file that a command writes is either there and whole, or as it was before; a command that ends by
itself ends with a status of its own and without a traceback; nothing is left in the folder, and nothing runs on.
"""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from costmodels.cluster.file import read_cluster
from planner.plans.files import load_plan, save_plan
from simulator.placement import Placement
from tests.children import running

ROOT = Path(__file__).parents[2]
LIMIT_S = 120.0  # of a command, on a machine that others use, too
INTERRUPTED, KILLED = 130, -signal.SIGKILL
OLD = "what was here before\n"


@dataclass(frozen=True)
class Command:
    """A command that writes one file, and how to see that the file is whole."""

    words: tuple[str, ...]  # after `planner`; "FILE" stands for what is written
    file: str
    whole: Callable[[Path], object]


def _is_html(path: Path) -> None:
    assert path.read_text(encoding="utf-8").rstrip().endswith("</html>"), "a page without an end"


def _is_svg(path: Path) -> None:
    assert path.read_text(encoding="utf-8").rstrip().endswith("</svg>"), "a picture without an end"


def _is_json(path: Path) -> None:
    json.loads(path.read_text(encoding="utf-8"))


def _is_cluster(path: Path) -> None:
    assert read_cluster(path).devices, "a cluster without devices"


MODEL = "examples.networks:mnist"
ON_PAPER = ("--cluster", "2xRTX-4090:PCIe4", "--goal", "throughput")

COMMANDS: Mapping[str, Command] = {
    "plan": Command(("plan", MODEL, *ON_PAPER, "-o", "FILE", "--force"), "new.json", load_plan),
    "import": Command(("import", MODEL, "-o", "FILE", "--force"), "graph.json", _is_json),
    "show": Command(("show", "plan.json", "-o", "FILE", "--force"), "plan.html", _is_html),
    "show svg": Command(("show", "plan.json", "-o", "FILE", "--force"), "plan.svg", _is_svg),
    "simulate": Command(("simulate", "plan.json", "--trace", "FILE", "--force"), "trace.json", _is_json),
    "export": Command(("export", "plan.json", "--to", "networkx", "-o", "FILE", "--force"), "nx.json", _is_json),
    "choose": Command(
        ("choose", MODEL, *ON_PAPER[:2], "--global-batch", "8", "-o", "FILE", "--force"), "row.json", _is_json
    ),
    "solve": Command(
        ("solve", "problem.json", "--goal", "throughput", "-o", "FILE", "--force"), "answer.json", _is_json
    ),
    "fit": Command(("fit", "config.json", *ON_PAPER[:2], "-o", "FILE", "--force"), "fit.json", _is_json),
    "import-map": Command(
        ("import-map", "map.json", MODEL, *ON_PAPER[:2], "-o", "FILE", "--force"), "hand.json", load_plan
    ),
    "calibrate": Command(("calibrate", MODEL, "-o", "FILE", "--force"), "cluster.toml", _is_cluster),
    "run": Command(("run", "here.json", MODEL, "--rounds", "1", "-o", "FILE", "--force"), "run.json", _is_json),
}


def lay_out(folder: Path) -> None:
    """Write what the commands read: plans on paper and for this host, a problem, a config, a device map."""
    from examples.networks import mnist  # late: torch takes seconds to load
    from graphs.importers.from_torch import program_from_module
    from tests.attacks.readers import reader
    from tests.planner.runtime.small import desk, make_plan

    for name, file in {"plan": "plan.json", "problem": "problem.json", "language config": "config.json"}.items():
        (folder / file).write_bytes(reader(name).good)
    (folder / "map.json").write_text(json.dumps({"": 0}), encoding="utf-8")
    program = program_from_module(*mnist())
    save_plan(make_plan(program, Placement((0,) * len(program.graph.ops)), desk(1)), folder / "here.json")


@dataclass(frozen=True)
class Fault:
    """What happens to the process of a command."""

    limits: Mapping[int, int] = field(default_factory=dict)  # of `resource`
    signal: int | None = None  # sent at a random moment
    before: tuple[str, ...] = ()  # words before the command
    ends: frozenset[int] = frozenset({0})  # statuses with which a command may end


def _namespace(script: str) -> tuple[str, ...]:
    """Run a command where this script has changed the file systems, for it alone."""
    return ("unshare", "--mount", "sh", "-c", f'{script} && exec "$@"', "sh")


FAULTS: Mapping[str, Fault] = {
    "kill -9": Fault(signal=signal.SIGKILL, ends=frozenset({0, KILLED})),
    "interrupt": Fault(signal=signal.SIGINT, ends=frozenset({0, INTERRUPTED, -signal.SIGINT})),
    "terminated": Fault(signal=signal.SIGTERM, ends=frozenset({0, INTERRUPTED, -signal.SIGTERM, 143})),
    "files end": Fault({resource.RLIMIT_FSIZE: 700}, ends=frozenset({0, 2})),  # some files are as short
    "no files": Fault({resource.RLIMIT_FSIZE: 0}, ends=frozenset({2})),
    "few descriptors": Fault({resource.RLIMIT_NOFILE: 40}, ends=frozenset({0, 2})),
    "one core": Fault(before=("taskset", "--cpu-list", str(min(os.sched_getaffinity(0))))),
    "full disk": Fault(before=_namespace('mount -t tmpfs -o size=4k tmpfs "$FOLDER/out"'), ends=frozenset({0, 2})),
    "read-only folder": Fault(
        before=_namespace('mount --bind "$FOLDER/out" "$FOLDER/out" && mount -o remount,ro,bind "$FOLDER/out"'),
        ends=frozenset({2}),
    ),
    "no /dev/shm": Fault(before=_namespace("umount -l /dev/shm")),
}
"""With a small limit of files, Python's cache of modules is written no more either, which must not matter."""


def possible(name: str) -> bool:
    """Return whether this host lets a test do that: mounts need rights that few have."""
    before = FAULTS[name].before
    if before[:1] != ("unshare",):
        return True
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False, timeout=LIMIT_S)
    return done.returncode == 0


def attacked(command: str, name: str, seed: int, folder: Path, lasts_s: float) -> str:
    """Run a command in an empty folder with a fault; return what is wrong with what is left, or nothing.

    ``lasts_s`` is how long the command takes; signals come at a moment before its end.
    """
    what, fault = COMMANDS[command], FAULTS[name]
    out = folder / "out"
    out.mkdir(exist_ok=True)
    target = out / what.file
    rng = random.Random(f"{command} {name} {seed}")
    was_there = rng.random() < 0.5
    target.unlink(missing_ok=True)
    if was_there:
        target.write_text(OLD, encoding="utf-8")
    status, err = _ended(what, fault, folder, target, rng.random() * lasts_s)
    return "; ".join(_wrong(what, fault, target, was_there, status, err))


def _ended(what: Command, fault: Fault, folder: Path, target: Path, after_s: float) -> tuple[int | None, str]:
    """Return the exit status of a command with a fault, and its stderr; None if it did not end."""
    words = [str(target) if word == "FILE" else word for word in what.words]
    line = [*fault.before, sys.executable, "-m", "planner", *words]
    environment = {**os.environ, "FOLDER": str(folder), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["PLANNER_CACHE"] = str(folder / "cache")  # which the next command finds as this one leaves it

    def limited() -> None:
        for limit, value in fault.limits.items():
            resource.setrlimit(limit, (value, value))

    settings = {"stdout": subprocess.DEVNULL, "start_new_session": True, "preexec_fn": limited}
    with running(line, LIMIT_S + 1, cwd=folder, env=environment, **settings) as process:
        try:
            if fault.signal is not None:
                time.sleep(after_s)
                process.send_signal(fault.signal)
            _, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None, ""
    return process.returncode, err


def _wrong(what: Command, fault: Fault, target: Path, was_there: bool, status: int | None, err: str) -> list[str]:
    """Return what is wrong with what a command left."""
    found = []
    if status is None:
        return [f"no end in {LIMIT_S:.0f} s"]
    begun = fault.signal != signal.SIGINT or not err or "planner" in err  # else Python itself was interrupted
    if status not in fault.ends and begun:
        found.append(f"ends with {status}: {err[-300:]}")
    if "Traceback" in err and begun:
        found.append(f"prints a traceback: {err[-500:]}")
    others = sorted(path.name for path in target.parent.iterdir() if path != target)
    if others and status != KILLED:
        found.append(f"leaves {others}")
    if not target.exists():
        if was_there:
            found.append("the file that was there is gone")
    elif target.read_text(encoding="utf-8", errors="replace") != OLD:
        try:
            what.whole(target)
        except Exception as error:  # whatever a reader raises
            found.append(f"half a file: {type(error).__name__}: {error}")
    elif not was_there:
        found.append("a file that was not there has the old content")
    seen = not fault.before  # what is mounted for the command alone is not
    if status == 0 and seen and not (target.exists() and target.read_text(encoding="utf-8", errors="replace") != OLD):
        found.append("ends with 0 and wrote nothing")
    return found
