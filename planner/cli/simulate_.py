"""Predict how micro-batches stream through a plan, as it is or with other devices, links or batches.

planner simulate plan.json --trace trace.json --svg chart.svg
planner simulate plan.json --set link.bandwidth=100Gb/s --add-device gpu0 --replan
planner simulate plan.json examples.networks:googlenet --batch 8
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from costmodels.cluster.cluster import SHARINGS
from costmodels.units import format_bytes, format_rate, format_seconds
from costmodels.workload import RECOMPUTE_MODES, TRAINING_SCHEDULES
from graphs.common.errors import InputError
from graphs.files import write_text
from planner.cli.console import Console, attributes
from planner.cli.files import declare_writes
from planner.cli.generation import generation_lines, tokens_document
from planner.cli.models import declare_model, declare_search, model_of
from planner.cli.numbers import at_least_one
from planner.cli.statuses import DONE, INTERRUPTED, NO_PLAN
from planner.cli.text import count, first_items, relative, table, width
from planner.explanations.simulate import WhatIf, simulate
from planner.planning.make_plan import Search
from planner.plans.plan import Plan
from planner.plans.prediction import Prediction
from planner.problem.bottleneck import busiest
from planner.problem.problem import Goal
from planner.problem.result import Interrupted, NoPlanError
from simulator.chart import ascii_chart, svg_chart
from simulator.trace import chrome_trace

LARGEST = 3  # tensors shown at the peak of memory
BUSIEST = 4  # resources shown


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``planner simulate``."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.json")
    declare_model(parser, optional=True)
    parser.add_argument(
        "--micro-batches", type=at_least_one, metavar="N", help="micro-batches of the stream (8), or of a training step"
    )
    parser.add_argument("--sharing", choices=SHARINGS, help="how tensors share a channel (as the cluster says)")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a trace for ui.perfetto.dev")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the chart as a picture")
    declare_writes(parser, "trace", "svg")
    what_if = parser.add_argument_group("what if", "with any of these, before and after are printed side by side")
    what_if.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="TARGET.FIELD=VALUE",
        help="gpu1.memory=40GiB, link.bandwidth=100Gb/s, 'gpu0->*.latency=5us', 'cpu*.flops.float32=2TFLOP/s'",
    )
    what_if.add_argument(
        "--add-device",
        action="append",
        default=[],
        metavar="LIKE[=NAME]",
        help="add a device like one of the cluster or the catalogue",
    )
    what_if.add_argument("--in-flight", type=at_least_one, metavar="N", help="micro-batches in flight")
    what_if.add_argument("--schedule", choices=TRAINING_SCHEDULES, help="pipeline schedule of a training step")
    what_if.add_argument("--recompute", choices=RECOMPUTE_MODES, help="what a training step recomputes")
    what_if.add_argument("--replan", action="store_true", help="also search for the best placement under the changes")
    declare_search(what_if, 10.0)


def run(options: argparse.Namespace, console: Console) -> int:
    """Simulate and print the chart and the figures, or compare the plan with changes."""
    _check_options(options)
    search = Search(time_limit_s=options.time_limit, seed=options.seed, reporter=console) if options.replan else None
    status = DONE
    try:
        simulation = simulate(
            options.plan,
            None if options.model is None else model_of(options),
            micro_batches=options.micro_batches,
            sharing=options.sharing,
            what_if=_what_if(options),
            search=search,
        )
    except NoPlanError as error:
        console.error(str(error))
        return NO_PLAN
    except Interrupted as stopped:
        simulation, status = stopped.best, INTERRUPTED
        console.error("interrupted: 'replanned' is the best plan until then")
    plans, prediction = simulation.plans, simulation.prediction
    last = plans[list(plans)[-1]]
    if len(plans) > 1:
        _show_changes(plans, console)
        _write(options, last, prediction)
    else:
        _write(options, last, prediction)
        _show(last, prediction, console)
    return status


def _check_options(options: argparse.Namespace) -> None:
    """Refuse a MODEL without another batch, and a batch or sizes without a MODEL."""
    if options.model is not None and options.batch is None:
        raise InputError(f"'{options.model}' is imported for another batch only; add --batch N, or leave it out")
    if options.model is None and options.sizes:
        raise InputError("--size is for a MODEL of another batch: planner simulate PLAN MODEL --batch N --size NAME=N")
    if options.model is None and options.batch is not None:
        raise InputError("--batch needs the model besides the plan: planner simulate PLAN MODEL --batch N")


def _what_if(options: argparse.Namespace) -> WhatIf:
    """Return the changes that the options describe."""
    texts = tuple(options.settings), tuple(options.add_device)
    return WhatIf(*texts, options.in_flight, options.schedule, options.recompute)


def _write(options: argparse.Namespace, plan: Plan, prediction: Prediction) -> None:
    """Write the trace and the chart that the options ask for."""
    if options.trace:
        trace = chrome_trace(prediction.timeline, prediction.memory, prediction.transfers)
        write_text(json.dumps(trace, ensure_ascii=False, allow_nan=False) + "\n", options.trace)
    if options.svg:
        timeline = prediction.timeline
        title = f"{plan.graph.name}: {timeline.micro_batches} micro-batches in {format_seconds(timeline.makespan_s)}"
        write_text(svg_chart(timeline, title), options.svg)


def _show(plan: Plan, prediction: Prediction, console: Console) -> None:
    """Print a row for each device, the chart, then links, the peak of memory and the critical path."""
    timeline = prediction.timeline
    batches = count(timeline.micro_batches, "micro-batch", "es")
    title = f"{batches} of {plan.graph.name} in {format_seconds(timeline.makespan_s)}"
    columns = ("device", "busy", "of the time", "memory at the peak", "of")
    chart = ascii_chart(timeline, width() - max(map(len, timeline.devices)) - 2).splitlines()
    rows = [
        (
            name,
            format_seconds(busy_s),
            f"{busy_s / timeline.makespan_s:.1%}" if timeline.makespan_s else "",
            format_bytes(memory.peak_bytes),
            format_bytes(plan.cluster.devices[plan.cluster.index[name]].usable_bytes),
        )
        for name, busy_s, memory in zip(timeline.devices, timeline.busy_s.tolist(), prediction.memory, strict=True)
    ]
    console.tell(_document(plan, prediction), (title, *table(columns, rows), *chart, *_lines(plan, prediction)))


def _document(plan: Plan, prediction: Prediction) -> dict[str, Any]:
    """Return the object that ``--json`` shows."""
    timeline = prediction.timeline
    return {
        **attributes(timeline, "micro_batches", "makespan_s"),
        **attributes(plan, "period_s", "latency_s", "samples_per_s"),
        "period_range_s": plan.period_range.ends,
        "latency_range_s": plan.latency_range.ends,
        "bubble": timeline.bubble,
        "busy_s": dict(zip(timeline.devices, timeline.busy_s.tolist(), strict=True)),
        "link_share": _link_share(prediction),
        "memory": {
            memory.device: {
                **attributes(memory, "peak_bytes", "peak_s", "resident_bytes"),
                "held": [
                    {"name": h.name, "micro_batch": h.micro_batch, "bytes": h.n_bytes}
                    for h in memory.held(memory.peak_s)[:LARGEST]
                ],
            }
            for memory in prediction.memory
        },
        "critical_path_s": _critical(prediction),
        **(tokens_document(plan) if plan.workload.generates else {}),
    }


def _lines(plan: Plan, prediction: Prediction) -> Iterator[str]:
    """Yield the lines below the chart."""
    if share := _link_share(prediction):
        yield f"links busy: {_largest_first(share, '{:.1%}'.format)}"
    fullest = max(prediction.memory, key=lambda memory: memory.peak_bytes)
    resident = f"{format_bytes(fullest.resident_bytes)} resident"
    held = (
        f"{h.name} of micro-batch {h.micro_batch} ({format_bytes(h.n_bytes)})" for h in fullest.held(fullest.peak_s)
    )
    yield f"peak of {fullest.device} at {format_seconds(fullest.peak_s)}: {first_items([resident, *held], 1 + LARGEST)}"
    yield f"waited for: {_largest_first(_critical(prediction), format_seconds)}"
    alone = "a step takes" if plan.goal is Goal.TRAINING else "one alone takes"
    rate = "" if plan.workload.generates else f" ({format_rate(plan.samples_per_s)} samples/s)"
    yield (
        f"in the long run a micro-batch every {format_seconds(plan.period_s)}{rate}; {alone} "
        f"{format_seconds(plan.latency_s)}"
    )
    yield f"80 % of runs: {plan.period_range}; {alone} {plan.latency_range}"
    if plan.workload.generates:
        yield "a micro-batch is a pass of one group of sequences, in the mean of all passes"
        yield from generation_lines(plan)


def _largest_first(numbers: Mapping[str, float], text: Callable[[float], str]) -> str:
    """Return the names with the largest numbers, and these numbers as texts."""
    ordered = sorted(numbers.items(), key=lambda pair: (-pair[1], pair[0]))
    return first_items([f"{name} {text(number)}" for name, number in ordered], BUSIEST)


def _link_share(prediction: Prediction) -> dict[str, float]:
    """Link → share of the makespan in which it is busy; empty if the makespan is 0."""
    timeline = prediction.timeline
    makespan_s = timeline.makespan_s
    return {link: busy_s / makespan_s for link, busy_s in timeline.link_busy_s.items()} if makespan_s else {}


def _critical(prediction: Prediction) -> dict[str, float]:
    """Resource → seconds of the critical path."""
    seconds: dict[str, float] = {}
    for span in prediction.timeline.critical_path:
        seconds[span.resource] = seconds.get(span.resource, 0.0) + span.end_s - span.start_s
    return seconds


def _show_changes(plans: Mapping[str, Plan], console: Console) -> None:
    """Print a column for each plan that can be evaluated."""
    documents, (first, *_, last) = {}, plans
    for name, plan in plans.items():
        try:
            documents[name] = _changed_figures(plan)
        except InputError as error:
            if name in (first, last):
                raise
            console.say(f"{name}: {error}")
    before = documents[first]

    def row(name: str, text: Callable[[dict[str, Any]], str]) -> tuple[str, ...]:
        return name, *map(text, documents.values())

    def times(name: str, key: str) -> tuple[str, ...]:
        name, first_s, *others_s = row(name, lambda document: format_seconds(document[key]))
        changes = [relative(before[key], document[key]) for document in documents.values()]
        return name, first_s, *(f"{text} ({change})" for text, change in zip(others_s, changes[1:], strict=True))

    def memory(name: str, document: dict[str, Any]) -> str:
        held_bytes, capacity_bytes = (document[key].get(name) for key in ("memory_bytes", "capacity_bytes"))
        return "" if held_bytes is None else f"{format_bytes(held_bytes)} of {format_bytes(capacity_bytes)}"

    names = dict.fromkeys(name for document in documents.values() for name in document["memory_bytes"])
    rows = [
        times(f"{before['goal']}: objective", "objective_s"),
        times("per micro-batch", "period_s"),
        times("one step" if before["goal"] == Goal.TRAINING else "latency", "latency_s"),
        *_speeds(before, row, times),
        row("busiest", lambda document: f"{document['busiest']} {format_seconds(document['busiest_s'])}"),
        *(row(f"memory of {name}", partial(memory, name)) for name in names),
    ]
    title = f"{plans[first].graph.name} for {before['goal']}"
    console.show(documents, title, ("", *documents), rows)
    for name, document in documents.items():
        for violation in document["violations"]:
            console.say(f"{name}: {violation}")


def _speeds(
    before: dict[str, Any],
    row: Callable[[str, Callable[[dict[str, Any]], str]], tuple[str, ...]],
    times: Callable[[str, str], tuple[str, ...]],
) -> list[tuple[str, ...]]:
    """Return the rows of samples a second, or of tokens a second and the first one where a language model generates."""
    if "tokens_per_s" not in before:
        return [row("samples/s", lambda document: format_rate(document["samples_per_s"]))]
    return [
        row("tokens/s", lambda document: format_rate(document["tokens_per_s"])),
        times("first token of one alone", "first_token_s"),
    ]


def _changed_figures(plan: Plan) -> dict[str, Any]:
    """Return the object that ``--json`` shows for one plan."""
    evaluation = plan.evaluation
    busy = busiest(plan.problem, plan.placement)
    devices = plan.cluster.devices
    return {
        "goal": str(plan.goal),
        **attributes(plan, "objective_s", "period_s", "latency_s", "samples_per_s"),
        "busiest": busy.name(plan.table.devices),
        "busiest_s": busy.seconds,
        "memory_bytes": {device.name: float(evaluation.memory_bytes[i]) for i, device in enumerate(devices)},
        "capacity_bytes": {device.name: device.usable_bytes for device in devices},
        "violations": list(evaluation.violations),
        "placement": {device.name: len(plan.placement.operators(i)) for i, device in enumerate(devices)},
        **(tokens_document(plan) if plan.workload.generates else {}),
    }
