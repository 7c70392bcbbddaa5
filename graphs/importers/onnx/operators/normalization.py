"""Normalization operators and softmax."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from graphs.importers.onnx.operators.registry import Node, operator, to_shape


def _softmax(function: Callable[..., Tensor]) -> Callable[[Node, Tensor], Tensor]:
    """Softmax over one axis; before opset 13, over the axis and all later axes."""

    def compute(node: Node, x: Tensor) -> Tensor:
        axis = node.integer("axis", -1 if node.opset >= 13 else 1)
        axis += x.dim() if axis < 0 else 0
        if node.opset >= 13 or all(n == 1 for n in x.shape[axis + 1 :]):
            return function(x, dim=axis)
        return function(x.flatten(axis), dim=axis).reshape(x.shape)

    return compute


operator("Softmax")(_softmax(torch.softmax))
operator("LogSoftmax")(_softmax(torch.log_softmax))


@operator("Hardmax")
def hardmax(node: Node, x: Tensor) -> Tensor:
    """1 at the first largest element of an axis, 0 elsewhere; before opset 13, of the axis and all later axes."""
    axis = node.axis(node.integer("axis", -1 if node.opset >= 13 else 1), max(x.dim(), 1))
    rows = x if node.opset >= 13 else x.flatten(axis)
    first = torch.argmax(rows, axis, keepdim=True)
    return torch.zeros_like(rows).scatter(axis, first, 1).reshape(x.shape)


@operator("LpNormalization")
def lp_norm(node: Node, x: Tensor) -> Tensor:
    """x divided by its norm along an axis; 0 where that is 0."""
    norm = torch.linalg.vector_norm(x, node.integer("p", 2), node.integer("axis", -1), keepdim=True)
    return torch.where(norm == 0, torch.zeros_like(x), x / norm)


@operator("BatchNormalization", ignores=("momentum",), state=(3, 4))
def batch_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """Batch normalization with the running statistics."""
    if node.flag("training_mode") or any(node.wants(output) for output in range(1, 5)):
        raise node.unsupported("training")
    if not node.flag("spatial", True):
        raise node.unsupported("spatial=0")
    return functional.batch_norm(x, mean, var, scale, bias, training=False, eps=node.number("epsilon", 1e-5))


@operator("LRN")
def local_response_norm(node: Node, x: Tensor) -> Tensor:
    """x / (bias + alpha·mean of squares over neighbouring channels)^beta (Krizhevsky et al. 2012)."""
    size = node.integer("size", 1)
    before, behind = (size - 1) // 2, size // 2
    # [n, 1, channels, rest], so that a window over two dimensions slides over the channels alone.
    squares = functional.pad(x.square().flatten(2).unsqueeze(1), [0, 0, before, behind])
    mean = functional.avg_pool2d(squares, (size, 1), stride=1).reshape(x.shape)
    return x / (mean * node.number("alpha", 1e-4) + node.number("bias", 1.0)).pow(node.number("beta", 0.75))


@operator("LayerNormalization", ignores=("stash_type",))
def layer_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> tuple[Tensor, ...]:
    """Normalization over the axis and all later axes; with mean and inverse deviation if they have readers."""
    axis, eps = node.axis(node.integer("axis", -1), x.dim()), node.number("epsilon", 1e-5)
    shape = x.shape[axis:]
    scale, bias = to_shape(scale, shape), None if bias is None else to_shape(bias, shape)
    y = functional.layer_norm(x, shape, scale, bias, eps)
    if not node.wants(1) and not node.wants(2):
        return (y,)
    dims = list(range(axis, x.dim()))
    variance, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
    return y, mean, torch.rsqrt(variance + eps)


@operator("RMSNormalization", ignores=("stash_type",))
def rms_norm(node: Node, x: Tensor, scale: Tensor) -> Tensor:
    """x divided by its root mean square over the axis and all later axes."""
    shape = x.shape[node.axis(node.integer("axis", -1), x.dim()) :]
    return functional.rms_norm(x, list(shape), to_shape(scale, shape), node.number("epsilon", 1e-5))


@operator("InstanceNormalization")
def instance_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Normalization of every channel of every sample."""
    return functional.instance_norm(x, weight=scale, bias=bias, eps=node.number("epsilon", 1e-5))


@operator("GroupNormalization", ignores=("stash_type",))
def group_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Normalization of groups of channels; before opset 21 scale and bias have one number for each group."""
    n_groups = node.integer("num_groups", 1)
    if node.opset < 21:
        width = x.shape[1] // n_groups
        scale, bias = scale.repeat_interleave(width), bias.repeat_interleave(width)
    return functional.group_norm(x, n_groups, scale, bias, node.number("epsilon", 1e-5))
