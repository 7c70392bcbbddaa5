"""The command line: ``planner COMMAND``, one file for each."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from graphs.errors import InputError
from planner.cli.console import Console

COMMANDS = (
    *("import", "calibrate", "plan", "solve", "simulate", "compare", "explain", "diff", "run", "show"),
    *("export", "import-map"),
)
DONE, WORSE, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

DESCRIPTION = "Decide where every operator of a neural network runs, prove how good that is, run it and show it."
EXAMPLE = """examples:
  planner calibrate examples.networks:googlenet -o cluster.toml
  planner plan examples.networks:googlenet --cluster cluster.toml --goal throughput -o plan.json
  planner run plan.json examples.networks:googlenet
  planner show plan.json -o plan.html

MODEL is a .onnx, a .pt2, package.module:factory, or a transformers config.json.
exit status: 0 done, 1 infeasible or answers differ, 2 bad input, 130 interrupted"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = _parser().parse_args(arguments)
    console = Console(json=options.json)
    command = import_module(f"planner.cli.{options.command.replace('-', '_')}_")
    try:
        status: int = command.run(options, console)
    except InputError as error:
        console.error(str(error))
        return BAD_INPUT
    except KeyboardInterrupt:
        console.error("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # `planner ... | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    return status


def _parser() -> argparse.ArgumentParser:
    """Every command declares its own arguments in its own file; none of them loads torch for that."""
    parser = argparse.ArgumentParser(
        prog="planner",
        description=DESCRIPTION,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = import_module(f"planner.cli.{name.replace('-', '_')}_")
        summary = (module.__doc__ or "").strip().splitlines()[0]
        command = commands.add_parser(name, help=summary, description=summary)
        module.declare(command)
        command.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser
