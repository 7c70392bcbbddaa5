"""Run a plan in PyTorch, check the answers, and compare what was predicted with what is measured."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from costmodels.units import format_seconds
from planner.cli.console import Console
from planner.cli.models import at_least_one, declare_model
from planner.plans import Plan, load_plan

if TYPE_CHECKING:
    from planner.runtime.measure import Measurement

WRONG = 1
DISTURBED_CORES = 0.1


def declare(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``planner run``."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.json")
    declare_model(parser)
    parser.add_argument("--rounds", type=at_least_one, default=5, metavar="N", help="turns of each contender (5)")


def run(options: argparse.Namespace, console: Console) -> int:
    """Run, check, measure, print."""
    plan = load_plan(options.plan)
    from graphs.importers.load import load_program
    from planner.runtime.check import check_outputs
    from planner.runtime.measure import Planned, baselines, measure
    from planner.runtime.runner import start

    console.on_step(f"importing {options.model}", 0, 0)
    program = load_program(options.model, options.batch or plan.workload.batch)
    with start(plan, program) as runner:
        console.on_step("comparing the answers", 0, 0)
        wrong = check_outputs(runner)
        contenders = [Planned(runner), *baselines(program, plan.cluster.devices)]
        measurement = measure(contenders, options.rounds, console.on_step)
    show_measurement(plan, measurement, wrong, console)
    return WRONG if wrong else 0


def show_measurement(plan: Plan, measurement: "Measurement", wrong: list[str], console: Console) -> None:
    """A row for each contender, and for the plan what was predicted."""
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
    measured = measurement["plan"]
    document = {
        "bit_equal": not wrong,
        "differences": wrong,
        "predicted": {"samples_per_s": plan.samples_per_s, "latency_s": plan.latency_s},
        "measured": {
            one.name: {"samples_per_s": batch / one.period_s, "latency_s": one.latency_s}
            for one in measurement.contenders
        },
        "speedup": {
            one.name: measurement.speedup("plan", one.name) for one in measurement.contenders if one is not measured
        },
        "foreign_cores": measurement.foreign_cores,
    }
    columns = ("", "devices", "samples/s", "latency", "plan is faster by")
    console.show(document, f"{plan.graph.name}, micro-batches of {batch}", columns, rows)
    period, latency = measured.period_s / plan.period_s - 1, measured.latency_s / plan.latency_s - 1
    console.say(f"measured against predicted: {period:+.1%} time per micro-batch, {latency:+.1%} latency")
    for line in wrong:
        console.error(f"the answers differ: {line}")
    if not wrong:
        console.say("the answers are bit-equal to the unsplit model's")
    if measurement.foreign_cores > DISTURBED_CORES:
        console.say(f"other processes used {measurement.foreign_cores:.2f} cores meanwhile: the figures are disturbed")
