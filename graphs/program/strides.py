"""Strides of the inputs of a traced network.

A trace is valid for the strides of its example inputs: it does not record ``contiguous`` of a contiguous tensor, and
the results of ``is_contiguous`` and ``stride`` are constants. So a traced network takes tensors with these strides.
"""

from typing import Any

import torch
from torch.utils import _pytree as pytree


def repeats(tensor: torch.Tensor) -> bool:
    """Whether several elements share memory, as after ``expand`` and in overlapping windows."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return False
    reach = 0  # from the first element to the last one along the dimensions so far
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def unrepeated(examples: Any) -> Any:
    """Example inputs without shared elements, so that inputs with other values fit the strides."""
    return pytree.tree_map_only(
        torch.Tensor,
        lambda tensor: tensor.clone(memory_format=torch.contiguous_format) if repeats(tensor) else tensor,
        examples,
    )


def laid(tensor: torch.Tensor, strides: tuple[int, ...], copied: bool = False) -> torch.Tensor:
    """The tensor itself or a copy of it, with these strides.

    With ``copied`` it is always a copy.
    """
    if not copied and tensor.stride() == strides:
        return tensor
    with torch.no_grad():
        given = zip(tensor.shape, tensor.stride(), strides, strict=True)
        if not copied and (not tensor.numel() or all(size == 1 or had == wanted for size, had, wanted in given)):
            return tensor.as_strided(tensor.shape, strides)
        pinned = tensor.is_pinned()  # a pinned copy goes to a GPU as quickly
        copy = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device, pin_memory=pinned)
        return copy.copy_(tensor)
