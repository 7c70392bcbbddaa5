"""`planner run` for a row of `planner choose`: train it small, in a process for each device."""

import argparse

from graphs.errors import InputError
from planner.cli.console import Console
from planner.problem.hybrid_training.config_file import load_config


def run_hybrid(options: argparse.Namespace, console: Console) -> int:
    """Start a process for each device of the row on this host; rank 0 prints."""
    from planner.runtime.hybrid.launch import run_ranks

    if options.output is not None or options.against:
        raise InputError("--output and --against are for plans; leave them out for a row of planner choose")
    config = load_config(options.plan)
    console.on_step(f"training in {config.devices} processes", 0, 0)
    words = [str(options.plan), options.model, "--rounds", str(options.rounds)]
    words += [word for name, size in options.sizes for word in ("--size", f"{name}={size}")]
    end = run_ranks([*words, *(["--json"] if console.json else [])], config.devices)
    if end.said and (console.json or not console.quiet):
        console.print(end.said)
    if end.trouble:
        console.error(end.trouble)
    return end.status
