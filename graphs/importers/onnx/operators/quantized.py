"""Operators of quantized networks: real numbers as integers, q = round(x / scale) + zero point.

Products of integers are computed in float64, which holds their sums exactly, by PyTorch's fast kernels.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graphs.importers.onnx.operators.registry import Node, dtype_of, operator, to_dtype
from graphs.importers.onnx.operators.windows import conv


def _along(values: Tensor, x: Tensor, axis: int, block: int = 0) -> Tensor:
    """Scales or zero points in a shape that broadcasts with x: one for all, each index of an axis, or each block."""
    if block:
        return values.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    if values.numel() == 1:
        return values.reshape(())
    return values.reshape([-1] + [1] * (x.dim() - 1 - axis % x.dim()))


def _dequantized(x: Tensor, scale: Tensor, zero: Tensor | None, axis: int = 1, block: int = 0) -> Tensor:
    """The real numbers of integers, in the dtype of the scale."""
    shifted = x.to(torch.int32) if zero is None else x.to(torch.int32) - _along(zero.to(torch.int32), x, axis, block)
    return shifted.to(scale.dtype) * _along(scale, x, axis, block)


def _quantized(
    x: Tensor, scale: Tensor, zero: Tensor | None, dtype: torch.dtype, axis: int = 1, block: int = 0
) -> Tensor:
    """The integers of real numbers, cut off at the ends of their type."""
    steps = torch.round(x.to(scale.dtype) / _along(scale, x, axis, block)).to(torch.float32)
    if zero is not None:
        steps = steps + _along(zero.to(torch.float32), x, axis, block)
    limits = torch.iinfo(dtype)
    return torch.clamp(steps, limits.min, limits.max).to(dtype)


@operator("QuantizeLinear", "com.microsoft::QuantizeLinear", holds=True, ignores=("saturate", "precision"))
def quantize(node: Node, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """Integers with one scale, one for each index of an axis, or one for each block."""
    given = node.integer("output_dtype", 0)
    dtype = dtype_of(given, f"node {node.name!r}") if given else torch.uint8 if zero is None else zero.dtype
    if dtype.is_floating_point:
        raise node.unsupported(f"a result of {dtype}")
    return _quantized(x, scale, zero, dtype, node.integer("axis", 1), node.integer("block_size", 0))


@operator("DequantizeLinear", "com.microsoft::DequantizeLinear", holds=True)
def dequantize(node: Node, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """Real numbers with one scale, one for each index of an axis, or one for each block."""
    result = _dequantized(x, scale, zero, node.integer("axis", 1), node.integer("block_size", 0))
    given = node.integer("output_dtype", 0)
    return to_dtype(result, dtype_of(given, f"node {node.name!r}")) if given else result


def _shifted(x: Tensor, zero: Tensor | None, axis: int = 0) -> Tensor:
    """The operand of an exact product: x − zero point."""
    if zero is None:
        return x.double()
    return x.double() - (zero.double() if zero.dim() > 1 else _along(zero.double(), x, axis))


@operator("MatMulInteger")
def integer_product(
    _node: Node, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    """The product of integers; zero points are those of rows of A and of columns of B."""
    return torch.matmul(_shifted(a, a_zero, -2), _shifted(b, b_zero, -1)).to(torch.int32)


@operator("ConvInteger", ignores=("kernel_shape",))
def integer_convolution(
    node: Node, x: Tensor, weight: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None
) -> Tensor:
    """The convolution of integers, whose padding is the zero point; that of weights may be one for each channel."""
    result: Tensor = conv(node, _shifted(x, x_zero), _shifted(weight, w_zero, 0))
    return result.to(torch.int32)


def _requantized(exact: Tensor, scale: Tensor, y_scale: Tensor, y_zero: Tensor) -> Tensor:
    """The integers of a product whose scale is ``scale``."""
    limits = torch.iinfo(y_zero.dtype)
    steps = torch.round(exact * (scale / y_scale.double())) + y_zero.double()
    return torch.clamp(steps, limits.min, limits.max).to(y_zero.dtype)


@operator("QLinearMatMul")
def quantized_product(
    _node: Node,
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
) -> Tensor:
    """The product of quantized matrices, quantized."""
    exact = torch.matmul(_shifted(a, a_zero, -2), _shifted(b, b_zero, -1))
    scale = _along(a_scale.double(), exact, -2) * _along(b_scale.double(), exact, -1)
    return _requantized(exact, scale, y_scale, y_zero)


@operator("QLinearConv", ignores=("kernel_shape",))
def quantized_convolution(
    node: Node,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    weight: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """The convolution of quantized tensors, quantized; the bias is in units of the product's scale."""
    exact = conv(node, _shifted(x, x_zero), _shifted(weight, w_zero, 0), None if bias is None else bias.double())
    return _requantized(exact, x_scale.double() * _along(w_scale.double(), exact, 1), y_scale, y_zero)


def _between(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    """An elementwise operator on quantized tensors, through the real numbers that they stand for."""

    def compute(_node: Node, *operands: Tensor | None) -> Tensor:
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = [*operands, None][:8]
        assert a is not None
        assert a_scale is not None
        assert b is not None
        assert b_scale is not None
        assert y_scale is not None
        real = function(_dequantized(a, a_scale, a_zero), _dequantized(b, b_scale, b_zero))
        return _quantized(real, y_scale, y_zero, a.dtype)

    return compute


operator("com.microsoft::QLinearAdd")(_between(torch.add))
operator("com.microsoft::QLinearMul")(_between(torch.mul))
