"""Solve a placement problem in the public format, for which other planners' answers are known.

planner solve problem.json --goal throughput -o answer.json
planner solve problem.json --goal latency --time-limit 120 --seed 1
"""

import argparse
import json
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
from planner.cli.text import table
from planner.problem.evaluate import evaluate
from planner.problem.problem import Goal
from planner.problem.public_format import S_PER_MS, PlacementProblem, read_problem
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
    console.tell_s = TELL_S
    try:
        result = solve(asked.problem, options.solver, options.time_limit, options.gap, options.seed, console)
    except Interrupted as stopped:
        _show(asked, stopped.best, "interrupted", options.output, console)
        console.error(f"interrupted: '{options.output}' is the best answer until then")
        return INTERRUPTED
    _show(asked, result, str(result.status), options.output, console)
    if result.placement is None:
        console.error(f"{result.status}: {result.advice}")
        return NO_PLAN
    return DONE


def _show(asked: PlacementProblem, result: Result, status: str, output: Path, console: Console) -> None:
    """Write the answer and print it. Times but ``wall_s`` are in milliseconds, as in the problem; infinity is null."""
    answer: dict[str, Any] = {
        "status": status,
        "objective": result.objective_s / S_PER_MS if isfinite(result.objective_s) else None,
        "bound": result.bound_s / S_PER_MS if isfinite(result.bound_s) else None,
        "gap": result.gap,
        "wall_s": round(result.wall_s, 3),
        "solver": result.solver,
    }
    if result.placement is None:
        answer |= {"advice": result.advice, "assignment": None}
    else:
        answer["assignment"] = asked.assignment(result.placement)
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
