"""The command line: ``planner COMMAND``, one file for each command."""

import argparse
import platform
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from graphs.common.errors import InputError, fallbacks_said, nearest
from planner.cli.console import Console
from planner.cli.endings import status_of
from planner.cli.files import check_writes
from planner.cli.interrupts import interruptible
from planner.cli.parser import Parser, command_module, command_of, declare
from planner.cli.statuses import DONE, INTERRUPTED
from planner.cli.streams import complain, documents_alone, open_what_is_closed, printing

COMMANDS = {
    "import": "import a model as a computation graph",
    "calibrate": "measure this machine, its links and a model's operators",
    "plan": "find where every operator runs, with a proof of how good that is",
    "tune": "plan, run and plan again in turns; keep the fastest plan that ran",
    "devices": "list the devices and links of the catalogue with their sources",
    "solve": "solve a problem in a format of the literature",
    "simulate": "predict how micro-batches go through a plan, as it is or with changes",
    "choose": "choose how to train on many devices: data, tensor, pipeline, schedule, ZeRO",
    "fit": "see whether a language model fits, how it is divided and how fast it will be",
    "explain": "explain why a plan is as it is, and what would help",
    "diff": "compare two plans for one network",
    "run": "run a plan in PyTorch, check the answers and measure",
    "verify": "compare a plan's stages with the reference model, tensor by tensor",
    "shard": "divide a model's weights into a file for each device",
    "show": "show a plan as a picture: a page, SVG, PNG or Graphviz",
    "export": "write a plan for another tool",
    "import-map": "compare a hand-made device map with the planner's plan",
    "schema": "print a file format as JSON Schema",
    "completion": "print completions for bash, zsh or fish",
}
"""The commands, each with a line of help. The file of a command is ``planner/cli/<command>_.py``."""

RANK = "rank"
"""One process of several, which torchrun or another command starts; its options are its own, see `planner.cli.rank`."""

LISTED = COMMANDS | {RANK: "run one process of a plan in several, as torchrun starts it"}

ON_STDOUT = (Path("/dev/stdout"), Path("/dev/fd/1"), Path("/proc/self/fd/1"))

DESCRIPTION = "Decide where every operator of a neural network runs, prove how good that is, run it and show it."
EXAMPLE = """examples:
  planner calibrate examples.networks:googlenet -o cluster.toml
  planner plan examples.networks:googlenet --cluster cluster.toml --goal throughput -o plan.json
  planner run plan.json examples.networks:googlenet
  planner show plan.json -o plan.html

MODEL is a .onnx, a .pt2, package.module:factory, or a transformers config.json or its folder.
exit status: 0 done, 1 infeasible or answers differ, 2 bad input, 130 interrupted"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    open_what_is_closed()
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == [RANK]:
        from planner.cli.rank import main as rank  # late: it needs torch

        with interruptible(signal.SIGINT):  # SIGTERM ends a rank that waits for others in C++
            return rank(words[1:])
    try:
        with interruptible():
            return status_of(lambda: _run(words), _say)
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED


def _say(line: str) -> None:
    complain(f"planner: {line}")


def _run(words: Sequence[str]) -> int:
    """Run one command and return its exit status."""
    options = _parsed(words)
    with closing(Console(json=options.json, quiet=options.quiet)) as console:
        if options.json and (twice := [value for value in vars(options).values() if value in ON_STDOUT]):
            raise InputError(f"'{twice[0]}' and --json both print to stdout; leave one of them out")
        check_writes(options)
        with documents_alone(options.json), fallbacks_said(console.note):
            status: int = command_module(options.command).run(options, console)
        with printing() as stream:
            stream.flush()  # here, where a reader that has gone is no error
    return status


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    """Return the options; exit after help, a version or an error in the words."""
    command = command_of(words)
    parser = _parser([command] if command in COMMANDS else [])
    if command is None and "--version" in words:
        from importlib.metadata import version  # late: only this needs it

        name, python = "placement-planner", platform.python_version()
        print(f"{name} {version(name)}, Python {python}, torch {version('torch')}")  # without importing torch
        sys.exit(DONE)
    if command is not None and command not in COMMANDS:
        parser.error(f"there is no command '{command}'{nearest(command, LISTED)}")
    options = parser.parse_args(words)
    if options.command is None:
        parser.error("no command")
    return options


def _parser(loaded: Iterable[str] = COMMANDS) -> Parser:
    """Return the parser of ``planner``; only the ``loaded`` commands get arguments, the others are listed."""
    width = max(map(len, LISTED))
    table = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in LISTED.items())
    parser = Parser(prog="planner", description=DESCRIPTION, epilog=f"commands:\n{table}\n\n{EXAMPLE}")
    parser.add_argument("--version", action="store_true", help="print the versions of planner, Python and torch")
    listed = parser.add_subparsers(dest="command", metavar="COMMAND", help="one of the commands below")
    wanted = set(loaded)
    for name in COMMANDS:
        command = listed.add_parser(name)
        if name in wanted:
            declare(command, command_module(name))
    return parser
