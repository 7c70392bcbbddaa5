"""Judge a hand-made device map, split points or balance, beside what the planner finds.

planner import-map map.json examples.networks:googlenet --cluster cluster.toml -o hand.json
"""

import argparse
from math import isfinite
from pathlib import Path
from typing import Any

from costmodels.clusterfile import read_cluster
from costmodels.units import format_bytes, format_seconds
from planner.cli.console import Console
from planner.cli.files import declare_output
from planner.cli.models import declare_model, declare_search, declare_workload, workload_of
from planner.cli.numbers import at_least_one
from planner.cli.statuses import DONE, INTERRUPTED, NO_PLAN
from planner.cli.text import relative
from planner.export.maps import read_map
from planner.planning.make_plan import Search, batch_of, plan
from planner.plans.by_hand import plan_by_hand
from planner.plans.files import save_plan
from planner.plans.plan import Plan
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
    """Import, place by the map, plan, write the map's plan, print both."""
    given, cluster = read_map(options.map), read_cluster(options.cluster)
    if options.devices is not None:
        cluster = cluster.first(options.devices)
    from graphs.importers.load import load_graph

    console.on_step(f"importing {options.model}", 0, 0)
    graph = load_graph(options.model, options.batch, options.goal == Goal.TRAINING, dict(options.sizes))
    placement = given.placement(graph, cluster)
    search = Search(time_limit_s=options.time_limit, seed=options.seed, reporter=console)
    workload = workload_of(options, options.batch or batch_of(graph), len(cluster.devices))
    interrupted = False
    console.searching(f"planning {graph.name} for {options.goal}", options.time_limit)
    try:
        found = plan(graph, cluster=cluster, goal=options.goal, workload=workload, search=search)
    except NoPlanError as error:
        console.error(str(error))
        return NO_PLAN
    except Interrupted as stopped:
        found, interrupted = stopped.best, True
    by_hand = plan_by_hand(found, placement)
    save_plan(by_hand, options.output)
    _show(by_hand, found, options, console)
    if interrupted:
        console.error("interrupted: the plan beside the map is the best until then")
        return INTERRUPTED
    return DONE if by_hand.evaluation.feasible else NO_PLAN


def _show(by_hand: Plan, found: Plan, options: argparse.Namespace, console: Console) -> None:
    """The figures of both plans in two columns, then what the map breaks."""
    a, b = by_hand, found
    rows = [
        (
            str(a.goal),
            format_seconds(a.objective_s),
            format_seconds(b.objective_s),
            _change(a.objective_s, b.objective_s),
        ),
        ("samples/s", f"{a.samples_per_s:.4g}", f"{b.samples_per_s:.4g}", _change(a.samples_per_s, b.samples_per_s)),
        ("one alone", format_seconds(a.latency_s), format_seconds(b.latency_s), _change(a.latency_s, b.latency_s)),
        ("gap", f"{a.gap:.2%}", f"{b.gap:.2%}", ""),
    ]
    memory = zip(a.cluster.devices, a.evaluation.memory_bytes, b.evaluation.memory_bytes, strict=True)
    rows += [
        (
            f"memory of {device.name}",
            format_bytes(mine),
            format_bytes(theirs),
            f"of {format_bytes(device.memory_bytes)}",
        )
        for device, mine, theirs in memory
    ]
    document = {"by_hand": _figures(a), "planner": _figures(b), "output": str(options.output)}
    title = f"{a.graph.name} by {options.map} → {options.output}"
    console.show(document, title, ("", "by hand", found.solver, "change"), rows)
    for violation in a.evaluation.violations:
        console.error(f"the map breaks a rule: {violation}")


def _change(before: float, after: float) -> str:
    return relative(before, after) if isfinite(before + after) else ""


def _figures(plan: Plan) -> dict[str, Any]:
    """What a script reads of one plan."""
    names = [device.name for device in plan.cluster.devices]
    return {
        "objective_s": plan.objective_s,
        "bound_s": plan.bound_s,
        "gap": plan.gap,
        "period_s": plan.period_s,
        "latency_s": plan.latency_s,
        "samples_per_s": plan.samples_per_s if isfinite(plan.samples_per_s) else None,
        "memory_bytes": dict(zip(names, plan.evaluation.memory_bytes.tolist(), strict=True)),
        "violations": list(plan.evaluation.violations),
        "solver": plan.solver,
        "placement": {op.name: plan.device_of(op.name) for op in plan.graph.ops},
    }
