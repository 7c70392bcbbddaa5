"""Explain a plan: the bottleneck, who does what, what the cuts cost, what would help, how good it is."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import wrap

from costmodels.table import Source
from costmodels.units import format_bytes, format_seconds
from planner.cli.console import Console
from planner.cli.models import at_least_one
from planner.explain import MOVED_CUTS, Explanation, explain
from planner.plans import load_plan
from planner.problem import Goal
from planner.why.cuts import Cut, Effect
from planner.why.regions import Region
from planner.why.what_if import How, Move

WIDTH = 100
PARTS, LEGS, REGIONS, KINDS = 6, 12, 12, 5  # of each, what is shown at most; --json has all
SMALL = 1e-6  # relative; less is no change
HOW = {
    How.BOUND: "a bound: no plan can be below",
    How.JUDGED: "the same placement, judged again",
    How.SIMULATED: "the stream, simulated",
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``planner explain``."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.json")
    parser.add_argument(
        "--cuts",
        type=at_least_one,
        default=MOVED_CUTS,
        metavar="N",
        help=f"how many cuts to show and to try one operator further and back ({MOVED_CUTS})",
    )


def run(options: argparse.Namespace, console: Console) -> int:
    """Explain and print."""
    explanation = explain(load_plan(options.plan), options.cuts)
    if console.json:
        console.show(asdict(explanation), "", (), ())
    else:
        console.say("\n".join(text(explanation, options.cuts)))
    return 0


def text(explanation: Explanation, n_cuts: int) -> list[str]:
    """The lines that a person reads."""
    sections = (_summary, _bottleneck, _devices, lambda e: _cuts(e, n_cuts), _helps, _proof)
    lines: list[str] = []
    for section in sections:
        lines += ["", *section(explanation)]
    return lines[1:]


def _summary(explanation: Explanation) -> Iterator[str]:
    e = explanation
    yield f"{e.model} on {e.cluster}, for {e.goal}"
    seconds = format_seconds
    if e.goal is Goal.THROUGHPUT:
        said = f"A micro-batch of {e.batch} every {seconds(e.objective_s)} at best"
    else:
        said = f"A micro-batch of {e.batch} takes {seconds(e.objective_s)}"
    if e.alone is not None:
        said += f"; {e.alone.device} alone would take {seconds(e.alone.objective_s)}"
        if len({device.name for device in e.devices if device.n_ops}) > 1 and e.objective_s > 0:
            said += f", {e.alone.objective_s / e.objective_s:.2f} times as long"
    yield from _wrap(f"{said}. Simulated, with {e.in_flight} in flight: one every {seconds(e.period_s)}; one alone takes {seconds(e.latency_s)}.")
