"""`planner run` for a training plan: check the gradients, and compare what was predicted with what is measured."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.cli.console import Console
from planner.cli.figures import (
    contender_rows,
    figures_document,
    pace_document,
    say_doubts,
    show_figures,
    told_interrupted,
)
from planner.cli.models import import_for
from planner.cli.statuses import DIFFERENT, DONE
from planner.plans.compare import Comparison, Figure, compare, pace_change, stages_of
from planner.plans.plan import Plan
from planner.plans.runs import MeasuredRun, save_run
from planner.problem.result import Interrupted
from simulator.timeline import Timeline

if TYPE_CHECKING:
    from planner.runtime.benchmark.measure import BenchmarkResult
    from planner.runtime.training.check import GradientDifference


STEP = "a step; per micro-batch"  # what is predicted and measured


def run_training(plan: Plan, options: argparse.Namespace, console: Console) -> int:
    """Train with the mean square as the loss, check the gradients, measure and print the figures."""
    from planner.runtime.benchmark.load import Load
    from planner.runtime.benchmark.measure import measure_steps
    from planner.runtime.start import train
    from planner.runtime.training.check import (
        TINY_STEPS,
        ReferenceTraining,
        differing_gradients,
        example_batches,
        mean_square,
    )
    from planner.runtime.training.prepare import check_alone

    check_alone(plan)  # before the model is imported, which takes its time
    program = import_for(plan, options, console)
    batches = example_batches(program, plan.workload.micro_batches)
    optimizer = TINY_STEPS[plan.workload.optimizer]
    with train(plan, program, loss=mean_square, optimizer=optimizer, processes=options.processes) as trainer:
        console.on_step("comparing the gradients", 0, 0)
        differences = differing_gradients(trainer, mean_square, batches)
        reference = ReferenceTraining(program, plan.cluster.devices[min(plan.placement.device)], mean_square, optimizer)
        contenders = {"plan": lambda: trainer.step_s(batches), "one device": lambda: reference.step(batches)}
        recorded = trainer.recorded(batches)  # before Ctrl-C, after which processes train no more
        load = Load(trainer.pids, plan)
        try:
            times, interrupted = measure_steps(contenders, options.rounds, console.on_step, load), False
        except Interrupted as stopped:
            times, interrupted = stopped.best, True
    step_s = times["plan"].latency_s
    if options.output is not None:
        save_run(plan, MeasuredRun(recorded, step_s), options.output)
    compared = compare_step(plan, recorded, step_s)
    comparison = replace(compared, pace=pace_change(plan, times.paces), spreads={False: plan.spread()})
    status = _show(plan, times, comparison, differences, console)
    return told_interrupted(console) if interrupted else status


def compare_step(plan: Plan, recorded: Timeline, step_s: float) -> Comparison:
    """Compare stages and devices as recorded, and the step as measured, with the prediction."""
    names = [op.name for op in plan.graph.ops]
    labels = [f"stage {i}, {names[min(ops)]} … {names[max(ops)]}" for i, ops in enumerate(plan.training_run.stages)]
    totals = (Figure("step", plan.latency_s, step_s),)
    return compare(stages_of(plan.simulate(), labels), stages_of(recorded, labels), totals)


def _show(
    plan: Plan,
    times: "BenchmarkResult",
    comparison: Comparison,
    differences: "list[GradientDifference]",
    console: Console,
) -> int:
    """Print a row for each contender, then predicted against measured, then whether the gradients are the same."""
    samples = plan.workload.batch * plan.workload.micro_batches
    speedup = times.speedup("plan", "one device")
    measured = ((each.name, samples / each.latency_s, each.latency_s, speedup) for each in times.contenders)
    document = {
        "pace": pace_document(comparison.pace),
        "bit_equal": not differences,
        "differences": [str(one) for one in differences],
        "predicted": {"samples_per_s": plan.samples_per_s, "step_s": plan.latency_s},
        "measured": {each.name: {"step_s": each.latency_s} for each in times.contenders},
        "speedup": {"one device": speedup},
        "against_prediction": figures_document(comparison),
        "foreign_cores": times.foreign_cores,
    }
    columns = ("", "devices", "samples/s", "step", "plan is faster by")
    console.show(document, steps_of(plan), columns, contender_rows(plan, measured))
    show_figures(comparison, STEP, console)
    status = show_gradients(differences, console)
    say_doubts(comparison, times.foreign_cores, "MODEL --training", console)
    return status


def steps_of(plan: Plan) -> str:
    """Return the title of a table of steps."""
    work = plan.workload
    return f"{plan.graph.name}, steps of {work.micro_batches} micro-batches of {work.batch} by {work.schedule}"


def show_gradients(differences: "Sequence[GradientDifference]", console: Console) -> int:
    """Say whether the gradients equal the reference model's, and return the exit status."""
    wrong = [one for one in differences if one.share > one.allowed]
    for one in wrong:
        console.error(str(one))
    if not differences:
        console.say("the gradients are bit-equal to the reference model's")
    elif not wrong:
        console.say(f"the gradients are the reference model's within {differences[0].share:.1g} of their norm")
    return DIFFERENT if wrong else DONE
