"""Operators that multiply and add: convolutions and matrix products."""

import torch
from torch import Tensor
from torch.nn import functional

from graphs.importers.onnx.operators.registry import Node, operator, plain
from graphs.importers.onnx.operators.windows import Window, explicit_pads, halves, pad_spatial

_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}

operator("MatMul")(plain(torch.matmul))


@operator("Conv", ignores=("kernel_shape",))
def conv(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolution in one, two or three dimensions."""
    n_dims = x.dim() - 2
    if n_dims not in _CONVOLUTIONS:
        raise node.unsupported(f"an operand with {n_dims} spatial dimensions")
    window = Window.of(node, list(weight.shape[2:]), list(x.shape[2:]))
    padding = window.begin
    if window.begin != window.end:
        x, padding = pad_spatial(x, window.begin, window.end), [0] * n_dims
    group = node.integer("group", 1)
    return _CONVOLUTIONS[n_dims](x, weight, bias, window.stride, padding, window.dilation, group)


@operator("ConvTranspose", ignores=("kernel_shape", "pads"))
def conv_transpose(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Transposed convolution, whose padding cuts off the result's border."""
    n_dims = x.dim() - 2
    if n_dims not in _TRANSPOSED:
        raise node.unsupported(f"an operand with {n_dims} spatial dimensions")
    stride, dilation = node.integers("strides", [1] * n_dims), node.integers("dilations", [1] * n_dims)
    extra, group = node.integers("output_padding", [0] * n_dims), node.integer("group", 1)
    reach = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilation, strict=True)]
    full = [s * (n - 1) + o + r for s, n, o, r in zip(stride, x.shape[2:], extra, reach, strict=True)]
    begin, end = _cut(node, list(x.shape[2:]), stride, full)
    if begin == end and min(begin) >= 0:
        return _TRANSPOSED[n_dims](x, weight, bias, stride, begin, extra, group, dilation)
    grows = min(*begin, *end) < 0  # the added border has the bias only
    uncut = _TRANSPOSED[n_dims](x, weight, None if grows else bias, stride, [0] * n_dims, extra, group, dilation)
    result = pad_spatial(uncut, [-b for b in begin], [-e for e in end])
    return result + bias.reshape([-1] + [1] * n_dims) if grows and bias is not None else result


def _cut(node: Node, size: list[int], stride: list[int], full: list[int]) -> tuple[list[int], list[int]]:
    """The elements that are cut off a transposed convolution's full result at both ends of each dimension."""
    n_dims, auto_pad = len(size), node.text("auto_pad", "NOTSET")
    target = node.integers("output_shape")[-n_dims:]
    if not target and auto_pad in ("NOTSET", "VALID"):
        return explicit_pads(node, n_dims)
    target = target or [n * s for n, s in zip(size, stride, strict=True)]
    surplus = [f - t for f, t in zip(full, target, strict=True)]
    return halves(surplus, auto_pad)


@operator("Gemm", scalars=(2,))
def gemm(node: Node, a: Tensor, b: Tensor, c: Tensor | float | None = None) -> Tensor:
    """alpha·A·B + beta·C, with A or B transposed; written as a linear layer if possible."""
    alpha, beta = node.number("alpha", 1.0), node.number("beta", 1.0)
    if node.flag("transA"):
        a = a.t()
    if node.flag("transB"):
        if alpha == beta == 1.0 and (c is None or (isinstance(c, Tensor) and c.shape == b.shape[:1])):
            return functional.linear(a, b, c)
        b = b.t()
    if isinstance(c, Tensor):
        return torch.addmm(c, a, b, beta=beta, alpha=alpha)
    product = torch.mm(a, b) if alpha == 1.0 else alpha * torch.mm(a, b)
    return product if c is None else product + beta * c


@operator("Einsum")
def einsum(node: Node, *operands: Tensor) -> Tensor:
    """Einstein summation."""
    return torch.einsum(node.text("equation"), *operands)
