"""Show a plan as a picture: a page that needs nothing else, SVG, PNG, or Graphviz.

planner show plan.json
planner show plan.json -o plan.svg
planner show plan.json --measured run.json --force
planner show plan.json --format dot -o /dev/stdout -q | dot -Tpdf -o plan.pdf
"""

import argparse
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from costmodels.units import format_bytes
from graphs.errors import InputError
from graphs.files import write_bytes
from planner.cli.console import Console
from planner.cli.files import declare_writes, refuse_overwriting
from planner.plans.files import load_plan
from planner.plans.plan import Plan
from planner.plans.runs import MeasuredRun, load_run
from planner.view.dot import dot_text
from planner.view.page import render
from planner.view.picture import png_picture, svg_picture

Format: TypeAlias = Literal["html", "svg", "png", "dot"]
FORMATS: tuple[Format, ...] = get_args(Format)


def declare(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``planner show``."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.json")
    help = f"{', '.join(FORMATS)} (as the output's name ends; html)"
    parser.add_argument("--format", choices=FORMATS, metavar="FORMAT", help=help)
    parser.add_argument("--measured", type=Path, metavar="RUN", help="a run.json of `planner run -o`, for the page")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="file to write (plan.html, plan.svg, ...)")
    declare_writes(parser)  # the name of the output may follow from the format


def run(options: argparse.Namespace, console: Console) -> int:
    """Draw and write."""
    format = _format(options)
    output = options.output or Path(f"plan.{format}")
    refuse_overwriting([output], options)
    plan = load_plan(options.plan)
    measured = None if options.measured is None else load_run(options.measured, plan)
    drawn = _drawn(plan, format, measured)
    write_bytes(drawn, output)
    document = {"output": str(output), "format": format, "n_bytes": len(drawn)}
    rows = [(str(output), f"{len(plan.graph.ops):,}", format_bytes(len(drawn)))]
    console.show(document, f"{plan.graph.name} as a picture", ("file", "operators", "size"), rows)
    return 0


def _drawn(plan: Plan, format: Format, measured: MeasuredRun | None) -> bytes:
    if measured is not None and format != "html":
        raise InputError(f"a measured run is drawn on the page only, not as {format}; take html, or leave the run out")
    match format:
        case "html":
            return render(plan, measured).encode()
        case "svg":
            return svg_picture(plan).encode()
        case "png":
            return png_picture(plan)
        case "dot":
            return dot_text(plan).encode()


def _format(options: argparse.Namespace) -> Format:
    """The format that is asked for, or that the name of the output implies."""
    if options.format is not None or options.output is None:
        return options.format or "html"
    suffixes = {f".{name}": name for name in FORMATS} | {".htm": "html", ".gv": "dot"}
    if options.output.suffix not in suffixes:
        raise InputError(f"'{options.output}' does not tell the format; add --format {', '.join(FORMATS)}")
    return suffixes[options.output.suffix]
