"""Write a plan for another tool: accelerate, torch, Megatron, DeepSpeed, ONNX; llama.cpp, vLLM and SGLang.

planner export plan.json --to hf-device-map -o map.json
planner export plan.json --to torch-split-spec --copy 2
planner export plan.json --to onnx-devices --model model.onnx -o placed.onnx
planner export fit.json --to llama-cpp
"""

import argparse
from pathlib import Path

from graphs.common.errors import InputError
from graphs.files import write_bytes, write_text
from planner.cli.console import Console
from planner.cli.files import declare_writes
from planner.exports.generation.targets import GENERATION_TARGETS
from planner.exports.targets import ONNX, TARGETS, export
from planner.plans.exported import Export

CHOICES = [*TARGETS, ONNX, *GENERATION_TARGETS]


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``planner export``."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.json, or a plan of planner fit")
    parser.add_argument("--to", choices=CHOICES, required=True, metavar="TARGET", help=", ".join(CHOICES))
    parser.add_argument("--model", type=Path, metavar="FILE", help=f"for {ONNX}: the .onnx that the plan is for")
    parser.add_argument(
        "--copy", type=int, metavar="N", help="for a plan with copies of the network: the one to write, from 1"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="file to write (standard output)")
    declare_writes(parser, "output")


def run(options: argparse.Namespace, console: Console) -> int:
    """Write or print the export."""
    if options.to == ONNX and (options.model is None or options.output is None):
        raise InputError(f"--to {ONNX} writes a model; give its .onnx with --model and a file with -o")
    if options.to != ONNX and options.model is not None:
        raise InputError(f"--model is for --to {ONNX}; leave it out")
    exported = export(options.plan, options.to, copy=options.copy, model=options.model)
    if options.to != ONNX:
        tell_export(exported, options.plan, options, console)
        return 0
    write_bytes(exported.content, options.output)
    console.tell({"target": ONNX, "output": str(options.output)}, [f"{options.plan} for {ONNX} → {options.output}"])
    for note in exported.notes if _apart(options) else ():
        console.note(f"note: {note}")
    return 0


def _apart(options: argparse.Namespace) -> bool:
    """Return whether the new model is in another folder than the old one."""
    folders: set[Path] = {path.resolve().parent for path in (options.model, options.output)}
    return len(folders) > 1


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
        console.note(f"note: {note}")
