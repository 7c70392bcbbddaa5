"""Every command with options of the wrong type, huge and tiny numbers, and other files than it asks for.

A command may end with a status of `planner.cli.statuses`, and says one line on stderr if it is bad input. It is broken
through if it raises, prints a traceback, takes longer than its limit, or writes over a file that was there.
"""

import argparse
import contextlib
import io
import os
import random
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest.mock import patch

from planner.cli import COMMANDS, _parser, main
from planner.cli.statuses import BAD_INPUT, BROKEN, DIFFERENT, DONE
from tests.attacks.limits import limited
from tests.attacks.readers import readers

LIMIT_S = 60  # of processor time
STATUSES = {DONE, DIFFERENT, BAD_INPUT, BROKEN}
VALUES = (
    *(
        "0",
        "-1",
        "1",
        "2",
        "0.5",
        "1e9",
        "1e-300",
        "1e400",
        "nan",
        "inf",
        "-inf",
        "99999999999999999999",
        "0x10",
        "1_0",
    ),
    *(
        "",
        " ",
        "x",
        "é",
        "None",
        "true",
        "[]",
        "{}",
        "a,b",
        "a=b",
        "a=1",
        "gpu0",
        "gpu0=",
        "=",
        ",",
        "*",
        "**",
        "../..",
        "/",
    ),
    *(
        "plan.json",
        "cluster.toml",
        "graph.json",
        "model.gguf",
        "missing.json",
        "folder",
        "/dev/null",
        "2xRTX-4090:PCIe4",
        "throughput",
    ),
)
LIGHT = (
    *("devices", "solve", "simulate", "explain", "diff", "show", "export", "import-map", "schema", "completion"),
    "fit",
)
"""Commands that run no network: an attack on one takes some milliseconds."""

HEAVY = ("import", "plan", "choose", "verify", "shard", "run", "tune")
"""Commands that may run one. `calibrate` measures for minutes whatever it is asked."""

FILES = {
    "plan": ("plan.json", "training.json"),
    "graph": ("graph.json",),
    "cluster": ("cluster.toml",),
    "problem": ("problem.json",),
    "model": ("model.gguf", "config.json", "model.safetensors", "graph.json", "model.onnx"),
}
"""Files for the arguments that have such a word in their names."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    status: object
    out: str
    err: str
    changed: tuple[str, ...]  # files that were there before and are others now


@cache
def options_of(command: str) -> Sequence[argparse.Action]:
    """Return what a command takes, from its own parser."""
    (commands,) = [a for a in _parser([command])._actions if isinstance(a, argparse._SubParsersAction)]
    parser: argparse.ArgumentParser = commands.choices[command]
    return [each for each in parser._actions if not isinstance(each, argparse._HelpAction)]


def words(command: str, rng: random.Random) -> list[str]:
    """Return a command line that is nearly right: a file for each file, and a few options with odd values."""
    actions = options_of(command)
    line = [command]
    for action in actions:
        if not action.option_strings:
            line += [_likely(action, rng) for _ in range(rng.choice((1, 1, 1, 1, 0, 2)))]
    named = [action for action in actions if action.option_strings]
    for action in rng.sample(named, min(len(named), rng.choice((0, 1, 1, 2, 3)))):
        name = rng.choice(action.option_strings)
        name = name[:-1] if rng.random() < 0.05 else name
        takes_value = action.nargs != 0 and not isinstance(action, argparse._StoreTrueAction)
        if takes_value != (rng.random() < 0.05):
            value = (
                rng.choice([*map(str, action.choices)]) if action.choices and rng.random() < 0.5 else rng.choice(VALUES)
            )
            line += [f"{name}={value}"] if rng.random() < 0.3 and name.startswith("--") else [name, value]
        else:
            line.append(name)
    return line


def _likely(action: argparse.Action, rng: random.Random) -> str:
    """Return a word for a positional argument: mostly what it asks for."""
    if action.choices and rng.random() < 0.8:
        return str(rng.choice([*action.choices]))
    asked = str(action.dest).lower()
    found = next((files for word, files in FILES.items() if word in asked), ("plan.json",))
    return rng.choice(found) if rng.random() < 0.8 else rng.choice(VALUES)


_once = cache(_parser)
"""The parser of a command, which parses any number of lines."""


def folder_with_files(folder: Path) -> None:
    """Fill an empty folder with a file of every kind, and another folder."""
    for reader in readers().values():
        (folder / reader.file).write_bytes(reader.good)
    (folder / "folder").mkdir(exist_ok=True)


def run(line: Sequence[str], folder: Path) -> Outcome:
    """Run a command line in a folder of files, in this process."""
    before = _stamps(folder)
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        limited(LIMIT_S, TimeoutError),
        patch("planner.cli._parser", lambda loaded=COMMANDS: _once(tuple(loaded))),
    ):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                status: object = main(list(line))
        except SystemExit as ended:
            status = ended.code
        except BaseException as error:  # whatever a command lets through
            status = f"{type(error).__name__}: {error}"
    after = _stamps(folder)
    for new in after.keys() - before.keys():
        (folder / new).unlink()
    changed = tuple(sorted(name for name in before if after.get(name) != before[name]))
    return Outcome(status, out.getvalue(), err.getvalue(), changed)


def _stamps(folder: Path) -> Mapping[str, tuple[int, int, int]]:
    """Return what changes whenever a file is written or replaced, for every file of a folder."""
    found: dict[str, tuple[int, int, int]] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                found |= {f"{entry.name}/{name}": stamp for name, stamp in _stamps(Path(entry.path)).items()}
            elif entry.is_file():
                of = entry.stat()
                found[entry.name] = of.st_ino, of.st_size, of.st_mtime_ns
    return found


def fault(line: Sequence[str], folder: Path) -> str:
    """Run a command line; return what is wrong with how it ended, or nothing."""
    found = run(line, folder)
    if found.status not in STATUSES:
        return f"ends with {found.status!r}"
    if "Traceback" in found.err + found.out:
        return f"prints a traceback: {found.err[-300:]}"
    if found.status == BAD_INPUT and not found.err.strip():
        return "says nothing of what is wrong"
    if found.changed and "--force" not in line:
        return f"has written over {found.changed}"
    return ""


def attacked(command: str, seed: int, folder: Path) -> tuple[str, list[str]]:
    """Run a command line as a seed says, in a folder of files; return what is wrong, or nothing, and the line."""
    line = words(command, random.Random(f"{command} {seed}"))
    return fault(line, folder), line
