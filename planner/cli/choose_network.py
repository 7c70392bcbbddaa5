"""`planner choose` for any network: schedules, devices, replicas and micro-batches, priced operator by operator."""

import argparse
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from costmodels.cluster.cluster import Cluster
from costmodels.units import format_bytes, format_rate, format_seconds
from graphs.common.errors import InputError
from graphs.files import write_text
from graphs.ir import Graph
from planner.cli.console import Console, attributes
from planner.cli.statuses import DONE, INTERRUPTED, NO_PLAN
from planner.cli.text import count
from planner.parallelism.config_reasons import PricedRow, reasons
from planner.parallelism.network.training_rows import Choice
from planner.planning.choose import NetworkChoices, choose
from planner.planning.choose_options import ChooseOptions, check_for_transformers_only
from planner.plans.given import NamedModel
from planner.plans.speed import tokens_per_sample, utilisation
from planner.problem.result import PROOF_TOLERANCE, Interrupted
from planner.view.choices import choices_page

RowT = TypeVar("RowT")

COLUMNS = ("MFU", "memory", "devices", "d × t × p", "micro-batches", "schedule", "ZeRO", "recompute")
FOR_TRANSFORMERS = ("sequence", "flash_attention", "to")
"""Options of the closed forms, which know equal layers."""


def asked_of(options: argparse.Namespace, console: Console) -> ChooseOptions:
    """Return the options of the search that the command line asks for."""
    named = (
        *("sequence", "devices", "data", "tensor", "pipeline", "micro_batch", "zero", "schedule", "recompute"),
        "expert",
        *("gradients", "precision", "optimizer", "flash_attention", "to"),
    )
    return ChooseOptions(
        **{name: getattr(options, name) for name in named},
        memory_bytes=options.memory,
        time_limit_s=options.time_limit,
        reporter=console,
    )


def run_network(options: argparse.Namespace, asked: ChooseOptions, console: Console) -> int:
    """Search, and print the choices that no other choice dominates, or save one as a plan."""
    _check_options(options)
    model = NamedModel(str(options.model), sizes=dict(options.sizes))
    try:
        found = choose(model, cluster=options.cluster, global_batch=options.global_batch, choose_options=asked)
    except Interrupted as stopped:
        if stopped.best.advice:
            raise
        _show(stopped.best, options, console)
        console.error("interrupted: these are the best of what was searched until then")
        return INTERRUPTED
    assert isinstance(found, NetworkChoices)
    if found.advice:
        console.error(found.advice)
        return NO_PLAN
    if options.row or options.output:
        choice = picked(found.rows(options.all), options)
        output = options.output or Path("plan.json" if choice.config is None else "row.json")
        found.save_row(choice, output)
        ranks = f"torchrun --nproc-per-node={choice.used} -m planner rank"
        trains = ranks if choice.config is None and choice.replicas > 1 else "planner run"
        console.say(f"row {options.row or 1} → {output}; {trains} {output} {options.model} trains it")
        return DONE
    _show(found, options, console)
    return DONE


def _check_options(options: argparse.Namespace) -> None:
    """Refuse options that do not fit a network which is priced operator by operator."""
    asked = {f"--{name.replace('_', '-')}": getattr(options, name) for name in FOR_TRANSFORMERS}
    check_for_transformers_only(options.model, asked)
    if options.gradients != options.precision == "float32":
        raise InputError("--gradients bfloat16 is for --precision bfloat16; add it, or leave --gradients out")


def picked(rows: Sequence[RowT], options: argparse.Namespace) -> RowT:
    """Return the row of the number that is asked for, the first one by default."""
    number = options.row or 1
    if number > len(rows):
        more = "" if options.all else ", and --all may have more"
        raise InputError(f"there is no row {number}; there are {len(rows)}{more}")
    return rows[number - 1]


def _show(found: NetworkChoices, options: argparse.Namespace, console: Console) -> None:
    """Print a row for each choice that no other one dominates, or for all."""
    sweep, cluster = found.sweep, found.cluster
    shown, best = found.rows(options.all), found.rows()
    speed = _speeds(cluster, found.graph_of)
    speeds = [speed(choice) for choice in shown]
    marks = [("●" * (choice in best),) if options.all else () for choice in shown]
    rows = [
        (str(number), *_cells(choice, *speed), *mark)
        for number, (choice, speed, mark) in enumerate(zip(shown, speeds, marks, strict=True), 1)
    ]
    priced = [PricedRow(choice.price, choice.used) for choice in shown]
    why = reasons(priced)
    document = {
        "batch": options.global_batch,
        "choices": [
            _described(choice, *speed) | {"best": choice in best, "reason": reason}
            for choice, speed, reason in zip(shown, speeds, why, strict=True)
        ],
        "bound_s": sweep.bound_s,
        "unsearched": sweep.unsearched,
    }
    columns = ("", "step", "samples/s" if speeds[0][0] is None else "tokens/s", *COLUMNS, *("",) * options.all)
    title, proved = (
        f"{options.model}: steps of {count(options.global_batch, 'sample')}",
        proved_gap(sweep.bound_s, best[0].step_s),
    )
    if options.html is not None:
        room = min(device.usable_bytes for device in cluster.devices)
        save_page(
            choices_page(
                title.replace(":", f" on {options.cluster}:", 1),
                f"of the ways that were searched, {proved}",
                columns,
                rows,
                priced,
                room,
            ),
            options.html,
            console,
        )
    console.show(document, title, columns, rows)
    for number, reason in enumerate(why, 1):
        console.say(f"{number}  {reason}")
    if not options.all and (more := len(sweep.choices) - len(best)):
        console.say(f"{count(more, 'choice')} more, slower with no less memory: --all shows them")
    console.say(f"of the ways that were searched, {proved}")
    if sweep.unsearched:
        ways = count(sweep.unsearched, "way")
        console.say(f"{ways} to divide devices and batch not searched for want of time: --time-limit allows more")


def _described(choice: Choice, tokens_per_s: float | None, mfu: float) -> dict[str, Any]:
    """Return a choice as a part of the JSON document."""
    degrees = [own._asdict() | layers._asdict() for own, layers in zip(choice.degrees, choice.layers, strict=False)]
    return {
        **attributes(choice, "schedule", "replicas", "tensor", "zero", "devices"),
        "recompute": choice.recomputed,
        "degrees": degrees,
        "stages": choice.n_stages,
        **attributes(choice, "micro_batches", "samples", "step_s", "samples_per_s"),
        "tokens_per_s": tokens_per_s,
        "mfu": mfu,
        "memory_bytes": dict(zip(choice.devices, choice.price.memory_bytes, strict=True)),
        "peak_bytes": choice.peak_bytes,
        **attributes(choice.price, "computing_s", "communicating_s", "bubble_s", "sync_s"),
    }


def _speeds(cluster: Cluster, graph_of: Callable[[int], Graph]) -> Callable[[Choice], tuple[float | None, float]]:
    """Tokens a second of all replicas, None without tokens; and MFU, which is that of each replica."""

    @cache
    def of_devices(samples: int, names: tuple[str, ...]) -> float:
        """Return seconds of a micro-batch at the peaks of the devices."""
        used = [cluster.devices[cluster.index[name]] for name in names]
        return utilisation(graph_of(samples), used, 1.0, trains=True)

    def of(choice: Choice) -> tuple[float | None, float]:
        each = [own.devices for own in choice.degrees] or [choice.tensor] * len(choice.devices)
        used = tuple(name for name, n in zip(choice.devices, each, strict=True) for _ in range(n))
        tokens = tokens_per_sample(graph_of(choice.samples), choice.samples)
        mfu = of_devices(choice.samples, used) * choice.micro_batches / choice.step_s
        return None if tokens is None else tokens * choice.samples_per_s, mfu

    return of


def save_page(page: str, output: Path, console: Console) -> None:
    """Write the page of the rows."""
    write_text(page, output)
    console.say(f"the rows as a page → {output}")


def proved_gap(bound_s: float, step_s: float) -> str:
    """Say by how much another step may be shorter than the best, at most."""
    gap = max(0.0, 1 - bound_s / step_s)
    return "no way takes less" if gap <= PROOF_TOLERANCE else f"no way takes more than {gap:.2%} less"


def _cells(choice: Choice, tokens_per_s: float | None, mfu: float) -> tuple[str, ...]:
    """Return the columns of a choice that follow its number; the schedule only where there are stages."""
    stages = f" × {choice.n_stages // len(choice.devices)}" if choice.n_stages > len(choice.devices) else ""
    return (
        format_seconds(choice.step_s),
        format_rate(choice.samples_per_s) if tokens_per_s is None else f"{tokens_per_s:,.0f}",
        f"{mfu:.1%}",
        format_bytes(choice.peak_bytes),
        str(choice.used),
        choice.config.named if choice.config else f"{choice.replicas} × 1 × {len(choice.devices)}",
        f"{choice.micro_batches} of {choice.samples}",
        f"{choice.schedule}{stages}" if len(choice.devices) > 1 else "",
        choice.config.zero if choice.config else str(choice.zero),
        choice.recomputed,
    )
