"""Training across processes: a plan's stages and schedule, on torch.distributed.pipelining as the engine.

Every rank has one device and runs the same program::

    dist.init_process_group("gloo")  # rank 0 is the device of the first stage, and so on
    device = layout_of(load_plan("shards/plan.json")).devices[dist.get_rank()]
    plan, program = read_shard(Path("shards"), device.name)
    with PipelineTrainer(plan, program, F.cross_entropy, lambda p: torch.optim.Adam(p, lr=1e-3)) as trainer:
        for batch, target in data:
            loss = trainer.step(batch, target)
        torch.save(trainer.model_state_dict(), f"rank{dist.get_rank()}.pt")

Source of the engine: https://docs.pytorch.org/docs/stable/distributed.pipelining.html. The order of every device is the
plan's own schedule, handed over as the file that torch reads.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn

from costmodels.calibrate.pinned import bound, place_of
from graphs.errors import InputError
from graphs.importers.program import Program
from graphs.ir import Role
from planner.plans import Plan
from planner.runtime.engine import StageError
from planner.runtime.processes.failures import RankError
from planner.runtime.processes.pipeline_engine import Engine, EngineStage
from planner.runtime.processes.pipeline_stage import PipelineModule, borders_of, hollow, in_two_parts, mixed
from planner.runtime.runner import check_same
from planner.runtime.shards import names_held, with_counters
from planner.runtime.training.batches import divide
from planner.runtime.training.crew import Seat
from planner.runtime.training.optimizers import Factory, Optimizers, clip_factor
from planner.runtime.training.prepare import Layout, layout_of
from planner.runtime.training.recipe import Recipe
from planner.runtime.training.recorder import Recorder
from planner.runtime.training.stages import compile_training_stage, trained_parameters, wire
from planner.runtime.training.step import Loss, MicroBatch, checked_loss
from planner.runtime.training.wiring import Wiring, check_owners
from simulator.schedule import Action
from simulator.timeline import Timeline

Times = list[tuple[Action, float, float]]


class PipelineTrainer:
    """One rank of a model that is trained where its plan says. torch.distributed has been initialised.

    Attributes:
        plan: where and in which order.
        program: the model; of the weights, those of our device are needed.
        device: our own.
    """

    def __init__(
        self, plan: Plan, program: Program, loss: Loss, optimizer: Factory, recipe: Recipe | None = None
    ) -> None:
        """Compile our stages.

        Args:
            plan: with the goal "training".
            program: the model, whole or as `planner.runtime.shards.read_shard` returns it.
            loss: takes what the model returns and the target, and returns the mean over its samples.
            optimizer: makes an optimizer from a list of parameters.
            recipe: how to go about it.

        Raises:
            InputError: if the plan is for another model or goal, there are more or fewer ranks than devices, or this
                host does not have our device.
        """
        check_same(plan.graph, program.graph)
        layout = layout_of(plan)
        rank = _own_rank(layout)
        self.plan, self.program, self.device = plan, program, layout.devices[rank]
        recipe = recipe or Recipe()
        again = plan.workload.recompute if recipe.recompute is None else recipe.recompute
        self._recipe = replace(recipe, recompute=again)
        self._loss, self._share = loss, 1
        self._losses: list[torch.Tensor] = []  # of the micro-batches, in their order
        self._layout = layout
        self._place = place_of(self.device)
        wiring = wire(program, layout.members)
        check_owners(wiring, layout.schedule.device, [device.name for device in layout.devices])
        own = [number for number, row in enumerate(layout.schedule.device) if row == rank]
        self._held = _held(program, wiring, own, self._place)
        self._stages = [self._stage(wiring, number) for number in own]
        self._inputs = borders_of(wiring)[0] if 0 in own else ()
        self._engine = Engine(self._stages, layout.schedule, self._loss_of)
        trained = trained_parameters(program)
        self._trained = [name for name in program.state if name in trained]
        mine = {name: self._held[name] for name in self._trained if name in self._held}
        self.optimizers = Optimizers(optimizer, [mine])
        counters = with_counters(names_held(plan), program.updates)[self.device.name]
        self._counts = {n: program.updates[n].tensor.detach().clone() for n in counters if n in program.updates}
        self._recorder = Recorder([device.name for device in layout.devices], layout.schedule)
        self._steps = self._waiting = 0
        self._broken = False
        self._bound = ExitStack()
        self._stream = self._bound.enter_context(bound(self.device))

    def step(self, batch: Any, target: Any = None) -> torch.Tensor:
        """One training step, on all ranks at once: forward and backward of every micro-batch, and the optimizers.

        Args:
            batch: as many samples as the micro-batches have together, the same on all ranks; the first stage reads it.
            target: for the loss, likewise; the last stage reads it.

        Returns:
            The mean loss, the same on all ranks.

        Raises:
            InputError: if the batch does not fit the plan, or the loss is none.
            StageError: if a stage of ours fails; its cause is the original exception.
            RankError: if another rank does.
        """
        workload = self.plan.workload
        return self.step_through(divide(self.program, workload.batch, workload.micro_batches, batch, target))

    def step_through(self, batches: Sequence[MicroBatch]) -> torch.Tensor:
        """The same for a batch that is divided already."""
        loss = self.go_through(batches)
        self._waiting = (self._waiting + 1) % self._recipe.accumulate
        if not self._waiting:
            self.update()
        return loss

    def go_through(self, batches: Sequence[MicroBatch]) -> torch.Tensor:
        """Forward and backward only; gradients are added to those that are there, see `gradients`."""
        if self._broken:
            raise RankError("a step has failed, and the ranks no longer fit together; start them again")
        self._share = len(batches) * self._recipe.accumulate
        options = {"step": self._steps, "recompute": self._recipe.recompute, "autocast": self._recipe.autocast}
        inputs = [tuple(batch.inputs[name].to(self._place) for name in self._inputs) for batch in batches]
        self._broken = True
        self._losses.clear()
        self._engine.run(inputs, [batch.target for batch in batches], options)
        mean = self._from_last(torch.stack(self._losses).double().mean() if self._losses else None)
        self._broken = False
        self._steps += 1
        for name, count in self._counts.items():
            count += self.program.updates[name].increment * len(batches)
        if self._recorder.on:
            self._recorder.add_step(_gathered(self._engine.times()))
        return mean

    def update(self) -> None:
        """Let the optimizers of all ranks take a step, and forget the gradients."""
        seat = Seat(0, self.device, self._place, self._stream)
        factor: torch.Tensor | None = None
        if self._recipe.clip_norm is not None:
            found = {name: norm for norms in _gathered(self.optimizers.norms(seat)) for name, norm in norms.items()}
            factor = clip_factor([found[name] for name in self._trained if name in found], self._recipe.clip_norm)
        start_s = time.perf_counter()
        self.optimizers.step(seat, factor)
        if self._recorder.on:
            self._recorder.add_update(_gathered((start_s, time.perf_counter())))

    def gradients(self) -> dict[str, torch.Tensor | None]:
        """Of the parameters that our device trains, by their names in the model."""
        return {name: parameter.grad for name, parameter in self.optimizers.owned[0].items()}

    def model_state_dict(self) -> dict[str, torch.Tensor]:
        """Our device's parameters and buffers by their names in the model; all ranks' together are the model's."""
        tensors = {**self._held, **self._counts}
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}

    def record(self) -> None:
        """Measure the steps that begin from here on; all ranks do this together, as everything else."""
        self._recorder.start()

    def timeline(self) -> Timeline:
        """What ran on which device since `record`, as far as the clocks of all ranks agree."""
        return replace(self._recorder.timeline(), devices=self.plan.table.devices)

    def close(self) -> None:
        """Let go of the device. May be called again."""
        self._bound.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _stage(self, wiring: Wiring, number: int) -> EngineStage:
        wired, borders = wiring.stages[number], borders_of(wiring)
        held = [self._held[name] for name in wired.state]
        compiled = compile_training_stage(self.program, wiring, wired, held, self._place, self._recipe.seed)
        last = number == len(borders) - 1
        leaves = self.program.graph.outputs if last else borders[number + 1]
        beside = {name: self._held[name.partition("#")[0]] for name in wired.receives if name not in borders[number]}
        in_parts = any(action.computation == "I" for row in self._layout.schedule.actions for action in row)
        module = PipelineModule(compiled, borders[number], None if last else leaves, beside, in_parts)
        return EngineStage(
            module,
            self.device.name,
            number,
            len(borders),
            self._place,
            input_args=hollow(wiring, borders[number]),
            output_args=hollow(wiring, leaves),
            dw_builder=None if in_two_parts(wiring, number) else lambda: _nothing,  # else all is done in the first part
        )

    def _loss_of(self, outputs: tuple[torch.Tensor, ...], target: Any) -> torch.Tensor:
        """The part that a micro-batch has in the mean."""
        with mixed(outputs, self._recipe.autocast):
            result = self.program.unflatten(dict(zip(self.program.graph.outputs, outputs, strict=True)))
            try:
                loss = self._loss(result, target)
            except Exception as error:
                raise StageError(f"the loss on '{self.device.name}' failed: {type(error).__name__}: {error}") from error
            self._losses.append(checked_loss(loss).detach())
            return loss / self._share

    def _from_last(self, value: torch.Tensor | None) -> torch.Tensor:
        """A number that the rank of the last stage has, on all ranks."""
        number = (torch.zeros((), dtype=torch.float64) if value is None else value).to(self._place)
        dist.broadcast(number, src=self._layout.schedule.device[-1])
        return number.cpu()


def _nothing() -> None:
    """What is left for the second part of a backward pass."""


def _own_rank(layout: Layout) -> int:
    if not dist.is_initialized():
        raise InputError("torch.distributed is not initialised; call torch.distributed.init_process_group first")
    names = ", ".join(device.name for device in layout.devices)
    if dist.get_world_size() != len(layout.devices):
        raise InputError(
            f"the plan trains on {len(layout.devices)} devices ({names}), and there are {dist.get_world_size()} ranks; "
            "start one for each"
        )
    return dist.get_rank()


def _held(program: Program, wiring: Wiring, own: Sequence[int], place: torch.device) -> dict[str, torch.Tensor]:
    """Copies of the parameters and buffers of our stages."""
    held: dict[str, torch.Tensor] = {}
    for name in dict.fromkeys(name for number in own for name in wiring.stages[number].state):
        tensor = program.state[name].detach()
        if tensor.is_meta:
            raise InputError(
                f"'{name}' has a shape but no values; give a model with weights, or the shard of this rank"
            )
        tensor = tensor.to(place, copy=True)
        is_parameter = program.graph.tensor[name].role is Role.PARAMETER
        held[name] = nn.Parameter(tensor, requires_grad=name in wiring.learned) if is_parameter else tensor
    return held


def _gathered(mine: Any) -> list[Any]:
    """What each rank has."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found
