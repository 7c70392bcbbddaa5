"""Solve a problem in a format of the literature, for which other planners' answers are known.

planner solve problem.json --goal throughput -o answer.json
planner solve problem.json --goal latency --time-limit 120 --seed 1
planner solve program.json --mesh 4x8 -o specs.json
planner solve layers.json -o plan.json
planner solve pipeline.json --devices 64 --memory 8GiB --bandwidth 25GiB/s -o stages.json
"""

import argparse
import json
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from graphs.common.documents import read_json
from graphs.common.errors import InputError
from graphs.files import write_text
from planner.cli.console import Console
from planner.cli.files import declare_output
from planner.cli.models import declare_search
from planner.cli.numbers import at_least_one, bandwidth, share, size
from planner.cli.solve.hybrid import FIELDS, solve_hybrid_pipeline
from planner.cli.solve.layerwise import solve_layerwise_setting
from planner.cli.solve.layouts import solve_layers, solve_layouts
from planner.cli.solve.placement import GOALS, solve_placement
from planner.cli.solve.solution import Solution
from planner.cli.solve.strategies import solve_sharding, solve_strategy_problem
from planner.solvers.portfolio import AUTO


class Format(NamedTuple):
    """A kind of problem file."""

    name: str
    field: str  # no other kind has it
    options: tuple[str, ...]  # those that not every kind has
    solve: Callable[[Mapping[str, Any], argparse.Namespace, Console], Solution]


FORMATS = (
    Format("placement problem", "maxFPGAs", ("goal", "contiguous", "solver", "gap", "seed"), solve_placement),
    Format("sharding program", "ops", ("mesh",), solve_sharding),
    Format("layer-wise setting", "layer_memory", ("given",), solve_layerwise_setting),
    Format("layout problem", "cases", (), solve_layouts),
    Format("layer problem", "networks", (), solve_layers),
    Format("strategy problem", "problem", (), solve_strategy_problem),
    Format("hybrid pipeline", "mbsInBatch", tuple(FIELDS), solve_hybrid_pipeline),
)
"""Every kind that ``planner solve`` reads."""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``planner solve``."""
    parser.add_argument("problem", type=Path, metavar="PROBLEM", help="a .json; its fields tell its format")
    parser.add_argument("--goal", choices=GOALS, help="placement: minimise the largest load, or the time of one input")
    parser.add_argument("--contiguous", action="store_true", help="placement: devices follow one another")
    declare_search(parser, 60.0)
    parser.add_argument("--solver", default=AUTO, metavar="NAME", help="placement: auto or one solver's name (auto)")
    parser.add_argument("--gap", type=share, default=0.0, metavar="G", help="placement: stop at a gap of at most G (0)")
    parser.add_argument("--mesh", metavar="NxM", help="sharding: only this mesh (all)")
    parser.add_argument("--given", type=Path, metavar="PLAN", help="layers: price this plan instead of searching")
    for option, read, metavar, help in (
        ("--devices", at_least_one, "N", "number of devices"),
        ("--memory", size, "SIZE", "memory of each device"),
        ("--micro-batches", at_least_one, "N", "micro-batches of a step"),
        ("--bandwidth", bandwidth, "RATE", "bandwidth of each device"),
    ):
        parser.add_argument(option, type=read, metavar=metavar, help=f"pipeline: {help} (as the file says)")
    declare_output(parser, "answer.json")


def run(options: argparse.Namespace, console: Console) -> int:
    """Read the problem, find its format, solve it and write the answer."""
    document = read_json(options.problem, "problem")
    try:
        form = _format_of(document)
        _check_options(form, options)
        answer = form.solve(document, options, console)
        if answer.document is not None:
            text = json.dumps(answer.content, indent=answer.indent)
            write_text(text + "\n", options.output)
            title = [f"{answer.title} → {options.output}"] if answer.title else []
            console.tell({**answer.document, "output": str(options.output)}, chain(title, answer.lines))
    except InputError as error:
        raise InputError(f"{options.problem}: {error}") from error
    if answer.trouble:
        console.error(answer.trouble)
    return answer.status


def _format_of(document: Mapping[str, Any]) -> Format:
    """Return the format of a file, by its fields."""
    for form in FORMATS:
        if form.field in document:
            return form
    known = ", ".join(f"'{form.field}' ({form.name})" for form in FORMATS)
    raise InputError(f"the file has none of the fields that tell its format: {known}; add the one that it needs")


def _check_options(form: Format, options: argparse.Namespace) -> None:
    """Refuse what other formats need."""
    for name in {name for other in FORMATS for name in other.options} - set(form.options):
        if getattr(options, name) not in (None, False, 0, 0.0, AUTO):
            raise InputError(f"--{name.replace('_', '-')} says nothing of a {form.name}; leave it out")
