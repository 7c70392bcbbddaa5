"""Run a plan in PyTorch, check the answers, and compare what was predicted with what is measured.

planner run plan.json examples.networks:googlenet
planner run plan.json examples.networks:googlenet -o run.json && planner show plan.json --measured run.json
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodels.cluster import Device
from costmodels.units import format_seconds
from planner.cli.console import Console
from planner.cli.figures import DISTURBED_CORES, figures_document, show_figures, told_interrupted
from planner.cli.files import declare_writes
from planner.cli.models import declare_model, import_for
from planner.cli.numbers import at_least_one, whole
from planner.cli.statuses import DIFFERENT, DONE
from planner.plans.compare import OFF, Comparison, Figure, compare
from planner.plans.files import load_plan
from planner.plans.plan import Plan
from planner.plans.runs import save_run
from planner.problem.result import Interrupted
from simulator.timeline import Timeline

if TYPE_CHECKING:
    from planner.runtime.benchmark.check import Answers
    from planner.runtime.benchmark.measure import BenchmarkResult
    from planner.runtime.inference.runner import Runner

RECORDED = 16  # micro-batches whose stages are timed


def declare(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``planner run``."""
    declare_measuring(parser)
    parser.add_argument("--processes", action="store_true", help="give each device a process of its own")


def declare_measuring(parser: argparse.ArgumentParser) -> None:
    """Those of them that a run by torchrun has too."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.json")
    declare_model(parser)
    parser.add_argument("--rounds", type=at_least_one, default=5, metavar="N", help="turns of each contender (5)")
    parser.add_argument("--seed", type=whole, default=0, metavar="N", help="of random operators in inference (0)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the recorded run, for `planner show`")
    declare_writes(parser, "output")


def run(options: argparse.Namespace, console: Console) -> int:
    """Run, check, measure, print."""
    plan = load_plan(options.plan)
    if plan.workload.trains:
        from planner.cli.training_run import run_training

        return run_training(plan, options, console)
    from planner.runtime.start import start

    program = import_for(plan, options, console)
    with start(plan, program, processes=options.processes, seed=options.seed) as runner:
        return run_with(runner, options, console, plan.cluster.devices)


def run_with(runner: "Runner", options: argparse.Namespace, console: Console, beside: Sequence[Device]) -> int:
    """Check, measure, print.

    Args:
        runner: the plan's.
        options: from `declare_measuring`.
        console: where to print.
        beside: devices of this host on which the reference model runs, to compare with; none where there is none.
    """
    from planner.runtime.benchmark.check import compare_outputs
    from planner.runtime.benchmark.measure import Planned, baselines, measure

    plan = runner.plan
    answers = None
    if beside:
        console.on_step("comparing the answers", 0, 0)
        answers = compare_outputs(runner)
    contenders = [Planned(runner), *(baselines(runner.program, beside) if beside else [])]
    for _ in runner.replay(runner.program.example_arguments, 2):
        pass  # the first ones take longer
    recorded = record_run(runner)  # before Ctrl-C, which may end processes that another program has started
    try:
        measurement, interrupted = measure(contenders, options.rounds, console.on_step, runner.pids), False
    except Interrupted as stopped:
        measurement, interrupted = stopped.best, True
    if options.output is not None:
        save_run(plan, recorded, options.output)
    comparison = compare_run(plan, recorded, measurement)
    show_measurement(plan, measurement, comparison, answers, console)
    if comparison.off and measurement.foreign_cores <= DISTURBED_CORES:
        console.say(
            f"a total is off by more than {OFF:.0%}: measure this machine again with "
            f"`planner calibrate {options.model} --again` and plan again"
        )
    if interrupted:
        return told_interrupted(console)
    return DIFFERENT if answers and answers.wrong else DONE


def record_run(runner: "Runner", micro_batches: int = RECORDED) -> Timeline:
    """Stream some micro-batches and time their stages."""
    runner.record()
    for _ in runner.replay(runner.program.example_arguments, micro_batches):
        pass
    return runner.timeline()


def compare_run(plan: Plan, recorded: Timeline, measurement: "BenchmarkResult") -> Comparison:
    """Stages and devices as recorded; the totals are those of the measurement."""
    measured = measurement["plan"]
    totals = (
        Figure("time per micro-batch", plan.period_s, measured.period_s),
        Figure("latency", plan.latency_s, measured.latency_s),
    )
    return compare(plan.simulate(RECORDED), recorded, totals)


def show_measurement(
    plan: Plan, measurement: "BenchmarkResult", comparison: Comparison, answers: "Answers | None", console: Console
) -> None:
    """A row for each contender, then predicted against measured, then whether the answers are the same.

    Args:
        plan: that ran.
        measurement: of it and of others.
        comparison: with what was predicted.
        answers: beside the reference model's; None where they were not compared.
        console: where to print.
    """
    batch = plan.workload.batch
    used = len(set(plan.placement.device))
    rows = [
        ("plan, predicted", str(used), f"{plan.samples_per_s:.4g}", format_seconds(plan.latency_s), ""),
        *(
            (
                f"{one.name}, measured",
                str(used) if one.name == "plan" else "1",
                f"{batch / one.period_s:.4g}",
                format_seconds(one.latency_s),
                "" if one.name == "plan" else f"{measurement.speedup('plan', one.name):.2f}×",
            )
            for one in measurement.contenders
        ),
    ]
    columns = ("", "devices", "samples/s", "latency", "plan is faster by")
    document = _document(plan, measurement, comparison, answers)
    console.show(document, f"{plan.graph.name}, micro-batches of {batch}", columns, rows)
    show_figures(comparison, "per micro-batch", console)
    for line in answers.wrong if answers else ():
        console.error(f"the answers differ: {line}")
    if answers is None:
        console.say("no rank has the whole model, so the answers were not compared; planner verify does")
    elif answers.unknown:
        console.say(f"the answers were not compared: {answers.unknown}")
    elif not answers.wrong:
        off = f"within {answers.rounding:.2g} of the largest element of" if answers.rounding else "bit-equal to"
        console.say(f"the answers are {off} the reference model's")
    if measurement.foreign_cores > DISTURBED_CORES:
        console.say(f"other processes used {measurement.foreign_cores:.2f} cores meanwhile: the figures are disturbed")


def _document(
    plan: Plan, measurement: "BenchmarkResult", comparison: Comparison, answers: "Answers | None"
) -> dict[str, Any]:
    """What ``--json`` shows."""
    batch, measured = plan.workload.batch, measurement["plan"]
    known = None if answers is None or answers.unknown else answers
    return {
        "bit_equal": None if known is None else not known.wrong and not known.rounding,
        "differences": None if known is None else list(known.wrong),
        "rounding": None if known is None else known.rounding,
        "predicted": {"samples_per_s": plan.samples_per_s, "latency_s": plan.latency_s},
        "measured": {
            one.name: {"samples_per_s": batch / one.period_s, "latency_s": one.latency_s}
            for one in measurement.contenders
        },
        "speedup": {
            one.name: measurement.speedup("plan", one.name) for one in measurement.contenders if one is not measured
        },
        "against_prediction": figures_document(comparison),
        "foreign_cores": measurement.foreign_cores,
    }
