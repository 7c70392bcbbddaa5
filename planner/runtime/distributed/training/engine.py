"""torch's engine for a rank of a pipeline, with a plan's own schedule.

torch adds the messages to the schedule and runs it; errors name the stage and the action, as in other runs.
"""

import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from graphs.common.promises import Promise
from planner.runtime.distributed.training.seals import Seals
from planner.runtime.errors import StageError
from planner.runtime.inference.recorder import MessageEnd
from simulator.schedule import Action, Computation, Schedule


class MessageLog:
    """Keeps the times of messages while it is on.

    torch asks whether a message has come when it needs the message, which may be much later. So a thread waits for each
    message.
    """

    def __init__(self) -> None:
        self.on = False
        self.ends: list[MessageEnd] = []  # of the last step

    def leaving(self, sender: Action, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        """Note what torch is about to send after an action; return ``ops``."""
        if self.on and ops:
            self.ends.append(MessageEnd(sender, True, time.perf_counter()))
        return ops

    def coming(self, sender: Action, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        """Watch what torch is about to receive from an action of another stage, except what goes from GPU to GPU."""
        if self.on:
            for op in ops:
                if not op.tensor.is_cuda:
                    op.op = self._watched(sender, op.op)
        return ops

    def _watched(self, sender: Action, receive: Callable[..., Any]) -> Callable[..., SimpleNamespace]:
        """Return what begins to receive a tensor, with the part of torch's work that is asked for."""

        def begin(*args: Any, **options: Any) -> SimpleNamespace:
            work, done = receive(*args, **options), Promise[bool]()

            def come() -> None:
                try:
                    work.wait()
                except BaseException as error:  # raised where torch waits
                    done.set_exception(error)
                else:
                    self.ends.append(MessageEnd(sender, False, time.perf_counter()))
                    done.set_result(True)

            threading.Thread(target=come, daemon=True).start()
            return SimpleNamespace(wait=done.result)

        return begin


class EngineStage(PipelineStage):
    """A stage that keeps the times of its actions and messages, and names an action that fails.

    It receives and sends gradients of those tensors only that require them. Newer versions of torch see from a tensor
    that crosses a border whether it requires a gradient. Torch 2.11 asks for a gradient of all of them, even of whole
    numbers, which have none.
    """

    def __init__(
        self,
        module: nn.Module,
        on: str,
        *args: Any,
        input_args: Sequence[torch.Tensor],
        output_args: Sequence[torch.Tensor],
        **options: Any,
    ) -> None:
        """Make a stage as torch does, on a device of that name; ``input_args`` and ``output_args`` have no values."""
        options |= {"input_args": tuple(input_args), "output_args": tuple(output_args)}
        super().__init__(module, *args, **options)
        self.times: list[tuple[Action, float, float]] = []  # with starts and ends by `time.perf_counter`
        self.messages, self.seals = MessageLog(), Seals()
        self._on = on
        self._learned_inputs = [tensor.requires_grad for tensor in input_args]
        self._learned_outputs = [tensor.requires_grad for tensor in output_args]

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Note and seal what is sent after a forward pass."""
        return self._leaving(Action(self.stage_index, "F", fwd_chunk_id), super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Note and seal what is sent after a backward pass."""
        return self._leaving(Action(self.stage_index, "B", bwd_chunk_id), super().get_bwd_send_ops(bwd_chunk_id))

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Watch what comes from the previous stage."""
        return self._coming(Action(self.stage_index - 1, "F", fwd_chunk_id), super().get_fwd_recv_ops(fwd_chunk_id))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Watch what comes from the next stage."""
        return self._coming(Action(self.stage_index + 1, "B", bwd_chunk_id), super().get_bwd_recv_ops(bwd_chunk_id))

    def _leaving(self, sender: Action, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        return self.seals.leaving(sender, self.messages.leaving(sender, ops))

    def _coming(self, sender: Action, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        return self.seals.coming(sender, self.messages.coming(sender, ops))

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **options: Any) -> Any:
        """Time the forward pass of a micro-batch."""
        with self._action("F", fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *args, **options)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **options: Any) -> None:
        """Time the backward pass of a micro-batch, or its first part; zero is sent to an input without influence."""
        with self._action("B" if options.get("full_backward", True) else "I", bwd_chunk_id):
            super().backward_one_chunk(bwd_chunk_id, *args, **options)
            if self.is_first:
                return
            inputs: tuple[Any, ...] = self.args_recv_info[bwd_chunk_id]
            gradients = self.bwd_cache[bwd_chunk_id][: len(inputs)]  # torch 2.11 adds some for options
            self.bwd_cache[bwd_chunk_id] = tuple(
                torch.zeros_like(info.buffer) if gradient is None and learned else gradient
                for info, gradient, learned in zip(inputs, gradients, self._learned_inputs, strict=True)
            )

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **options: Any) -> Any:
        """Time the second part of a backward pass."""
        with self._action("W", bwd_chunk_id):
            return super().backward_weight_one_chunk(bwd_chunk_id, *args, **options)

    @contextmanager
    def _action(self, computation: Computation, micro_batch: int) -> Iterator[None]:
        action, start_s = Action(self.stage_index, computation, micro_batch), time.perf_counter()
        try:
            yield
        except Exception as error:
            cause = error.__cause__ or error
            raise StageError(
                f"stage {self.stage_index} on '{self._on}' failed in {action}: {type(cause).__name__}: {cause}"
            ) from cause
        self.times.append((action, start_s, time.perf_counter()))

    def set_local_fwd_input(self, prev_stage_outputs: tuple[torch.Tensor, ...], mb_index: int) -> None:
        """Store what the stage before has computed on the same rank."""
        for info, tensor in zip(self.args_recv_info[mb_index], prev_stage_outputs, strict=True):
            info.buffer = tensor.detach()

    def set_local_bwd_input(self, next_stage_bwd_outputs: tuple[torch.Tensor | None, ...], mb_index: int) -> None:
        """Store the gradients that the next stage has computed on the same rank."""
        for info, gradient in zip(self.grad_recv_info[mb_index], next_stage_bwd_outputs, strict=True):
            info.buffer = gradient

    def _prepare_forward_infra(self, *args: Any, **options: Any) -> Any:
        """Allocate inputs as torch 2.11 does without a backward pass; gradients are attached when inputs arrive."""
        before, self.has_backward = self.has_backward, False
        try:
            return super()._prepare_forward_infra(*args, **options)
        finally:
            self.has_backward = before

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> tuple[torch.Tensor, ...]:
        self.seals.sum_up(Action(self.stage_index - 1, "F", fwd_chunk_id))
        inputs = super()._retrieve_recv_activations(fwd_chunk_id)
        return tuple(x.requires_grad_(learned) for x, learned in zip(inputs, self._learned_inputs, strict=True))

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> tuple[torch.Tensor | None, ...]:
        self.seals.sum_up(Action(self.stage_index + 1, "B", bwd_chunk_id))
        gradients: tuple[torch.Tensor | None, ...] = super()._retrieve_recv_grads(bwd_chunk_id)
        return gradients

    def _create_grad_send_info(self, args_recv_info: tuple[Any, ...]) -> list[int | None]:
        stages = super()._create_grad_send_info(args_recv_info)
        return [stage if learned else None for stage, learned in zip(stages, self._learned_inputs, strict=True)]

    def _create_grad_recv_info(self, act_send_info: dict[int, list[Any]]) -> tuple[Any, ...]:
        infos: tuple[Any, ...] = super()._create_grad_recv_info(act_send_info)
        for info, learned in zip(infos, self._learned_outputs, strict=not self.is_last):  # the last one gets none
            if not learned:
                info.buffer = None
        return infos

    def _get_recv_ops(self, recv_infos: tuple[Any, ...]) -> list[dist.P2POp]:
        return super()._get_recv_ops(tuple(info for info in recv_infos if info.buffer is not None))

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """Torch 2.11 makes a rank with two successive stages send to itself, which gloo cannot do."""
        return [op for op in super()._get_init_p2p_neighbors_ops() if op.group_peer != self.group_rank]

    def _validate_fwd_outputs(self, outputs: tuple[torch.Tensor, ...]) -> None:
        """Accept outputs that are not contiguous, which torch 2.11 refuses even for the outputs of the network."""


@cache
def divides() -> bool:
    """Return whether torch can run a backward pass in two parts: gradients of inputs first, then of parameters.

    Torch 2.11 takes every option of a stage for a tensor, and counts twice what reaches a parameter in two ways, one
    after the other. So the test has the option 0 and the parameter of ``x * p * p``, whose gradient is ``2 * p * x``.
    """
    with torch.enable_grad():
        x, parameter = (torch.tensor(value, requires_grad=True) for value in (2.0, 3.0))
        result, ones = x * parameter * parameter, torch.ones(())
        try:
            _, groups = stage_backward_input([result], [ones], [x, 0], iter([parameter]))  # type: ignore[list-item]
        except AttributeError:
            return False
        stage_backward_weight(iter([parameter]), groups)  # type: ignore[list-item]
    return parameter.grad is not None and parameter.grad.item() == 12


def runtime_of(stages: Sequence[EngineStage], schedule: Schedule, loss: Callable[..., torch.Tensor]) -> Any:
    """Return torch's runtime for a rank's stages, with the schedule of all ranks; ``loss`` takes outputs and target."""
    runtime_class: Any = schedules._PipelineScheduleRuntime  # the one that takes any schedule
    runtime = runtime_class(list(stages), schedule.micro_batches, loss_fn=loss, scale_grads=False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schedule.csv"
        path.write_text(schedule.to_csv(), encoding="utf-8")
        runtime._load_csv(str(path), "compute_only")
    return runtime


@contextmanager
def quiet_schedules() -> Iterator[None]:
    """Keep torch from logging the whole schedule when an action fails; the exception says what matters."""
    logger = logging.getLogger(schedules.__name__)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
