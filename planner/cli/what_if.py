"""The table of ``planner simulate`` with changes: a column for each plan, the first as it is."""

from typing import Any

from costmodels.units import format_bytes, format_seconds
from graphs.errors import InputError
from planner.cli.console import Console
from planner.cli.text import relative
from planner.plans.plan import Plan
from planner.problem.bottleneck import busiest
from planner.problem.problem import Goal


def show_changes(plans: dict[str, Plan], console: Console) -> None:
    """A column for each plan that can be judged.

    Raises:
        InputError: if the first or the last one cannot.
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

    def cells(key: str) -> list[str]:
        values = [document[key] for document in documents.values()]
        return [format_seconds(before[key])] + [
            f"{format_seconds(value)} ({relative(before[key], value)})" for value in values[1:]
        ]

    rows = [(f"{before['goal']}: objective", *cells("objective_s")), ("per micro-batch", *cells("period_s"))]
    rows.append(("one step" if before["goal"] == Goal.TRAINING else "latency", *cells("latency_s")))
    rows.append(("samples/s", *(f"{document['samples_per_s']:.4g}" for document in documents.values())))
    rows.append(
        (
            "busiest",
            *(f"{document['busiest']} {format_seconds(document['busiest_s'])}" for document in documents.values()),
        )
    )
    names = dict.fromkeys(name for document in documents.values() for name in document["memory_bytes"])
    rows += [(f"memory of {name}", *(_memory(document, name) for document in documents.values())) for name in names]
    title = f"{plans[first].graph.name} for {before['goal']}"
    console.show(documents, title, ("", *documents), rows)
    for name, document in documents.items():
        for violation in document["violations"]:
            console.say(f"{name}: {violation}")


def _figures(plan: Plan) -> dict[str, Any]:
    """What ``--json`` shows of one plan."""
    judged = plan.evaluation
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
        "memory_bytes": {device.name: float(judged.memory_bytes[i]) for i, device in enumerate(devices)},
        "capacity_bytes": {device.name: device.memory_bytes for device in devices},
        "violations": list(judged.violations),
        "placement": {device.name: plan.placement.device.count(i) for i, device in enumerate(devices)},
    }


def _memory(document: dict[str, Any], name: str) -> str:
    if name not in document["memory_bytes"]:
        return ""
    return f"{format_bytes(document['memory_bytes'][name])} of {format_bytes(document['capacity_bytes'][name])}"
