"""Quicker ways to the same bits: functions that stand for an operator on a CPU, measured and run alike.

PyTorch 2.11 to 2.13 pools an image with its channels first in a loop over single numbers, and one with its channels
last in vectors of them: on one core six times as fast, with the copies there and back. A maximum has no rounding, so
that every bit is the same.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from graphs.importers.program import Call

VERSION = 1  # of what is here: an operator that was measured another way is measured again

LEAST_CHANNELS = 16  # of float32 that fill a vector
LEAST_ELEMENTS = 2**13  # below that the copies take longer than what they spare
EXACT = (torch.float32, torch.float64)  # in others the bits within a NaN differ


def kernel_of(call: Call, place: torch.device) -> Callable[..., Any]:
    """What to call for an operator on a kind of device: mostly the operator itself."""
    target: Callable[..., Any] = call.node.target  # type: ignore[assignment]  # always an operator: see translate
    return KERNELS.get(target, target) if place.type == "cpu" else target


def max_pool2d(
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
) -> torch.Tensor:
    """`torch.max_pool2d`, with the same bits and strides; a gradient's way back is left as it is."""
    pool = torch.ops.aten.max_pool2d.default
    large = x.dim() == 4 and x.shape[1] >= LEAST_CHANNELS and x.numel() >= LEAST_ELEMENTS
    if not large or x.dtype not in EXACT or not x.is_contiguous() or (x.requires_grad and torch.is_grad_enabled()):
        plain: torch.Tensor = pool(x, kernel_size, stride, padding, dilation, ceil_mode)
        return plain
    last = x.contiguous(memory_format=torch.channels_last)
    result = pool(last, kernel_size, stride, padding, dilation, ceil_mode)
    return torch.empty(result.shape, dtype=result.dtype).copy_(result)


KERNELS: dict[Callable[..., Any], Callable[..., Any]] = {torch.ops.aten.max_pool2d.default: max_pool2d}
"""By the operator that they stand for; each takes the same arguments."""
