"""Divide a model's weights into a file for each device, so that no process needs all of them.

planner shard plan.json examples.networks:googlenet -o shards
planner shard plan.json model.pt2 -o shards --force
torchrun --nproc-per-node=2 -m planner rank shards/plan.json shards
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

from costmodels.units import format_bytes
from planner.cli.console import Console
from planner.cli.files import declare_writes
from planner.cli.models import declare_model, declare_weights, model_of
from planner.cli.statuses import DONE
from planner.plans.files import load_plan
from planner.plans.plan import Plan


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``planner shard``."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.json")
    declare_model(parser)
    declare_weights(parser)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="folder to write")
    declare_writes(parser, "output", folder=True)


def run(options: argparse.Namespace, console: Console) -> int:
    """Import the model, write the folder, print the file of each device."""
    plan = load_plan(options.plan)
    from planner.runtime.checkpoint.shard import shard

    files = shard(plan, model_of(options), output=options.output, force=options.force, reporter=console)
    show_shards(plan, files, options.output, console)
    return DONE


def show_shards(plan: Plan, files: Mapping[str, Path], folder: Path, console: Console) -> None:
    """Print a row for each device."""
    from planner.runtime.checkpoint.shards import names_held

    held = names_held(plan)
    n_bytes = {device: sum(plan.graph.tensor[name].n_bytes for name in names) for device, names in held.items()}
    total = sum(n_bytes.values())
    rows = [
        (
            device,
            f"{len(held[device]):,}",
            format_bytes(n_bytes[device]),
            f"{n_bytes[device] / total:.1%}" if total else "",
            path.name,
        )
        for device, path in files.items()
    ]
    document = {
        "devices": {
            device: {"file": str(path), "n_tensors": len(held[device]), "n_bytes": n_bytes[device]}
            for device, path in files.items()
        }
    }
    console.show(document, f"{plan.graph.name} → {folder}", ("", "tensors", "weights", "share", "file"), rows)
