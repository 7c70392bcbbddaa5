"""Compare schedules, numbers of devices, replicas and micro-batches for training: step time against memory.

planner compare examples.networks:googlenet --cluster cluster.toml --batch 64 --optimizer adam
"""

import argparse
from functools import cache
from pathlib import Path

from costmodels.clusterfile import read_cluster
from costmodels.units import format_bytes, format_seconds
from graphs.ir import Graph
from planner.cli.console import Console, attributes
from planner.cli.models import declare_sizes
from planner.cli.numbers import at_least_one, positive_seconds
from planner.cli.statuses import DONE, INTERRUPTED, NO_PLAN
from planner.cli.text import count
from planner.planning.schedule_sweep import Choice, TradeOffs, trade_offs, undominated
from planner.problem.result import Interrupted

COLUMNS = ("schedule", "recompute", "devices", "stages", "micro-batches", "step", "samples/s", "memory at most")
NO_ROOM = "nothing fits into memory; take more or larger devices, or a smaller batch"


def declare(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``planner compare``."""
    parser.add_argument("model", metavar="MODEL", help="a .onnx, a .pt2, package.module:factory, or a config.json")
    declare_sizes(parser)
    parser.add_argument("--cluster", type=Path, required=True, metavar="FILE", help="cluster.toml with the devices")
    parser.add_argument("--batch", type=at_least_one, default=32, metavar="N", help="samples of one step (32)")
    parser.add_argument("--optimizer", default="sgd", metavar="NAME", help="sgd, momentum or adam (sgd)")
    parser.add_argument(
        "--time-limit", type=positive_seconds, default=60.0, metavar="S", help="seconds for everything (60)"
    )
    parser.add_argument("--all", action="store_true", help="show also what is slower with no less memory")


def run(options: argparse.Namespace, console: Console) -> int:
    """Search, and print the choices that no other choice dominates."""
    cluster = read_cluster(options.cluster)

    @cache
    def graph_of(samples: int) -> Graph:
        from graphs.importers.load import load_graph

        console.on_step(f"importing {options.model} for {count(samples, 'sample')}", 0, 0)
        return load_graph(options.model, samples, True, dict(options.sizes))

    try:
        sweep = trade_offs(graph_of, cluster, options.batch, options.optimizer, options.time_limit, console)
    except Interrupted as stopped:
        if not stopped.best.choices:
            raise
        _show(stopped.best, options, console)
        console.error("interrupted: these are the best of what was searched until then")
        return INTERRUPTED
    if not sweep.choices:
        console.error("nothing was found in time; allow more with --time-limit" if sweep.unsearched else NO_ROOM)
        return NO_PLAN
    _show(sweep, options, console)
    return DONE


def _show(sweep: TradeOffs, options: argparse.Namespace, console: Console) -> None:
    """A row for each choice that no other one dominates, or for all."""
    choices, best = sweep.choices, undominated(sweep.choices)
    shown = choices if options.all else best
    rows = [(*_cells(choice), "●" if choice in best else "") for choice in shown]
    document = {
        "batch": options.batch,
        "choices": [
            {
                **attributes(choice, "schedule", "recompute", "replicas", "devices"),
                "stages": choice.n_stages,
                **attributes(choice, "micro_batches", "samples", "step_s"),
                "memory_bytes": dict(zip(choice.devices, choice.memory_bytes, strict=True)),
                "peak_bytes": choice.peak_bytes,
                "best": choice in best,
            }
            for choice in shown
        ],
        "unsearched": sweep.unsearched,
    }
    console.show(document, f"{options.model}: steps of {count(options.batch, 'sample')}", (*COLUMNS, ""), rows)
    if any(choice.replicas > 1 for choice in shown):
        console.say("devices: replicas × devices of a pipeline; micro-batches: of each replica")
    if not options.all:
        console.say(f"{count(len(choices) - len(best), 'choice')} more, slower with no less memory: --all shows them")
    if sweep.unsearched:
        ways = count(sweep.unsearched, "way")
        console.say(f"{ways} to divide devices and batch not searched for want of time: --time-limit allows more")


def _cells(choice: Choice) -> tuple[str, ...]:
    each, times = (" each", f"{choice.replicas} × ") if choice.replicas > 1 else ("", "")
    return (
        choice.schedule if len(choice.devices) > 1 else f"one device{each}",
        "yes" if choice.recompute else "",
        f"{times}{len(choice.devices)}",
        f"{choice.n_stages}",
        f"{choice.micro_batches} of {choice.samples}",
        format_seconds(choice.step_s),
        f"{choice.samples_per_s:.4g}",
        format_bytes(choice.peak_bytes),
    )
