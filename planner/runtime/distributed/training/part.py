"""The stages of one rank of a pipeline, with the tensors that they hold, on torch's engine."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from costmodels.host.affinity import torch_device_of
from graphs.program.program import Program
from planner.plans.plan import Plan
from planner.runtime.checkpoint.shards import names_held, with_counters
from planner.runtime.distributed.training.dtypes import types_of
from planner.runtime.distributed.training.engine import EngineStage, RankEngine
from planner.runtime.distributed.training.gradients import divides
from planner.runtime.distributed.training.stage import (
    PipelineModule,
    borders_of,
    held_state,
    hollow,
    in_two_parts,
    mixed,
)
from planner.runtime.errors import StageError
from planner.runtime.training.means import Counting, LossShare, Outcome, Weights
from planner.runtime.training.options import TrainerOptions
from planner.runtime.training.prepare import check_trained, layout_of
from planner.runtime.training.stages import compile_training_stage, wire
from planner.runtime.training.step import Loss, MicroBatch, checked_loss
from planner.runtime.training.wiring import Wiring, check_owners


class RankStages:
    """The stages of one rank."""

    def __init__(
        self,
        plan: Plan,
        program: Program,
        row: int,
        loss: Loss,
        trainer_options: TrainerOptions,
        group: dist.ProcessGroup | None,
    ) -> None:
        """Compile the stages of a row of the schedule.

        Args:
            plan: for training.
            program: its model, with the weights of this rank's device.
            row: row of the device in the schedule.
            loss: of one micro-batch.
            trainer_options: with the plan's own choices filled in.
            group: the ranks of all devices; None if they are all ranks.

        Raises:
            InputError: if this host does not have the device, or its weights have no values.
        """
        self._program, self._loss, self._trainer_options, self._group = program, loss, trainer_options, group
        self.layout = layout = layout_of(plan)  # the stages of all ranks
        self.device = layout.devices[row]
        self.torch_device = torch_device_of(self.device)
        wiring = wire(program, layout.members)
        check_owners(wiring, layout.schedule.device, [device.name for device in layout.devices])
        own = [number for number, stage_row in enumerate(layout.schedule.device) if stage_row == row]
        self._held = held_state(program, wiring, own, self.torch_device)
        self._types = types_of(program, self.torch_device, trainer_options.autocast)
        self._inputs = borders_of(wiring)[0] if 0 in own else ()
        stages = [self._stage(wiring, number) for number in own]
        self._modules = [stage.module for stage in stages]
        self.engine = RankEngine(stages, layout.schedule, self._loss_of)
        counters = with_counters(names_held(plan), program.updates)[self.device.name]
        self._counts = {n: program.updates[n].tensor.detach().clone() for n in counters if n in program.updates}
        trained = check_trained(program)
        self.trained = tuple(name for name in program.state if name in trained)  # by all ranks
        self.own = {name: self._held[name] for name in self.trained if name in self._held}  # trained by this rank
        self.state = self._held | self._counts  # parameters, buffers and counters of this rank
        self._share, self._factor = 1, 1.0
        self.weights = Weights()
        self._shares: list[LossShare] = []  # of the micro-batches, in their order

    def run(
        self, batches: Sequence[MicroBatch], step: int, first: int, share: int, factor: float, timed: bool
    ) -> Outcome:
        """Run forward and backward of all micro-batches; gradients are added to those that are there.

        Args:
            batches: of this replica.
            step: its number.
            first: number of the first micro-batch among those of all replicas.
            share: how many micro-batches make up one gradient.
            factor: factor of the loss, and so of the gradients.
            timed: whether to keep the times of messages.

        Returns:
            The loss and the factor for the gradients, if this rank has the last stage.

        Raises:
            StageError: if a stage of this rank fails, or the loss.
            InputError: if the loss is none, or the mean of the losses is not that of the batch.
            RuntimeError: if another rank is gone.
        """
        self._share, self._factor = share, factor
        self._shares.clear()
        for module in self._modules:
            module.means.clear()
        options = {
            "step": step,
            "recompute": self._trainer_options.recompute,
            "autocast": self._trainer_options.autocast,
        }
        inputs = [tuple(batch.inputs[name].to(self.torch_device) for name in self._inputs) for batch in batches]
        self.engine.run(inputs, [batch.target for batch in batches], options, first, timed)
        for name, count in self._counts.items():
            count += self._program.updates[name].increment * len(batches)
        return self._outcome()

    def _outcome(self) -> Outcome:
        """Combine the micro-batches; means of other stages than the last one must be even among them."""
        others = self._modules[:-1] if self._shares else self._modules
        each = zip(*(module.means for module in others), strict=True)
        rows = [[mean for means in row for mean in means] for row in each if self._share > 1]
        if self._shares:
            return self.weights.outcome(self._shares, rows)
        self.weights.check_even(rows)
        return Outcome(torch.zeros(()), 0.0)

    def _stage(self, wiring: Wiring, number: int) -> EngineStage:
        wired, borders = wiring.stages[number], borders_of(wiring)
        held = [self._held[name] for name in wired.state]
        compiled = compile_training_stage(
            self._program, wiring, wired, held, self.torch_device, self._trainer_options.seed
        )
        last = number == len(borders) - 1
        leaves = self._program.graph.outputs if last else borders[number + 1]
        beside = {name: self._held[name.partition("#")[0]] for name in wired.receives if name not in borders[number]}
        in_parts = any(action.computation == "I" for row in self.layout.schedule.actions for action in row)
        module = PipelineModule(compiled, borders[number], None if last else leaves, beside, in_parts)
        in_two = divides() and in_two_parts(wiring, number)
        return EngineStage(
            module,
            self.device.name,
            number,
            len(borders),
            self.torch_device,
            input_args=hollow(wiring, borders[number], self._types),
            output_args=hollow(wiring, leaves, self._types),
            group=self._group,
            dw_builder=None if in_two else lambda: _nothing,
        )

    def _loss_of(self, outputs: tuple[torch.Tensor, ...], target: Any) -> torch.Tensor:
        """Return the part that a micro-batch has in the mean."""
        counting = Counting()
        with mixed(outputs, self._trainer_options.autocast):
            result = self._program.unflatten(dict(zip(self._program.graph.outputs, outputs, strict=True)))
            try:
                with counting:
                    loss = self._loss(result, target)
            except Exception as error:
                raise StageError(f"the loss on '{self.device.name}' failed: {type(error).__name__}: {error}") from error
            means = [*self._modules[-1].means[-1], *counting.means] if self._share > 1 else ()
            share = self.weights.share(means, checked_loss(loss))
            self._shares.append(share)
            part = loss / self._share * self._factor
            return part if share.weight is None else part * share.weight.to(part)


def _nothing() -> None:
    """The second part of a backward pass that is complete after the first part."""
