"""A shell may close stdout and stderr, or send them where there is no room; nobody sees a traceback."""

import json
import os
import sys
from pathlib import Path

import pytest

from planner.cli import main
from planner.plans.files import save_plan
from tests.children import Completed, ran
from tests.planner.cli.given import ROOT, Refused
from tests.planner.explanations.small import diamond

DIFF = "diff plan.json plan.json"
PLANNER = f"PYTHONPATH={ROOT} {sys.executable} -c 'import sys; from planner.cli import main; sys.exit(main())'"


def shell(line: str) -> Completed:
    """What comes of a line in a shell."""
    return ran(["sh", "-c", f"{PLANNER} {line}"], check=False)


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


AT_EXIT = """
import atexit, errno, os, sys
from planner.__main__ import main

def fails():
    raise {}

atexit.register(fails)
sys.exit(main(["schema", "plan"]))
"""


@pytest.mark.parametrize(
    ("error", "shown"), [("OSError(errno.EMFILE, os.strerror(errno.EMFILE))", False), ("ValueError('wrong')", True)]
)
def test_a_shortage_that_a_library_meets_at_exit_is_not_shown(error: str, shown: bool) -> None:
    done = ran([sys.executable, "-c", AT_EXIT.format(error)], cwd=ROOT)
    assert ("Traceback" in done.stderr) is shown


TALKATIVE = r"""
import ctypes, os, sys
from torch import nn, zeros
kept = sys.stdout
print("told when loaded")

class Net(nn.Module):
    def forward(self, x):
        return x + 1

def net():
    print("told by the factory")
    print("told by who has kept the stream", file=kept)
    os.write(1, b"told to the file\n")
    ctypes.CDLL(None).puts(b"told in C")
    os.system("echo told by a child")
    return Net(), (zeros(2),)
"""


@pytest.mark.slow
@pytest.mark.attack("answer")
def test_json_is_alone_on_stdout_whatever_a_user_s_code_prints() -> None:
    Path("talkative.py").write_text(TALKATIVE)
    done = shell("import talkative:net -o net.json --json")
    assert json.loads(done.stdout)["output"] == "net.json"
    said = {line for line in done.stderr.splitlines() if line.startswith("told")}
    assert said == {
        "told when loaded",
        "told by the factory",
        "told by who has kept the stream",
        "told to the file",
        "told in C",
        "told by a child",
    }


def test_stdout_is_itself_again_behind_a_document(capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("plan", "graph"):
        assert main(["schema", name, "--json"]) == 0
        print("behind", name)
        os.write(1, b"written\n")
    out, err = capfd.readouterr()
    assert (err, out.count("behind"), out.count("written")) == ("", 2, 2)


@pytest.mark.attack("answer")
def test_a_file_and_json_cannot_both_be_stdout(refused: Refused) -> None:
    save_plan(diamond(), Path("plan.json"))
    line = refused(["export", "plan.json", "--to", "networkx", "-o", "/dev/stdout", "--json"])
    assert line == "planner: '/dev/stdout' and --json both print to stdout; leave one of them out"
