"""Show a plan as a picture: one HTML page that needs nothing else."""

import argparse
from pathlib import Path

from graphs.files import write_text
from planner.cli.console import Console
from planner.plans import load_plan
from planner.view.page import render


def declare(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``planner show``."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.json")
    parser.add_argument("-o", "--output", type=Path, default=Path("plan.html"), help="file to write (plan.html)")


def run(options: argparse.Namespace, console: Console) -> int:
    """Render and write."""
    plan = load_plan(options.plan)
    text = render(plan, plan.simulate())
    write_text(text, options.output)
    document = {"output": str(options.output), "n_bytes": len(text.encode())}
    rows = [(str(options.output), f"{len(plan.graph.ops):,}", f"{len(text.encode()):,}")]
    console.show(document, f"{plan.graph.name} as a picture", ("file", "operators", "bytes"), rows)
    return 0
