"""Layout: how the elements of a tensor lie in memory.

A trace holds for the strides that its inputs had: ``contiguous`` of a contiguous tensor is not in it, and what a module
asked in Python (``is_contiguous``, ``stride``) is a constant. So a traced network takes tensors of these strides.
"""

from typing import Any

import torch
from torch.utils import _pytree as pytree


def repeats(tensor: torch.Tensor) -> bool:
    """Whether several elements are one in memory, as behind ``expand`` and in windows that overlap."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return False
    reach = 0  # from the first element to the last one along the dimensions so far
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def unrepeated(examples: Any) -> Any:
    """Example inputs of which every element has memory of its own, as the values of other inputs need it."""
    return pytree.tree_map_only(
        torch.Tensor,
        lambda tensor: tensor.clone(memory_format=torch.contiguous_format) if repeats(tensor) else tensor,
        examples,
    )


def laid(tensor: torch.Tensor, strides: tuple[int, ...], copied: bool = False) -> torch.Tensor:
    """The tensor with these strides: itself, or a copy.

    Args:
        tensor: a strided one, on any device.
        strides: of which every element has memory of its own.
        copied: in other memory than the given one in any case.
    """
    if not copied and tensor.stride() == strides:
        return tensor
    with torch.no_grad():
        given = zip(tensor.shape, tensor.stride(), strides, strict=True)
        if not copied and (not tensor.numel() or all(size == 1 or had == wanted for size, had, wanted in given)):
            return tensor.as_strided(tensor.shape, strides)
        pinned = tensor.is_pinned()  # so that it goes to a GPU as quickly
        copy = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device, pin_memory=pinned)
        return copy.copy_(tensor)
