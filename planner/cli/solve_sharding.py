"""What ``planner solve`` does with a sharding program: a spec for each parameter and each dot, for every mesh."""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from graphs.errors import InputError
from graphs.files import write_text
from planner.cli.console import Console
from planner.cli.statuses import DONE, NO_PLAN
from planner.problem.deadline import Deadline
from planner.problem.sharding.choice import sharding_choice
from planner.problem.sharding.program import MeshCase, ShardingProgram
from planner.problem.sharding.reader import sharding_program
from planner.solvers.strategies.solve import solve_strategies

HEADS = ("mesh", "price", "bound", "status", "seconds")


def solve_sharding(document: Mapping[str, Any], options: argparse.Namespace, console: Console) -> int:
    """Solve every mesh, or the one that is asked for, and write the specs: of several meshes, by their names."""
    program = sharding_program(document)
    cases = _wanted(program.cases, options.mesh)
    deadline = Deadline(options.time_limit)
    answers = []
    for number, case in enumerate(cases):
        console.on_step("meshes", number, len(cases))
        answers.append(_answer(program, case, deadline.left_s / (len(cases) - number)))
    assignments = {answer["mesh"]: answer["assignment"] for answer in answers}
    content = assignments if len(cases) > 1 else answers[0]["assignment"]
    write_text(json.dumps(content) + "\n", options.output)
    rows = [(a["mesh"], f"{a['price']:.12g}", f"{a['bound']:.12g}", a["status"], f"{a['wall_s']:.2f}") for a in answers]
    console.show({"cases": answers, "output": str(options.output)}, f"sharding → {options.output}", HEADS, rows)
    missing = [answer["mesh"] for answer in answers if answer["assignment"] is None]
    if missing:
        console.error(f"no specs keep all ties and reshapes on mesh {', '.join(missing)}; leave some of them out")
        return NO_PLAN
    return DONE


def _wanted(cases: Sequence[MeshCase], mesh: str | None) -> list[MeshCase]:
    """The cases of a mesh, or all."""
    wanted = [case for case in cases if mesh in (None, case.name, case.name.partition(" ")[0])]
    if not wanted:
        raise InputError(f"there is no mesh '{mesh}'; there are {', '.join(case.name for case in cases)}")
    return wanted


def _answer(program: ShardingProgram, case: MeshCase, time_limit_s: float) -> dict[str, Any]:
    """The best specs on a mesh, and the proof."""
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
