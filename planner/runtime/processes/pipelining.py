"""Training across processes: a plan's stages and schedule, on torch.distributed.pipelining as the engine.

Every rank has one device and runs the same program::

    dist.init_process_group("gloo")  # rank 0 is the device of the first stage, and so on
    device = layout_of(load_plan("shards/plan.json")).devices[dist.get_rank()]
    plan, program = read_shard(Path("shards"), device.name)
    with PipelineTrainer(plan, program, F.cross_entropy, lambda p: torch.optim.Adam(p, lr=1e-3)) as trainer:
        for batch, target in data:
            loss = trainer.step(batch, target)
        torch.save(trainer.state_dict(), f"rank{dist.get_rank()}.pt")

The parts that the ranks save are one state (`planner.runtime.training.states.joined`), from which any trainer goes on.
A plan for replicas is trained by as many times its ranks, see `planner.runtime.processes.team`; each replica takes its
part of the batch.

Source of the engine: https://docs.pytorch.org/docs/stable/distributed.pipelining.html. The order of every device is the
plan's own schedule, handed over as the file that torch reads.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import Any

import torch

from costmodels.calibrate.pinned import bound, place_of
from graphs.errors import InputError
from graphs.importers.program import Program
from planner.plans import Plan
from planner.runtime.closing import Closing
from planner.runtime.engine import StageError
from planner.runtime.processes.failures import RankError
from planner.runtime.processes.pipeline_engine import Engine, EngineStage
from planner.runtime.processes.pipeline_gradients import divides
from planner.runtime.processes.pipeline_stage import (
    PipelineModule,
    borders_of,
    held_state,
    hollow,
    in_two_parts,
    mixed,
)
from planner.runtime.processes.pipeline_types import types_of
from planner.runtime.processes.team import Team
from planner.runtime.runner import check_same
from planner.runtime.shards import names_held, with_counters
from planner.runtime.training.batches import divide
from planner.runtime.training.crew import Seat
from planner.runtime.training.names import model_state, values_of
from planner.runtime.training.optimizers import Factory, Optimizers, clip_factor
from planner.runtime.training.prepare import layout_of
from planner.runtime.training.recipe import Recipe
from planner.runtime.training.recorder import Recorder
from planner.runtime.training.scaling import Scale, check_wide
from planner.runtime.training.stages import compile_training_stage, trained_parameters, wire
from planner.runtime.training.states import Progress, check_saved, joined, progress_of, state_of
from planner.runtime.training.step import Loss, MicroBatch, checked_loss
from planner.runtime.training.wiring import Wiring, check_owners
from simulator.timeline import Timeline


class PipelineTrainer(Closing):
    """One rank of a model that is trained where its plan says. torch.distributed has been initialised.

    Attributes:
        plan: where and in which order.
        program: the model; of the weights, those of our device are needed.
        device: our own.
        broken: whether a step has failed, after which the ranks no longer fit together.
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
        self._team = Team.of(plan, layout)
        row = self._team.row
        self.plan, self.program, self.device = plan, program, layout.devices[row]
        self._recipe = recipe = (recipe or Recipe()).under(plan.workload)
        self._loss, self._share = loss, 1
        self._losses: list[torch.Tensor] = []  # of the micro-batches, in their order
        self._layout = layout
        self._place = place_of(self.device)
        wiring = wire(program, layout.members)
        check_owners(wiring, layout.schedule.device, [device.name for device in layout.devices])
        own = [number for number, its in enumerate(layout.schedule.device) if its == row]
        self._held = held_state(program, wiring, own, self._place)
        self._types = types_of(program, self._place, recipe.autocast)
        self._stages = [self._stage(wiring, number) for number in own]
        self._inputs = borders_of(wiring)[0] if 0 in own else ()
        self._engine = Engine(self._stages, layout.schedule, self._loss_of)
        trained = trained_parameters(program)
        self._trained = [name for name in program.state if name in trained]
        mine = {name: self._held[name] for name in self._trained if name in self._held}
        self._scale = Scale.of(recipe.autocast, recipe.scaling)
        if self._scale is not None:
            check_wide(mine)
        self.optimizers = Optimizers(optimizer, [mine])
        counters = with_counters(names_held(plan), program.updates)[self.device.name]
        self._counts = {n: program.updates[n].tensor.detach().clone() for n in counters if n in program.updates}
        self._recorder = Recorder([device.name for device in layout.devices], layout.schedule)
        self._ahead_s = 0.0  # by how much the clock of the first rank is ahead of ours
        self._steps = self._waiting = 0
        self.broken = self._summed = False
        self._bound = ExitStack()
        self._stream = self._bound.enter_context(bound(self.device))

    def step(self, batch: Any, target: Any = None) -> torch.Tensor:
        """One training step, on all ranks at once: forward and backward of every micro-batch, and the optimizers.

        Args:
            batch: as many samples as the micro-batches of all replicas have together, the same on all ranks; the first
                stage reads it.
            target: for the loss, likewise; the last stage reads it.

        Returns:
            The mean loss, the same on all ranks.

        Raises:
            InputError: if the batch does not fit the plan, or the loss is none.
            StageError: if a stage of ours fails; its cause is the original exception.
            RankError: if another rank does.
        """
        workload = self.plan.workload
        count = workload.micro_batches * self._team.n_replicas
        return self.step_through(divide(self.program, workload.batch, count, batch, target))

    def step_through(self, batches: Sequence[MicroBatch]) -> torch.Tensor:
        """The same for a batch that is divided already: the micro-batches of all replicas."""
        loss = self.go_through(batches)
        self._waiting = (self._waiting + 1) % self._recipe.accumulate
        if not self._waiting:
            self.update()
        return loss

    def go_through(self, batches: Sequence[MicroBatch]) -> torch.Tensor:
        """Forward and backward only; gradients are added to those that are there, see `gradients`."""
        if self.broken:
            raise RankError("a step has failed, and the ranks no longer fit together; start them again")
        if self._summed:
            raise InputError("the gradients of all replicas have been added up; call update() before the next step")
        self._share = len(batches) * self._recipe.accumulate
        first = self._team.replica * self.plan.workload.micro_batches
        batches = batches[first : first + self.plan.workload.micro_batches]
        options = {"step": self._steps, "recompute": self._recipe.recompute, "autocast": self._recipe.autocast}
        inputs = [tuple(batch.inputs[name].to(self._place) for name in self._inputs) for batch in batches]
        self.broken = True
        self._losses.clear()
        self._engine.run(inputs, [batch.target for batch in batches], options, first, self._recorder.on)
        mean = self._mean_loss()
        self.broken = False
        self._steps += 1
        for name, count in self._counts.items():
            count += self.program.updates[name].increment * len(batches)
        if self._recorder.on:
            ahead_s = self._ahead_s
            times = [(action, start_s + ahead_s, end_s + ahead_s) for action, start_s, end_s in self._engine.times()]
            passings = [passing._replace(at_s=passing.at_s + ahead_s) for passing in self._engine.passings()]
            rows = self._team.gathered((times, passings))
            self._recorder.add_step([row for row, _ in rows], chain.from_iterable(ends for _, ends in rows))
        return mean

    def update(self) -> None:
        """Let the optimizers of all ranks take a step, and forget the gradients.

        With a scale of the loss, none takes a step where a gradient of any rank has overflowed.
        """
        seat = Seat(0, self.device, self._place, self._stream)
        start_s = time.perf_counter()
        self.sum_gradients()
        self._summed, finite = False, True
        if self._scale is not None:
            finite = all(self._team.gathered(self.optimizers.unscale(seat, self._scale.value)))
            self._scale = self._scale.after(finite)
        if finite:
            self.optimizers.step(seat, self._clip_factor(seat))
        else:
            self.optimizers.forget(seat)
        if self._recorder.on:
            end_s = time.perf_counter()
            self._recorder.add_update(self._team.gathered((start_s + self._ahead_s, end_s + self._ahead_s)))

    def sum_gradients(self) -> None:
        """Add up the gradients of all replicas, together; the step of the optimizers must follow, and does this too."""
        if not self._summed:
            self._team.add_up(grad for grad in self.gradients().values() if grad is not None)
        self._summed = True

    def gradients(self) -> dict[str, torch.Tensor | None]:
        """Of the parameters that our device trains, by their names; of our replica alone until they are summed."""
        return {name: parameter.grad for name, parameter in self.optimizers.owned[0].items()}

    def model_state_dict(self) -> dict[str, Any]:
        """Our device's part of the model's ``state_dict()``; all ranks' together are the whole."""
        return model_state(self.program, self._held | self._counts)

    def state_dict(self) -> dict[str, Any]:
        """Our device's part of all that is needed to go on, for `torch.save`; see `planner.runtime.training.states`.

        Raises:
            InputError: if gradients wait for the optimizer.
        """
        check_saved(self._waiting, self._recipe.accumulate)
        return state_of(self.program, self._held | self._counts, self.optimizers, self._progress())

    def whole_state_dict(self) -> dict[str, Any] | None:
        """The parts of all ranks in one, on rank 0; None on the others. All ranks ask for it together.

        Raises:
            InputError: if gradients wait for the optimizer.
        """
        parts = self._team.at_first(self.state_dict())
        return None if parts is None else joined(parts)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, as if there had been no break; all ranks do so together.

        Args:
            state: of any trainer of this model, on threads or in processes, whole; we read our part.

        Raises:
            InputError: if it is of another model, optimizer, seed or version, or lacks something of a rank's; then
                all ranks say so, and nothing is changed.
        """
        tensors = self._held | self._counts
        trouble = ""
        try:
            progress = progress_of(state, self._progress())
            values = values_of(self.program, state["model"], tensors)
            (optimizer,) = self.optimizers.divided(state["optimizer"])
        except InputError as error:
            trouble = str(error)
        if trouble := next(filter(None, self._team.gathered(trouble)), ""):
            raise InputError(trouble)
        with torch.no_grad():
            for name, value in values.items():
                tensors[name].copy_(value)
        seat = Seat(0, self.device, self._place, self._stream)
        self.optimizers.load(seat, optimizer)
        self.optimizers.forget(seat)
        self._steps, self._waiting, self._scale = progress.steps, 0, progress.scale
        self._summed = False

    def record(self) -> None:
        """Measure the steps that begin from here on; all ranks do this together, as everything else."""
        self._ahead_s = self._team.ahead_s()  # anew: clocks drift
        self._recorder.start()

    def timeline(self) -> Timeline:
        """What ran on which device and went between them since `record`, by the clock of the first rank."""
        return replace(self._recorder.timeline(), devices=self.plan.table.devices)

    def close(self) -> None:
        """Let go of the device. May be called again."""
        self._bound.close()

    def _stage(self, wiring: Wiring, number: int) -> EngineStage:
        wired, borders = wiring.stages[number], borders_of(wiring)
        held = [self._held[name] for name in wired.state]
        compiled = compile_training_stage(self.program, wiring, wired, held, self._place, self._recipe.seed)
        last = number == len(borders) - 1
        leaves = self.program.graph.outputs if last else borders[number + 1]
        beside = {name: self._held[name.partition("#")[0]] for name in wired.receives if name not in borders[number]}
        in_parts = any(action.computation == "I" for row in self._layout.schedule.actions for action in row)
        module = PipelineModule(compiled, borders[number], None if last else leaves, beside, in_parts)
        in_two = divides() and in_two_parts(wiring, number)
        return EngineStage(
            module,
            self.device.name,
            number,
            len(borders),
            self._place,
            input_args=hollow(wiring, borders[number], self._types),
            output_args=hollow(wiring, leaves, self._types),
            group=self._team.pipeline,
            dw_builder=None if in_two else lambda: _nothing,  # else all is done in the first part
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
            return loss / self._share * (1.0 if self._scale is None else self._scale.value)

    def _mean_loss(self) -> torch.Tensor:
        """Of the last step, on all ranks."""
        mean = torch.stack(self._losses).mean().double() if self._losses else torch.zeros((), dtype=torch.float64)
        return self._team.mean_from(self._layout.schedule.device[-1], mean.to(self._place)).cpu()

    def _clip_factor(self, seat: Seat) -> torch.Tensor | None:
        """What the gradients of all ranks are to be multiplied by, if anything."""
        if self._recipe.clip_norm is None:
            return None
        return clip_factor(self._team.gathered(self.optimizers.norms(seat)), self._trained, self._recipe.clip_norm)

    def _progress(self) -> Progress:
        return Progress(self._steps, self._recipe.seed, self._scale)


def _nothing() -> None:
    """What is left for the second part of a backward pass."""
