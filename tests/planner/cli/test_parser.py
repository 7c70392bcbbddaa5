"""The words of the command line: what is understood, what typos are told, and how quickly it starts."""

import argparse
import json
import re
import shlex
import sys

import pytest

from planner.cli import COMMANDS, LISTED, RANK, _parser, main
from planner.cli.parser import command_module, command_of
from tests.children import ran
from tests.planner.cli.given import ROOT


def told(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr; status 2, nothing on stdout."""
    with pytest.raises(SystemExit) as stopped:
        main(shlex.split(words))
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.rstrip("\n")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("plna m", "planner: there is no command 'plna'; did you mean 'plan'? see `planner --help`"),
        ("qqqqq", "planner: there is no command 'qqqqq'; see `planner --help`"),
        ("", "planner: no command; see `planner --help`"),
        (
            "plan m --clustr c.toml --goal latency",
            "planner plan: there is no option '--clustr'; did you mean '--cluster'? see `planner plan --help`",
        ),
        (
            "plan m --clustr=c.toml",
            "planner plan: there is no option '--clustr'; did you mean '--cluster'? see `planner plan --help`",
        ),
        (
            "plan m --cluster c.toml --goal throughptu",
            "planner plan: argument --goal: 'throughptu' is none of throughput, latency, training, cost, generation; "
            "did you mean 'throughput'? see `planner plan --help`",
        ),
        ("show", "planner show: the following arguments are required: PLAN; see `planner show --help`"),
        ("show a.json b.json", "planner show: 'b.json' is one word too many; see `planner show --help`"),
        ("show a.json --force -z", "planner show: '-z' is one word too many; see `planner show --help`"),
        ("-q show a.json", "planner: there is no option '-q' before the name of a command; see `planner --help`"),
        (
            "explain a.json --cuts many",
            "planner explain: argument --cuts: 'many' is not a whole number of 1 or more; see `planner explain --help`",
        ),
        (
            "plan model.gguf --output 0",
            "planner plan: argument -o/--output: '0' is not a whole number of 1 or more; see `planner plan --help`",
        ),
        (
            "plan m --clus c.toml",  # no abbreviations: a script must not change its meaning with a new option
            "planner plan: there is no option '--clus'; did you mean '--cluster'? see `planner plan --help`",
        ),
    ],
)
def test_typos_are_told_the_nearest_word(words: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(words, capsys) == line


def test_the_command_is_the_first_word_that_is_no_option() -> None:
    assert command_of(["-q", "plan", "show"]) == "plan"
    assert command_of(["--help"]) is None


def commands() -> dict[str, argparse.ArgumentParser]:
    (action,) = (one for one in _parser()._actions if isinstance(one, argparse._SubParsersAction))
    return dict(action.choices)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_with_examples_that_are_understood(name: str) -> None:
    command = commands()[name]
    assert command.description
    assert len(command.description.splitlines()) == 1
    assert command.epilog is not None, f"add examples to the docstring of {command_module(name).__file__}"
    lines = command.epilog.splitlines()
    assert lines[0] == "examples:"
    assert lines[1].startswith(f"  planner {name}")
    for line in lines[1:]:
        for part in re.split(r"\s(?:&&|\|)\s", line):
            words = shlex.split(re.split(r"\s>", part)[0])
            if words[0] == "planner":
                _parser().parse_args(words[1:])


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_the_common_options(name: str) -> None:
    options = commands()[name]._option_string_actions
    assert {"--help", "--json", "--quiet", "-q"} <= options.keys()
    assert ("--force" in options) == (commands()[name].get_default("writes") is not None)
    if "--output" in options:
        assert "--force" in options


@pytest.mark.parametrize("name", COMMANDS)
def test_what_draws_takes_a_seed(name: str) -> None:
    options = commands()[name]._option_string_actions
    searches = "--time-limit" in options and name != "choose"  # whose searches draw nothing
    assert ("--seed" in options) == (searches or name == "run")  # whose network may draw


def test_help_lists_every_command_and_the_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert RANK in LISTED
    for name, summary in LISTED.items():
        assert re.search(rf"^  {name} +{re.escape(summary)}$", shown, re.MULTILINE), name
    assert "0 done, 1 infeasible or answers differ, 2 bad input, 130 interrupted" in shown


def loaded(words: list[str]) -> set[str]:
    """The modules that a command loads, by their first names."""
    code = f"""
import json, sys
from planner.cli import main
try:
    main({words})
except SystemExit:
    pass
print(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""
    done = ran([sys.executable, "-c", code], cwd=ROOT)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_help_starts_without_anything_large() -> None:
    large = {"numpy", "scipy", "torch", "onnx", "rich", "networkx", "numba", "pulp", "quickjs", "transformers"}
    assert loaded(["--help"]) & large == set()
    assert loaded(["no-such-command"]) & large == set()


def test_the_help_of_a_command_loads_no_torch() -> None:
    for name in ("plan", "run", "calibrate"):
        assert not loaded([name, "--help"]) & {"torch", "onnx", "transformers"}, name


def test_the_version_is_told_without_loading_what_it_is_of(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"placement-planner \d+\.\d+\.\d+, Python 3\.\d+\.\d+\S*, torch \d+\.\d+\.\d+\S*", line)
    assert loaded(["--version"]) & {"torch", "numpy", "scipy"} == set()
