"""Compare a hand-made device map, split points or a balance with the planner's own plan.

planner import-map map.json examples.networks:googlenet --cluster cluster.toml -o hand.json
"""

import argparse
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any

from costmodels.units import format_bytes, format_rate, format_seconds
from planner.cli.console import Console, attributes
from planner.cli.files import declare_output
from planner.cli.models import cluster_option, declare_model, declare_search, declare_workload, model_of, workload_of
from planner.cli.numbers import at_least_one
from planner.cli.statuses import DONE, INTERRUPTED, NO_PLAN
from planner.cli.text import relative
from planner.exports.import_map import import_map
from planner.exports.maps import read_map
from planner.planning.make_plan import Search
from planner.plans.files import save_plan
from planner.plans.plan import Plan
from planner.problem.problem import Goal
from planner.problem.result import Interrupted, NoPlanError


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``planner import-map``."""
    parser.add_argument("map", type=Path, metavar="MAP", help="JSON: a device_map, split points or a balance list")
    declare_model(parser)
    parser.add_argument("--cluster", type=Path, required=True, metavar="FILE", help="cluster.toml with the devices")
    goals = [str(goal) for goal in Goal]
    parser.add_argument("--goal", choices=goals, default=str(Goal.THROUGHPUT), help="what to optimise (throughput)")
    parser.add_argument("--devices", type=at_least_one, metavar="N", help="use the first N devices (all)")
    declare_workload(parser)
    declare_search(parser, 10.0, "to search for the planner's own plan")
    declare_output(parser, "plan.json")


def run(options: argparse.Namespace, console: Console) -> int:
    """Import the model, place it by the map, make a plan too, write the map's plan and print both."""
    interrupted = False
    try:
        found = import_map(
            read_map(options.map),
            model_of(options),
            cluster=cluster_option(options),
            goal=options.goal,
            workload=workload_of(options),
            search=Search(time_limit_s=options.time_limit, seed=options.seed, reporter=console),
        )
    except NoPlanError as error:
        console.error(str(error))
        return NO_PLAN
    except Interrupted as stopped:
        found, interrupted = stopped.best, True
    by_hand = found.by_hand
    save_plan(by_hand, options.output)
    _show(by_hand, found.planned, options, console)
    if interrupted:
        console.error("interrupted: the map is compared with the best plan found until then")
        return INTERRUPTED
    return DONE if by_hand.evaluation.feasible else NO_PLAN


def _show(by_hand: Plan, planned: Plan, options: argparse.Namespace, console: Console) -> None:
    """Print the figures of both plans in two columns, then the rules that the map breaks."""
    a, b = by_hand, planned

    def row(name: str, before: float, after: float, text: Callable[[float], str]) -> tuple[str, ...]:
        change = relative(before, after) if isfinite(before + after) else ""
        return name, text(before), text(after), change

    rows = [
        row(str(a.goal), a.objective_s, b.objective_s, format_seconds),
        row("samples/s", a.samples_per_s, b.samples_per_s, format_rate),
        row("one alone", a.latency_s, b.latency_s, format_seconds),
        ("gap", f"{a.gap:.2%}", f"{b.gap:.2%}", ""),
    ]
    for device, *both_bytes in zip(
        a.cluster.devices, a.evaluation.memory_bytes, b.evaluation.memory_bytes, strict=True
    ):
        capacity = f"of {format_bytes(device.usable_bytes)}"
        rows.append((f"memory of {device.name}", *map(format_bytes, both_bytes), capacity))
    document = {"by_hand": _figures(a), "planner": _figures(b), "output": str(options.output)}
    title = f"{a.graph.name} by {options.map} → {options.output}"
    console.show(document, title, ("", "by hand", planned.solver, "change"), rows)
    for violation in a.evaluation.violations:
        console.error(f"the map breaks a rule: {violation}")


def _figures(plan: Plan) -> dict[str, Any]:
    """Return the object that ``--json`` shows for one plan."""
    names = [device.name for device in plan.cluster.devices]
    return {
        **attributes(plan, "objective_s", "bound_s", "gap", "period_s", "latency_s", "samples_per_s"),
        "memory_bytes": dict(zip(names, plan.evaluation.memory_bytes.tolist(), strict=True)),
        "violations": list(plan.evaluation.violations),
        "solver": plan.solver,
        "placement": {op.name: plan.device_of(op.name) for op in plan.graph.ops},
    }
