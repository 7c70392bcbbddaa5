"""Tensors that ranks divide among themselves: whole, and in parts."""

import logging

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


def full(tensor: torch.Tensor) -> torch.Tensor:
    """Return a whole tensor, on the CPU; all ranks that share it ask together."""
    logger = logging.getLogger("torch.distributed.tensor._redistribute")
    before, logger.disabled = logger.disabled, True  # it warns that weights in two directions are gathered in turns
    try:
        return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu()
    finally:
        logger.disabled = before


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def part_of(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a whole value, divided as a tensor is."""
    if not isinstance(like, DTensor):
        return value
    sizes, starts = compute_local_shape_and_global_offset(like.shape, like.device_mesh, like.placements)
    return value[tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))]


def like(value: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return a whole value, divided as a tensor is."""
    if not isinstance(tensor, DTensor):
        return value
    part = part_of(value, tensor).to(tensor.device, copy=True)
    divided: torch.Tensor = DTensor.from_local(
        part, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )
    return divided
