"""Batch norms of replicas that have parts of the same micro-batch: means and variances are those of all its samples."""

from typing import Any

import torch
import torch.distributed as dist


class _MeanOfReplicas(torch.autograd.Function):
    """The mean of what all replicas have; its gradient is the mean of theirs."""

    @staticmethod
    def forward(ctx: Any, group: dist.ProcessGroup, own: torch.Tensor) -> torch.Tensor:
        ctx.group = group
        return _mean(group, own)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, _mean(ctx.group, gradient)


def _mean(group: dist.ProcessGroup, own: torch.Tensor) -> torch.Tensor:
    total = own / dist.get_world_size(group)
    dist.all_reduce(total, group=group)
    return total


def synchronized_batch_norm(
    group: dist.ProcessGroup,
    x: torch.Tensor,
    affine: tuple[torch.Tensor | None, torch.Tensor | None],
    running: tuple[torch.Tensor | None, torch.Tensor | None],
    momentum: float,
    eps: float,
) -> torch.Tensor:
    """Normalise the own samples as those of all replicas together; all have as many. Backward, gradients are added up.

    Args:
        group: the replicas.
        x: [samples, channels, ...].
        affine: weight and bias, [channels] each.
        running: mean and variance, [channels] each, which are updated.
        momentum: of the update.
        eps: added to the variance.
    """
    axes = [axis for axis in range(x.ndim) if axis != 1]
    form = [-1 if axis == 1 else 1 for axis in range(x.ndim)]
    values = x.float()
    mean: torch.Tensor = _MeanOfReplicas.apply(group, values.mean(axes))  # type: ignore[no-untyped-call]  # torch has no types here
    apart = values - mean.view(form)
    variance: torch.Tensor = _MeanOfReplicas.apply(group, apart.square().mean(axes))  # type: ignore[no-untyped-call]
    count = dist.get_world_size(group) * x.numel() // x.shape[1]
    with torch.no_grad():
        for kept, now in zip(running, (mean, variance * count / (count - 1)), strict=True):
            if kept is not None:
                kept.lerp_(now.to(kept.dtype), momentum)
    result = apart * (variance + eps).rsqrt().view(form)
    weight, bias = affine
    result = result if weight is None else result * weight.view(form)
    result = result if bias is None else result + bias.view(form)
    return result.to(x.dtype)
