"""Predict what happens when micro-batches stream through a plan."""

import argparse
from pathlib import Path

from costmodels.units import format_seconds
from planner.cli.console import Console
from planner.cli.models import at_least_one
from planner.plans import load_plan
from simulator.trace import ascii_chart

SHOWN = 100  # columns of the chart


def declare(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``planner simulate``."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.json")
    parser.add_argument(
        "--micro-batches", type=at_least_one, default=8, metavar="N", help="how many stream through (8)"
    )


def run(options: argparse.Namespace, console: Console) -> int:
    """Simulate, print the chart and the figures."""
    plan = load_plan(options.plan)
    timeline = plan.simulate(options.micro_batches)
    busy_s = timeline.busy_s.tolist()
    document = {
        "micro_batches": timeline.micro_batches,
        "makespan_s": timeline.makespan_s,
        "period_s": plan.period_s,
        "latency_s": plan.latency_s,
        "samples_per_s": plan.samples_per_s,
        "bubble": timeline.bubble,
        "busy_s": dict(zip(timeline.devices, busy_s, strict=True)),
    }
    rows = [
        (name, format_seconds(busy), f"{busy / timeline.makespan_s:.1%}")
        for name, busy in zip(timeline.devices, busy_s, strict=True)
    ]
    title = f"{timeline.micro_batches} micro-batches of {plan.graph.name} in {format_seconds(timeline.makespan_s)}"
    console.show(document, title, ("device", "busy", "of the time"), rows)
    console.say(ascii_chart(timeline, SHOWN))
    console.say(
        f"in the long run a micro-batch every {format_seconds(plan.period_s)} ({plan.samples_per_s:.4g} samples/s); "
        f"one alone takes {format_seconds(plan.latency_s)}"
    )
    return 0
