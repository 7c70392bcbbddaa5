"""Operators that rearrange elements, and operators that make tensors from shapes."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from graphs.importers.onnx.operators.registry import Node, dtype_of, operator, to_dtype, to_shape

operator("Concat")(lambda node, *operands: torch.cat(operands, dim=node.integer("axis", 0)))
operator("Expand", known=(1,), holds=True)(lambda _, x, shape: to_shape(x, np.broadcast_shapes(x.shape, shape)))
operator("NonZero", folded=True)(lambda _, x: torch.nonzero(x).t())
operator("Range", folded=True)(
    lambda _, start, limit, delta: torch.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)
)
operator("Shape", described=(0,), holds=True)(
    lambda node, x: torch.tensor(x.shape[node.integer("start", 0) : node.attributes.get("end")], dtype=torch.int64)
)
operator("Size", described=(0,), holds=True)(lambda _, x: torch.tensor(x.numel(), dtype=torch.int64))
operator("Tile", known=(1,))(lambda _, x, repeats: x.repeat(repeats))
operator("Transpose", holds=True)(lambda node, x: x.permute(node.integers("perm", range(x.dim())[::-1])))


@operator("Constant")
def constant(node: Node) -> Tensor:
    """The value in the node's attribute."""
    if len(node.attributes) != 1:
        raise node.unsupported(f"a constant with the attributes {sorted(node.attributes)}")
    (key,) = node.attributes
    value = node.attributes[key]
    if key == "value":
        assert isinstance(value, Tensor)
        return value
    dtypes = {"value_float": torch.float32, "value_floats": torch.float32}
    dtypes |= {"value_int": torch.int64, "value_ints": torch.int64}
    if key not in dtypes:
        raise node.unsupported(f"the attribute {key}")
    return torch.tensor(value, dtype=dtypes[key])


@operator("ConstantOfShape", known=(0,))
def constant_of_shape(node: Node, shape: list[int]) -> Tensor:
    """A tensor filled with one value."""
    value = node.attributes.get("value", torch.zeros(1))
    return torch.full(shape, value.item(), dtype=value.dtype)


@operator("EyeLike", described=(0,), holds=True)
def eye_like(node: Node, x: Tensor) -> Tensor:
    """Ones on a diagonal of a matrix of the operand's shape."""
    dtype = dtype_of(node.integer("dtype", 0), f"node {node.name!r}") if "dtype" in node.attributes else x.dtype
    return to_dtype(torch.ones(x.shape).tril(node.integer("k", 0)).triu(node.integer("k", 0)), dtype)


@operator("Reshape", known=(1,), holds=True)
def reshape(node: Node, x: Tensor, shape: list[int]) -> Tensor:
    """The same elements in another shape; 0 keeps a dimension, −1 takes the rest."""
    if not node.flag("allowzero"):
        shape = [x.shape[axis] if n == 0 else n for axis, n in enumerate(shape)]
    return x if x.shape == tuple(shape) else x.reshape(shape)


@operator("Flatten", holds=True)
def flatten(node: Node, x: Tensor) -> Tensor:
    """A matrix: the dimensions before the axis, and those from it on."""
    axis = node.integer("axis", 1)
    axis += x.dim() if axis < 0 else 0
    if axis == 1 and x.dim() > 1:
        return x.flatten(1)
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@operator("Squeeze", known=(1,), holds=True)
def squeeze(node: Node, x: Tensor, axes: list[int] | None = None) -> Tensor:
    """The tensor without dimensions of size 1: all of them, or those on the axes."""
    if axes is None and "axes" not in node.attributes:
        return x.squeeze()
    return x.squeeze(node.integers("axes") if axes is None else axes)


@operator("Unsqueeze", known=(1,), holds=True)
def unsqueeze(node: Node, x: Tensor, axes: list[int] | None = None) -> Tensor:
    """The tensor with dimensions of size 1 at the axes, which are positions in the result."""
    axes = node.integers("axes") if axes is None else axes
    rank = x.dim() + len(axes)
    for axis in sorted(node.axis(axis, rank) for axis in axes):
        x = x.unsqueeze(axis)
    return x


@operator("Split", known=(1,))
def split(node: Node, x: Tensor, sizes: list[int] | None = None) -> tuple[Tensor, ...]:
    """Parts along an axis, of given sizes or of almost equal sizes."""
    axis = node.integer("axis", 0)
    sizes = sizes or node.integers("split")
    if not sizes:
        n_parts = node.integer("num_outputs", len(node.wanted))
        largest = -(-x.shape[axis] // n_parts)
        sizes = [max(0, min(largest, x.shape[axis] - part * largest)) for part in range(n_parts)]
    return torch.split(x, sizes, dim=axis)


@operator("Trilu", known=(1,))
def triangle(node: Node, x: Tensor, k: list[int] | None = None) -> Tensor:
    """The upper or lower triangle from the k-th diagonal on; 0 elsewhere."""
    diagonal = k[0] if k else 0
    return torch.triu(x, diagonal) if node.flag("upper", True) else torch.tril(x, diagonal)


@operator("DepthToSpace", "SpaceToDepth")
def move_blocks(node: Node, x: Tensor) -> Tensor:
    """Channels as blocks of pixels, or the reverse; a block's position is first (DCR) or last (CRD) in the channels."""
    block, (n, c, h, w), spreads = node.integer("blocksize", 1), x.shape, node.kind == "DepthToSpace"
    if node.text("mode", "DCR") == "CRD":
        return functional.pixel_shuffle(x, block) if spreads else functional.pixel_unshuffle(x, block)
    if spreads:
        blocks = x.reshape(n, block, block, c // block**2, h, w)
        return blocks.permute(0, 3, 4, 1, 5, 2).reshape(n, c // block**2, h * block, w * block)
    blocks = x.reshape(n, c, h // block, block, w // block, block)
    return blocks.permute(0, 3, 5, 1, 2, 4).reshape(n, c * block**2, h // block, w // block)


_PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


@operator("Pad", known=(1, 2, 3))
def pad(
    node: Node,
    x: Tensor,
    pads: list[int] | None = None,
    value: list[float] | None = None,
    axes: list[int] | None = None,
) -> Tensor:
    """The tensor with elements added around it, or removed where a number is negative."""
    pads = node.integers("pads") if pads is None else pads
    fill = node.number("value", 0.0) if value is None else value[0]
    mode, axes = node.text("mode", "constant"), list(range(x.dim())) if axes is None else axes
    if mode not in _PAD_MODES:
        raise node.unsupported(f"mode={mode!r}")
    amounts = {node.axis(axis, x.dim()): (pads[i], pads[i + len(axes)]) for i, axis in enumerate(axes)}
    flat = _without_zeros([amount for axis in reversed(range(x.dim())) for amount in amounts.get(axis, (0, 0))])
    if mode == "constant":
        return functional.pad(x, flat, value=fill)
    floats = x.is_floating_point()
    if (
        floats and len(flat) == 2 * (x.dim() - 2) and min(flat) >= 0 and len(flat) <= 6
    ):  # all that PyTorch pads in these modes
        return functional.pad(x, flat, _PAD_MODES[mode])
    for axis, (begin, end) in amounts.items():
        if (begin, end) != (0, 0):
            x = _pad_by_position(x, axis, begin, end, mode)
    return x


def _without_zeros(pairs: list[int]) -> list[int]:
    """PyTorch's pairs of padding, from the last dimension on, without leading dimensions that stay."""
    while len(pairs) > 2 and pairs[-2:] == [0, 0]:
        pairs = pairs[:-2]
    return pairs


def _pad_by_position(x: Tensor, axis: int, begin: int, end: int, mode: Any) -> Tensor:
    """Pad one axis by selecting an element of the operand for every element of the result."""
    size = x.shape[axis]
    positions: Sequence[int] = np.pad(np.arange(size), (max(0, begin), max(0, end)), mode=mode).tolist()
    positions = positions[max(0, -begin) : len(positions) - max(0, -end)]
    return x.index_select(axis, torch.tensor(positions, dtype=torch.int64, device=x.device))
