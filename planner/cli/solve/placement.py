"""``planner solve`` for a placement problem: a device for each node."""

import argparse
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from costmodels.units import format_bytes
from graphs.common.errors import InputError
from planner.cli.console import Console
from planner.cli.solve.solution import Solution, searched, until_then
from planner.cli.statuses import NO_PLAN
from planner.cli.text import table
from planner.literature.placement.public_format import S_PER_MS, PlacementProblem, problem_from_dict
from planner.problem.evaluate import evaluate
from planner.problem.problem import Goal
from planner.problem.result import Result, Status
from planner.solvers.solve import solve

GOALS = (str(Goal.THROUGHPUT), str(Goal.LATENCY))
TELL_S = 1.0  # between two lines of progress that cannot be overwritten


def solve_placement(document: Mapping[str, Any], options: argparse.Namespace, console: Console) -> Solution:
    """Return the best assignment; on Ctrl-C, the best one so far."""
    if options.goal is None:
        raise InputError(f"a placement problem needs --goal, {' or '.join(GOALS)}; add it")
    asked = problem_from_dict(document, Goal(options.goal), options.contiguous)
    console.on_search(f"solving {options.problem} for {options.goal}", options.time_limit)
    console.tell_s = TELL_S
    result, interrupted = searched(
        lambda: solve(asked.problem, options.solver, options.time_limit, options.gap, options.seed, console)
    )
    if interrupted:
        return until_then(_answer(asked, result, "interrupted"), options.output)
    answer = _answer(asked, result, str(result.status))
    if result.placement is None:
        return answer._replace(title="", trouble=f"{result.status}: {result.advice}", status=NO_PLAN)
    return answer


def _answer(asked: PlacementProblem, result: Result, status: str) -> Solution:
    """Return the file. Times but ``wall_s`` are in milliseconds, as in the problem; infinity is null."""
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
    return Solution(str(asked.problem.goal), answer, answer, _lines(asked, result, status), indent=1)


def _lines(asked: PlacementProblem, result: Result, status: str) -> Iterator[str]:
    """Yield a row for each device, then the proof; nothing without an assignment."""
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
    yield from table(("device", "nodes", "load", "memory", "of"), rows)
    proof = "" if status == Status.OPTIMAL else f"; no assignment can be more than {result.gap:.2%} better"
    objective = f"{result.objective_s / S_PER_MS:.7g} ms"
    yield f"{status}: {objective} by {result.solver} in {result.wall_s:.1f} s{proof}"
