"""Fork: one tensor becomes several, whose gradients are added up in a given order."""

from typing import Any

import torch


def fork(tensor: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
    """Return copies that share the tensor's memory; its gradient is the sum of theirs, from the first to the last."""
    copies: tuple[torch.Tensor, ...] = _Fork.apply(tensor, count)  # type: ignore[no-untyped-call]  # torch has no types
    return copies


class _Fork(torch.autograd.Function):
    """PyTorch itself adds gradients up in the order in which they come."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)  # a copy without a gradient is left out, not zero
        return tuple(tensor.view_as(tensor) for _ in range(count))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, None]:  # noqa: ARG004 (torch)
        total: torch.Tensor | None = None
        for gradient in gradients:
            if gradient is not None:
                total = gradient if total is None else total + gradient
        return total, None
