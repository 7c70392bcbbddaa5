"""Gradients across the borders of a pipeline: of the tensors that are learned, and of no others.

Newer versions of torch see from a tensor that crosses a border whether it requires a gradient. Torch 2.11 asks for a
gradient of all of them, even of whole numbers, which have none. Here all versions do the same.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight


class GradientStage(PipelineStage):
    """A stage that receives and sends gradients of those tensors only that require them."""

    def __init__(
        self,
        module: nn.Module,
        *args: Any,
        input_args: Sequence[torch.Tensor],
        output_args: Sequence[torch.Tensor],
        **options: Any,
    ) -> None:
        """Make a stage as torch does; ``input_args`` and ``output_args`` have no values."""
        options |= {"input_args": tuple(input_args), "output_args": tuple(output_args)}
        super().__init__(module, *args, **options)
        self._learned_inputs = [tensor.requires_grad for tensor in input_args]
        self._learned_outputs = [tensor.requires_grad for tensor in output_args]

    def set_local_fwd_input(self, prev_stage_outputs: tuple[torch.Tensor, ...], mb_index: int) -> None:
        """Store what the stage before has computed on the same rank."""
        for info, tensor in zip(self.args_recv_info[mb_index], prev_stage_outputs, strict=True):
            info.buffer = tensor.detach()

    def set_local_bwd_input(self, next_stage_bwd_outputs: tuple[torch.Tensor | None, ...], mb_index: int) -> None:
        """Store the gradients that the stage behind has computed on the same rank."""
        for info, gradient in zip(self.grad_recv_info[mb_index], next_stage_bwd_outputs, strict=True):
            info.buffer = gradient

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **options: Any) -> None:
        """Run the backward pass; a gradient is zero for an input that had no influence."""
        super().backward_one_chunk(bwd_chunk_id, *args, **options)
        if not self.is_first:
            inputs: tuple[Any, ...] = self.args_recv_info[bwd_chunk_id]
            gradients = self.bwd_cache[bwd_chunk_id][: len(inputs)]  # torch 2.11 adds some for options
            self.bwd_cache[bwd_chunk_id] = tuple(
                torch.zeros_like(info.buffer) if gradient is None and learned else gradient
                for info, gradient, learned in zip(inputs, gradients, self._learned_inputs, strict=True)
            )

    def _prepare_forward_infra(self, *args: Any, **options: Any) -> Any:
        """Without a backward pass torch 2.11 makes room for inputs without gradients; the gradients are added below."""
        before, self.has_backward = self.has_backward, False
        try:
            return super()._prepare_forward_infra(*args, **options)
        finally:
            self.has_backward = before

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> tuple[torch.Tensor, ...]:
        inputs = super()._retrieve_recv_activations(fwd_chunk_id)
        return tuple(x.requires_grad_(learned) for x, learned in zip(inputs, self._learned_inputs, strict=True))

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
