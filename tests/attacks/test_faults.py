"""A few faults of a quick command; `tests.benchmarks.attack --hours N` has the rest."""

from pathlib import Path

import pytest

from tests.attacks.faults import COMMANDS, FAULTS, OLD, Command, Fault, _wrong, attacked, possible
from tests.attacks.readers import readers


@pytest.mark.attack("process")
@pytest.mark.parametrize("name", ["kill -9", "interrupt", "files end", "few descriptors", "full disk"])
def test_a_command_with_a_fault_leaves_a_whole_file_or_none(name: str, tmp_path: Path) -> None:
    if not possible(name):
        pytest.skip("this host does not let a test mount anything")
    (tmp_path / "plan.json").write_bytes(readers()["plan"].good)
    assert attacked("show svg", name, 0, tmp_path, lasts_s=1.0) == ""


def test_what_is_wrong_is_seen(tmp_path: Path) -> None:
    target = tmp_path / "plan.svg"
    what, fault = COMMANDS["show svg"], FAULTS["files end"]
    target.write_text("<svg>")
    assert _wrong(what, fault, target, False, 2, "") == ["half a file: AssertionError: a picture without an end"]
    assert _wrong(what, fault, target, False, 1, "") != _wrong(what, fault, target, False, 2, "")
    (tmp_path / ".plan.svg.tmp").touch()
    target.unlink()
    assert _wrong(what, fault, target, True, 2, "Traceback") == [
        "prints a traceback: Traceback",
        "leaves ['.plan.svg.tmp']",
        "the file that was there is gone",
    ]
    target.write_text(OLD)
    assert _wrong(what, Fault(), target, False, None, "") == ["no end in 120 s"]
    assert _wrong(what, fault, target, True, 0, "")[1:] == ["ends with 0 and wrote nothing"]
    assert isinstance(what, Command)
