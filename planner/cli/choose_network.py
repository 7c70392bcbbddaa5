"""`planner choose` for any network: schedules, devices, replicas and micro-batches, priced operator by operator."""

import argparse
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

from costmodels.cluster import Cluster
from costmodels.units import format_bytes, format_seconds
from graphs.errors import InputError
from graphs.ir import Graph
from planner.cli.console import Console, attributes
from planner.cli.models import cluster_of
from planner.cli.statuses import DONE, INTERRUPTED, NO_PLAN
from planner.cli.text import count
from planner.planning.schedule_sweep import Choice, TradeOffs, trade_offs, undominated
from planner.planning.training_choice import choice_plan
from planner.plans.files import save_plan
from planner.plans.speed import utilisation
from planner.problem.result import Interrupted

RowT = TypeVar("RowT")

COLUMNS = ("", "schedule", "recompute", "devices", "stages", "micro-batches", "step", "samples/s", "MFU", "memory", "")
NO_ROOM = "nothing fits into memory; take more or larger devices, or a smaller batch"
FOR_TRANSFORMERS = ("tensor", "zero", "sequence", "memory", "flash_attention", "to")
"""Options of the closed forms, which know equal layers."""


def run_network(options: argparse.Namespace, console: Console) -> int:
    """Search, and print the choices that no other choice dominates, or save one as a plan."""
    for name in FOR_TRANSFORMERS:
        if getattr(options, name):
            raise InputError(
                f"--{name.replace('_', '-')} is for a transformer's config.json or its numbers; '{options.model}' is "
                "priced operator by operator, so leave it out"
            )
    cluster = cluster_of(options)

    @cache
    def graph_of(samples: int) -> Graph:
        from graphs.importers.load import load_graph

        console.on_step(f"importing {options.model} for {count(samples, 'sample')}", 0, 0)
        return load_graph(str(options.model), samples, True, dict(options.sizes))

    try:
        sweep = trade_offs(graph_of, cluster, options.global_batch, options.optimizer, options.time_limit, console)
    except Interrupted as stopped:
        if not stopped.best.choices:
            raise
        _show(stopped.best, cluster, options, console, graph_of)
        console.error("interrupted: these are the best of what was searched until then")
        return INTERRUPTED
    choices = [choice for choice in sweep.choices if _asked(choice, options)]
    if not choices:
        if sweep.choices:
            raise InputError("no way keeps all that is asked for at once; leave one of the options open")
        console.error("nothing was found in time; allow more with --time-limit" if sweep.unsearched else NO_ROOM)
        return NO_PLAN
    sweep = TradeOffs(tuple(choices), sweep.unsearched)
    if options.row or options.output:
        choice = picked(_shown(sweep, options), options)
        plan = choice_plan(graph_of(choice.samples), cluster, choice, options.optimizer)
        output = options.output or Path("plan.json")
        save_plan(plan, output)
        console.say(f"row {options.row or 1} → {output}; planner run {output} {options.model} trains it")
        return DONE
    _show(sweep, cluster, options, console, graph_of)
    return DONE


def picked(rows: Sequence[RowT], options: argparse.Namespace) -> RowT:
    """The row of the number that is asked for, the first one by default."""
    number = options.row or 1
    if number > len(rows):
        raise InputError(f"there is no row {number}; there are {len(rows)}, and --all has more")
    return rows[number - 1]


def _asked(choice: Choice, options: argparse.Namespace) -> bool:
    """Whether a choice keeps the demands."""
    pairs = (
        (options.data, choice.replicas),
        (options.pipeline, len(choice.devices)),
        (options.micro_batch, choice.samples),
        (options.schedule, choice.schedule),
        (options.recompute, "full" if choice.recompute else "none"),
    )
    return all(asked in (None, own) for asked, own in pairs)


def _shown(sweep: TradeOffs, options: argparse.Namespace) -> Sequence[Choice]:
    return sweep.choices if options.all else undominated(sweep.choices)


def _show(
    sweep: TradeOffs,
    cluster: Cluster,
    options: argparse.Namespace,
    console: Console,
    graph_of: Callable[[int], Graph],
) -> None:
    """A row for each choice that no other one dominates, or for all."""
    shown, best = _shown(sweep, options), undominated(sweep.choices)

    def mfu(choice: Choice) -> float:
        """That of one replica, which is that of all."""
        used = [cluster.devices[cluster.index[name]] for name in choice.devices]
        return utilisation(graph_of(choice.samples), used, choice.step_s / choice.micro_batches, trains=True)

    rows = [
        (str(number), *_cells(choice), f"{mfu(choice):.1%}", format_bytes(choice.peak_bytes), "●" * (choice in best))
        for number, choice in enumerate(shown, 1)
    ]
    document = {
        "batch": options.global_batch,
        "choices": [
            {
                **attributes(choice, "schedule", "recompute", "replicas", "devices"),
                "stages": choice.n_stages,
                **attributes(choice, "micro_batches", "samples", "step_s", "samples_per_s"),
                "mfu": mfu(choice),
                "memory_bytes": dict(zip(choice.devices, choice.memory_bytes, strict=True)),
                "peak_bytes": choice.peak_bytes,
                "best": choice in best,
            }
            for choice in shown
        ],
        "unsearched": sweep.unsearched,
    }
    console.show(document, f"{options.model}: steps of {count(options.global_batch, 'sample')}", COLUMNS, rows)
    if any(choice.replicas > 1 for choice in shown):
        console.say("devices: replicas × devices of a pipeline; micro-batches: of each replica")
    if not options.all:
        more = len(sweep.choices) - len(best)
        console.say(f"{count(more, 'choice')} more, slower with no less memory: --all shows them")
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
    )
