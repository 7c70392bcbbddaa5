"""GELU by the error function, of which PyTorch has two kernels for float32 and bfloat16 numbers on a CPU.

oneDNN's computes contiguous tensors, and makes NaN of an infinity; PyTorch's own computes all others, and does not.
Here tensors may lie otherwise than in the trace, so the kernel that the trace takes is chosen.
"""

import torch

from graphs.program.program import Call
from graphs.program.traced_strides import STRIDED

GELU = torch.ops.aten.gelu.default


def is_strided(call: Call) -> bool:
    """Return whether a trace computes GELU of a tensor that is not contiguous."""
    return bool(call.node.meta.get(STRIDED))


def contiguous_gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """Return GELU as PyTorch has it for contiguous tensors; dense tensors are not copied."""
    result: torch.Tensor
    if x.is_contiguous():
        result = GELU(x, approximate=approximate)
        return result
    axes = sorted(range(x.dim()), key=x.stride, reverse=True)  # as they lie in memory
    result = GELU(x.permute(axes).contiguous(), approximate=approximate)
    return result.permute(sorted(range(x.dim()), key=axes.__getitem__))


def strided_gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """Return GELU as PyTorch has it for tensors that are not contiguous."""
    if not x.is_contiguous():
        strided = x
    elif x.numel() % 2 or x.numel() <= 2:
        strided = x.new_empty(x.numel(), 2)[:, :1].copy_(x.view(-1, 1))
    else:
        strided = x.view(2, -1).t()
    result: torch.Tensor = GELU(strided, approximate=approximate)
    return result if strided is x else result.mT.reshape(x.shape)
