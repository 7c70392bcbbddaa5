"""The stages of one rank of a pipeline, with the tensors that they hold, on torch's engine.

torch's stages are a chain: each receives tensors from the previous one and sends tensors to the next one. So a tensor
that a later stage reads goes through the stages in between, and so does its gradient in the backward pass::

    stage 0 ──x, y──► stage 1 ──x, z──► stage 2        x is read by 1 and 2, y by 1, z by 2
            ◄─ x's gradient from 2, and 1's on top ─
"""

import itertools
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from costmodels.host.affinity import torch_device_of
from graphs.common.errors import InputError
from graphs.ir import STATE, Role
from graphs.program.program import Program, on_device
from planner.plans.plan import Plan
from planner.runtime.checkpoint.names import register_tensor
from planner.runtime.checkpoint.shards import names_held, with_counters
from planner.runtime.distributed.training.engine import EngineStage, divides, quiet_schedules, runtime_of
from planner.runtime.inference.recorder import MessageEnd
from planner.runtime.stages.failures import stage_failure
from planner.runtime.stages.recomputation import selective_contexts
from planner.runtime.training.comparison import LossComparison, is_compared
from planner.runtime.training.means import LossShare, Mean, MeanRecorder, Outcome, Weights
from planner.runtime.training.options import TrainerOptions
from planner.runtime.training.prepare import check_trained, stage_layout
from planner.runtime.training.stages import TrainingStage, compile_training_stage, keeps_precision, wire
from planner.runtime.training.step import Loss, MicroBatch, checked_loss, judged, mixed_precision
from planner.runtime.training.wiring import OUTSIDE, Wiring, check_owners
from simulator.schedule import Action


def types_of(program: Program, torch_device: torch.device, autocast: torch.dtype | None) -> Mapping[str, torch.dtype]:
    """Return the dtype of each tensor, by its name, under mixed precision with ``autocast``, if any.

    The network runs once on tensors without values, as autocast decides by the operator and its arguments.
    """
    types = {tensor.name: getattr(torch, tensor.dtype) for tensor in program.graph.tensors}
    if autocast is None:
        return types
    written = {name for op in program.graph.ops for name in op.outputs}
    with FakeTensorMode(), torch.no_grad(), torch.autocast(torch_device.type, autocast, cache_enabled=False):
        tensors = {
            tensor.name: torch.empty(tensor.shape, dtype=types[tensor.name], device=torch_device)
            for tensor in program.graph.tensors
            if tensor.name not in written
        }
        for op in program.graph.ops:
            call = program.calls[op.name]
            args, kwargs = on_device(program.arguments(op, tensors.__getitem__), torch_device)
            with torch.autocast(torch_device.type, enabled=False) if keeps_precision(call) else nullcontext():
                result = call.node.target(*args, **kwargs)  # type: ignore[operator]  # always callable: see from_torch
            tensors.update(zip(op.outputs, result if call.unpack else (result,), strict=True))
    return {name: tensor.dtype for name, tensor in tensors.items()}


def borders_of(wiring: Wiring) -> tuple[tuple[str, ...], ...]:
    """Return [n_stages], the tensors that each stage receives: written before it, and read in it or after it.

    Inputs of the network come to the first stage, if they are read. The result is the same on all ranks.
    """
    state = {tensor.name for tensor in wiring.graph.tensors if tensor.role in STATE}
    kept = {copy for name in state for copy in wiring.forks.get(name, (name,))}  # these stay with their device
    moving = sorted(name for name in wiring.home if name in wiring.readers and name not in kept)
    return tuple(
        tuple(
            name for name in moving if wiring.home[name] < max(stage, OUTSIDE + 1) and wiring.readers[name][-1] >= stage
        )
        for stage in range(len(wiring.members))
    )


def hollow(wiring: Wiring, names: Sequence[str], types: Mapping[str, torch.dtype]) -> tuple[torch.Tensor, ...]:
    """Return contiguous tensors or copies without values: they describe to torch what crosses a border."""
    graph = wiring.graph
    tensors = (graph.tensor[wiring.tensor_of.get(name, name)] for name in names)
    return tuple(
        torch.empty(tensor.shape, dtype=types[tensor.name], device="meta").requires_grad_(
            tensor.name in wiring.learned and tensor.name not in graph.inputs
        )
        for tensor in tensors
    )


def in_two_parts(wiring: Wiring, number: int) -> bool:
    """Return whether torch finds all gradients of a stage when it runs the backward pass in two parts.

    It begins the second part where the backward pass from a parameter meets that from an input. So it misses gradients
    that reach an output of the stage from parameters alone.
    """
    stage, of = wiring.stages[number], wiring.tensor_of
    parameters = {tensor.name for tensor in wiring.graph.tensors if tensor.role is Role.PARAMETER}
    from_inputs = {of.get(name, name) for name in stage.returns} - parameters
    from_parameters = parameters & wiring.learned  # alone
    for op in (wiring.graph.ops[i] for i in stage.ops):
        if not from_inputs.isdisjoint(op.inputs):
            from_inputs |= wiring.learned.intersection(op.outputs)
        elif not from_parameters.isdisjoint(op.inputs):
            from_parameters |= wiring.learned.intersection(op.outputs)
    is_last = number == len(wiring.members) - 1
    leaving = wiring.graph.outputs if is_last else [of.get(name, name) for name in stage.sends]
    return from_parameters.isdisjoint(leaving)


class PipelineModule(nn.Module):
    """The generated function of a stage, with its parameters and buffers under the model's own names."""

    def __init__(
        self,
        stage: TrainingStage,
        arrives: tuple[str, ...],
        leaves: tuple[str, ...] | None,
        beside: Mapping[str, torch.Tensor],
        copies: bool,
        trainer_options: TrainerOptions,
    ) -> None:
        """Register the parameters and buffers of a stage.

        ``arrives`` and ``leaves`` are tensors from the previous and for the next stage, None for the last stage.
        `beside` has the parameters that another stage of this rank holds. With ``copies``, for a backward pass in two
        parts, the stage sends copies: after the first part torch detaches in place what was sent, although an operator
        may have kept it for the second part.
        """
        super().__init__()
        self._stage, self._trainer_options = stage, trainer_options
        self.step = 0  # random numbers follow from its number and the micro-batch
        self._arrives, self._leaves, self._beside, self._copies = arrives, leaves, beside, copies
        self.means: list[Sequence[Mean]] = []  # of each micro-batch, in their order
        self.counting = MeanRecorder()  # of the latest micro-batch
        for name, tensor in zip(stage.wired.state, stage.state, strict=True):
            register_tensor(self, name, tensor)

    def forward(self, *args: torch.Tensor, micro_batch: int) -> tuple[torch.Tensor, ...]:
        """Run the stage on tensors from the previous stage; return those for the next one, or the network's outputs.

        With recomputation, only ``args`` are kept for the backward pass, in which the stage runs again.
        """
        wired, step, runs = self._stage.wired, self.step, itertools.count()
        tensors = dict(zip(self._arrives, args, strict=True))
        received = [tensors[name] if name in tensors else self._beside[name] for name in wired.receives]
        torch_device = received[0].device if received else torch.device("cpu")
        self.counting = counting = MeanRecorder()

        def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self._stage(tensors, step, micro_batch, again=next(runs) > 0)

        mixed = mixed_precision(torch_device, self._trainer_options.autocast)
        with mixed, counting if self._stage.averages else nullcontext():
            if self._trainer_options.recompute == "none":
                results = run(*received)
            else:
                how: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
                if self._trainer_options.recompute == "selective":
                    how["context_fn"] = selective_contexts
                results = checkpoint(run, *received, **how)
        self.means.append(counting.means)
        if self._leaves is None:
            return tuple(result.view_as(result) for result in results)  # torch detaches what is no view, weights too
        tensors |= zip(wired.sends, results, strict=True)
        leaving = (tensors[name].contiguous() for name in self._leaves)  # inputs of the network may have other strides
        return tuple(tensor.clone() if self._copies else tensor for tensor in leaving)


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
        """Compile the stages of a row of the schedule, for a loss of one micro-batch.

        The options have the plan's own choices filled in; the group is None if all ranks are of one replica. Raise
        InputError if this host does not have the device, or its weights have no values.
        """
        self._program, self._loss, self._trainer_options, self._group = program, loss, trainer_options, group
        self.layout = layout = stage_layout(plan)  # the stages of all ranks
        self.device = layout.devices[row]
        self.torch_device = torch_device_of(self.device)
        wiring = wire(program, layout.members)
        check_owners(wiring, layout.schedule.device, [device.name for device in layout.devices])
        own = [number for number, stage_row in enumerate(layout.schedule.device) if stage_row == row]
        self._held: dict[str, torch.Tensor] = {}
        for name in dict.fromkeys(name for number in own for name in wiring.stages[number].state):
            if program.state[name].is_meta:
                raise InputError(
                    f"'{name}' has a shape but no values; give a model with weights, or the shard of this rank"
                )
            tensor = program.state[name].detach().to(self.torch_device, copy=True)
            is_parameter = program.graph.tensor[name].role is Role.PARAMETER
            self._held[name] = nn.Parameter(tensor, requires_grad=name in wiring.learned) if is_parameter else tensor
        self._types = types_of(program, self.torch_device, trainer_options.autocast)
        self._inputs = borders_of(wiring)[0] if 0 in own else ()
        self._modules = [self._module(wiring, number) for number in own]
        self._stages = [self._stage(wiring, *each) for each in zip(own, self._modules, strict=True)]
        self._runtime = runtime_of(self._stages, layout.schedule, self._loss_of)
        counters = with_counters(names_held(plan), program.updates)[self.device.name]
        self._counts = {n: program.updates[n].tensor.detach().clone() for n in counters if n in program.updates}
        trained = check_trained(program)
        self.trained = tuple(name for name in program.state if name in trained)  # by all ranks
        self.own = {name: self._held[name] for name in self.trained if name in self._held}  # trained by this rank
        self.state = self._held | self._counts  # parameters, buffers and counters of this rank
        self._share, self._factor = 1, 1.0
        self.weights = Weights()
        self._shares: list[LossShare] = []  # of the micro-batches, in their order
        self._comparison: LossComparison | None = None  # of micro-batches, in the steps in which they are compared

    def run(
        self, batches: Sequence[MicroBatch], step: int, first: int, share: int, factor: float, timed: bool
    ) -> Outcome:
        """Run forward and backward of all micro-batches of this replica; gradients are added to those that are there.

        ``first`` is the number of the first micro-batch among those of all replicas, of which ``share`` make up one
        gradient; ``factor`` multiplies the loss, and so the gradients. The times of messages are kept if it is
        ``timed``.

        Raise StageError if a stage of this rank fails, or the loss, or a message came damaged; InputError if the loss
        is none, or the mean of the losses is not that of the batch; RuntimeError if another rank is gone.
        """
        self._share, self._factor = share, factor
        self._shares.clear()
        compares = share > 1 and is_compared(step) and not timed
        self._comparison = LossComparison(self._program, self.layout.samples, len(batches) == 1) if compares else None
        for module, stage in zip(self._modules, self._stages, strict=True):
            module.means.clear()
            module.step = step
            stage.times.clear()
            stage.messages.ends.clear()
            stage.messages.on = timed
            stage.seals.begin(step, len(batches))
            stage.has_backward = True
            stage.clear_runtime_states()
        inputs = [tuple(batch.inputs[name].to(self.torch_device) for name in self._inputs) for batch in batches]
        options = [{"micro_batch": first + number} for number in range(len(batches))]
        targets = [batch.target for batch in batches]
        with torch.enable_grad(), quiet_schedules():
            self._runtime._step_microbatches(inputs, options, targets, return_outputs=False)
        for stage in self._stages:
            stage.seals.check()
        for name, count in self._counts.items():
            count += self._program.updates[name].increment * len(batches)
        return self._outcome()

    def times(self) -> tuple[list[tuple[Action, float, float]], list[MessageEnd]]:
        """Return actions of the last run in order, with starts and ends by `time.perf_counter`, and ends of messages.

        Messages are there if the run was timed.
        """
        times = sorted((time for stage in self._stages for time in stage.times), key=lambda times: times[1])
        return times, [end for stage in self._stages for end in stage.messages.ends]

    def _outcome(self) -> Outcome:
        """Combine the micro-batches; means of other stages than the last one must be even among them."""
        others = self._modules[:-1] if self._shares else self._modules
        each = zip(*(module.means for module in others), strict=True)
        rows = [[mean for means in row for mean in means] for row in each if self._share > 1]
        if self._shares:
            return self.weights.outcome(self._shares, rows)
        self.weights.check_even(rows)
        return Outcome(torch.zeros(()), 0.0)

    def _module(self, wiring: Wiring, number: int) -> PipelineModule:
        wired, borders = wiring.stages[number], [*borders_of(wiring), None]
        held = [self._held[name] for name in wired.state]
        compiled = compile_training_stage(self._program, wiring, wired, held, self.torch_device, self._trainer_options)
        arrives, leaves = borders[number] or (), borders[number + 1]
        beside = {name: self._held[name.partition("#")[0]] for name in wired.receives if name not in arrives}
        in_parts = any(action.computation == "I" for row in self.layout.schedule.actions for action in row)
        return PipelineModule(compiled, arrives, leaves, beside, in_parts, self._trainer_options)

    def _stage(self, wiring: Wiring, number: int, module: PipelineModule) -> EngineStage:
        borders = [*borders_of(wiring), self._program.graph.outputs]
        selective = self._trainer_options.recompute == "selective"  # keeps results for one backward pass
        in_two = divides() and in_two_parts(wiring, number) and not selective
        return EngineStage(
            module,
            self.device.name,
            number,
            len(borders) - 1,
            self.torch_device,
            input_args=hollow(wiring, borders[number], self._types),
            output_args=hollow(wiring, borders[number + 1], self._types),
            group=self._group,
            dw_builder=None if in_two else lambda: lambda: None,  # the backward pass is complete after its first part
        )

    def _loss_of(self, outputs: tuple[torch.Tensor, ...], target: Any) -> torch.Tensor:
        """Return the part that a micro-batch has in the mean."""
        counting = self._modules[-1].counting
        with mixed_precision(self.torch_device, self._trainer_options.autocast):
            result = self._program.unflatten(dict(zip(self._program.graph.outputs, outputs, strict=True)))
            try:
                with counting:
                    computed = self._loss(result, target)
            except Exception as error:
                raise stage_failure(f"the loss on '{self.device.name}' failed", self.device, error) from error
            loss = checked_loss(computed)
            means = counting.means_of(loss) if self._share > 1 else ()
            share = self.weights.share(means, loss)
            self._shares.append(share)
            if self._comparison is not None:
                self._comparison.look(self._judge, outputs, target, share)
            part = loss / self._share * self._factor
            return part if share.weight is None else part * share.weight.to(part)

    def _judge(self, result: Any, target: Any) -> LossShare:
        """Compute the loss once more, without a gradient."""
        return judged(self._loss, self.weights, result, target)
