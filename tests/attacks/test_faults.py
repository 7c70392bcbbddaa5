"""A few faults of a quick command, and what they do; `tests.benchmarks.attack --hours N` has the rest."""

import resource
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from threading import Thread

import pytest

from planner.runtime.distributed.transport.liveness import stopped_state
from tests.attacks import strikes
from tests.attacks.commands import COMMANDS
from tests.attacks.faults import FAULTS, OLD, Fault, _left, _wrong_end, _wrong_file, attacked, possible
from tests.attacks.readers import readers
from tests.children import ran, running
from tests.forkserver import Forked

ROOT = Path(__file__).parents[2]
QUICK = (
    *("kill -9", "interrupt", "files end", "few descriptors", "full disk", "full stdout"),
    *("memory ends", "512 MiB", "clock", "clock leaps"),
)


@pytest.mark.attack("process")
@pytest.mark.parametrize("name", QUICK)
def test_a_command_with_a_fault_leaves_a_whole_file_or_none(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.attacks.faults.Ready", Forked)  # whose modules are there already
    if not possible(name):
        pytest.skip("this host does not let a test mount anything")
    (tmp_path / "plan.json").write_bytes(readers()["plan"].good)
    for folder in ("out", "cache", "tmp"):
        (tmp_path / folder).mkdir()
    assert attacked("show svg", name, 0, tmp_path, lasts_s=(0.2, 1.0)) == ""


def test_what_is_wrong_is_seen(tmp_path: Path) -> None:
    for folder in ("out", "tmp"):
        (tmp_path / folder).mkdir()
    target, what = tmp_path / "out" / "plan.svg", COMMANDS["show svg"]
    target.write_text("<svg>")
    assert list(_wrong_file(what, target, False, False)) == ["half a file: AssertionError: a picture without an end"]
    (tmp_path / "out" / ".plan.svg.tmp").touch()
    target.unlink()
    assert list(_left(tmp_path, target, True)) == ["leaves ['.plan.svg.tmp']"]
    assert list(_left(tmp_path, target, False)) == []
    assert list(_wrong_file(what, target, True, False)) == ["the file that was there is gone"]
    target.write_text(OLD)
    assert list(_wrong_file(what, target, True, False)) == []
    assert list(_wrong_file(what, target, True, True)) == ["ends with 0 and wrote nothing"]
    assert list(_wrong_file(what, target, False, False)) == ["a file that was not there has the old content"]
    fault, trace = FAULTS["files end"], "Traceback: planner/cli"
    assert list(_wrong_end(Fault(), None, "")) == ["no end in 120 s"]
    assert list(_wrong_end(fault, 2, "planner: no room")) == []
    assert list(_wrong_end(fault, 3, "planner: no room")) == ["ends with 3: planner: no room"]
    assert list(_wrong_end(fault, 2, trace)) == [
        f"prints a traceback: {trace}",
        f"ends with 2 and does not say why: {trace}",
    ]


def test_a_process_that_a_command_leaves_is_seen_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.attacks.faults.SETTLED_S", 0.0)
    for folder in ("out", "tmp"):
        (tmp_path / folder).mkdir()
    with running(["sleep", "1000"], cwd=tmp_path) as process:
        assert list(_left(tmp_path, None, True)) == ["leaves 1 processes"]
        assert process.wait() == -signal.SIGKILL


def test_what_a_process_starts_ends_with_it() -> None:
    code = (
        "from tests.children import running; from tests.attacks.strikes import end_with_parent; import time\n"
        "with running(['sleep', '1000'], preexec_fn=end_with_parent) as child:\n"
        "    print(child.pid, flush=True); child.wait()"
    )
    with running([sys.executable, "-c", code], cwd=ROOT) as parent:
        assert parent.stdout is not None
        child = Path(f"/proc/{int(parent.stdout.readline())}/stat")
        parent.kill()
        parent.wait()
        while child.exists() and child.read_text().split()[2] not in "ZX":
            time.sleep(strikes.SOON_S)


def test_a_process_is_paused_with_what_it_started_or_alone_and_goes_on() -> None:
    code = "import subprocess, sys\nwith subprocess.Popen(['cat']) as child: print(child.pid, flush=True); child.wait()"
    with running([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())

        def states() -> list[bool]:
            return [stopped_state(pid) != "" for pid in (process.pid, child)]

        for alone in (True, False):
            pausing = Thread(target=strikes.pause, args=(alone, 0.3, process.pid))
            pausing.start()
            while states() != [True, not alone]:
                assert pausing.is_alive()
            pausing.join()
            while any(states()):
                time.sleep(strikes.SOON_S)
        process.communicate()
        assert process.returncode == 0


SAY = """
import datetime, os, resource, subprocess, sys, time
child = "import os, resource; print(os.getppid(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
open("child.py", "w").write(child)
print(os.getpid(), resource.getrlimit(resource.RLIMIT_NOFILE)[0], time.time() > 1e9)
print(subprocess.run([sys.executable, "-m", "child"], capture_output=True, text=True, timeout=60).stdout.strip())
"""


def test_a_fork_is_struck_as_its_own_forks_are(tmp_path: Path) -> None:
    (tmp_path / "say.py").write_text(SAY)
    steps = [partial(strikes.limit, resource.RLIMIT_NOFILE, 50), partial(strikes.jump, "1", 0.1)]
    done = ran([sys.executable, "-m", "say"], cwd=tmp_path, preexec_fn=partial(strikes.begin, steps, True))
    own, child = (line.split() for line in done.stdout.splitlines())
    assert own[1:] == ["50", "True"]
    assert child == [own[0], "50"]
