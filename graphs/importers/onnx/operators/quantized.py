"""Operators of quantized networks: real numbers as integers, q = round(x / scale) + zero point.

Weights in blocks (MatMulNBits, GatherBlockQuantized) become real numbers once, when the file is read.

Products of integers are computed in float64, which holds their sums exactly, by PyTorch's fast kernels.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graphs.importers.onnx.operators.indexing import slices
from graphs.importers.onnx.operators.registry import (
    FLOAT8,
    NARROW,
    Node,
    dtype_of,
    operator,
    to_dtype,
    to_float8,
    to_narrow,
)
from graphs.importers.onnx.operators.windows import conv


def _along(values: Tensor, x: Tensor, axis: int, block: int = 0) -> Tensor:
    """Scales or zero points in a shape that broadcasts with x: one for all, each index of an axis, or each block."""
    if block:
        return values.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    if values.numel() == 1:
        return values.reshape(())
    return values.reshape([-1] + [1] * (x.dim() - 1 - axis % x.dim()))


def _dequantized(x: Tensor, scale: Tensor, zero: Tensor | None, axis: int = 1, block: int = 0) -> Tensor:
    """The real numbers of integers or of floats of 8 bits, in float32 or a wider dtype of the scale."""
    if x.dtype not in FLOAT8:  # the zero point of floats is 0
        x = to_dtype(x, torch.int32)
        x = x if zero is None else x - _along(to_dtype(zero, torch.int32), x, axis, block)
    wide = torch.float64 if scale.dtype is torch.float64 else torch.float32
    return to_dtype(x, wide) * _along(to_dtype(scale, wide), x, axis, block)


def _quantized(
    x: Tensor, scale: Tensor, zero: Tensor | None, limits: Sequence[int], axis: int = 1, block: int = 0
) -> Tensor:
    """The whole numbers of real ones, cut off at the limits of their type."""
    steps = to_dtype(torch.round(x / _along(scale, x, axis, block)), torch.float32)
    if zero is not None:
        steps = steps + _along(zero.to(torch.float32), x, axis, block)
    return torch.clamp(steps, *limits)


def _limits(dtype: torch.dtype) -> tuple[int, int]:
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max


def _axis(node: Node, x: Tensor, scale: Tensor) -> int:
    """The axis of several scales; one scale is for all of x, whatever the axis."""
    axis = node.integer("axis", 1)
    return axis if scale.numel() == 1 else node.axis(axis, x.dim())


@operator("QuantizeLinear", "com.microsoft::QuantizeLinear", holds=True)
def quantize(node: Node, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """Integers or floats of 8 bits, with one scale, one for each index of an axis, or one for each block."""
    given, precision = node.integer("output_dtype", 0), node.integer("precision", 0)
    dtype = dtype_of(given, f"node {node.name!r}") if given else torch.uint8 if zero is None else zero.dtype
    axis, block, saturate = _axis(node, x, scale), node.integer("block_size", 0), node.flag("saturate", True)
    divided = dtype_of(precision, f"node {node.name!r}") if precision else scale.dtype
    x, scale = (to_dtype(each, torch.float32 if divided in FLOAT8 else divided) for each in (x, scale))
    narrow = given or (node.narrow[2] if zero is not None else None)
    if dtype in FLOAT8:
        x = x / _along(scale, x, axis, block)
        return to_narrow(x, narrow) if narrow in NARROW else to_float8(x, dtype, saturate)
    limits = NARROW[narrow] if narrow in NARROW else _limits(dtype)
    return _quantized(x, scale, zero, limits, axis, block).to(dtype)


@operator("DequantizeLinear", "com.microsoft::DequantizeLinear", holds=True)
def dequantize(node: Node, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """Real numbers with one scale, one for each index of an axis, or one for each block."""
    result = _dequantized(x, scale, zero, _axis(node, x, scale), node.integer("block_size", 0))
    given = node.integer("output_dtype", 0)
    return to_dtype(result, dtype_of(given, f"node {node.name!r}") if given else scale.dtype)


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
    steps = torch.round(exact * (scale / y_scale.double())) + y_zero.double()
    return torch.clamp(steps, *_limits(y_zero.dtype)).to(y_zero.dtype)


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
        return _quantized(real, y_scale, y_zero, _limits(a.dtype)).to(a.dtype)

    return compute


def _product_of_real(
    a: Tensor, b: Tensor, scale: Tensor, zeros: tuple[Tensor | None, Tensor | None], bias: Tensor | None
) -> Tensor:
    """The real numbers of a product of integers."""
    exact = torch.matmul(_shifted(a, zeros[0], -2), _shifted(b, zeros[1], -1)) * scale.double()
    return (exact if bias is None else exact + bias.double()).to(scale.dtype)


@operator("com.microsoft::MatMulIntegerToFloat")
def integer_product_to_real(
    _node: Node,
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_zero: Tensor | None = None,
    b_zero: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """The product of integers as real numbers; the scale of B is one, or one for each column."""
    return _product_of_real(a, b, a_scale * b_scale, (a_zero, b_zero), bias)


@operator("com.microsoft::DynamicQuantizeMatMul")
def dynamic_product(
    _node: Node, a: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """The product of real numbers, quantized between their least and their largest, with a quantized matrix."""
    low, high = torch.clamp(a.amin(), max=0.0), torch.clamp(a.amax(), min=0.0)
    scale = (high - low) / 255
    scale = torch.where(scale == 0, 1.0, scale)
    zero = torch.clamp(torch.round(-low / scale), 0, 255)
    steps = torch.clamp(torch.round(a / scale) + zero, 0, 255)
    return _product_of_real(steps, b, scale * b_scale, (zero, b_zero), bias)


operator("com.microsoft::QLinearAdd")(_between(torch.add))
operator("com.microsoft::QLinearMul")(_between(torch.mul))


def _unpacked(bytes_: Tensor, bits: int) -> Tensor:
    """The numbers of some bits each in the bytes of the last dimension, the low bits first."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=bytes_.device)
    return torch.bitwise_and(bytes_.unsqueeze(-1) >> shifts, 2**bits - 1).flatten(-2)


def _bits(node: Node) -> int:
    bits = node.integer("bits", 4)
    if bits not in (2, 4, 8):
        raise node.unsupported(f"bits={bits}")
    return bits


def _product_weight(node: Node, operands: Sequence[Tensor | None]) -> dict[str, Tensor]:
    """The weight [N, K] of a MatMulNBits, whose zero points are packed as the weight is, or real numbers."""
    packed, scales, zeros = operands
    if packed is None or scales is None:
        raise node.unsupported("a weight or scales that are left out")
    if node.integer("weight_prepacked", 0):
        raise node.unsupported("weight_prepacked other than 0")
    bits, block, rows, width = _bits(node), *(node.integer(key, 0) for key in ("block_size", "N", "K"))
    n_blocks = -(-width // block) if block else 0
    if packed.dtype is not torch.uint8 or packed.numel() != rows * n_blocks * (block * bits // 8) or not rows * width:
        raise node.unsupported(
            f"a weight {list(packed.shape)} of {packed.dtype} for N={rows}, K={width} and block_size={block}"
        )
    steps = _unpacked(packed.reshape(rows, n_blocks, -1), bits)
    if zeros is not None and zeros.dtype is torch.uint8:
        zeros = _unpacked(zeros.reshape(rows, -1), bits)[:, :n_blocks]
    zero = 2.0 ** (bits - 1) if zeros is None else zeros.reshape(rows, n_blocks, 1).float()
    real = steps.float().sub_(zero).mul_(scales.reshape(rows, n_blocks, 1))  # in place, since weights are large
    weight = real.flatten(1)[:, :width]
    return {f"{bits} bits of {width}/weight": weight.to(scales.dtype)}


@operator(
    "com.microsoft::MatMulNBits",
    arity=6,
    weights=(1, 2, 3),
    prepare=_product_weight,
    ignores=("accuracy_level",),
)
def block_product(node: Node, a: Tensor, groups: Tensor | None, bias: Tensor | None, weight: Tensor) -> Tensor:
    """A product with a weight of few bits, quantized in blocks along its rows."""
    if groups is not None:
        raise node.unsupported("g_idx, which is deprecated,")
    return functional.linear(a, weight, bias)


def _table(node: Node, operands: Sequence[Tensor | None]) -> dict[str, Tensor]:
    """The table of a GatherBlockQuantized, which has several numbers in a byte of uint8."""
    table, scales, zeros = operands
    if table is None or scales is None:
        raise node.unsupported("a table or scales that are left out")
    narrow, axis, block = node.narrow[0], node.integer("quantize_axis", 1), node.integer("block_size", 128)
    if narrow is None and table.dtype is torch.uint8:
        bits = _bits(node)
        table, zeros = _unpacked(table, bits), None if zeros is None else _unpacked(zeros, bits)
        zeros = torch.full_like(scales, 2 ** (bits - 1)) if zeros is None else zeros.narrow(-1, 0, scales.shape[-1])
    axis = node.axis(axis, table.dim())
    real = _dequantized(table, scales, zeros, axis, block or table.shape[axis])
    return {f"table of {block} along {axis}/table": real.to(scales.dtype)}


@operator(
    "com.microsoft::GatherBlockQuantized",
    arity=4,
    weights=(0, 2, 3),
    prepare=_table,
    ignores=("bits",),
)
def block_gather(node: Node, indices: Tensor, table: Tensor) -> Tensor:
    """Slices of a table of few bits, quantized in blocks."""
    return slices(table, indices, node.axis(node.integer("gather_axis", 0), table.dim()))
