"""The processes of the tests: whatever ignores signals here does not there, and none is waited for without end."""

import ast
import sys
import time
from pathlib import Path

import pytest

from tests.children import ran, running
from tests.forkserver import Forked

TESTS = Path(__file__).parent
ROOT = TESTS.parent
HERE = ("children.py", "forkserver.py")
STARTS = {"run", "Popen", "call", "check_call", "check_output"}
IGNORING = ["sh", "-c", """trap '' INT TERM HUP QUIT; exec "$@" """, "sh"]
SAY = "import signal as s; print([s.getsignal(n) is s.SIG_IGN for n in (s.SIGINT, s.SIGTERM, s.SIGHUP, s.SIGQUIT)])"


@pytest.mark.attack("process")
def test_children_of_a_job_in_the_background_have_the_default_signals() -> None:
    assert ran([*IGNORING, sys.executable, "-c", SAY]).stdout == "[True, True, True, True]\n"
    child = f"print(ran([sys.executable, '-c', {SAY!r}]).stdout)"
    code = f"import sys; from tests.children import *; start_with_default_signals(); {child}"
    assert ran([*IGNORING, sys.executable, "-c", code], cwd=ROOT).stdout.strip() == "[False, False, False, False]"


SAY_ALL = """
import os, signal, sys, threading
print(__name__, sys.argv[1:], os.getcwd(), dict(os.environ), os.getppid(), os.getsid(0) == os.getpid())
print([signal.getsignal(number) for number in signal.valid_signals()], threading.active_count(), sys.path[0])
print([(stream.fileno(), stream.encoding.lower(), stream.line_buffering) for stream in (sys.stdout, sys.stderr)])
print(sys.stdin.read(), sorted(os.listdir("/proc/self/fd")), file=sys.stderr)
sys.exit(7)
"""


@pytest.mark.attack("process")
def test_a_fork_of_the_server_is_started_as_an_interpreter_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "all.py").write_text(SAY_ALL)
    said = []
    for kind in (Forked, Forked.__base__):
        monkeypatch.setattr("subprocess.Popen", kind)
        words = [sys.executable, "-m", "all", "a", "b"]
        with running(words, stdin=-1, cwd=tmp_path, env={"LC_ALL": "C.UTF-8"}, start_new_session=True) as process:
            said.append((*process.communicate("typed"), process.returncode))
    assert said[0] == said[1]
    assert said[0][2] == 7
    assert "typed" in said[0][1]


@pytest.mark.parametrize(
    "end", ["", "import sys; sys.exit('said')", "1 / 0", "raise KeyboardInterrupt", "import os; os.abort()"]
)
def test_a_fork_of_the_server_ends_as_an_interpreter_does(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ends.py").write_text(end)
    ends = []
    for kind in (Forked, Forked.__base__):
        monkeypatch.setattr("subprocess.Popen", kind)
        done = ran([sys.executable, "-m", "ends"], cwd=tmp_path, check=False)
        ends.append((done.returncode, done.stdout, done.stderr.splitlines()[-1:]))
    assert ends[0] == ends[1]


@pytest.mark.attack("process")
def test_what_a_child_says_is_not_waited_for_without_end() -> None:
    start_s = time.monotonic()
    with running(["sleep", "1000"], limit_s=0.1) as process:
        assert process.communicate() == ("", "")
    with running(["sleep", "1000"]):
        pass
    assert time.monotonic() - start_s < 500


def starts(source: str) -> list[str]:
    """The calls in a program that start a process without a limit."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [
        ast.unparse(call)
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and (call.func.value.id, call.func.attr in STARTS) == ("subprocess", True)
        and "timeout" not in [word.arg for word in call.keywords]
    ]


def test_every_process_of_a_test_has_a_limit() -> None:
    assert starts("subprocess.run(x, check=True); subprocess.run(x, timeout=3)") == ["subprocess.run(x, check=True)"]
    files = {path.relative_to(TESTS): path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py")}
    others = [
        path for path, text in files.items() if "subprocess." in text and path.parts[0] not in ("benchmarks", *HERE)
    ]
    assert {path: starts(files[path]) for path in others if starts(files[path])} == {}
