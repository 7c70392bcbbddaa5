"""A shell may close stdout and stderr, or send them where there is no room; nobody sees a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

from planner.cli import main
from planner.planfile import save_plan
from tests.planner.cli.given import ROOT
from tests.planner.why.small import diamond

DIFF = "diff plan.json plan.json"
PLANNER = f"PYTHONPATH={ROOT} {sys.executable} -c 'import sys; from planner.cli import main; sys.exit(main())'"


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """What comes of a line in a shell."""
    return subprocess.run(["sh", "-c", f"{PLANNER} {line}"], capture_output=True, text=True, timeout=60, check=False)


def test_a_closed_stdout_gets_nothing() -> None:
    save_plan(diamond(), Path("plan.json"))
    done = shell(f"{DIFF} >&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_closed_stderr_gets_nothing() -> None:
    save_plan(diamond(), Path("plan.json"))
    assert shell(f"{DIFF} 2>&-").stdout.startswith("net: plan.json → plan.json")
    done = shell("explain nothing.json 2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


@pytest.mark.parametrize("line", [DIFF, f"{DIFF} --json", "schema plan", "export plan.json --to networkx"])
def test_a_full_disk_is_told_in_one_line(line: str) -> None:
    save_plan(diamond(), Path("plan.json"))
    done = shell(f"{line} >/dev/full")
    told = "planner: cannot print: No space left on device; send the output elsewhere\n"
    assert (done.returncode, done.stderr) == (2, told)


def test_ctrl_c_while_it_still_starts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.cli._parsed", interrupted)
    assert main(["plan"]) == 130
    assert capsys.readouterr() == ("", "planner: interrupted\n")
