"""Nothing is overwritten unasked, by one rule and in one sentence, and before anything is computed."""

import argparse
import os
from pathlib import Path

import pytest

from graphs.errors import InputError
from planner.cli import COMMANDS, _parser, main
from planner.cli.files import check_writes, refuse_overwriting
from planner.planfile import save_plan
from tests.planner.why.small import diamond

TOLD = "planner: '{}' is there already; add --force to overwrite it, or choose another name\n"


def test_what_is_there_stays() -> None:
    Path("a").write_text("mine")
    with pytest.raises(InputError, match="'a' is there already; add --force"):
        refuse_overwriting([None, Path("b"), Path("a")], argparse.Namespace(force=False))
    refuse_overwriting([Path("a")], argparse.Namespace(force=True))
    refuse_overwriting([Path("/dev/null")], argparse.Namespace(force=False))  # no file whose content could be lost


def test_a_folder_that_is_not_there_is_told_before_anything_is_computed() -> None:
    with pytest.raises(InputError) as error:
        refuse_overwriting([Path("nowhere/a")], argparse.Namespace(force=True))
    assert str(error.value) == "cannot write 'nowhere/a': there is no folder 'nowhere'; choose another place with -o"


def test_a_folder_is_no_file() -> None:
    Path("there").mkdir()
    with pytest.raises(InputError) as error:
        refuse_overwriting([Path("there")], argparse.Namespace(force=True))
    assert str(error.value) == "cannot write 'there': it is a folder; choose another place with -o"
    refuse_overwriting([Path("there")], argparse.Namespace(force=False, writes_folder=True))


def test_a_folder_where_nothing_may_be_written_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # whoever runs the tests may be root, who may write anywhere
    with pytest.raises(InputError) as error:
        refuse_overwriting([Path("a")], argparse.Namespace(force=True))
    assert str(error.value) == "cannot write 'a': the folder '.' is write-protected; choose another place with -o"
    refuse_overwriting([Path("/dev/stdout")], argparse.Namespace(force=False))


def test_a_name_that_no_file_can_have_is_told() -> None:
    with pytest.raises(InputError, match=r"cannot write 'xxx.*': File name too long; choose another place with -o"):
        refuse_overwriting([Path("x" * 300)], argparse.Namespace(force=True))


def test_the_options_that_name_files_are_checked() -> None:
    Path("t.json").write_text("mine")
    options = argparse.Namespace(force=False, writes=("svg", "trace"), svg=None, trace=Path("t.json"))
    with pytest.raises(InputError, match=r"'t\.json'"):
        check_writes(options)
    check_writes(argparse.Namespace(force=False))  # a command that writes nothing


MODEL = ["no.such:model"]  # what would be told if anything was computed before
WRITING = {
    "import": [*MODEL, "-o", "x"],
    "calibrate": [*MODEL, "-o", "x"],
    "plan": [*MODEL, "--cluster", "no.toml", "--goal", "latency", "-o", "x"],
    "solve": ["no.json", "--goal", "latency", "-o", "x"],
    "simulate": ["no.json", "--trace", "x"],
    "run": ["no.json", *MODEL, "-o", "x"],
    "shard": ["no.json", *MODEL, "-o", "x"],
    "show": ["no.json", "-o", "x", "--format", "svg"],
    "export": ["no.json", "--to", "graph-json", "-o", "x"],
    "import-map": ["no.json", *MODEL, "--cluster", "no.toml", "-o", "x"],
}


@pytest.mark.parametrize("command", WRITING)
def test_every_command_refuses_before_it_starts(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("x").write_text("mine")
    assert main([command, *WRITING[command]]) == 2
    assert capsys.readouterr() == ("", TOLD.format("x"))
    assert Path("x").read_text() == "mine"


def test_no_command_with_a_file_is_forgotten() -> None:
    (action,) = (one for one in _parser()._actions if isinstance(one, argparse._SubParsersAction))
    with_files = {name for name, command in action.choices.items() if command.get_default("writes")}
    assert with_files <= WRITING.keys() <= COMMANDS.keys()


def test_force_overwrites(capsys: pytest.CaptureFixture[str]) -> None:
    save_plan(diamond(), Path("plan.json"))
    Path("plan.svg").write_text("mine")
    assert main(["show", "plan.json", "-o", "plan.svg"]) == 2
    assert main(["show", "plan.json", "-o", "plan.svg", "--force"]) == 0
    assert Path("plan.svg").read_text().startswith("<svg ")
    assert capsys.readouterr().err == TOLD.format("plan.svg")


def test_a_default_name_is_protected_too(capsys: pytest.CaptureFixture[str]) -> None:
    save_plan(diamond(), Path("plan.json"))
    assert main(["show", "plan.json"]) == 0
    assert main(["show", "plan.json"]) == 2
    assert capsys.readouterr().err == TOLD.format("plan.html")
