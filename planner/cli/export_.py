"""Write a plan for another tool: accelerate, torch, Megatron, DeepSpeed, torchgpipe, networkx.

planner export plan.json --to hf-device-map -o map.json
planner export plan.json --to torch-split-spec
"""

import argparse
from pathlib import Path

from graphs.files import write_text
from planner.cli.console import Console
from planner.cli.files import declare_writes
from planner.export.records import Export
from planner.export.targets import TARGETS, export
from planner.plans.files import load_plan


def declare(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``planner export``."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.json")
    parser.add_argument("--to", choices=list(TARGETS), required=True, metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="file to write (print it)")
    declare_writes(parser, "output")


def run(options: argparse.Namespace, console: Console) -> int:
    """Write or print the export."""
    tell_export(export(load_plan(options.plan), options.to), options.plan, options, console)
    return 0


def tell_export(exported: Export, source: object, options: argparse.Namespace, console: Console) -> None:
    """Write an export or print it; what the tool does otherwise goes to stderr."""
    if options.output is not None:
        write_text(exported.text, options.output)
    if console.json:
        output = str(options.output) if options.output else None
        document = {
            "target": options.to,
            "output": output,
            "notes": list(exported.notes),
            "document": exported.document,
        }
        console.show(document, "", (), ())
    elif options.output is None:
        console.print(exported.text.rstrip("\n"))
    else:
        console.say(f"{source} for {options.to} → {options.output}")
    for note in exported.notes:
        console.error(f"note: {note}")
