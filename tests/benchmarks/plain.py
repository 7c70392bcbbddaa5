"""A meter of what a run allocates without a meter.

Autograd's engine adds the second gradient of a tensor to the first one in place if nobody else holds that. A meter of
storages holds it, through Python, so the engine would allocate the sum anew whenever it is watched.
"""

import functools
from typing import Any

import torch

from graphs.importers.footprints import Meter


class Plain(Meter):  # type: ignore[no-untyped-call]  # torch has no types here
    """Adds gradients in place where the engine would if it were alone."""

    def __init__(self) -> None:
        super().__init__()
        _uses_of_one()  # now, as in a backward pass that is watched it could not be found out

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.add.Tensor and _in_backward() and _uses(args[0]) == _uses_of_one():
            return super().__torch_dispatch__(torch.ops.aten.add_.Tensor, types, args, kwargs)
        return super().__torch_dispatch__(func, types, args, kwargs)


class _Uses(Meter):  # type: ignore[no-untyped-call]  # torch has no types here
    """Who holds the tensor that a gradient is added to."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.add.Tensor and _in_backward():
            self.seen.append(_uses(args[0]))
        return super().__torch_dispatch__(func, types, args, kwargs)


@functools.cache
def _uses_of_one() -> tuple[int, int]:
    """As `_uses`, of a gradient that the engine alone holds."""
    x = torch.ones(2, requires_grad=True)
    twice = x * 2
    with _Uses() as uses:
        torch.autograd.grad((twice.relu() + twice.tanh()).sum(), x)
    found: tuple[int, int] = uses.seen[0]
    return found


def _uses(tensor: torch.Tensor) -> tuple[int, int]:
    """How many hold the tensor, and how many tensors show its storage."""
    holders: int = tensor._use_count()  # type: ignore[attr-defined]  # it has one
    shown: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return holders, shown


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1
