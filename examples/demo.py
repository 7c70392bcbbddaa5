"""The whole loop on one network: import, calibrate, plan, simulate, run, check, show.

``make demo`` runs this. It leaves plan.json and plan.html in the current folder.
"""

import sys
import time
from argparse import ArgumentParser
from pathlib import Path

import planner
from costmodels.units import format_seconds
from examples.networks import googlenet
from graphs.importers.from_torch import program_from_module
from planner.cli.calibrate_ import peaks
from planner.cli.console import Console
from planner.cli.plan_ import declare, show_plan
from planner.cli.run_ import run_of, show_measurement
from planner.runtime.benchmark.check import compare_outputs
from planner.runtime.benchmark.load import Load
from planner.runtime.benchmark.measure import PlannedContender, baselines, measure
from planner.view.page import render
from simulator.chart import ascii_chart

DEVICES = 2
ROUNDS = 5
PLAN = f"examples.networks:googlenet --cluster cluster.toml --goal throughput --devices {DEVICES} -o plan.json"
"""The arguments of ``planner plan`` that ask for the same."""


def main() -> int:
    """Run the loop; 0 if the answers are equal, but for the rounding of quick kernels."""
    console = Console()
    start_s = time.perf_counter()

    model, inputs = googlenet()
    program = program_from_module(model, inputs, name="GoogLeNet")
    console.say(f"imported GoogLeNet: {len(program.graph.ops)} operators, {len(program.graph.flows)} flows")

    cluster = planner.calibrate(program, reporter=console)
    planner.write_cluster(cluster, Path("cluster.toml"))
    for line in ("", f"{cluster.name} → cluster.toml", *peaks(cluster)):
        console.say(line)
    if len(cluster.devices) < DEVICES:
        console.error(f"this host has {len(cluster.devices)} core; the demo divides a network between {DEVICES}")
        return 1

    plan = planner.plan(program, cluster=cluster.first(DEVICES), search=planner.Search(reporter=console))
    planner.save_plan(plan, Path("plan.json"))
    parser = ArgumentParser()
    declare(parser)
    show_plan(plan, parser.parse_args(PLAN.split()), console)

    predicted = plan.simulate()
    for line in ("", *ascii_chart(predicted, 100).splitlines(), ""):
        console.say(line)

    with planner.start(plan, program) as runner:
        answers = compare_outputs(runner)
        load = Load(plan=plan)
        contenders = [PlannedContender(runner, meter=load.meter), *baselines(program, plan.cluster.devices)]
        measurement = measure(contenders, ROUNDS, console.on_step, load)
    Path("plan.html").write_text(render(plan, run_of(plan, measurement)), encoding="utf-8")
    show_measurement(plan, measurement, answers, console)
    console.say("")
    console.say(f"plan.json and plan.html are written; all this took {format_seconds(time.perf_counter() - start_s)}")
    return 1 if answers.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
