"""Print the format of plan.json, cluster.toml, graph.json or run.json as JSON Schema.

planner schema plan > plan.schema.json
"""

import argparse
import json

from planner.cli.console import Console
from planner.plans.schemas import NAMES, schema


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``planner schema``."""
    parser.add_argument("format", choices=NAMES, metavar="FORMAT", help=f"{', '.join(NAMES[:-1])} or {NAMES[-1]}")


def run(options: argparse.Namespace, console: Console) -> int:
    """Print it; it is JSON anyway."""
    console.print(json.dumps(schema(options.format), indent=1, ensure_ascii=False))
    return 0
