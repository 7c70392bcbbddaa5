"""Tables that fit, JSON alone, silence, and progress with the time that is left."""

import json
import os
import pty
import re
import sys

import pytest

from planner.cli import text
from planner.cli.console import Console
from tests.children import running
from tests.planner.cli.given import ROOT

COLUMNS = ("schedule", "recompute", "devices", "stages", "micro-batches", "step", "samples/s", "memory at most", "")
ROWS = [("interleaved", "", "2", "2", "2 of 4", "5.73 ms", "1397", "18.6 MiB", "●")]
NATURAL = 93  # columns of this table, two spaces between each


def shown(columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of the table on a terminal of that many columns."""
    monkeypatch.setattr("planner.cli.text.width", lambda: columns)
    Console().show({}, "a title", COLUMNS, ROWS)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("columns", [NATURAL, 100, 200])
def test_a_wide_terminal_shows_a_table_as_it_is(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shown(columns, capsys, monkeypatch) == [
        "a title",
        "schedule     recompute  devices  stages  micro-batches     step  samples/s  memory at most",
        "interleaved                   2       2         2 of 4  5.73 ms       1397        18.6 MiB  ●",
    ]


def test_a_narrower_one_breaks_heads_between_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = shown(80, capsys, monkeypatch)
    assert all(len(line) <= 80 for line in lines)
    assert lines[-1].split() == ["interleaved", "2", "2", "2", "of", "4", "5.73", "ms", "1397", "18.6", "MiB", "●"]
    assert " ".join(lines[1:-1]).split().count("micro-batches") == 1


def test_a_title_is_a_line_of_its_own_however_narrow_the_table_is(capsys: pytest.CaptureFixture[str]) -> None:
    Console().show({}, "a title that is longer than its table", ("", ""), [("a", "b")])
    assert capsys.readouterr().out == "a title that is longer than its table\na  b\n"


@pytest.mark.parametrize("columns", [40, 60])
def test_a_narrow_one_breaks_what_it_must_and_loses_nothing(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = shown(columns, capsys, monkeypatch)
    assert all(len(line) <= columns for line in lines)
    letters = sorted("".join(lines[1:]).replace(" ", ""))
    assert letters == sorted("".join([*COLUMNS, *ROWS[0]]).replace(" ", ""))


def test_the_width_is_that_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert text.width() == text.WIDTH  # pytest's stdout is none
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "123")
    assert text.width() == 123
    monkeypatch.setenv("COLUMNS", "7")
    assert text.width() == text.LEAST


def test_json_is_alone_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(json=True)
    console.on_step("importing", 0, 0)
    console.show({"a": "é"}, "title", ("head",), [("cell",)])
    console.say("a line for people")
    console.error("something")
    out, err = capsys.readouterr()
    assert json.loads(out) == {"a": "é"}
    assert err == "planner: something\n"


def test_quiet_leaves_nothing_but_errors_and_documents(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(quiet=True)
    console.on_step("importing", 0, 0)
    console.show({}, "title", ("head",), [("cell",)])
    console.say("a line for people")
    assert capsys.readouterr() == ("", "")
    console.error("something")
    assert capsys.readouterr() == ("", "planner: something\n")
    console.print("a document")
    assert capsys.readouterr() == ("a document\n", "")
    Console(json=True, quiet=True).show({"a": 1}, "", (), ())
    assert json.loads(capsys.readouterr().out) == {"a": 1}


def test_where_there_is_no_terminal_a_step_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    for done in range(3):
        console.on_step("measuring", done, 3)
    console.on_step("done", 0, 0)
    console.on_incumbent("ilp", 1.0, 0.5, 2.0)
    console.close()
    assert capsys.readouterr() == ("", "measuring …\ndone …\n")


def on_a_terminal(code: str) -> str:
    """What a program writes to stderr if that is a terminal of 80 columns, without colours."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": "80", "TERM": "xterm"}
    with running([sys.executable, "-c", code], stderr=theirs, cwd=ROOT, env=environment) as process:
        os.close(theirs)
        written = b""
        try:
            while part := os.read(ours, 4096):
                written += part
        except OSError:  # the other end is closed
            pass
        finally:
            os.close(ours)
        out, _ = process.communicate()
    assert (process.returncode, out) == (0, "")
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.decode())


def test_a_terminal_sees_how_much_is_done_and_what_time_is_left() -> None:
    code = """
import time
from planner.cli.console import Console
console = Console()
for done in range(5):
    console.on_step("measuring operators", done, 10)
    time.sleep(0.2)
console.close()
"""
    seen = on_a_terminal(code)
    assert "40 %" in seen
    assert re.search(r"\d:\d\d left +measuring operators", seen)


def test_a_terminal_sees_the_end_of_a_search_and_its_best_answer() -> None:
    code = """
import time
from planner.cli.console import Console
console = Console()
console.on_search("planning a net", 75.0)
time.sleep(0.3)
console.on_incumbent("ilp", 0.02, 0.015, 1.0)
time.sleep(0.3)
console.error("interrupted")
"""
    seen = on_a_terminal(code)
    assert re.search(r"1:[01]\d left at most +planning a net", seen)
    assert re.search(r"left at most +20 ms, at most 25.00% from the best", seen)
    assert seen.rstrip().endswith("planner: interrupted")


def test_a_long_name_does_not_push_the_times_away() -> None:
    code = """
import time
from planner.cli.console import Console
console = Console()
console.on_search("planning " + 20 * "a very long name ", 60.0)
time.sleep(0.3)
console.close()
"""
    assert "left at most planning a very" in on_a_terminal(code)
