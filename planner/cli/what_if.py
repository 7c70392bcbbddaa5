"""The table of ``planner simulate`` with changes: a column for each plan, the unchanged one first."""

from collections.abc import Callable
from functools import partial
from typing import Any

from costmodels.units import format_bytes, format_seconds
from graphs.errors import InputError
from planner.cli.console import Console
from planner.cli.text import relative
from planner.plans.plan import Plan
from planner.problem.bottleneck import busiest
from planner.problem.problem import Goal


def show_changes(plans: dict[str, Plan], console: Console) -> None:
    """A column for each plan that can be evaluated.

    Raises:
        InputError: if the first or the last plan cannot be evaluated.
    """
    documents, (first, *_, last) = {}, plans
    for name, plan in plans.items():
        try:
            documents[name] = _figures(plan)
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

    names = dict.fromkeys(name for document in documents.values() for name in document["memory_bytes"])
    rows = [
        times(f"{before['goal']}: objective", "objective_s"),
        times("per micro-batch", "period_s"),
        times("one step" if before["goal"] == Goal.TRAINING else "latency", "latency_s"),
        row("samples/s", lambda document: f"{document['samples_per_s']:.4g}"),
        row("busiest", lambda document: f"{document['busiest']} {format_seconds(document['busiest_s'])}"),
        *(row(f"memory of {name}", partial(_memory, name)) for name in names),
    ]
    title = f"{plans[first].graph.name} for {before['goal']}"
    console.show(documents, title, ("", *documents), rows)
    for name, document in documents.items():
        for violation in document["violations"]:
            console.say(f"{name}: {violation}")


def _figures(plan: Plan) -> dict[str, Any]:
    """The object that ``--json`` shows for one plan."""
    evaluation = plan.evaluation
    busy = busiest(plan.problem, plan.placement)
    devices = plan.cluster.devices
    return {
        "goal": str(plan.goal),
        "objective_s": plan.objective_s,
        "period_s": plan.period_s,
        "latency_s": plan.latency_s,
        "samples_per_s": plan.samples_per_s,
        "busiest": busy.name(plan.table.devices),
        "busiest_s": busy.seconds,
        "memory_bytes": {device.name: float(evaluation.memory_bytes[i]) for i, device in enumerate(devices)},
        "capacity_bytes": {device.name: device.memory_bytes for device in devices},
        "violations": list(evaluation.violations),
        "placement": {device.name: plan.placement.device.count(i) for i, device in enumerate(devices)},
    }


def _memory(name: str, document: dict[str, Any]) -> str:
    if name not in document["memory_bytes"]:
        return ""
    return f"{format_bytes(document['memory_bytes'][name])} of {format_bytes(document['capacity_bytes'][name])}"
