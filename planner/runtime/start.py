"""start and train: a plan and its model as a runner or a trainer, on threads or in processes."""

from collections.abc import Mapping
from typing import Any, overload

import torch
from torch import nn

from graphs.common.errors import InputError
from graphs.program.generation import GenerationProgram
from graphs.program.program import Program
from planner.plans.given import ModelName, Named, generation_for, given_plan
from planner.plans.plan import Plan
from planner.runtime.generation.runner import GenerationRunner
from planner.runtime.inference.runner import Runner
from planner.runtime.matching import check_runs, program_for, rewritten_for
from planner.runtime.stages.random_generators import check_seed
from planner.runtime.training.any_trainer import AnyTrainer
from planner.runtime.training.optimizers import Factory
from planner.runtime.training.options import TrainerOptions
from planner.runtime.training.step import Loss
from planner.runtime.training.trainer import Trainer


@overload
def start(
    plan: Plan | Named, model: GenerationProgram, *, processes: bool = False, share_weights: bool = False
) -> GenerationRunner: ...


@overload
def start(
    plan: Plan | Named,
    model: nn.Module | Program | ModelName,
    example_inputs: Any = None,
    *,
    processes: bool = False,
    seed: int = 0,
    share_weights: bool = False,
) -> Runner: ...


def start(
    plan: Plan | Named,
    model: nn.Module | Program | GenerationProgram | ModelName,
    example_inputs: Any = None,
    *,
    processes: bool = False,
    seed: int = 0,
    share_weights: bool = False,
) -> Runner | GenerationRunner:
    """Bring a model onto the devices of a plan, with the weights that it has now.

    Args:
        plan: from `planner.plan` or `planner.load_plan`, or the path of a plan.json.
        model: the model that the plan was made for, its Program where it has been imported already, or its name as on
            the command line, or a `NamedModel`. For generation, what `planner.generation_program` made of it, or what
            it takes, or such a name.
        example_inputs: in any form that `planner.plan` takes; zeros of the planned shapes if left out.
        processes: give each device a process of its own on this host, rather than a thread of this process.
        seed: of operators that draw random numbers. They follow from it, the number of the micro-batch since the start
            and the operator, on any placement; those of a GPU are others than those of a CPU.
        share_weights: let threads read the model's own weights rather than copies, which spares memory; the model must
            not change then while it runs here. Processes have copies in any case.

    Returns:
        A runner, of a plan for generation a `GenerationRunner`; use it in a ``with`` statement, or close it. Type
        checkers know the latter if the model is a GenerationProgram.

    Raises:
        InputError: if the plan is for another model, a device is not on this host, an operator draws random numbers
            that cannot be seeded, or a plan for generation is given inputs or a seed.
        RankError: if a process does not start.
    """
    check_seed(seed)
    plan = given_plan(plan)
    if plan.workload.generates:
        if example_inputs is not None or seed:
            raise InputError(
                "the plan is for generation, which takes prompts; leave example_inputs and seed out, and give "
                "planner.Sampling(seed=...) to generate"
            )
        return GenerationRunner(plan, generation_for(plan, model), share_weights, processes)
    if isinstance(model, GenerationProgram):
        raise InputError(f"the plan is for {plan.goal} of one pass; give the model itself, or its decode program")
    program = program_for(plan, model, example_inputs)
    if not processes:
        return Runner(plan, program, seed=seed, share_weights=share_weights)
    from planner.runtime.distributed.inference.launcher import start_processes  # late: threads do without

    program = rewritten_for(plan, program)
    check_runs(plan, program)
    return Runner(plan, program, start_processes(plan, program, seed=seed), seed)


def train(
    plan: Plan | Named,
    model: nn.Module | Program | ModelName,
    example_inputs: Any = None,
    *,
    loss: Loss | None,
    optimizer: Factory,
    trainer_options: TrainerOptions | None = None,
    processes: bool = False,
) -> AnyTrainer:
    """Bring a model onto the devices of a plan, to train it there.

    ::

        adam = lambda parameters: torch.optim.Adam(parameters, lr=1e-3)
        with planner.train(plan, model, loss=F.cross_entropy, optimizer=adam) as trainer:
            for batch, target in data:
                loss = trainer.step(batch, target)
        model.load_state_dict(trainer.model_state_dict())

    Args:
        plan: with the goal "training", from `planner.plan` or `planner.load_plan`, or the path of a plan.json.
        model: the model that the plan was made for, its Program where it has been imported already, or its name as on
            the command line, or a `NamedModel`. It is left as it is: the devices train copies of its parameters.
        example_inputs: of one micro-batch, in any form that `planner.plan` takes; zeros of the planned shapes if left
            out.
        loss: takes what the model returns and the target, and returns the mean over its samples; None if the model
            returns its loss itself, alone or as ``loss`` of a dict. It runs on the device of the last stage.
        optimizer: makes an optimizer from a list of parameters; called once for each device.
        trainer_options: how to go about it.
        processes: give each device a process of its own on this host, rather than a thread of this process. The loss
            and the optimizer must be functions that these can import; where they stand in the program that is started,
            it is read once more (``if __name__ == "__main__"``).

    Returns:
        A trainer; use it in a ``with`` statement, or close it.

    Raises:
        InputError: if the plan is for another model or goal, its schedule cannot run here, a device is not on this
            host, or the loss or the optimizer cannot be handed to a process.
        RankError: if a process does not start.
    """
    plan = given_plan(plan)
    program = program_for(plan, model, example_inputs)
    loss = returned_loss if loss is None else loss
    trainer_options = TrainerOptions() if trainer_options is None else trainer_options
    if not processes:
        return Trainer(plan, program, loss, optimizer, trainer_options)
    from planner.runtime.distributed.training.hosted_trainer import HostedTrainer  # late: threads do without
    from planner.runtime.distributed.training.worker import RankSetup

    return HostedTrainer(plan, program, RankSetup(loss, optimizer, trainer_options))


def returned_loss(result: Any, target: Any) -> torch.Tensor:
    """Return the loss of a model that returns it, alone or as ``loss`` among other results."""
    if target is not None:
        raise InputError("there is a target, but no loss that takes it; pass loss=, or give the model its target")
    loss: torch.Tensor = result["loss"] if isinstance(result, Mapping) and "loss" in result else result
    return loss
