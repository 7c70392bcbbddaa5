"""Find where every operator runs, with a proof of how good that is.

planner plan examples.networks:googlenet --cluster cluster.toml --goal throughput --devices 2
planner plan examples.networks:googlenet --split-cpu auto --goal throughput
planner plan examples.networks:googlenet --cluster cluster.toml --goal latency --pin 'conv1*=cpu0' -o latency.json
planner plan examples.networks:googlenet --cluster cluster.toml --goal training --schedule 1f1b --micro-batches 16
planner plan Qwen3-30B.gguf --cluster 2xRTX-4090:PCIe4 --goal generation --context 16384
planner plan config.json --cluster cluster.toml --goal generation --prompt 512 --new-tokens 128 --sequences 4
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

from costmodels.cluster.cluster import Cluster
from costmodels.table import Source
from costmodels.units import format_bytes, format_rate, format_seconds
from graphs.common.errors import InputError
from graphs.ir import Graph
from planner.cli.console import Console
from planner.cli.costs import check_token_target, declare_costs, speed_and_cost
from planner.cli.figures import say_unusual_pace
from planner.cli.files import declare_output
from planner.cli.fit_ import show_division
from planner.cli.generation import GENERATION_COLUMNS, generation_lines, generation_rows, tokens_document
from planner.cli.models import (
    CLUSTER,
    FileOrTokens,
    cluster_option,
    constraints_of,
    declare_constraints,
    declare_generation,
    declare_kernels,
    declare_model,
    declare_rewrites,
    declare_search,
    declare_split,
    declare_weights,
    declare_workload,
    model_of,
    workload_of,
)
from planner.cli.numbers import at_least_one, share
from planner.cli.plan_training import save_row, training_lines
from planner.cli.statuses import DONE, INTERRUPTED, NO_PLAN
from planner.cli.text import aligned, count, first_items
from planner.explanations.explain import estimated_kinds
from planner.planning.autotune import DISTURBED_CORES
from planner.planning.calibrate import divisions
from planner.planning.cpu_partitions import AUTO as AUTO_SPLIT
from planner.planning.cpu_partitions import PartitionChoice
from planner.planning.fastest_training import OnlyRowError
from planner.planning.find_plan import find_plan
from planner.planning.layers import divided_layers
from planner.planning.make_plan import Search
from planner.planning.question import PlanQuestion
from planner.planning.rewriting import AUTO_REWRITES, NO_REWRITES
from planner.planning.todays_pace import unusual_pace
from planner.plans.compare import OFF, Figure
from planner.plans.files import answer_to_dict, save_plan
from planner.plans.plan import Plan
from planner.problem.infeasible import out_of_reach
from planner.problem.problem import Goal
from planner.problem.result import Interrupted, NoPlanError
from planner.solvers.portfolio import AUTO, SOLVERS

ESTIMATE = "estimated, not measured"
GUESSED = 4  # kinds without a formula that are named; `planner explain --json` has all
BY_LAYERS = (
    "note: layers are divided, as no operator can run here; `planner fit` does the same, with --weights, --cache, "
    "--engine, pictures, and rows for a server"
)
COLUMNS = ("device", "operators", "busy per micro-batch", "memory", "of")


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``planner plan``."""
    declare_question(parser, "this host as calibrated, its CPU divided into N equal devices; auto: the best N")
    parser.add_argument(
        "--no-autotune",
        dest="autotuning",
        action="store_false",
        help="with --split-cpu auto: choose by prediction, without running plans for some seconds",
    )
    declare_output(parser, "plan.json", FileOrTokens)


def declare_question(parser: argparse.ArgumentParser, split: str) -> None:
    """Declare what is planned for, and how plans are searched; ``split`` is the help of --split-cpu."""
    declare_model(parser)
    declare_weights(parser)
    devices = parser.add_mutually_exclusive_group(required=True)
    devices.add_argument("--cluster", type=Path, metavar="FILE", help=CLUSTER)
    declare_split(devices, split)
    declare_kernels(parser)
    declare_rewrites(parser)
    parser.add_argument("--goal", choices=[str(goal) for goal in Goal], required=True, help="what to optimise")
    parser.add_argument("--devices", type=at_least_one, metavar="N", help="use the first N devices (all)")
    declare_workload(parser)
    parser.add_argument(
        "--replicas", type=at_least_one, metavar="N", help="for training: divide into N equal pipelines (1)"
    )
    declare_search(parser, 10.0)
    parser.add_argument("--solver", default=AUTO, metavar="NAME", help=f"{', '.join([AUTO, *SOLVERS])} ({AUTO})")
    parser.add_argument("--gap", type=share, default=Search.gap, metavar="G", help="stop at a gap of at most G (0.05)")
    parser.add_argument(
        "--robust",
        type=at_least_one,
        nargs="?",
        const=20,
        default=0,
        metavar="N",
        help="lose least if costs are wrong: judge by N sets of costs (20), drawn from their spread",
    )
    declare_constraints(parser)
    declare_generation(parser)
    declare_costs(parser)
    parser.set_defaults(autotuning=True)


def question_of(options: argparse.Namespace, console: Console) -> PlanQuestion:
    """Return the question that the options of `declare_question` describe."""
    limits = options.time_limit, options.gap, options.seed, options.robust
    return PlanQuestion(
        model=model_of(options),
        cluster=cluster_of_question(options),
        goal=Goal(options.goal),
        workload=workload_of(options),
        constraints=constraints_of(options),
        search=Search(options.solver, *limits, console, options.rewrites, options.autotuning),
    )


def run(options: argparse.Namespace, console: Console) -> int:
    """Import the model, make a plan, write plan.json and print the predictions."""
    if options.split_cpu != AUTO_SPLIT and not options.autotuning:
        raise InputError("--no-autotune goes with --split-cpu auto; there is nothing to try here, leave it out")
    question = question_of(options, console)
    if question.by_layers:
        _check_no_costs(options)
        status = show_division(divided_layers(question), options.output, console)
        console.note(BY_LAYERS)
        return status
    check_token_target(options, question.graph)
    if not isinstance(question.imported, Graph):  # which nothing here can run
        say_unusual_pace(unusual_pace(question.clusters[0]), console)
    try:
        found = find_plan(question)
    except NoPlanError as error:
        console.error(str(error))
        if isinstance(error, OnlyRowError):
            console.say(save_row(error.row, options))
        return NO_PLAN
    except Interrupted as stopped:
        save_plan(stopped.best, options.output)
        show_plan(stopped.best, options, console)
        console.error(f"interrupted: '{options.output}' is the best plan until then")
        return INTERRUPTED
    save_plan(found.plan, options.output)
    divided = options.split_cpu == AUTO_SPLIT
    show_plan(found.plan, options, console, _choice_document(found.divisions) if divided else {})
    lines = (
        training_lines(found.training, options),
        _unchanged(found.plan, options),
        _choice_lines(found.divisions, options) if divided else (),
    )
    for line in chain.from_iterable(lines):
        console.say(line)
    return DONE


def _check_no_costs(options: argparse.Namespace) -> None:
    """Refuse what only a plan of operators prints."""
    for name in ("price", "tokens", "samples"):
        if getattr(options, name) is not None:
            raise InputError(f"--{name} is for plans of operators, and layers are divided here; leave it out")


def _unchanged(plan: Plan, options: argparse.Namespace) -> Iterator[str]:
    """That the rewrites that were asked for change nothing."""
    asked = options.rewrites not in (AUTO_REWRITES, NO_REWRITES)
    if asked and not plan.rewrites and not plan.placement.others:
        yield f"--rewrites {options.rewrites} changes nothing in the plan of {plan.graph.name}: it would save nothing"


def cluster_of_question(options: argparse.Namespace) -> Cluster | tuple[Cluster, ...]:
    """Return the cluster of the file, or this host as a cluster for each division of its CPU."""
    if options.split_cpu is None:
        if options.kernels is not None:
            raise InputError("--kernels goes with --split-cpu; with --cluster, give it to `planner calibrate`")
        cluster = cluster_option(options)
        if (options.replicas or 1) > 1 and options.goal != Goal.TRAINING:
            raise InputError(f"--replicas is for training and the goal is {options.goal}; leave it out")
        return cluster if options.price is None else cluster.priced(options.price)
    if options.price is not None:
        raise InputError("--price goes with --cluster; this host costs nothing more, leave it out")
    if options.devices is not None:
        raise InputError("--devices and --split-cpu both say how many devices there are; leave out one of them")
    if (options.replicas or 1) > 1:
        raise InputError("--replicas goes with --cluster; the divisions of one CPU have no replicas, leave it out")
    return divisions(options.split_cpu, kernels=options.kernels)


def show_plan(
    plan: Plan, options: argparse.Namespace, console: Console, more: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Print a row for each device, then the predictions, what they cost and the proof; with --json also ``more``."""
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    lines: Iterator[str]
    if plan.workload.generates:
        speed, lines = tokens_document(plan), generation_lines(plan)
        columns, rows = GENERATION_COLUMNS, generation_rows(plan)
    else:
        (speed, speed_lines), (columns, rows) = speed_and_cost(plan, options), (COLUMNS, _device_rows(plan))
        lines = chain(_predicted(plan), speed_lines)
    document = answer_to_dict(plan)
    advice = out_of_reach(plan.table, plan.placement)
    times = plan.times_one_device
    document |= {**speed, "times_one_device": times, "advice": advice, **more, "output": str(options.output)}
    console.show(document, f"{plan.graph.name} for {plan.goal} → {options.output}", columns, rows)
    calibrate = f"`{_calibrate('MODEL', options)}`"
    for line in chain(lines, _compared_with_one(plan), [advice] if advice else [], _proof(plan), _further(plan)):
        console.say(line)
    shares = plan.time_shares
    estimated = shares.get(Source.ESTIMATED, 0.0) + shares.get(Source.ROOFLINE, 0.0)
    for part, how in ((shares.get(Source.LEARNED, 0.0), "learned"), (estimated, ESTIMATE)):
        if part:
            console.say(f"{part:.1%} of the operators' time was {how}; {calibrate} measures it")
    guessed = [f"{each.kind} ({each.share:.1%})" for each in estimated_kinds(plan) if each.guessed]
    if guessed:
        console.say(
            f"ranges are wider for kinds without a formula, whose work is a guess: {first_items(guessed, GUESSED)}"
        )


def _device_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return a row for each device, see `COLUMNS`."""
    return [
        (
            device.name,
            f"{len(plan.placement.operators(i)):,}",
            format_seconds(plan.busy_s[i]),
            format_bytes(plan.evaluation.memory_bytes[i]),
            format_bytes(device.usable_bytes),
        )
        for i, device in enumerate(plan.cluster.devices)
    ]


def _predicted(plan: Plan) -> Iterator[str]:
    """Yield the predictions with their ranges."""
    work = plan.workload
    if work.trains:
        again = {"none": "", "selective": ", recomputing selectively", "full": ", recomputing"}[work.recompute]
        copies = f", in each of {plan.cluster.replicas.count} replicas" if plan.cluster.replicas else ""
        what = f"one step of {work.micro_batches} micro-batches of {work.batch} by {work.schedule}{again}{copies}"
        yield f"predicted: {format_rate(plan.samples_per_s)} samples/s, {format_seconds(plan.latency_s)} for {what}"
        yield f"80 % of runs: {plan.latency_range}"
        return
    alone = f"{format_seconds(plan.latency_s)} for one micro-batch of {work.batch}"
    yield f"predicted: {format_rate(plan.samples_per_s)} samples/s streaming, {alone}"
    slowest, fastest = plan.samples_per_s / plan.spread().factor, plan.samples_per_s * plan.spread().factor
    yield f"80 % of runs: {format_rate(slowest)} – {format_rate(fastest)} samples/s, {plan.latency_range}"


def _compared_with_one(plan: Plan) -> Iterator[str]:
    """Yield how much faster the plan is than the best single device."""
    times, one = plan.times_one_device, plan.one_device
    if one is None or times is None:
        yield "no single device can run and hold all of it"
    elif plan.n_used == 1:
        yield "all of it runs on one device"
    else:
        alone = one.cluster.devices[one.placement.device[0]].name
        took = f"{alone} alone takes {format_seconds(one.predicted_s)}"
        took += " for a pass of the same groups" if plan.workload.generates else ""
        yield f"{times:.3g} \N{MULTIPLICATION SIGN} one device: {took}"
        if not plan.surely_differs(one):
            yield f"{alone} may well be as fast: predictions are not sure enough to tell the two apart"


def _proof(plan: Plan) -> Iterator[str]:
    """Yield the proof."""
    yield f"{plan.solver}: {plan.proved} ({plan.status})"


def _further(plan: Plan) -> Iterator[str]:
    """Yield what the plan gave away to be simpler, and what it loses if costs are wrong."""
    if plan.simplification:
        yield f"the simplest of what predictions cannot tell apart: {plan.simpler}"
    if plan.robustness:
        r = plan.robustness
        yield (
            f"if costs are wrong as their spread says: {r.mean_regret:.2%} from the best on average, "
            f"{r.worst_regret:.2%} at worst of {r.scenarios:,} draws (else {r.nominal_regret:.2%})"
        )


def _choice_document(choice: PartitionChoice) -> dict[str, Any]:
    """Return the object that ``--json`` shows."""
    autotuning = choice.autotuning
    return {
        "divisions": [
            {
                "cores": [list(device.cores) for device in plan.cluster.devices],
                "predicted_s": plan.predicted_s,
                "measured_s": measured_s,
                "chosen": plan is choice.plan,
            }
            for plan, measured_s in zip(choice.plans, choice.measured_s, strict=True)
        ],
        "why": choice.why,
        "autotuning": {"rounds": autotuning.rounds, "foreign_cores": autotuning.foreign_cores} if autotuning else None,
        "untried": choice.untried or None,
    }


def _choice_lines(choice: PartitionChoice, options: argparse.Namespace) -> Iterator[str]:
    """Yield a row for each division of the CPU, why one was chosen, and how good the predictions were."""
    rows = [["divisions of the CPU", "predicted", "measured" if choice.autotuning else "", ""]]
    figures = []
    for plan, measured_s in zip(choice.plans, choice.measured_s, strict=True):
        divided = [device for device in plan.cluster.devices if device.cores]
        cores = [count(n, "core") for n in sorted({len(device.cores) for device in divided})]
        name, measured = f"{count(len(divided), 'device')} of {' and '.join(cores)}", ""
        if measured_s is not None:
            figures.append(Figure(name, plan.predicted_s, measured_s))
            measured = format_seconds(measured_s)
        why = f"chosen: {choice.why}" if plan is choice.plan else ""
        rows.append([name, format_seconds(plan.predicted_s), measured, why])
    yield from aligned(rows, "<>><", indent=0)
    if choice.untried:
        yield f"not tried: {choice.untried}"
    if choice.autotuning and choice.autotuning.foreign_cores > DISTURBED_CORES:
        others = f"other processes used {choice.autotuning.foreign_cores:.2f} cores meanwhile"
        yield f"{others}: the choice is disturbed; plan again when they have ended"
    elif off := [figure for figure in figures if abs(figure.error) > OFF]:
        yield f"off from what was predicted: {', '.join(f'{one.name} by {one.error:+.1%}' for one in off)}"
        yield f"`{_measured_again(options)}` measures anew what that rests on"


def _calibrate(model: str, options: argparse.Namespace) -> str:
    """Return the command that measures what a plan with these options rests on."""
    batch = "" if options.batch is None else f" --batch {options.batch}"
    sizes = "".join(f" --size {name}={size}" for name, size in options.sizes)
    training = " --training" if options.goal == Goal.TRAINING else ""
    if options.goal == Goal.GENERATION:
        names = ("prompt", "new_tokens", "sequences", "context", "rows")
        asked = ((name.replace("_", "-"), getattr(options, name)) for name in names)
        training = " --generation" + "".join(f" --{name} {value}" for name, value in asked if value is not None)
        training += "" if options.weights is None else f" --weights {options.weights}"
    rewrites = "" if options.rewrites == AUTO_REWRITES else f" --rewrites {options.rewrites}"
    return f"planner calibrate {model}{batch}{sizes}{training}{rewrites}"


def _measured_again(options: argparse.Namespace) -> str:
    kernels = "" if options.kernels is None else f" --kernels {options.kernels}"
    return f"{_calibrate(options.model, options)}{kernels} --split-cpu {AUTO_SPLIT} --again"
