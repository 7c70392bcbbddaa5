"""What computes an operator on a device, measured and run alike: mostly PyTorch's own function, or a quicker one.

Exact kernels have the same bits; there are few so far. PyTorch 2.11 to 2.13 pools an image with its channels first in a
loop over single numbers, and one with its channels last in vectors of them: on one core six times as fast, with the
copies there and back. A maximum has no rounding, so that every bit is the same. It averages over neighbouring channels,
as a local response norm does, in such a loop too; sums of whole images, in the same order, are twenty times as fast.
Quick ones are for devices that ask for them; these, and exact ones of LSTMs, read weights that are packed once (see
`costmodels.host.onednn`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from costmodels.cluster import Kernels
from costmodels.host.onednn import Pack, packed_kernel
from graphs.ir import Op
from graphs.program.program import Program

VERSION = 4  # of what is here, and of how memory and weights are kept: what was measured another way is measured again

LEAST_CHANNELS = 16  # of float32 that fill a vector
LEAST_ELEMENTS = 2**13  # below that the copies take longer than what they spare
EXACT = (torch.float32, torch.float64)  # in others the bits within a NaN differ


@dataclass(frozen=True)
class Kernel:
    """What computes one operator.

    Attributes:
        target: to be called with the operator's arguments.
        torch_device: where.
        packs: by tensor that the operator reads, what to make of it once, and to pass on instead.
    """

    target: Callable[..., Any]
    torch_device: torch.device
    packs: Mapping[str, Pack] = field(default_factory=dict)


def kernel_of(program: Program, op: Op, torch_device: torch.device, inference: Kernels | None = None) -> Kernel:
    """What computes an operator on a device.

    Args:
        program: that it is of.
        op: the operator.
        torch_device: of the device.
        inference: its kernels, if nobody asks for gradients; else none are packed.
    """
    target: Callable[..., Any] = program.calls[op.name].node.target  # type: ignore[assignment]  # see translate
    if (inference == "quick" or torch_device.type != "cpu") and target is torch.ops.aten.view.default:
        target = torch.ops.aten.reshape.default  # traced with channels first; here results may lie in another order
    if torch_device.type != "cpu":
        return Kernel(target, torch_device)
    found = packed_kernel(program, op, inference) if inference else None
    return (
        Kernel(found[0], torch_device, found[1]) if found else Kernel(EXACT_KERNELS.get(target, target), torch_device)
    )


def max_pool2d(
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
) -> torch.Tensor:
    """`torch.max_pool2d`, with the same bits and strides; a gradient's backward pass is left as it is."""
    pool = torch.ops.aten.max_pool2d.default
    large = x.dim() == 4 and x.shape[1] >= LEAST_CHANNELS and x.numel() >= LEAST_ELEMENTS
    if not (large and x.is_contiguous() and _is_plain(x)):
        plain: torch.Tensor = pool(x, kernel_size, stride, padding, dilation, ceil_mode)
        return plain
    last = x.contiguous(memory_format=torch.channels_last)
    result = pool(last, kernel_size, stride, padding, dilation, ceil_mode)
    return torch.empty(result.shape, dtype=result.dtype).copy_(result)


def avg_pool3d(
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> torch.Tensor:
    """`torch.nn.functional.avg_pool3d`, likewise."""
    length, count = kernel_size[0], x.shape[-3] - kernel_size[0] + 1
    along = list(kernel_size[1:]) == [1, 1] and all(step == 1 for step in stride or kernel_size) and not any(padding)
    last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last_3d)
    if not (along and count >= 1 and _is_plain(x)) or last:
        pool = torch.ops.aten.avg_pool3d.default
        plain: torch.Tensor = pool(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
        return plain
    x = x.contiguous()  # as the operator's result is
    total = x.narrow(-3, 0, count) + 0.0  # a sum begins with zero, which is not the negative one
    for start in range(1, length):
        total += x.narrow(-3, start, count)
    return total.div_(divisor_override or length)


def _is_plain(x: torch.Tensor) -> bool:
    """Whether a quicker way has the same bits; gradients take the operator's own backward pass."""
    return x.dtype in EXACT and not (x.requires_grad and torch.is_grad_enabled())


EXACT_KERNELS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.max_pool2d.default: max_pool2d,
    torch.ops.aten.avg_pool3d.default: avg_pool3d,
}
"""By the operator that they stand for; each takes the same arguments."""
