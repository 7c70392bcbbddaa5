"""start: a plan and its model as a runner, on threads or in processes."""

from typing import Any

from torch import nn

from graphs.program.program import Program
from planner.plans.given import Named, given_plan
from planner.plans.plan import Plan
from planner.runtime.inference.runner import Runner
from planner.runtime.matching import check_runs, program_for
from planner.runtime.stages.random_generators import check_seed


def start(
    plan: Plan | Named,
    model: nn.Module | Program | Named,
    example_inputs: Any = None,
    *,
    processes: bool = False,
    seed: int = 0,
) -> Runner:
    """Bring a model onto the devices of a plan.

    Args:
        plan: from `planner.plan` or `planner.load_plan`, or the path of a plan.json.
        model: the model that the plan was made for, its Program where it has been imported already, or its name as on
            the command line.
        example_inputs: in any form that `planner.plan` takes; zeros of the planned shapes if left out.
        processes: give each device a process of its own on this host, rather than a thread of this process.
        seed: of operators that draw random numbers. They follow from it, the number of the micro-batch since the start
            and the operator, on any placement; those of a GPU are others than those of a CPU.

    Returns:
        A runner; use it in a ``with`` statement, or close it.

    Raises:
        InputError: if the plan is for another model, a device is not on this host, or an operator draws random numbers
            that cannot be seeded.
        RankError: if a process does not start.
    """
    check_seed(seed)
    plan = given_plan(plan)
    program = program_for(plan, model, example_inputs)
    if not processes:
        return Runner(plan, program, seed=seed)
    from planner.runtime.distributed.inference.launcher import start_processes  # late: threads do without

    check_runs(plan, program)
    return Runner(plan, program, start_processes(plan, program, seed=seed), seed)
