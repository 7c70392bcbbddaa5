"""Operators that read or write elements by position."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphs.importers.onnx.operators.registry import Node, operator, to_dtype


@operator("Slice", known=(1, 2, 3, 4))
def slice_(
    node: Node,
    x: Tensor,
    starts: list[int] | None = None,
    ends: list[int] | None = None,
    axes: list[int] | None = None,
    steps: list[int] | None = None,
) -> Tensor:
    """Every n-th element from start to end along axes; these are attributes before opset 10, and operands later."""
    starts = node.integers("starts") if starts is None else starts
    ends = node.integers("ends") if ends is None else ends
    axes = node.integers("axes", range(len(starts))) if axes is None else axes
    for start, end, axis, step in zip(starts, ends, axes, steps or [1] * len(starts), strict=True):
        axis = node.axis(axis, x.dim())
        x = _slice_axis(x, axis, range(x.shape[axis])[slice(start, end, step)])
    return x


def _slice_axis(x: Tensor, axis: int, positions: range) -> Tensor:
    """A slice of one axis; a backward range is read forward and flipped, since PyTorch has no negative steps."""
    if positions == range(x.shape[axis]):
        return x
    forward = positions if positions.step > 0 else positions[::-1]
    key = [slice(None)] * axis + [slice(forward.start, forward.start + len(forward) * forward.step, forward.step)]
    x = x[tuple(key)]
    return x if positions.step > 0 else x.flip(axis)


@operator("Gather", scalars=(1,))
def gather(node: Node, x: Tensor, indices: Tensor | int) -> Tensor:
    """Slices of an axis by position."""
    return slices(x, indices, node.axis(node.integer("axis", 0), x.dim()))


def slices(x: Tensor, indices: Tensor | int, axis: int) -> Tensor:
    """Return slices of an axis by position; written as an embedding if they are rows of a weight."""
    if not isinstance(indices, Tensor):
        return x.select(axis, indices)
    if axis == 0 and x.dim() == 2 and isinstance(x, nn.Parameter):
        return functional.embedding(_from_front(indices, x.shape[0]), x)
    if indices.dim() == 0:  # PyTorch's indexing would read the number itself
        return x.index_select(axis, _from_front(indices.reshape(1), x.shape[axis])).squeeze(axis)
    key: list[slice | Tensor] = [slice(None)] * axis
    key.append(to_dtype(indices, torch.int64))
    return x[tuple(key)]


@operator("TensorScatter")
def tensor_scatter(node: Node, x: Tensor, update: Tensor, starts: Tensor | None = None) -> Tensor:
    """A cache with a row of updates from each sample's start on, around the end if the mode is circular."""
    axis = node.axis(node.integer("axis", -2), x.dim())
    shape = [-1 if dim == axis else 1 for dim in range(x.dim())]
    rows = torch.arange(update.shape[axis], device=x.device).reshape(shape)
    if starts is not None:
        rows = rows + starts.reshape([-1] + [1] * (x.dim() - 1))
    rows = rows % x.shape[axis] if node.text("mode", "linear") == "circular" else rows
    return x.scatter(axis, rows.expand(update.shape), update)


@operator("GatherElements")
def gather_elements(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    """Elements by their positions along an axis."""
    axis = node.integer("axis", 0)
    return torch.gather(x, axis, _from_front(indices, x.shape[axis]))


@operator("GatherND")
def gather_nd(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    """Slices by their positions along the first axes after the batch dimensions."""
    n_batch = node.integer("batch_dims", 0)
    key: list[Tensor] = []
    for axis in range(n_batch):  # batch dimensions of the operand and the indices agree
        shape = [1] * (indices.dim() - 1)
        shape[axis] = x.shape[axis]
        key.append(torch.arange(x.shape[axis], device=x.device).reshape(shape))
    return x[tuple(key + list(to_dtype(indices, torch.int64).unbind(-1)))]


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@operator("ScatterElements", "Scatter")
def scatter_elements(node: Node, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """A copy with elements written, or combined, at positions along an axis."""
    axis, reduction = node.integer("axis", 0), node.text("reduction", "none")
    indices = _from_front(indices, x.shape[axis])
    if reduction == "none":
        return torch.scatter(x, axis, indices, updates)
    return torch.scatter_reduce(x, axis, indices, updates, _REDUCTIONS[reduction])


@operator("ScatterND")
def scatter_nd(node: Node, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """A copy with slices written, or combined, at positions along the first axes."""
    reduction = node.text("reduction", "none")
    if reduction in ("none", "add"):
        return x.index_put(to_dtype(indices, torch.int64).unbind(-1), updates, accumulate=reduction == "add")
    # PyTorch combines along one axis only, so the first axes become one.
    sizes = x.shape[: indices.shape[-1]]
    position = torch.zeros_like(indices[..., 0], dtype=torch.int64)
    for number, size in enumerate(sizes):
        position = position * size + _from_front(indices[..., number], size)
    flat, slices = x.reshape(math.prod(sizes), -1), updates.reshape(position.numel(), -1)
    rows = position.reshape(-1, 1).expand_as(slices)
    combined = torch.scatter_reduce(flat, 0, rows, slices, _REDUCTIONS[reduction])
    return combined.reshape(x.shape)


@operator("OneHot", known=(1,))
def one_hot(node: Node, indices: Tensor, depth: list[int], values: Tensor) -> Tensor:
    """A new axis with one element on and the others off; for an index beyond the axis, all are off."""
    n_classes, axis = int(depth[0]), node.axis(node.integer("axis", -1), indices.dim() + 1)
    classes = torch.arange(n_classes, device=indices.device).reshape([-1] + [1] * (indices.dim() - axis))
    off, on = values.unbind()
    return torch.where(_from_front(indices, n_classes).unsqueeze(axis) == classes, on, off)


def _from_front(indices: Tensor, size: int) -> Tensor:
    """Positions counted from the front; negative positions of ONNX count from the back."""
    indices = to_dtype(indices, torch.int64)
    return torch.where(indices < 0, indices + size, indices)


@operator("ReverseSequence", known=(1,))
def reverse_sequences(node: Node, x: Tensor, lengths: list[int]) -> Tensor:
    """The first elements of each sequence in reverse order."""
    time, batch = node.integer("time_axis", 0), node.integer("batch_axis", 1)
    n_steps = x.shape[time]
    rows = [[*reversed(range(length)), *range(length, n_steps)] for length in lengths]
    order = torch.tensor(rows, dtype=torch.int64, device=x.device)  # [batch, time]
    order = order if batch < time else order.t()
    shape = [x.shape[axis] if axis in (time, batch) else 1 for axis in range(x.dim())]
    return torch.gather(x, time, order.reshape(shape).expand(x.shape))


@operator("GridSample")
def grid_sample(node: Node, x: Tensor, grid: Tensor) -> Tensor:
    """Elements at places between pixels, in two or three dimensions."""
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(node.text("mode", "linear"), node.text("mode", "linear"))
    padding, corners = node.text("padding_mode", "zeros"), node.flag("align_corners")
    return functional.grid_sample(x, grid, mode, padding, corners)
