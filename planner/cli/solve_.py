"""Solve a placement problem in the public format, for which other planners' answers are known.

planner solve problem.json --goal throughput -o answer.json
planner solve problem.json --goal latency --time-limit 120 --seed 1
"""

import argparse
import json
import sys
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any

from costmodels.units import format_bytes
from graphs.files import write_text
from planner.cli.console import Console
from planner.cli.files import declare_output
from planner.cli.models import declare_search
from planner.cli.numbers import share
from planner.cli.statuses import DONE, INTERRUPTED, NO_PLAN
from planner.cli.streams import complain
from planner.cli.text import table
from planner.problem.evaluate import evaluate
from planner.problem.problem import Goal
from planner.problem.public_format import S_PER_MS, PlacementProblem, read_problem
from planner.problem.reporter import Reporter
from planner.problem.result import Interrupted, Result, Status
from planner.solvers.portfolio import AUTO
from planner.solvers.solve import solve

GOALS = (str(Goal.THROUGHPUT), str(Goal.LATENCY))
TELL_S = 1.0  # between two lines of progress that cannot be overwritten


def declare(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``planner solve``."""
    parser.add_argument("problem", type=Path, metavar="PROBLEM", help="a .json with nodes, edges and how many devices")
    parser.add_argument("--goal", choices=GOALS, required=True, help="what to minimise: the largest load, or the time")
    parser.add_argument("--contiguous", action="store_true", help="devices must follow one another (forward nodes)")
    declare_search(parser, 60.0)
    parser.add_argument("--solver", default=AUTO, metavar="NAME", help="auto or the name of one solver (auto)")
    parser.add_argument("--gap", type=share, default=0.0, metavar="G", help="a gap that is good enough (0)")
    declare_output(parser, "answer.json")


def run(options: argparse.Namespace, console: Console) -> int:
    """Read the problem, solve it and write the answer; on Ctrl-C, write the best one so far."""
    asked = read_problem(options.problem, Goal(options.goal), options.contiguous)
    console.searching(f"solving {options.problem} for {options.goal}", options.time_limit)
    try:
        result = solve(
            asked.problem, options.solver, options.time_limit, options.gap, options.seed, _SearchProgress(console)
        )
    except Interrupted as stopped:
        _show(asked, stopped.best, "interrupted", options.output, console)
        console.error(f"interrupted: '{options.output}' is the best answer until then")
        return INTERRUPTED
    _show(asked, result, str(result.status), options.output, console)
    if result.placement is None:
        console.error(f"{result.status}: {result.advice}")
        return NO_PLAN
    return DONE


def answer_to_dict(asked: PlacementProblem, result: Result, status: str) -> dict[str, Any]:
    """The content of answer.json. Times are in milliseconds, as in the problem, except ``wall_s``; infinity is null."""
    answer: dict[str, Any] = {
        "status": status,
        "objective": _ms(result.objective_s),
        "bound": _ms(result.bound_s),
        "gap": result.gap,
        "wall_s": round(result.wall_s, 3),
        "solver": result.solver,
    }
    if result.placement is None:
        return answer | {"advice": result.advice, "assignment": None}
    return answer | {"assignment": asked.assignment(result.placement)}


class _SearchProgress(Reporter):
    """Passes progress on to the console. Without a terminal it also prints the best answer every second at most."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told_s = -TELL_S

    def on_step(self, name: str, done: int, total: int) -> None:
        """Pass it on."""
        self._console.on_step(name, done, total)

    def on_incumbent(self, solver: str, objective_s: float, bound_s: float, wall_s: float) -> None:
        """Pass it on, and print it if the last line is old enough."""
        self._console.on_incumbent(solver, objective_s, bound_s, wall_s)
        if not (sys.stderr.isatty() or self._console.json or self._console.quiet) and wall_s - self._told_s >= TELL_S:
            self._told_s = wall_s
            gap = max(0.0, 1 - bound_s / objective_s) if objective_s > 0 else 0.0
            complain(f"{wall_s:.1f} s: {objective_s / S_PER_MS:.7g} ms by {solver}, at most {gap:.2%} from the best")


def _show(asked: PlacementProblem, result: Result, status: str, output: Path, console: Console) -> None:
    """Write the answer and print it."""
    answer = answer_to_dict(asked, result, status)
    write_text(json.dumps(answer, indent=1, allow_nan=False) + "\n", output)
    console.tell({**answer, "output": str(output)}, _lines(asked, result, status, output))


def _lines(asked: PlacementProblem, result: Result, status: str, output: Path) -> Iterator[str]:
    """A row for each device, then the proof; nothing without an assignment."""
    if result.placement is None:
        return
    costs, evaluation = asked.problem.table, evaluate(asked.problem, result.placement)
    rows = [
        (
            name,
            f"{result.placement.device.count(d):,}",
            f"{evaluation.load_s[d] / S_PER_MS:.7g} ms",
            format_bytes(evaluation.memory_bytes[d]),
            format_bytes(costs.capacity_bytes[d]) if isfinite(costs.capacity_bytes[d]) else "",
        )
        for d, name in enumerate(costs.devices)
    ]
    yield f"{asked.problem.goal} → {output}"
    yield from table(("device", "nodes", "load", "memory", "of"), rows)
    proof = "" if status == Status.OPTIMAL else f"; no assignment can be more than {result.gap:.2%} better"
    objective = f"{result.objective_s / S_PER_MS:.7g} ms"
    yield f"{status}: {objective} by {result.solver} in {result.wall_s:.1f} s{proof}"


def _ms(seconds: float) -> float | None:
    """Milliseconds; None for infinity, which JSON lacks."""
    return seconds / S_PER_MS if isfinite(seconds) else None
