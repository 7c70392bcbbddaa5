"""Evaluate a device map, split points or a balance made by hand beside the planner's own plan.

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
from planner.cli.models import cluster_of, declare_model, declare_search, declare_workload, workload_of
from planner.cli.numbers import at_least_one
from planner.cli.statuses import DONE, INTERRUPTED, NO_PLAN
from planner.cli.text import relative
from planner.exports.maps import read_map
from planner.planning.make_plan import Search, batch_of, make_plan
from planner.plans.files import save_plan
from planner.plans.plan import Plan, plan_by_hand
from planner.problem.problem import Goal
from planner.problem.result import Interrupted, NoPlanError


def declare(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``planner import-map``."""
    parser.add_argument("map", type=Path, metavar="MAP", help="JSON: a device_map, split points or a balance list")
    declare_model(parser)
    parser.add_argument("--cluster", type=Path, required=True, metavar="FILE", help="cluster.toml with the devices")
    goals = [str(goal) for goal in Goal]
    parser.add_argument("--goal", choices=goals, default=str(Goal.THROUGHPUT), help="what counts (throughput)")
    parser.add_argument("--devices", type=at_least_one, metavar="N", help="use the first N devices (all)")
    declare_workload(parser)
    declare_search(parser, 10.0, "to plan beside it")
    declare_output(parser, "plan.json")


def run(options: argparse.Namespace, console: Console) -> int:
    """Import the model, place it by the map, make a plan too, write the map's plan and print both."""
    given, cluster = read_map(options.map), cluster_of(options)
    from graphs.importers.load import load_graph

    console.on_step(f"importing {options.model}", 0, 0)
    graph = load_graph(options.model, options.batch, options.goal == Goal.TRAINING, dict(options.sizes))
    placement = given.placement(graph, cluster)
    search = Search(time_limit_s=options.time_limit, seed=options.seed, reporter=console)
    batch, trains = options.batch or batch_of(graph), options.goal == Goal.TRAINING
    workload = workload_of(options).closed(batch, len(cluster.devices), trains)
    interrupted = False
    console.on_search(f"planning {graph.name} for {options.goal}", options.time_limit)
    try:
        planned = make_plan(graph, cluster, Goal(options.goal), workload, (), search)
    except NoPlanError as error:
        console.error(str(error))
        return NO_PLAN
    except Interrupted as stopped:
        planned, interrupted = stopped.best, True
    by_hand = plan_by_hand(planned, placement)
    save_plan(by_hand, options.output)
    _show(by_hand, planned, options, console)
    if interrupted:
        console.error("interrupted: the plan beside the map is the best until then")
        return INTERRUPTED
    return DONE if by_hand.evaluation.feasible else NO_PLAN


def _show(by_hand: Plan, planned: Plan, options: argparse.Namespace, console: Console) -> None:
    """The figures of both plans in two columns, then the rules that the map breaks."""
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
        capacity = f"of {format_bytes(device.memory_bytes)}"
        rows.append((f"memory of {device.name}", *map(format_bytes, both_bytes), capacity))
    document = {"by_hand": _figures(a), "planner": _figures(b), "output": str(options.output)}
    title = f"{a.graph.name} by {options.map} → {options.output}"
    console.show(document, title, ("", "by hand", planned.solver, "change"), rows)
    for violation in a.evaluation.violations:
        console.error(f"the map breaks a rule: {violation}")


def _figures(plan: Plan) -> dict[str, Any]:
    """The object that ``--json`` shows for one plan."""
    names = [device.name for device in plan.cluster.devices]
    return {
        **attributes(plan, "objective_s", "bound_s", "gap", "period_s", "latency_s", "samples_per_s"),
        "memory_bytes": dict(zip(names, plan.evaluation.memory_bytes.tolist(), strict=True)),
        "violations": list(plan.evaluation.violations),
        "solver": plan.solver,
        "placement": {op.name: plan.device_of(op.name) for op in plan.graph.ops},
    }
