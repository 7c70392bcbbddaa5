"""``planner solve`` for strategy problems and sharding programs: one strategy for each node."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from graphs.common.errors import InputError
from planner.cli.console import Console
from planner.cli.solve.solution import Solution, no_solution, proof, searched, until_then
from planner.cli.statuses import NO_PLAN
from planner.cli.text import table
from planner.literature.strategies.choice import sharding_choice
from planner.literature.strategies.contest_format import contest_problem
from planner.literature.strategies.program import MeshCase, ShardingProgram
from planner.literature.strategies.reader import sharding_program
from planner.problem.deadline import Deadline
from planner.solvers.strategies.solve import solve_strategies

HEADS = ("mesh", "price", "bound", "status", "seconds")


def solve_strategy_problem(document: Mapping[str, Any], options: argparse.Namespace, console: Console) -> Solution:
    """Choose a strategy for each node; the file has the list of them."""
    problem = contest_problem(document)
    console.on_search(f"solving {options.problem}", options.time_limit)
    result, interrupted = searched(lambda: solve_strategies(problem, options.time_limit))
    if result.choice is None:
        return no_solution(f"{result.status}: no strategies keep the usage limit of {problem.limit:.12g}; raise it")
    peak, choice = problem.peak(result.choice), list(result.choice)
    status = "interrupted" if interrupted else str(result.status)
    answer = {
        "status": status,
        "cost": result.objective,
        "bound": result.bound,
        "peak": peak,
        "wall_s": round(result.wall_s, 3),
        "solver": result.solver,
        "choice": choice,
    }
    line = (
        f"{status}: {result.objective:.12g} by {result.solver}, usage {peak:.12g} of {problem.limit:.12g}, in "
        f"{result.wall_s:.1f} s{proof(result.status, f'no choice costs less than {result.bound:.12g}')}"
    )
    solution = Solution("strategies", choice, answer, [line])
    return until_then(solution, options.output) if interrupted else solution


def solve_sharding(document: Mapping[str, Any], options: argparse.Namespace, console: Console) -> Solution:
    """Choose a spec for each parameter and each dot, on every mesh or on the one that is asked for.

    The file has the specs, those of several meshes by the names of these.
    """
    program = sharding_program(document)
    cases = _wanted(program.cases, options.mesh)
    deadline = Deadline(options.time_limit)
    answers = []
    for number, case in enumerate(cases):
        console.on_step("meshes", number, len(cases))
        answers.append(_specs(program, case, deadline.left_s / (len(cases) - number)))
    assignments = {answer["mesh"]: answer["assignment"] for answer in answers}
    content = assignments if len(cases) > 1 else answers[0]["assignment"]
    rows = [(a["mesh"], f"{a['price']:.12g}", f"{a['bound']:.12g}", a["status"], f"{a['wall_s']:.2f}") for a in answers]
    answer = Solution("sharding", content, {"cases": answers}, table(HEADS, rows))
    missing = ", ".join(mesh for mesh, assignment in assignments.items() if assignment is None)
    trouble = f"no specs keep all ties and reshapes on mesh {missing}; leave some of them out"
    return answer._replace(trouble=trouble, status=NO_PLAN) if missing else answer


def _wanted(cases: Sequence[MeshCase], mesh: str | None) -> list[MeshCase]:
    """Return the cases of a mesh, or all."""
    wanted = [case for case in cases if mesh in (None, case.name, case.name.partition(" ")[0])]
    if not wanted:
        raise InputError(f"there is no mesh '{mesh}'; there are {', '.join(case.name for case in cases)}")
    return wanted


def _specs(program: ShardingProgram, case: MeshCase, time_limit_s: float) -> dict[str, Any]:
    """Return the best specs on a mesh, and the proof."""
    choice = sharding_choice(program, case)
    result = solve_strategies(choice.problem, time_limit_s)
    return {
        "mesh": case.name,
        "price": result.objective,
        "bound": result.bound,
        "status": str(result.status),
        "wall_s": round(result.wall_s, 3),
        "assignment": None if result.choice is None else choice.assignment(result.choice),
    }
