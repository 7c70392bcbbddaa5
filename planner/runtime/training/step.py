"""One training step: every device works through its row of the schedule, forward and backward.

::

    schedule   cpu0   0F0 0F1 .   0B0 .   0B1         stage 0 posts what it sends; stage 1 takes it, makes it a leaf of
               cpu1   .   1F0 1B0 1F1 1B1             its own and posts the leaf's gradient; parameters add theirs up
"""

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.utils import _pytree as pytree

from costmodels.cluster.cluster import Device
from costmodels.host.affinity import Stopped
from graphs.common.errors import InputError
from graphs.program.program import Program
from planner.runtime.stages.compile import ShardedState, bring, mark
from planner.runtime.stages.failures import stage_failure
from planner.runtime.stages.recomputation import passes
from planner.runtime.training.comparison import LossComparison, is_compared
from planner.runtime.training.device_threads import DeviceContext
from planner.runtime.training.means import LossShare, Mean, MeanRecorder, Outcome, Weights
from planner.runtime.training.options import TrainerOptions
from planner.runtime.training.split_backward import WeightPass, first_half
from planner.runtime.training.stages import TrainingStage, leaf_view
from planner.runtime.training.wiring import OUTSIDE, Wiring
from simulator.schedule import Action, Schedule


class SentTensor(NamedTuple):
    """A tensor, and the event that is over when a GPU has written it; no tensor if there is no gradient."""

    tensor: torch.Tensor | None
    written: torch.cuda.Event | None = None


class Mailbox:
    """Tensors on their way, which one thread posts and one other takes, each once, under names that both know."""

    def __init__(self) -> None:
        self._posted: dict[Hashable, SentTensor] = {}
        self._changed = threading.Condition()
        self._stopped = False

    def post(self, sent: Mapping[Hashable, SentTensor]) -> None:
        """Put tensors in without waiting."""
        with self._changed:
            self._posted.update(sent)
            self._changed.notify_all()

    def take(self, names: Iterable[Hashable]) -> list[SentTensor]:
        """Wait until all are there and take them out; raise Stopped after `stop`."""
        names = list(names)
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or all(name in self._posted for name in names))
            if self._stopped:
                raise Stopped
            return [self._posted.pop(name) for name in names]

    def stop(self) -> None:
        """Let every thread that waits, now or later, raise `Stopped`."""
        with self._changed:
            self._stopped = True
            self._posted.clear()
            self._changed.notify_all()


Loss: TypeAlias = Callable[[Any, Any], torch.Tensor]
"""Takes what the model returns and the target; returns a tensor of one element."""

Address: TypeAlias = tuple[str, int]
"""The name of a tensor or copy, and the stage that reads it."""


@dataclass(frozen=True)
class MicroBatch:
    """A part of the batch."""

    inputs: Mapping[str, torch.Tensor]  # inputs of the network, by name
    target: Any  # for the loss


@dataclass(frozen=True)
class StepProgram:
    """The program of every step, with the state that the devices hold for it."""

    program: Program  # the network
    wiring: Wiring  # of the stages
    stages: Sequence[TrainingStage]  # as functions
    devices: Sequence[Device]  # those that take part, in the order of the schedule's rows
    schedule: Schedule  # [n_devices] rows of actions
    state: ShardedState  # the copies of parameters and buffers that the devices hold
    trained: tuple[str, ...]  # names of the parameters that are trained, in the order of the model
    loss: Loss  # of one micro-batch
    trainer_options: TrainerOptions  # with the plan's own choices filled in
    samples: int  # of a micro-batch
    weights: Weights = field(default_factory=Weights)  # how much the micro-batches count for

    def judge(self, result: Any, target: Any) -> LossShare:
        """Compute the loss once more, of any number of samples, without a gradient."""
        return judged(self.loss, self.weights, result, target)


@dataclass(frozen=True)
class _Kept:
    """Tensors that a stage keeps for the backward pass of one micro-batch."""

    leaves: tuple[torch.Tensor, ...]  # what it has received
    received: tuple[torch.Tensor, ...]  # what its operators read instead, see `leaf_view`
    sent: tuple[torch.Tensor, ...] = ()  # what it has sent; nothing if it will run forward again
    loss: torch.Tensor | None = None  # in the last stage
    again: AbstractContextManager[object] | None = None  # in which it will run forward again


@dataclass(eq=False)
class StepRun:
    """One step on its way. Each device's thread calls `run`; the thread that waits for them may call `stop`."""

    program: StepProgram  # what every step does
    batches: Sequence[MicroBatch]  # [micro_batches]
    number: int  # number of the step, from 0
    share: int  # how many micro-batches make up one gradient
    scale: float = 1.0  # factor of the loss, and so of the gradients
    timed: bool = False  # whether to wait for GPUs, so that measured times are theirs

    def __post_init__(self) -> None:
        self._mailbox = Mailbox()
        self._kept: dict[tuple[int, int], _Kept] = {}  # by stage and micro-batch
        self._left: dict[tuple[int, int], WeightPass] = {}  # likewise, between I and W
        self._shares: dict[int, LossShare] = {}  # by micro-batch
        self._means: dict[tuple[int, int], Sequence[Mean]] = {}  # by stage, except the last one, and micro-batch
        self._before: dict[int, list[torch.Tensor]] = {}  # by stage, its statistics
        program = self.program
        self._comparison = LossComparison(
            program.program, program.samples, len(self.batches) == 1
        )  # for the last stage
        for i, batch in enumerate(self.batches):
            for tensor in pytree.tree_leaves(batch.target):
                if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
                    torch.cuda.current_stream(tensor.device).synchronize()  # the stage with the loss reads it at once
            for name, tensor in batch.inputs.items():
                sent = SentTensor(tensor, mark(tensor.device) if tensor.is_cuda else None)
                readers = self.program.wiring.readers_behind(name, OUTSIDE)
                self._mailbox.post({("F", i, name, reader): sent for reader in readers})

    def run(self, context: DeviceContext) -> list[tuple[Action, float, float]]:
        """Work through the device's row; return when each action started and ended, by `time.perf_counter`.

        Raises:
            StageError: if a stage fails; its cause is the original exception.
            InputError: if the loss is no loss.
            Stopped: if another device has failed.
        """
        for number, stage in self._stages_of(context):
            self._before[number] = [tensor.clone() for tensor in stage.statistics]
        times = []
        for action in self.program.schedule.actions[context.number]:
            stage = self.program.stages[action.stage]
            try:
                if action.computation == "F":
                    span_s = self._forward(context, stage, action)
                elif action.computation == "W":
                    start_s = self._now(context)
                    self._left.pop((action.stage, action.micro_batch)).finish()
                    span_s = start_s, self._now(context)
                else:
                    span_s = self._backward(context, stage, action)
            except (InputError, Stopped):
                raise
            except BaseException as error:
                where = f"stage {action.stage} on '{context.device.name}' failed in {action}"
                raise stage_failure(where, context.device, error) from error
            times.append((action, *span_s))
        return times

    def stop(self) -> None:
        """Let every thread that waits for another device raise `Stopped`."""
        self._mailbox.stop()

    def undo(self, context: DeviceContext) -> None:
        """Restore the statistics of the device's stages, if the step has failed, and drop what they have kept."""
        for kept in (self._kept, self._left):
            for number, batch in [key for key in tuple(kept) if self.program.schedule.device[key[0]] == context.number]:
                del kept[number, batch]
        for number, stage in self._stages_of(context):
            for tensor, before in zip(stage.statistics, self._before.get(number, ()), strict=False):
                tensor.copy_(before)

    def outcome(self) -> Outcome:
        """Combine the losses of all micro-batches; raise InputError if their mean is not that of the batch."""
        shares = [self._shares[i] for i in range(len(self.batches))]
        for share in shares:
            if share.loss.is_cuda:  # keeps its memory until the caller's stream has read it
                share.loss.record_stream(torch.cuda.current_stream(share.loss.device))
        stages = sorted({stage for stage, _ in self._means})
        rows = [[mean for stage in stages for mean in self._means[stage, i]] for i in range(len(shares)) if stages]
        return self.program.weights.outcome(shares, rows)

    def _stages_of(self, context: DeviceContext) -> Iterator[tuple[int, TrainingStage]]:
        for number, device in enumerate(self.program.schedule.device):
            if device == context.number:
                yield number, self.program.stages[number]

    def _forward(self, context: DeviceContext, stage: TrainingStage, action: Action) -> tuple[float, float]:
        """Run a stage on what it receives, and send what other stages read."""
        number, batch = action.stage, action.micro_batch
        wiring = self.program.wiring
        taken = self._take("F", batch, [(name, number) for name in stage.wired.receives], context)
        start_s = self._now(context)
        leaves = tuple(  # `data` counts writes by itself: the sender's second pass may count some again, see `once`
            tensor.data.requires_grad_(name in stage.wired.returns)
            for name, tensor in zip(stage.wired.receives, taken, strict=True)
            if tensor is not None
        )
        received = tuple(map(leaf_view, leaves))
        first, again = passes(self.program.trainer_options.recompute)
        with first:
            sent, loss, means = self._call(context, stage, batch, received)
        self._kept[number, batch] = (
            _Kept(leaves, received, again=again) if again else _Kept(leaves, received, sent, loss)
        )
        if loss is not None:
            self._shares[batch] = self.program.weights.share(means, loss)
        elif means:
            self._means[number, batch] = means
        end_s = self._now(context)  # before others can go on
        sends = zip(stage.wired.sends, sent, strict=True)
        self._post("F", batch, {(n, s): t for n, t in sends for s in wiring.readers_behind(n, number)}, context)
        return start_s, end_s

    def _backward(self, context: DeviceContext, stage: TrainingStage, action: Action) -> tuple[float, float]:
        """Run the backward pass of a stage, and send the gradients that others await; I leaves the weights to W."""
        number, batch, wired = action.stage, action.micro_batch, stage.wired
        gradients = self._take("B", batch, wired.awaits, context)
        start_s = self._now(context)
        kept = self._kept.pop((number, batch))
        if kept.again:
            kept = self._forward_again(context, stage, batch, kept, kept.again)
        tensors = dict(zip((*wired.receives, *wired.sends), (*kept.received, *kept.sent), strict=True))
        leaves = dict(zip(wired.receives, kept.leaves, strict=True))
        roots = [
            (tensors[name], gradient)
            for (name, _), gradient in zip(wired.awaits, gradients, strict=True)
            if gradient is not None and tensors[name].requires_grad
        ]
        if kept.loss is not None and kept.loss.requires_grad:
            root = torch.ones_like(kept.loss) / self.share * self.scale
            weight = self._shares[batch].weight
            roots.append((kept.loss, root if weight is None else root * weight.to(root)))
        if action.computation == "I":
            self._left[number, batch] = first_half(roots, [leaves[name] for name in wired.returns])
        elif roots:
            torch.autograd.backward([tensor for tensor, _ in roots], [gradient for _, gradient in roots])
        end_s = self._now(context)
        self._post("B", batch, {(name, number): leaves[name].grad for name in wired.returns}, context)
        return start_s, end_s

    def _forward_again(
        self,
        context: DeviceContext,
        stage: TrainingStage,
        batch: int,
        kept: _Kept,
        again: AbstractContextManager[object],
    ) -> _Kept:
        """Run a stage forward once more, and return what its backward pass needs."""
        with again:
            sent, loss, _ = self._call(context, stage, batch, kept.received, again=True)
        return _Kept(kept.leaves, kept.received, sent, loss)

    def _call(
        self,
        context: DeviceContext,
        stage: TrainingStage,
        batch: int,
        received: tuple[torch.Tensor, ...],
        again: bool = False,
    ) -> tuple[tuple[torch.Tensor, ...], torch.Tensor | None, Sequence[Mean]]:
        """Return what a stage sends, the loss in the last one, and the means that it has computed."""
        program, counting = self.program, MeanRecorder()
        with mixed_precision(context.torch_device, program.trainer_options.autocast):
            with counting if stage.averages else nullcontext():
                results = stage(received, self.number, batch, again)
            n_sent = len(stage.wired.sends)
            sent, outputs = results[:n_sent], results[n_sent:]
            if stage is not program.stages[-1]:
                return sent, None, counting.means if self.share > 1 else ()
            target = pytree.tree_map_only(
                torch.Tensor, lambda x: x.to(context.torch_device), self.batches[batch].target
            )
            result = program.program.unflatten(dict(zip(program.program.graph.outputs, outputs, strict=True)))
            with counting:
                loss = checked_loss(program.loss(result, target))
            means = counting.means_of(loss) if self.share > 1 else ()
            if self.share > 1 and not again and not self.timed and is_compared(self.number):
                self._comparison.look(program.judge, outputs, target, program.weights.share(means, loss))
            return sent, loss, means

    def _take(
        self, letter: str, batch: int, names: Sequence[Address], context: DeviceContext
    ) -> list[torch.Tensor | None]:
        """Wait for tensors (F) or gradients (B), and bring them to the device."""
        sent = self._mailbox.take([(letter, batch, *name) for name in names])
        return [
            None if tensor is None else bring(tensor, context.torch_device, written, context.stream)
            for tensor, written in sent
        ]

    def _post(
        self, letter: str, batch: int, tensors: Mapping[Address, torch.Tensor | None], context: DeviceContext
    ) -> None:
        """Post tensors (F) or gradients (B) for the stages that wait for them."""
        written = mark(context.torch_device) if context.stream is not None and tensors else None
        self._mailbox.post({(letter, batch, *name): SentTensor(tensor, written) for name, tensor in tensors.items()})

    def _now(self, context: DeviceContext) -> float:
        """Return the time, after the GPU has done its work if times are kept."""
        if self.timed and context.stream is not None:
            context.stream.synchronize()
        return time.perf_counter()


def mixed_precision(torch_device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    """Return mixed precision without the cache of cast parameters, which all threads would share."""
    return nullcontext() if dtype is None else torch.autocast(torch_device.type, dtype, cache_enabled=False)


def judged(loss: Loss, weights: Weights, result: Any, target: Any) -> LossShare:
    """Compute a loss without a gradient, and without a trace in PyTorch's random numbers."""
    gpus = {x.device for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor) and x.is_cuda}
    with torch.no_grad(), torch.random.fork_rng(devices=gpus), MeanRecorder() as counting:
        value = checked_loss(loss(result, target))
    return weights.share(counting.means_of(value), value)


def checked_loss(loss: Any) -> torch.Tensor:
    """Return the loss, if it is one that can be differentiated."""
    if not isinstance(loss, torch.Tensor):
        raise InputError(f"the loss is a {type(loss).__name__}; it must be a tensor of one element")
    if loss.numel() != 1:
        raise InputError(f"the loss is a tensor {list(loss.shape)}; it must have one element: take its mean")
    if not loss.is_floating_point():
        raise InputError(f"the loss is of {str(loss.dtype).removeprefix('torch.')}; it must be of a floating type")
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise InputError(
            "the loss has no gradient, so nothing can be trained: compute it from outputs that parameters to train "
            "lead to, without detach(), item() or torch.no_grad()"
        )
    return loss
