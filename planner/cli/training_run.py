"""`planner run` for a training plan: check the gradients, and compare what was predicted with what is measured."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from costmodels.units import format_seconds
from planner.cli.console import Console
from planner.cli.figures import DISTURBED_CORES, figures_document, show_figures, told_interrupted
from planner.cli.models import import_for
from planner.cli.statuses import DIFFERENT, DONE
from planner.plans.compare import OFF, Comparison, Figure, compare, stages_of
from planner.plans.plan import Plan
from planner.plans.runs import save_run
from planner.problem.result import Interrupted
from simulator.timeline import Timeline

if TYPE_CHECKING:
    from planner.runtime.benchmark.training import StepTimes
    from planner.runtime.training.check import GradientDifference


STEP = "a step; per micro-batch"  # what is predicted and measured


def run_training(plan: Plan, options: argparse.Namespace, console: Console) -> int:
    """Train with a loss that any network has, check, measure, print.

    Raises:
        InputError: if the plan cannot run here.
    """
    from planner.runtime.benchmark.training import measure_steps
    from planner.runtime.train import train
    from planner.runtime.training.check import TINY_STEPS, differing_gradients, example_batches, mean_square
    from planner.runtime.training.prepare import check_alone
    from planner.runtime.training.reference import ReferenceTraining

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
        try:
            times, interrupted = measure_steps(contenders, options.rounds, console.on_step, trainer.pids), False
        except Interrupted as stopped:
            times, interrupted = stopped.best, True
    if options.output is not None:
        save_run(plan, recorded, options.output)
    status = _show(plan, times, compare_step(plan, recorded, times.step_s("plan")), differences, console)
    return told_interrupted(console) if interrupted else status


def compare_step(plan: Plan, recorded: Timeline, step_s: float) -> Comparison:
    """Stages and devices as recorded in one step; the step as measured in turns."""
    names = [op.name for op in plan.graph.ops]
    labels = [f"stage {i}, {names[min(ops)]} … {names[max(ops)]}" for i, ops in enumerate(plan.training_run.stages)]
    totals = (Figure("step", plan.latency_s, step_s),)
    return compare(stages_of(plan.simulate(), labels), stages_of(recorded, labels), totals)


def _show(
    plan: Plan, times: "StepTimes", comparison: Comparison, differences: "list[GradientDifference]", console: Console
) -> int:
    """A row for each contender, then predicted against measured, then whether the gradients are the same."""
    work, used = plan.workload, len(set(plan.placement.device))
    samples = work.batch * work.micro_batches
    speedup = times.speedup("plan", "one device")
    rows = [
        ("plan, predicted", str(used), f"{plan.samples_per_s:.4g}", format_seconds(plan.latency_s), ""),
        *(
            (
                f"{name}, measured",
                str(used) if name == "plan" else "1",
                f"{samples / times.step_s(name):.4g}",
                format_seconds(times.step_s(name)),
                "" if name == "plan" else f"{speedup:.2f}×",
            )
            for name in times.steps_s
        ),
    ]
    document = {
        "bit_equal": not differences,
        "differences": [str(one) for one in differences],
        "predicted": {"samples_per_s": plan.samples_per_s, "step_s": plan.latency_s},
        "measured": {name: {"step_s": times.step_s(name)} for name in times.steps_s},
        "speedup": {"one device": speedup},
        "against_prediction": figures_document(comparison),
        "foreign_cores": times.foreign_cores,
    }
    console.show(document, steps_of(plan), ("", "devices", "samples/s", "step", "plan is faster by"), rows)
    show_figures(comparison, STEP, console)
    status = show_gradients(differences, console)
    if times.foreign_cores > DISTURBED_CORES:
        console.say(f"other processes used {times.foreign_cores:.2f} cores meanwhile: the figures are disturbed")
    elif comparison.off:
        console.say(
            f"a total is off by more than {OFF:.0%}: measure this machine again with "
            "`planner calibrate MODEL --training --again` and plan again"
        )
    return status


def steps_of(plan: Plan) -> str:
    """What is run, as a title."""
    work = plan.workload
    return f"{plan.graph.name}, steps of {work.micro_batches} micro-batches of {work.batch} by {work.schedule}"


def show_gradients(differences: "Sequence[GradientDifference]", console: Console) -> int:
    """Say whether they are the reference model's; the exit status."""
    wrong = [one for one in differences if one.share > one.allowed]
    for one in wrong:
        console.error(str(one))
    if not differences:
        console.say("the gradients are bit-equal to the reference model's")
    elif not wrong:
        console.say(f"the gradients are the reference model's within {differences[0].share:.1g} of their norm")
    return DIFFERENT if wrong else DONE
