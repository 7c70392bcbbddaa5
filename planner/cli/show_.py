"""Show a plan as a picture: a page that needs nothing else, SVG, PNG, or Graphviz.

planner show plan.json
planner show plan.json -o plan.svg
planner show plan.json --measured run.json --force
planner show plan.json --format dot -o /dev/stdout -q | dot -Tpdf -o plan.pdf
"""

import argparse
from pathlib import Path

from costmodels.units import format_bytes
from planner.cli.console import Console
from planner.cli.files import declare_writes, refuse_overwriting
from planner.plans.files import load_plan
from planner.view.show import FORMATS, Place, show


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``planner show``."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.json")
    help = f"{', '.join(FORMATS)} (by the output's name; html)"
    parser.add_argument("--format", choices=FORMATS, metavar="FORMAT", help=help)
    parser.add_argument("--measured", type=Path, metavar="RUN", help="a run.json of `planner run -o`, for the page")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="file to write (plan.html, plan.svg, ...)")
    declare_writes(parser)  # the name of the output may follow from the format


def run(options: argparse.Namespace, console: Console) -> int:
    """Draw and write."""
    place = Place.of(options.output, options.format)
    refuse_overwriting([place.path], options)
    plan = load_plan(options.plan)
    picture = show(plan, place.path, format=place.format, measured=options.measured)
    n_bytes = len(picture.content)
    document = {"output": str(picture.path), "format": picture.format, "n_bytes": n_bytes}
    rows = [(str(picture.path), f"{len(plan.graph.ops):,}", format_bytes(n_bytes))]
    console.show(document, f"{plan.graph.name} as a picture", ("file", "operators", "size"), rows)
    return 0
