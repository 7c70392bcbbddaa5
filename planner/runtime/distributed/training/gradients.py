"""What goes back across the borders of a pipeline: gradients of what is learned, and of nothing else.

Newer versions of torch read off what crosses a border whether it requires a gradient. Torch 2.11 asks one of all of it,
of whole numbers too, which have none. Here all versions do it in the same way.
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
    """A stage that gets and sends as many gradients as there are."""

    def __init__(
        self,
        module: nn.Module,
        *args: Any,
        input_args: Sequence[torch.Tensor],
        output_args: Sequence[torch.Tensor],
        **options: Any,
    ) -> None:
        """As torch does it.

        Args:
            module: takes tensors and returns a tuple of tensors.
            args: for torch.
            input_args: what comes, without values; those that require a gradient get one.
            output_args: what leaves, likewise.
            options: for torch.
        """
        options |= {"input_args": tuple(input_args), "output_args": tuple(output_args)}
        super().__init__(module, *args, **options)
        self._coming = [tensor.requires_grad for tensor in input_args]
        self._leaving = [tensor.requires_grad for tensor in output_args]

    def set_local_fwd_input(self, prev_stage_outputs: tuple[torch.Tensor, ...], mb_index: int) -> None:
        """What the stage before has made on this very rank."""
        for info, tensor in zip(self.args_recv_info[mb_index], prev_stage_outputs, strict=True):
            info.buffer = tensor.detach()

    def set_local_bwd_input(self, next_stage_bwd_outputs: tuple[torch.Tensor | None, ...], mb_index: int) -> None:
        """The gradients that the stage behind has made on this very rank."""
        for info, gradient in zip(self.grad_recv_info[mb_index], next_stage_bwd_outputs, strict=True):
            info.buffer = gradient

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **options: Any) -> None:
        """As torch does it; what had no influence has a gradient of zeros."""
        super().backward_one_chunk(bwd_chunk_id, *args, **options)
        if not self.is_first:
            came: tuple[Any, ...] = self.args_recv_info[bwd_chunk_id]
            found = self.bwd_cache[bwd_chunk_id][: len(came)]  # behind them, torch 2.11 has some of options
            self.bwd_cache[bwd_chunk_id] = tuple(
                torch.zeros_like(info.buffer) if gradient is None and learned else gradient
                for info, gradient, learned in zip(came, found, self._coming, strict=True)
            )

    def _prepare_forward_infra(self, *args: Any, **options: Any) -> Any:
        """Without a backward pass torch 2.11 makes room for what comes without gradients: see below for these."""
        before, self.has_backward = self.has_backward, False
        try:
            return super()._prepare_forward_infra(*args, **options)
        finally:
            self.has_backward = before

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> tuple[torch.Tensor, ...]:
        came = super()._retrieve_recv_activations(fwd_chunk_id)
        return tuple(tensor.requires_grad_(learned) for tensor, learned in zip(came, self._coming, strict=True))

    def _create_grad_send_info(self, args_recv_info: tuple[Any, ...]) -> list[int | None]:
        stages = super()._create_grad_send_info(args_recv_info)
        return [stage if learned else None for stage, learned in zip(stages, self._coming, strict=True)]

    def _create_grad_recv_info(self, act_send_info: dict[int, list[Any]]) -> tuple[Any, ...]:
        infos: tuple[Any, ...] = super()._create_grad_recv_info(act_send_info)
        for info, learned in zip(infos, self._leaving, strict=not self.is_last):  # to the last one nothing comes back
            if not learned:
                info.buffer = None
        return infos

    def _get_recv_ops(self, recv_infos: tuple[Any, ...]) -> list[dist.P2POp]:
        return super()._get_recv_ops(tuple(info for info in recv_infos if info.buffer is not None))

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """Torch 2.11 makes a rank with two stages that follow on each other send to itself, which gloo cannot."""
        return [op for op in super()._get_init_p2p_neighbors_ops() if op.group_peer != self.group_rank]

    def _validate_fwd_outputs(self, outputs: tuple[torch.Tensor, ...]) -> None:
        """Torch 2.11 wants even what the network returns to be contiguous."""


@cache
def divides() -> bool:
    """Whether torch can go back in two parts: first the gradients of what came in, then those of parameters.

    Torch 2.11 takes every option of a stage for a tensor, and counts twice what reaches a parameter in two ways, one
    after the other. Here they are the number 0 and the parameter of ``x * p * p``, whose gradient is ``2 * p * x``.
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
