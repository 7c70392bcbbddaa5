"""PyTorch without its kernels: tensors are allocated and dropped as always, and hold nothing in particular.

That is a real run in every respect but values and seconds: autograd, its engine and the optimizers are the real ones,
and tensors are real ones on the CPU, whose pages nobody touches.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

SMALL_ELEMENTS = 1 << 16  # computed all the same, if no numbers with fractions: masks and word counts
COMPUTED = (
    torch.ops.aten._unsafe_view.default,  # a view that does not say so
    torch.ops.aten.mkldnn_rnn_layer.default,  # its shapes are not those that it really has
)


class Hollow(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Replaces kernels by their shapes; enter a `Meter` after it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._fake = FakeTensorMode()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.is_view or func in COMPUTED or _is_small(args, kwargs):
            return func(*args, **kwargs)
        if (written := _written(func, args, kwargs)) is not None:
            return written
        return self._shaped(func, args, kwargs)

    def _shaped(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        with self._fake:
            given = pytree.tree_map_only(torch.Tensor, _like, (args, kwargs))
            result = func(*given[0], **given[1])
        return pytree.tree_map_only(torch.Tensor, _like, result)


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """One of the same layout in the current mode."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")


def _is_small(args: Any, kwargs: Any) -> bool:
    """Whether it is computed all the same: whole numbers, masks and counts, on which the way of a program depends."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    if any(tensor.is_floating_point() and tensor.numel() > 1 for tensor in tensors):
        return False
    return sum(tensor.numel() for tensor in tensors) <= SMALL_ELEMENTS


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an in-place operator returns: the first argument that it writes; None for any other operator."""
    returns = func._schema.returns
    if not func._schema.is_mutable or not all(r.alias_info and r.alias_info.is_write for r in returns):
        return None
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            return value
    return next((kwargs[a.name] for a in func._schema.arguments if a.is_out and a.name in kwargs), None)
