"""What ``planner solve`` does with a strategy problem: one strategy for each node."""

import argparse
import json
from collections.abc import Mapping
from typing import Any

from graphs.files import write_text
from planner.cli.console import Console
from planner.cli.statuses import DONE, NO_PLAN
from planner.problem.contest_format import contest_problem
from planner.problem.result import Status
from planner.solvers.strategies.solve import solve_strategies


def solve_strategy_problem(document: Mapping[str, Any], options: argparse.Namespace, console: Console) -> int:
    """Choose a strategy for each node and write the list of them."""
    problem = contest_problem(document)
    console.searching(f"solving {options.problem}", options.time_limit)
    result = solve_strategies(problem, options.time_limit)
    if result.choice is None:
        console.error(f"{result.status}: no strategies keep the usage limit of {problem.limit:.12g}; raise it")
        return NO_PLAN
    write_text(json.dumps(list(result.choice)) + "\n", options.output)
    peak = problem.peak(result.choice)
    answer = {
        "status": str(result.status),
        "cost": result.objective,
        "bound": result.bound,
        "peak": peak,
        "wall_s": round(result.wall_s, 3),
        "solver": result.solver,
        "choice": list(result.choice),
        "output": str(options.output),
    }
    proof = "" if result.status is Status.OPTIMAL else f"; no choice costs less than {result.bound:.12g}"
    lines = [
        f"strategies → {options.output}",
        f"{result.status}: {result.objective:.12g} by {result.solver}, usage {peak:.12g} of {problem.limit:.12g}, "
        f"in {result.wall_s:.1f} s{proof}",
    ]
    console.tell(answer, lines)
    return DONE
