"""Operators that reduce, sort or accumulate along dimensions."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from graphs.importers.onnx.operators.registry import Compute, Node, operator


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    """The product over axes; PyTorch multiplies over one dimension at a time."""
    for axis in sorted(axes, reverse=True):
        x = torch.prod(x, axis, keepdim=keep, dtype=x.dtype)
    return x


def _sum(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    """The sum in the operand's dtype, since PyTorch would widen small integers."""
    return torch.sum(x, axes, keepdim=keep, dtype=x.dtype)


def _mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    """The mean; that of integers is truncated."""
    return torch.mean(x if x.is_floating_point() else x.double(), axes, keepdim=keep).to(x.dtype)


def _extreme(function: Callable[..., Tensor], largest: bool) -> Callable[[Tensor, list[int], bool], Tensor]:
    """The largest or the smallest element; that of none is the other end of the type."""

    def compute(x: Tensor, axes: list[int], keep: bool) -> Tensor:
        if all(x.shape[axis] for axis in axes):
            return function(x, axes, keep)
        shape = [1 if axis in axes else size for axis, size in enumerate(x.shape) if keep or axis not in axes]
        return x.new_full(shape, _end(x.dtype, lower=largest))

    return compute


def _end(dtype: torch.dtype, lower: bool) -> float:
    """The lowest or the highest value of a type, infinite if there is infinity."""
    if dtype.is_floating_point:
        return -math.inf if lower else math.inf
    if dtype is torch.bool:
        return not lower
    return torch.iinfo(dtype).min if lower else torch.iinfo(dtype).max


_REDUCTIONS: dict[str, Callable[[Tensor, list[int], bool], Tensor]] = {
    "ReduceL1": lambda x, axes, keep: _sum(x.abs(), axes, keep),
    "ReduceL2": lambda x, axes, keep: _sum(x * x, axes, keep).sqrt().to(x.dtype),
    "ReduceLogSum": lambda x, axes, keep: _sum(x, axes, keep).log(),
    "ReduceLogSumExp": torch.logsumexp,
    "ReduceMax": _extreme(torch.amax, largest=True),
    "ReduceMean": _mean,
    "ReduceMin": _extreme(torch.amin, largest=False),
    "ReduceProd": _product,
    "ReduceSum": _sum,
    "ReduceSumSquare": lambda x, axes, keep: _sum(x * x, axes, keep),
}


def _reduction(function: Callable[[Tensor, list[int], bool], Tensor]) -> Compute:
    """A reduction over the axes of the attribute or, in later opsets, of the operand; over all if there are none."""

    def compute(node: Node, x: Tensor, axes: list[int] | None = None) -> Tensor:
        axes = axes or node.integers("axes")
        keep, keeps_all = node.flag("keepdims", True), node.flag("noop_with_empty_axes")
        if keeps_all and not axes:  # every element is reduced alone
            return function(x.unsqueeze(-1), [x.dim()], False)
        axes = [node.axis(axis, x.dim()) for axis in axes] or list(range(x.dim()))
        return function(x, axes, keep) if x.dim() else function(x, [], False)

    return compute


for _kind, _function in _REDUCTIONS.items():
    operator(_kind, known=(1,))(_reduction(_function))


def _position(function: Callable[..., Tensor]) -> Compute:
    """The position of the first extreme element, or of the last one if the attribute says so."""

    def compute(node: Node, x: Tensor) -> Tensor:
        axis, keep = node.integer("axis", 0), node.flag("keepdims", True)
        if node.flag("select_last_index"):
            return x.shape[axis] - 1 - function(x.flip(axis), axis, keepdim=keep)
        return function(x, axis, keepdim=keep)

    return compute


operator("ArgMax")(_position(torch.argmax))
operator("ArgMin")(_position(torch.argmin))


@operator("TopK", known=(1,), ignores=("sorted",))
def top_k(node: Node, x: Tensor, k: list[int] | None = None) -> tuple[Tensor, Tensor]:
    """The k largest or smallest elements along an axis and their positions, the first ones among equal elements.

    They are sorted, also where the attribute ``sorted`` allows any order: PyTorch's topk takes any of equal elements.
    """
    axis, count = node.integer("axis", -1), node.integer("k", 1) if k is None else k[0]
    values, indices = torch.sort(x, stable=True, dim=axis, descending=node.flag("largest", True))
    return values.narrow(axis, 0, count), indices.narrow(axis, 0, count)


@operator("CumSum", "CumProd", known=(1,))
def cumulated(node: Node, x: Tensor, axis: list[int]) -> Tensor:
    """Running sum or product along an axis, from either end, with or without the element itself."""
    dim, is_sum = axis[0], node.kind == "CumSum"
    if node.flag("reverse"):
        x = x.flip(dim)
    if node.flag("exclusive") and x.shape[dim]:  # the elements move on by one, and the first one has none
        none = torch.full_like(x.narrow(dim, 0, 1), 0 if is_sum else 1)
        x = torch.cat([none, x.narrow(dim, 0, x.shape[dim] - 1)], dim)
    result = (torch.cumsum if is_sum else torch.cumprod)(x, dim, dtype=x.dtype)
    return result.flip(dim) if node.flag("reverse") else result
