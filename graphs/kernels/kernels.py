"""Kernels of operators, the same for calibration and the runtime: PyTorch's own function, or a faster one.

Exact kernels have the same bits as PyTorch's. PyTorch 2.11 to 2.13 pools images in channels-first layout number by
number, and images in channels-last layout in vectors: on one core this is six times as fast, including the copies, and
a maximum has no rounding. PyTorch also averages over neighbouring channels, as in a local response norm, number by
number; sums of whole images in the same order are twenty times as fast.
Quick kernels (`graphs.kernels.quick`) are for devices that ask for them. They, and exact kernels of LSTMs
(`graphs.kernels.onednn`), read weights that are packed once.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from graphs.ir import Op
from graphs.kernels.choice import Kernels
from graphs.kernels.giving_way import warn
from graphs.kernels.kernel import Kernel, Read, as_it_is, by_pytorch
from graphs.kernels.onednn import lstm_kernel
from graphs.kernels.quick import quick_kernel
from graphs.program.program import Program
from graphs.rewrites.fuse import KIND

VERSION = 28
"""Version of kernels, of the handling of memory and weights, and of the pace references: measurements depend on it."""

LEAST_CHANNELS = 16  # float32 channels that fill a vector
LEAST_ELEMENTS = 2**13  # for fewer elements the copies take longer than they save
EXACT = (torch.float32, torch.float64)  # in other dtypes the bits of NaN differ


def kernels_of(
    program: Program, op: Op, torch_device: torch.device, inference: Kernels | None = None
) -> tuple[Kernel, ...]:
    """Return the kernels that compute an operator, one after another; see `kernel_of`.

    A fused operator has one kernel if there is one for it, otherwise those of its members.
    """
    if not op.members:
        return (kernel_of(program, op, torch_device, inference),)
    alone = op.kind == KIND and torch_device.type == "cpu" and inference == "quick"
    if alone and (quick := _built(quick_kernel, program, op)):
        return (quick,)
    return tuple(kernel_of(program, member, torch_device, inference) for member in op.members)


def kernel_of(program: Program, op: Op, torch_device: torch.device, inference: Kernels | None = None) -> Kernel:
    """The kernel of an operator on a device.

    ``inference`` is the device's kind of kernels there; None in training, which has no packed weights.
    """
    ours = torch_device.type == "cpu"
    usual = by_pytorch(program, op, torch_device, moves=inference == "quick" or not ours)
    if ours and inference:
        if usual.target is torch.ops.aten.dropout.default and not op.attrs.get("train"):
            return Kernel(op, as_it_is, arguments=(Read(op.inputs[0]),))
        for build in (quick_kernel, lstm_kernel) if inference == "quick" else (lstm_kernel,):
            if kernel := _built(build, program, op):
                return kernel
    kernels = EXACT_KERNELS | PLAIN_NUMBERS if inference == "quick" else EXACT_KERNELS
    return replace(usual, target=kernels.get(usual.target, usual.target)) if ours else usual


def _built(build: Callable[[Program, Op], Kernel | None], program: Program, op: Op) -> Kernel | None:
    """The kernel that a function builds of an operator; None, with a warning, if it fails."""
    try:
        return build(program, op)
    except Exception as error:  # whatever its libraries raise: PyTorch computes then
        warn(error, op)
        return None


def max_pool2d(
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
) -> torch.Tensor:
    """`torch.max_pool2d`, with the same bits and strides."""
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
    """`torch.nn.functional.avg_pool3d`, with the same bits and strides."""
    length, count = kernel_size[0], x.shape[-3] - kernel_size[0] + 1
    along = list(kernel_size[1:]) == [1, 1] and all(step == 1 for step in stride or kernel_size) and not any(padding)
    last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last_3d)
    if not (along and count >= 1 and _is_plain(x)) or last:
        pool = torch.ops.aten.avg_pool3d.default
        plain: torch.Tensor = pool(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
        return plain
    x = x.contiguous()  # the operator's result is contiguous, too
    total = x.narrow(-3, 0, count) + 0.0  # the operator's sum starts at +0, which turns -0 into +0
    for start in range(1, length):
        total += x.narrow(-3, start, count)
    return total.div_(divisor_override or length)


def imag(x: torch.Tensor) -> torch.Tensor:
    """`torch.imag` with the numbers that it stands for in memory; PyTorch marks those of a conjugate as negative."""
    return torch.imag(x).clone()


def _is_plain(x: torch.Tensor) -> bool:
    """Whether the fast kernel has the same bits; with gradients, the operator's own backward pass is needed."""
    return x.dtype in EXACT and not (x.requires_grad and torch.is_grad_enabled())


EXACT_KERNELS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.max_pool2d.default: max_pool2d,
    torch.ops.aten.avg_pool3d.default: avg_pool3d,
}
"""Exact kernels by the operator that they replace, whose arguments they take."""

PLAIN_NUMBERS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.imag.default: imag,
    torch.ops.aten._neg_view.default: torch.neg,
}
"""For operators whose results PyTorch may mark as negative, kernels whose results lie as they are read."""
