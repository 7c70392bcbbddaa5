"""Packing: a tensor as a row of bytes and back, with the same strides: the bits of later results may depend on them."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True)
class Packing:
    """The place of a tensor's elements in a row of bytes: in the order of its memory, repeated ones (stride 0) once.

    So the row is the memory of a tensor without gaps, and is read in place; a tensor with gaps is copied.
    """

    shape: tuple[int, ...]  # of the tensor
    strides: tuple[int, ...]  # of the tensor, in elements
    dtype: torch.dtype  # of the tensor

    @staticmethod
    def of(tensor: torch.Tensor) -> "Packing":
        """Return the packing of a tensor."""
        return Packing(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The shape, with 1 for dimensions of stride 0."""
        return tuple(1 if stride == 0 and size else size for size, stride in zip(self.shape, self.strides, strict=True))

    @property
    def n_bytes(self) -> int:
        """Length of the row."""
        return math.prod(self.sizes) * self.dtype.itemsize

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Dimensions, the one with the largest stride first."""
        return tuple(sorted(range(len(self.shape)), key=lambda dim: -self.strides[dim]))

    @cached_property
    def dense(self) -> bool:
        """Whether there are no gaps."""
        following = 1
        for dim in reversed(self.order):
            if self.sizes[dim] != 1 and self.strides[dim] != following:
                return False
            following *= self.sizes[dim]
        return True

    def put(self, tensor: torch.Tensor, row: torch.Tensor) -> None:
        """Write a tensor of this packing into a row, [n_bytes] uint8."""
        if row.numel():
            once = tensor.as_strided(self.sizes, self.strides)
            in_order = once.permute(self.order)
            row.view(self.dtype).view(in_order.shape).copy_(in_order)

    def take(self, row: torch.Tensor) -> torch.Tensor:
        """Return the tensor that was put into a row; it keeps the row's memory if it has no gaps."""
        if row.numel() and self.dense:
            return row.view(self.dtype).as_strided(
                self.shape, self.strides, row.storage_offset() // self.dtype.itemsize
            )
        tensor = torch.empty_strided(self.sizes, self.strides, dtype=self.dtype)
        if row.numel():
            sizes = [self.sizes[dim] for dim in self.order]
            tensor.permute(self.order).copy_(row.view(self.dtype).view(sizes))
        return tensor.as_strided(self.shape, self.strides)
