"""Strides of the inputs of a traced network.

A trace is valid for the strides of its example inputs: it does not record ``contiguous`` of a contiguous tensor, and
the results of ``is_contiguous`` and ``stride`` are constants. So a traced network takes tensors with these strides.
For those of other tensors see `graphs.program.traced_strides`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

UNDIVIDED = 2**15 - 1  # the most elements that PyTorch copies on the calling thread

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
"""Dtypes that numpy knows, by their bytes."""


def repeats(tensor: torch.Tensor) -> bool:
    """Return whether several elements share memory, as after ``expand`` and in overlapping windows."""
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

    With ``copied`` it is always a copy. Kernels read memory as it is, so no bit says that it means something else; and
    some read between the elements, as ``as_strided`` does: a copy has there what the tensor has, or zeros if the tensor
    had other strides.
    """
    if tensor.is_neg() or tensor.is_conj():
        tensor = tensor.resolve_conj().resolve_neg()
    if not copied and tensor.stride() == strides:
        return tensor
    if tensor.numel() <= UNDIVIDED and tensor.stride() == strides and not tensor.requires_grad and _plain(tensor):
        copy = tensor.clone()
        if copy.stride() == strides:
            return copy
    with torch.no_grad():
        given = zip(tensor.shape, tensor.stride(), strides, strict=True)
        alike = not tensor.numel() or all(size == 1 or had == wanted for size, had, wanted in given)
        if alike and not copied:
            return tensor.as_strided(tensor.shape, strides)
        return _copied(tensor, strides, alike)


def _copied(tensor: torch.Tensor, strides: tuple[int, ...], alike: bool) -> torch.Tensor:
    """Return a copy with these strides, with what is between the elements if the tensor's own are ``alike``."""
    pinned = tensor.is_pinned()  # a pinned copy goes to a GPU as quickly
    reach = _reach(tensor.shape, strides)
    if reach <= tensor.numel():
        copy = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device, pin_memory=pinned)
        return copy_alone(copy, tensor)
    around = torch.zeros(reach, dtype=tensor.dtype, device=tensor.device, pin_memory=pinned)
    if alike:
        copy_alone(around, tensor.as_strided((reach,), (1,)))
    return copy_alone(around.as_strided(tensor.shape, strides), tensor)


def _reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return how many elements there are in memory from the first one of a tensor to the last, and between them."""
    return 1 + sum(stride * (size - 1) for size, stride in zip(shape, strides, strict=True)) if 0 not in shape else 0


def copy_alone(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to another of its shape and dtype on the calling thread alone, and return the target.

    PyTorch divides the copy of an image among the intra-op threads of the caller. These wait for more afterwards, busy,
    on the processors that the devices compute on: that took a third of the throughput of convolutional networks.
    """
    if not _plain(source):
        return target.copy_(source)
    word = WORDS[source.element_size()]
    np.copyto(target.view(word).numpy(), source.detach().view(word).numpy())
    return target


def comparable(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in a dtype that PyTorch compares and adds up, which it does not do with complex32."""
    return tensor.to(torch.complex64) if tensor.dtype is torch.complex32 else tensor


def _plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is nothing but numbers in the memory of the host."""
    usual = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    return usual and tensor.device.type == "cpu" and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
