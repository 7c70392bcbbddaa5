"""Find where every operator runs, with a proof of how good that is."""

import argparse
from pathlib import Path

from costmodels.clusterfile import read_cluster
from costmodels.memory.optimizers import OPTIMIZERS
from costmodels.table import Source
from costmodels.units import format_bytes, format_seconds
from costmodels.workload import Workload
from planner.cli.console import Console
from planner.cli.models import at_least_one, constraints_of, declare_constraints, declare_model, positive_seconds, share
from planner.plan import NoPlanError, Search, batch_of, plan
from planner.plans import Plan, plan_to_dict, save_plan
from planner.portfolio import AUTO, SOLVERS
from planner.problem import Goal
from simulator.schedules import SCHEDULES

NO_PLAN = 1


def declare(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``planner plan``."""
    declare_model(parser)
    parser.add_argument("--cluster", type=Path, required=True, metavar="FILE", help="cluster.toml with the devices")
    parser.add_argument("--goal", choices=[str(goal) for goal in Goal], required=True, help="what to minimise")
    parser.add_argument("--devices", type=at_least_one, metavar="N", help="use the first N devices (all)")
    parser.add_argument("--schedule", choices=list(SCHEDULES), default="1f1b", help="for training: the order (1f1b)")
    parser.add_argument(
        "--micro-batches", type=at_least_one, default=8, metavar="N", help="for training: of one step (8)"
    )
    parser.add_argument("--optimizer", choices=list(OPTIMIZERS), default="sgd", help="for training: its state (sgd)")
    parser.add_argument(
        "--in-flight", type=at_least_one, metavar="N", help="micro-batches on their way at once (twice the devices)"
    )
    parser.add_argument("--time-limit", type=positive_seconds, default=10.0, metavar="S", help="seconds to search (10)")
    parser.add_argument("--solver", default=AUTO, metavar="NAME", help=f"{', '.join([AUTO, *SOLVERS])} ({AUTO})")
    parser.add_argument("--gap", type=share, default=Search.gap, metavar="G", help="a gap that is good enough (0.05)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of every random choice (0)")
    parser.add_argument(
        "--robust",
        type=at_least_one,
        nargs="?",
        const=20,
        default=0,
        metavar="N",
        help="lose least if costs are wrong: draw N sets of errors (20) from their spread",
    )
    declare_constraints(parser)
    parser.add_argument("-o", "--output", type=Path, default=Path("plan.json"), help="file to write (plan.json)")


def run(options: argparse.Namespace, console: Console) -> int:
    """Import, plan, write plan.json, print what it promises."""
    cluster = read_cluster(options.cluster)
    if options.devices is not None:
        cluster = cluster.first(options.devices)
    from graphs.importers.load import load_graph

    console.on_step(f"importing {options.model}", 0, 0)
    graph = load_graph(options.model, options.batch)
    workload = Workload(
        mode="training" if options.goal == Goal.TRAINING else "inference",
        batch=batch_of(graph),
        in_flight=options.in_flight or 2 * len(cluster.devices),
        optimizer=options.optimizer,
        micro_batches=options.micro_batches,
        schedule=options.schedule,
    )
    search = Search(options.solver, options.time_limit, options.gap, options.seed, options.robust, console)
    console.on_step(f"planning {graph.name} for {options.goal}", 0, 0)
    try:
        found = plan(
            graph,
            cluster=cluster,
            goal=options.goal,
            workload=workload,
            constraints=constraints_of(options),
            search=search,
        )
    except NoPlanError as error:
        console.error(str(error))
        return NO_PLAN
    save_plan(found, options.output)
    show_plan(found, options.output, console)
    return 0


def show_plan(found: Plan, output: Path, console: Console) -> None:
    """A row for each device, then what is predicted and how good it is."""
    evaluation = found.evaluation
    count = [0] * found.table.n_devices
    for device in found.placement.device:
        count[device] += 1
    rows = [
        (
            device.name,
            f"{count[i]:,}",
            format_seconds(evaluation.load_s[i]),
            format_bytes(evaluation.memory_bytes[i]),
            format_bytes(device.memory_bytes),
        )
        for i, device in enumerate(found.cluster.devices)
    ]
    document = {key: value for key, value in plan_to_dict(found).items() if key not in ("graph", "costs")}
    columns = ("device", "operators", "busy per micro-batch", "memory", "of")
    console.show({**document, "output": str(output)}, f"{found.graph.name} for {found.goal} → {output}", columns, rows)
    work = found.workload
    if work.trains:
        what = f"one step of {work.micro_batches} micro-batches of {work.batch} by {work.schedule}"
        console.say(f"predicted: {found.samples_per_s:.4g} samples/s, {format_seconds(found.latency_s)} for {what}")
    else:
        alone = f"{format_seconds(found.latency_s)} for one micro-batch of {work.batch}"
        console.say(f"predicted: {found.samples_per_s:.4g} samples/s streaming, {alone}")
    console.say(f"{found.solver}: no plan can be more than {found.gap:.2%} better ({found.status})")
    if found.robustness:
        r = found.robustness
        console.say(
            f"if costs are wrong as their spread says: {r.mean_regret:.2%} from the best on average, "
            f"{r.worst_regret:.2%} at worst of {r.scenarios} draws (else {r.nominal_regret:.2%})"
        )
    learned, guessed = found.table.share(Source.LEARNED), found.table.share(Source.ROOFLINE)
    if learned > 0:
        console.say(f"{learned:.1%} of the operators' time was learned; `planner calibrate MODEL` measures it")
    if guessed > 0:
        console.say(
            f"{guessed:.1%} of the operators' time was estimated, not measured; `planner calibrate MODEL` measures it"
        )
