"""shard: the weights of a plan's model, divided into a file for each device."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from graphs.common import checks
from graphs.program.generation import GenerationProgram
from graphs.program.program import Program
from planner.plans.given import ModelName, Named, generation_for, given_plan
from planner.plans.plan import Plan
from planner.problem.reporter import SILENT, Reporter
from planner.runtime.checkpoint.shard_folder import check_shard_folder
from planner.runtime.checkpoint.shards import names_held, write_shards
from planner.runtime.matching import program_for


def shard(
    plan: Plan | Named,
    model: nn.Module | Program | ModelName,
    example_inputs: Any = None,
    *,
    output: str | PathLike[str],
    force: bool = False,
    reporter: Reporter = SILENT,
) -> Mapping[str, Path]:
    """Divide a model's weights into a folder with a file for each device, so that no process needs all of them.

    Args:
        plan: a plan, or the path of a plan.json.
        model: the model that the plan was made for, its Program, or its name as on the command line.
        example_inputs: in any form that `planner.plan` takes; zeros of the planned shapes if left out.
        output: the folder to write.
        force: whether shards that are there may be replaced.
        reporter: receives the steps.

    Returns:
        The file of each device that has operators, by its name.

    Raises:
        InputError: if the plan is for another model, a weight has no values, or the folder is taken or cannot be
            written; what was there stays as it was.
    """
    plan, folder = given_plan(plan), checks.path(output, "the output", "the path of a folder")
    checks.instance(force, bool, "force", "True or False")
    checks.instance(reporter, Reporter, "the reporter", "a Reporter")
    check_shard_folder(folder, force)  # before the model is imported, which takes its time
    program: Program | GenerationProgram
    if plan.workload.generates:
        program = generation_for(plan, model, reporter)
    else:
        program = program_for(plan, model, example_inputs, reporter)
    reporter.on_step(f"writing {output}", 0, 0)
    return dict(zip(names_held(plan), write_shards(plan, program, folder, force), strict=True))
