"""Run a plan in PyTorch, check the answers, and compare what was predicted with what is measured.

planner run plan.json examples.networks:googlenet
planner run row.json package.module:factory
planner run plan.json package.module:language_model --generate 64
planner run plan.json examples.networks:googlenet -o run.json && planner show plan.json --measured run.json
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodels.cluster.cluster import Device
from costmodels.profile_cache import add_moment
from graphs.common.errors import InputError
from planner.cli.console import Console
from planner.cli.figures import (
    contender_rows,
    figures_document,
    pace_document,
    say_doubts,
    show_figures,
    show_usage,
    told_interrupted,
)
from planner.cli.files import declare_writes
from planner.cli.generation_run import check_generate, run_generation
from planner.cli.models import declare_model, declare_weights, import_for
from planner.cli.numbers import at_least_one, whole
from planner.cli.statuses import DIFFERENT, DONE
from planner.parallelism.closed_form.config_file import is_config, load_config
from planner.planning.autotune import DISTURBED_CORES
from planner.plans.compare import Comparison, compare_stream, pace_change, paced_devices
from planner.plans.files import load_plan
from planner.plans.plan import Plan
from planner.plans.runs import MeasuredRun, save_run, streamed
from planner.problem.result import Interrupted

if TYPE_CHECKING:
    from planner.runtime.benchmark.check import Answers
    from planner.runtime.benchmark.measure import BenchmarkResult
    from planner.runtime.inference.runner import Runner

MOST_PROCESSES = 64  # of a row; each takes a third of a gigabyte before it has any weights


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``planner run``."""
    declare_measuring(parser)
    parser.add_argument("--processes", action="store_true", help="give each device a process of its own")
    declare_generate(parser)


def declare_measuring(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that a run by torchrun has too."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.json, or a row of planner choose")
    declare_model(parser)
    declare_weights(parser)
    parser.add_argument("--rounds", type=at_least_one, default=5, metavar="N", help="turns of each contender (5)")
    parser.add_argument("--seed", type=whole, default=0, metavar="N", help="seed of random operators in inference (0)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the recorded run, for `planner show`")
    parser.add_argument(
        "--against",
        type=lambda text: tuple(text.split(",")),
        default=(),
        metavar="NAMES",
        help="compare with these, separated by commas: onnxruntime, openvino (float32), openvino-bf16",
    )
    declare_writes(parser, "output")


def declare_generate(parser: argparse.ArgumentParser) -> None:
    """Declare --generate."""
    help = "of a plan for generation: continue random prompts by N tokens each"
    parser.add_argument("--generate", type=at_least_one, metavar="N", help=help)


def run(options: argparse.Namespace, console: Console) -> int:
    """Run the plan, check its answers, measure it and print the figures."""
    if is_config(options.plan):
        return _run_row(options, console)
    plan = load_plan(options.plan)
    check_generate(plan, options)
    if plan.workload.generates:
        return run_generation(plan, options, console)
    if plan.workload.trains:
        from planner.cli.training_run import run_training

        return run_training(plan, options, console)
    from planner.runtime.start import start

    program = import_for(plan, options, console)
    with start(plan, program, processes=options.processes, seed=options.seed, share_weights=True) as runner:
        return run_with(runner, options, console, plan.cluster.devices)


def check_row_options(options: argparse.Namespace) -> None:
    """Check that no option is of plans alone; a row says itself how large its micro-batches are."""
    for name in ("output", "against", "batch", "generate"):
        if getattr(options, name, None):
            raise InputError(f"--{name} is for plans; leave it out for a row of planner choose")


def _run_row(options: argparse.Namespace, console: Console) -> int:
    """Train a row of ``planner choose`` small, in a process for each of its devices on this host; rank 0 prints."""
    from planner.runtime.hybrid.launch import run_ranks

    check_row_options(options)
    config = load_config(options.plan)
    if config.devices > MOST_PROCESSES:
        raise InputError(
            f"'{options.plan}' is for {config.devices} devices, and this host trains in {MOST_PROCESSES} processes at "
            f"most; choose with --devices {MOST_PROCESSES}, or run it on several hosts with torchrun -m planner rank"
        )
    console.on_step(f"training in {config.devices} processes", 0, 0)
    words = [str(options.plan), options.model, "--rounds", str(options.rounds), "--seed", str(options.seed)]
    words += [word for name, size in options.sizes for word in ("--size", f"{name}={size}")]
    end = run_ranks([*words, *(["--json"] if console.json else [])], config.devices)
    if end.said and (console.json or not console.quiet):
        console.print(end.said)
    if end.trouble:
        console.error(end.trouble)
    return end.status


def run_with(runner: "Runner", options: argparse.Namespace, console: Console, beside: Sequence[Device]) -> int:
    """Check the answers of a runner, measure it and print the figures.

    The reference model runs on the devices in `beside`; there are none if this process does not hold the whole model.
    """
    from planner.runtime.benchmark.check import compare_outputs
    from planner.runtime.benchmark.load import Load
    from planner.runtime.benchmark.measure import PlannedContender, baselines, measure
    from planner.runtime.benchmark.peers import check_peers, peers

    plan = runner.plan
    check_peers(options.against, beside)
    answers = None
    if beside:
        console.on_step("comparing the answers", 0, 0)
        answers = compare_outputs(runner)
    paced = paced_devices(plan)
    load = Load(runner.pids, plan)
    planned = PlannedContender(runner, meter=load.meter)
    contenders = [planned, *(baselines(runner.program, beside) if beside else [])]
    with peers(runner.program, beside, options.against) as others:
        try:
            measurement, interrupted = measure([*contenders, *others], options.rounds, console.on_step, load), False
        except Interrupted as stopped:
            measurement, interrupted = stopped.best, True
    if options.output is not None:
        save_run(plan, run_of(plan, measurement), options.output)
    show_measurement(plan, measurement, answers, console)
    if paced and measurement.foreign_cores <= DISTURBED_CORES:
        add_moment(paced[0], measurement.paces)
    if interrupted:
        return told_interrupted(console)
    return DIFFERENT if answers and answers.wrong else DONE


def run_of(plan: Plan, measurement: "BenchmarkResult") -> MeasuredRun:
    """Return the measured run of the plan."""
    measured = measurement["plan"]
    assert measured.stream is not None, "streams of a plan are recorded"
    return streamed(plan, measured.stream, measured.period_s, measured.latency_s)


def show_measurement(plan: Plan, measurement: "BenchmarkResult", answers: "Answers | None", console: Console) -> None:
    """Print a row for each contender, then predicted against measured, then whether compared answers are equal."""
    batch, speedup, own = plan.workload.batch, partial(measurement.speedup, "plan"), measurement["plan"]
    assert own.stream is not None, "streams of a plan are recorded"
    compared = compare_stream(plan, own.stream, own.period_s, own.latency_s)
    comparison = replace(compared, pace=pace_change(plan, own.paces))
    measured = ((c.name, batch / c.period_s, c.latency_s, speedup(c.name)) for c in measurement.contenders)
    columns = ("", "devices", "samples/s", "latency", "plan is faster by")
    title, document = f"{plan.graph.name}, micro-batches of {batch}", _document(plan, measurement, comparison, answers)
    console.show(document, title, columns, contender_rows(plan, measured))
    show_figures(comparison, "per micro-batch", console)
    show_usage(comparison, console)
    for line in answers.wrong if answers else ():
        console.error(f"the answers differ: {line}")
    if answers is None:
        console.say("no rank has the whole model, so the answers were not compared; planner verify does")
    elif answers.unknown:
        console.say(f"the answers were not compared: {answers.unknown}")
    elif not answers.wrong:
        off = f"within {answers.rounding:.2g} of the largest element of" if answers.rounding else "bit-equal to"
        console.say(f"the answers are {off} the reference model's")
    say_doubts(comparison, measurement.foreign_cores, "MODEL", console)


def _document(
    plan: Plan, measurement: "BenchmarkResult", comparison: Comparison, answers: "Answers | None"
) -> dict[str, Any]:
    """Return the object that ``--json`` shows."""
    batch, contenders = plan.workload.batch, measurement.contenders
    compared = None if answers is None or answers.unknown else answers
    return {
        "pace": pace_document(comparison.pace),
        "bit_equal": None if compared is None else not compared.wrong and not compared.rounding,
        "differences": None if compared is None else list(compared.wrong),
        "rounding": None if compared is None else compared.rounding,
        "predicted": {"samples_per_s": plan.samples_per_s, "latency_s": plan.latency_s},
        "measured": {c.name: {"samples_per_s": batch / c.period_s, "latency_s": c.latency_s} for c in contenders},
        "speedup": {c.name: measurement.speedup("plan", c.name) for c in contenders if c.name != "plan"},
        "against_prediction": figures_document(comparison),
        "usage": None if comparison.usage is None else asdict(comparison.usage),
        "foreign_cores": measurement.foreign_cores,
    }
