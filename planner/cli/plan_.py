"""Find where every operator runs, with a proof of how good that is.

planner plan examples.networks:googlenet --cluster cluster.toml --goal throughput --devices 2
planner plan examples.networks:googlenet --split-cpu auto --goal throughput
planner plan examples.networks:googlenet --cluster cluster.toml --goal latency --pin 'conv1*=cpu0' -o latency.json
planner plan examples.networks:googlenet --cluster cluster.toml --goal training --schedule 1f1b --micro-batches 16
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from costmodels.cluster import KERNELS, Cluster
from costmodels.clusterfile import read_cluster
from costmodels.table import Source
from costmodels.units import format_bytes, format_seconds
from graphs.errors import InputError
from planner.calibrate import divisions
from planner.cli.console import Console
from planner.cli.files import declare_output
from planner.cli.models import (
    at_least_one,
    constraints_of,
    declare_constraints,
    declare_kernels,
    declare_model,
    declare_search,
    declare_split,
    declare_workload,
    share,
    workload_of,
)
from planner.cli.statuses import DONE, NO_PLAN
from planner.cli.text import aligned, count
from planner.plan import Search, batch_of, plan
from planner.plans import Plan, plan_to_dict, save_plan
from planner.portfolio import AUTO, SOLVERS
from planner.problem import Goal
from planner.result import NoPlanError
from planner.split_cpu import AUTO as AUTO_SPLIT
from planner.split_cpu import Choice, choose, predicted_s


def declare(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``planner plan``."""
    declare_model(parser)
    devices = parser.add_mutually_exclusive_group(required=True)
    devices.add_argument("--cluster", type=Path, metavar="FILE", help="cluster.toml with the devices")
    declare_split(devices, "this host as calibrated, its CPU divided into N equal devices; auto: the best N")
    declare_kernels(parser)
    parser.add_argument("--goal", choices=[str(goal) for goal in Goal], required=True, help="what to minimise")
    parser.add_argument("--devices", type=at_least_one, metavar="N", help="use the first N devices (all)")
    declare_workload(parser)
    parser.add_argument(
        "--replicas", type=at_least_one, default=1, metavar="N", help="for training: divide into N equal pipelines"
    )
    declare_search(parser, 10.0)
    parser.add_argument("--solver", default=AUTO, metavar="NAME", help=f"{', '.join([AUTO, *SOLVERS])} ({AUTO})")
    parser.add_argument("--gap", type=share, default=Search.gap, metavar="G", help="a gap that is good enough (0.05)")
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
    declare_output(parser, "plan.json")


def run(options: argparse.Namespace, console: Console) -> int:
    """Import, plan, write plan.json, print what it promises."""
    clusters = _clusters(options)
    from graphs.importers.load import load_graph

    console.on_step(f"importing {options.model}", 0, 0)
    graph = load_graph(options.model, options.batch, options.goal == Goal.TRAINING)
    search = Search(options.solver, options.time_limit, options.gap, options.seed, options.robust, console)
    constraints = constraints_of(options)

    def make(cluster: Cluster) -> Plan:
        what = f"{graph.name} for {options.goal} on {count(len(cluster.devices), 'device')}"
        console.searching(f"planning {what}", options.time_limit)
        workload = workload_of(options, batch_of(graph), len(cluster.devices))
        return plan(
            graph, cluster=cluster, goal=options.goal, workload=workload, constraints=constraints, search=search
        )

    try:
        choice = choose(clusters, make, constraints)
    except NoPlanError as error:
        console.error(str(error))
        return NO_PLAN
    save_plan(choice.plan, options.output)
    show_plan(choice.plan, options.output, console, choice if options.split_cpu == AUTO_SPLIT else None)
    return DONE


def _clusters(options: argparse.Namespace) -> tuple[Cluster, ...]:
    """The devices: those of the file, or this host's for each division of its CPU."""
    if options.split_cpu is None:
        if options.kernels != KERNELS[0]:
            raise InputError("--kernels goes with --split-cpu; with --cluster, give it to `planner calibrate`")
        cluster = read_cluster(options.cluster)
        cluster = cluster if options.devices is None else cluster.first(options.devices)
        if options.replicas > 1 and options.goal != Goal.TRAINING:
            raise InputError(f"--replicas is for training and the goal is {options.goal}; leave it out")
        return (cluster.divided(options.replicas),)
    if options.devices is not None:
        raise InputError("--devices and --split-cpu both say how many devices there are; leave out one of them")
    return divisions(options.split_cpu, kernels=options.kernels)


def show_plan(found: Plan, output: Path, console: Console, choice: Choice | None = None) -> None:
    """A row for each device, then what is predicted and how good it is, and what it was chosen from."""
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
    document |= {"divisions": list(_divisions(choice))} if choice else {}
    console.show({**document, "output": str(output)}, f"{found.graph.name} for {found.goal} → {output}", columns, rows)
    work = found.workload
    if work.trains:
        again = ", recomputing" if work.recompute else ""
        copies = f", in each of {found.cluster.replicas.count} replicas" if found.cluster.replicas else ""
        what = f"one step of {work.micro_batches} micro-batches of {work.batch} by {work.schedule}{again}{copies}"
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
    if choice:
        for line in _division_lines(choice):
            console.say(line)


def _divisions(choice: Choice) -> Iterator[dict[str, Any]]:
    """What ``--json`` shows of each division of the CPU."""
    for one in choice.plans:
        cores = [list(device.cores) for device in one.cluster.devices]
        yield {"cores": cores, "predicted_s": predicted_s(one), "chosen": one is choice.plan}


def _division_lines(choice: Choice) -> Iterator[str]:
    """A row for each division of the CPU, with what decided beside the chosen one."""
    rows = []
    for one in choice.plans:
        cores = sorted({len(device.cores) for device in one.cluster.devices if device.cores})
        width = " and ".join(count(n, "core") for n in cores)
        n_devices = count(sum(bool(device.cores) for device in one.cluster.devices), "device")
        why = f"chosen: {choice.why}" if one is choice.plan else ""
        rows.append([f"{n_devices} of {width}", format_seconds(predicted_s(one)), why])
    yield "divisions of the CPU, and what is predicted for each:"
    yield from aligned(rows, "lrl")
