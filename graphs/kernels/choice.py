"""The choice of kernels that a device has, in words that need no PyTorch."""

from typing import Literal, TypeAlias, get_args

Kernels: TypeAlias = Literal["exact", "quick"]
"""Kernels with the bits of PyTorch's operators, or quick ones; see `graphs.kernels.kernels`."""

KERNELS: tuple[Kernels, ...] = get_args(Kernels)
