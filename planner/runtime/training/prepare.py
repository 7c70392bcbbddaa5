"""From a plan to what its devices do in every step of training."""

from dataclasses import dataclass

import torch

from costmodels.cluster.cluster import Device
from costmodels.host.affinity import out_of_memory, torch_device_of
from costmodels.operators.views import differentiated
from graphs.common.errors import InputError
from graphs.importers.training import check_hooks
from graphs.program.pieces import check_trains
from graphs.program.program import Program
from planner.plans.plan import Plan
from planner.runtime.training.options import TrainerOptions
from planner.runtime.training.stages import compile_training, trained_parameters, wire
from planner.runtime.training.step import Loss, StepProgram
from planner.runtime.training.wiring import check_owners
from simulator.schedule import Schedule


@dataclass(frozen=True)
class StageLayout:
    """The operators of each stage, the devices that take part, and the schedule."""

    members: tuple[tuple[int, ...], ...]  # [n_stages], operators of each stage
    devices: tuple[Device, ...]  # those that take part, in the order of the schedule's rows
    schedule: Schedule  # actions of each device
    samples: int = 1  # in a micro-batch


def stage_layout(plan: Plan) -> StageLayout:
    """Return the predicted stages and schedule of a training plan; raise InputError for a plan for another goal."""
    if not plan.workload.trains:
        raise InputError(f"the plan is for {plan.workload.mode}; to train, plan with the goal 'training'")
    predicted = plan.training_run
    used = dict.fromkeys(plan.placement.device[ops[0]] for ops in predicted.stages)
    devices = tuple(plan.cluster.devices[device] for device in used)
    return StageLayout(predicted.stages, devices, predicted.pipeline.lowered.schedule, plan.workload.batch)


def replica_count(plan: Plan) -> int:
    """Return how many replicas a plan has."""
    return 1 if plan.cluster.replicas is None else plan.cluster.replicas.count


def check_alone(plan: Plan) -> None:
    """Check that a plan is for one replica of its devices; raise InputError if it is for several."""
    if plan.cluster.replicas is not None:
        raise InputError(
            f"the plan is for {plan.cluster.replicas.count} replicas of its devices, which ranks train; start one for "
            "each device of each replica by torchrun -m planner rank, or plan without replicas"
        )


def check_trained(program: Program) -> frozenset[str]:
    """Return the names of trained parameters; raise InputError if there is nothing to train, or a hook is on gradients.

    The parts of a split parameter must make it up, see `graphs.program.pieces`.
    """
    check_hooks(program.graph.name, program.module, program.state)
    trained = trained_parameters(program)
    if not trained:
        raise InputError(
            f"model '{program.graph.name}' has no parameter that asks for a gradient: nothing to train; call "
            "requires_grad_() on what is to be trained"
        )
    if differentiated(program.graph, program.state.keys() - trained).isdisjoint(program.graph.outputs):
        raise InputError(f"model '{program.graph.name}' returns nothing that has a gradient: nothing to train")
    check_trains(program, trained)
    return trained


def prepare(program: Program, layout: StageLayout, loss: Loss, trainer_options: TrainerOptions) -> StepProgram:
    """Wire and compile the stages; raise InputError if there is nothing to train, or a parameter has two owners.

    See also `compile_training`.
    """
    trained = check_trained(program)
    places = [torch_device_of(device) for device in layout.devices]
    rows = layout.schedule.device
    wiring = wire(program, layout.members)
    check_owners(wiring, rows, [device.name for device in layout.devices])
    try:
        stages, state = compile_training(program, wiring, rows, places, trainer_options)
    except torch.OutOfMemoryError as error:  # only a GPU raises it
        raise out_of_memory(next(each for each in layout.devices if each.cuda is not None), error) from None
    for torch_device in places:
        if torch_device.type == "cuda":
            torch.cuda.synchronize(torch_device)  # copies of state are there before a stream of the device reads them
    names = tuple(name for name in program.state if name in trained)
    devices, schedule = layout.devices, layout.schedule
    return StepProgram(program, wiring, stages, devices, schedule, state, names, loss, trainer_options, layout.samples)
