"""`planner run` for a training plan: check the gradients, and compare what was predicted with what is measured."""

import argparse
from typing import TYPE_CHECKING

from costmodels.units import format_seconds
from graphs.errors import InputError
from planner.cli.console import Console
from planner.cli.run_ import DISTURBED_CORES, WRONG, figure_rows, figures_document
from planner.compare import OFF, Comparison, Figure, compare, stages_of
from planner.plans import Plan
from planner.runs import save_run
from simulator.timeline import Timeline
from simulator.training import simulate_training

if TYPE_CHECKING:
    from planner.runtime.training.check import Difference
    from planner.runtime.training.measure import StepTimes


def run_training(plan: Plan, options: argparse.Namespace, console: Console) -> int:
    """Train with a loss that any network has, check, measure, print.

    Raises:
        InputError: if the plan cannot run here.
    """
    if options.processes:
        raise InputError(
            "a plan for training runs on threads here: leave --processes out, or use torchrun -m planner.runtime"
        )
    from graphs.importers.load import load_program
    from planner.runtime.training.check import TINY_STEPS, differing_gradients, example_batches, mean_square
    from planner.runtime.training.measure import measure_steps, timed_step
    from planner.runtime.training.trainer import train
    from planner.runtime.training.unsplit import Unsplit

    console.on_step(f"importing {options.model}", 0, 0)
    program = load_program(options.model, options.batch or plan.workload.batch, training=True)
    batches = example_batches(program, plan.workload.micro_batches)
    optimizer = TINY_STEPS[plan.workload.optimizer]
    with train(plan, program, loss=mean_square, optimizer=optimizer) as trainer:
        console.on_step("comparing the gradients", 0, 0)
        differences = differing_gradients(plan, program, mean_square, batches)
        unsplit = Unsplit(program, plan.cluster.devices[min(plan.placement.device)], mean_square, optimizer)
        contenders = {"plan": timed_step(trainer, batches), "one device": lambda: unsplit.step(batches)}
        times = measure_steps(contenders, options.rounds, console.on_step)
        trainer.record()
        trainer.step_through(batches)
        recorded = trainer.timeline()
    if options.output is not None:
        save_run(plan, recorded, options.output)
    return _show(plan, times, compare_step(plan, recorded, times.step_s("plan")), differences, console)


def compare_step(plan: Plan, recorded: Timeline, step_s: float) -> Comparison:
    """Stages and devices as recorded in one step; the step as measured in turns."""
    stages = simulate_training(plan.problem.table, plan.placement, plan.problem.step).stages
    names = [op.name for op in plan.graph.ops]
    labels = [f"stage {i}, {names[min(ops)]} … {names[max(ops)]}" for i, ops in enumerate(stages)]
    totals = (Figure("step", plan.latency_s, step_s),)
    return compare(stages_of(plan.simulate(), labels), stages_of(recorded, labels), totals)


def _show(
    plan: Plan, times: "StepTimes", comparison: Comparison, differences: "list[Difference]", console: Console
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
    wrong = [one for one in differences if one.share > one.allowed]
    document = {
        "bit_equal": not differences,
        "differences": [str(one) for one in differences],
        "predicted": {"samples_per_s": plan.samples_per_s, "step_s": plan.latency_s},
        "measured": {name: {"step_s": times.step_s(name)} for name in times.steps_s},
        "speedup": {"one device": speedup},
        "against_prediction": figures_document(comparison),
        "foreign_cores": times.foreign_cores,
    }
    title = f"{plan.graph.name}, steps of {work.micro_batches} micro-batches of {work.batch} by {work.schedule}"
    console.show(document, title, ("", "devices", "samples/s", "step", "plan is faster by"), rows)
    if not console.json:
        heads = ("a step; per micro-batch", "predicted", "measured", "off by")
        console.show({}, "predicted against measured", heads, list(figure_rows(comparison)))
    for one in wrong:
        console.error(str(one))
    if not differences:
        console.say("the gradients are bit-equal to the unsplit model's")
    elif not wrong:
        console.say(f"the gradients are the unsplit model's within {differences[0].share:.1g} of their norm")
    if times.foreign_cores > DISTURBED_CORES:
        console.say(f"other processes used {times.foreign_cores:.2f} cores meanwhile: the figures are disturbed")
    elif comparison.off:
        console.say(
            f"a total is off by more than {OFF:.0%}: measure this machine again with "
            "`planner calibrate MODEL --training --again` and plan again"
        )
    return WRONG if wrong else 0
