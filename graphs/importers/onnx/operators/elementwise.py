"""Elementwise operators: activations, arithmetic, comparison, logic, casts."""

import functools
import operator as python
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graphs.importers.onnx.operators.registry import (
    FLOAT8,
    NARROW,
    Compute,
    Node,
    dtype_of,
    enter_all,
    lift,
    operator,
    to_dtype,
    to_float8,
    to_narrow,
)

_OF_TORCH = (
    "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor IsNaN Log Neg Reciprocal Relu Round Sigmoid Sign "
    "Sin Sinh Sqrt Tan Tanh"
)
"""Operators that have the name of PyTorch's function, but for capitals."""

enter_all({kind: lift(getattr(torch, kind.lower())) for kind in _OF_TORCH.split()})
enter_all({kind: lift(getattr(torch, f"logical_{kind.lower()}")) for kind in ("And", "Not", "Or", "Xor")})
enter_all({f"Bitwise{kind}": lift(getattr(torch, f"bitwise_{kind.lower()}")) for kind in ("And", "Not", "Or", "Xor")})
enter_all({kind: lift(getattr(functional, kind.lower())) for kind in ("HardSwish", "Mish", "Softplus", "Softsign")})


def _folded(function: Callable[[Tensor, Tensor], Tensor]) -> Compute:
    """An operator on any number of operands."""
    return lift(lambda *operands: functools.reduce(function, operands))


def _with_alpha(function: Callable[[Tensor, float], Tensor], default: float) -> Compute:
    """A function of the operand and the attribute alpha, which has a default."""
    return lambda node, x: function(x, node.number("alpha", default))


def _divide(a: Any, b: Any) -> Tensor:
    """Division, which truncates integers."""
    tensor: Tensor = a if isinstance(a, Tensor) else b
    if tensor.is_floating_point():
        quotient: Tensor = a / b
        return quotient
    a = a if isinstance(a, Tensor) else torch.as_tensor(a, dtype=tensor.dtype, device=tensor.device)
    return torch.div(a, b, rounding_mode="trunc")


def _power(base: Tensor, exponent: Any) -> Tensor:
    """Power; the result has the base's dtype."""
    return to_dtype(torch.pow(base, exponent), base.dtype)


def _prelu(x: Tensor, slope: Tensor) -> Tensor:
    """x where positive, slope·x elsewhere; PyTorch's own function takes one slope, or one for each channel."""
    per_channel = x.dim() > 1 and slope.shape == (x.shape[1], *[1] * (x.dim() - 2))
    if x.is_floating_point() and (slope.numel() == 1 or per_channel):
        return functional.prelu(x, slope.reshape(-1))
    return torch.where(x < 0, slope * x, x)


def _selu(node: Node, x: Tensor) -> Tensor:
    """Scaled Elu; PyTorch's own function has fixed alpha and gamma."""
    alpha, gamma = node.number("alpha", 1.67326319217681884765625), node.number("gamma", 1.05070102214813232421875)
    return gamma * functional.elu(x, alpha)


enter_all(
    {
        "Celu": _with_alpha(functional.celu, 1.0),
        "Elu": _with_alpha(functional.elu, 1.0),
        "Gelu": lambda node, x: functional.gelu(x, approximate=node.text("approximate", "none")),
        "HardSigmoid": lambda node, x: torch.clamp(x * node.number("alpha", 0.2) + node.number("beta", 0.5), 0.0, 1.0),
        "LeakyRelu": _with_alpha(functional.leaky_relu, 0.01),
        "Max": _folded(torch.maximum),
        "Mean": lift(lambda *operands: functools.reduce(torch.add, operands) / len(operands)),
        "Min": _folded(torch.minimum),
        "PRelu": lift(_prelu),
        "Selu": _selu,
        "Sum": _folded(torch.add),
        "Swish": _with_alpha(
            lambda x, alpha: functional.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x), 1.0
        ),
        "ThresholdedRelu": _with_alpha(lambda x, alpha: functional.threshold(x, alpha, 0.0), 1.0),
    }
)
enter_all(
    {
        "Add": lift(python.add),  # Python's operators accept a number on either side
        "Div": lift(_divide),
        "Equal": lift(python.eq),
        "Greater": lift(python.gt),
        "GreaterOrEqual": lift(python.ge),
        "Less": lift(python.lt),
        "LessOrEqual": lift(python.le),
        "Mul": lift(python.mul),
        "Sub": lift(python.sub),
    },
    scalars=(0, 1),
)
operator("Pow", scalars=(1,))(lift(_power))  # a base that is a number would lose its type
operator("Identity", holds=True)(lift(lambda x: x))
operator("Where", scalars=(1, 2))(lift(torch.where))


@operator("Mod", scalars=(1,))
def mod(node: Node, a: Tensor, b: Any) -> Tensor:
    """Remainder with the sign of the divisor, or of the dividend with fmod=1."""
    return torch.fmod(a, b) if node.flag("fmod") else torch.remainder(a, b)


@operator("Clip", scalars=(1, 2))
def clip(node: Node, x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    """Clamp to [low, high], which are attributes before opset 11, and operands later."""
    if node.opset < 11:
        low, high = node.attributes.get("min"), node.attributes.get("max")
    if isinstance(low, Tensor) != isinstance(high, Tensor):  # PyTorch needs two numbers or two tensors
        low, high = (
            bound if bound is None else torch.as_tensor(bound, dtype=x.dtype, device=x.device) for bound in (low, high)
        )
    return x if low is None and high is None else torch.clamp(x, low, high)


@operator("Cast", holds=True, ignores=("saturate", "round_mode"))
def cast(node: Node, x: Tensor) -> Tensor:
    """Conversion to another dtype, which truncates."""
    to = node.integer("to", 0)
    return _converted(node, x, dtype_of(to, f"node {node.name!r} (Cast)"), to if to in NARROW else None)


@operator("CastLike", described=(1,), holds=True, ignores=("saturate", "round_mode"))
def cast_like(node: Node, x: Tensor, like: Tensor) -> Tensor:
    """Conversion to the dtype of another operand."""
    return _converted(node, x, like.dtype, node.narrow[1])


def _converted(node: Node, x: Tensor, dtype: torch.dtype, narrow: int | None) -> Tensor:
    if dtype is torch.float8_e8m0fnu and x.dtype != dtype:
        raise node.unsupported("a result of float8e8m0")
    if narrow is not None:
        return x if node.narrow[0] == narrow else to_narrow(x, narrow)
    return to_float8(x, dtype, node.flag("saturate", True)) if dtype in FLOAT8 else to_dtype(x, dtype)


@operator("BitCast", holds=True)
def bit_cast(node: Node, x: Tensor) -> Tensor:
    """The same bits, read as another type of the same size."""
    to = node.integer("to", 0)
    dtype = dtype_of(to, f"node {node.name!r} (BitCast)")
    if to in NARROW or node.narrow[0] or dtype.itemsize != x.dtype.itemsize:
        raise node.unsupported(f"a change from {x.dtype} to {dtype}")
    return x.view(dtype)


@operator("Shrink")
def shrink(node: Node, x: Tensor) -> Tensor:
    """x moved towards 0 by a bias, and 0 between −lambd and lambd."""
    limit, bias = node.number("lambd", 0.5), node.number("bias", 0.0)
    moved = torch.where(x < -limit, x + bias, torch.where(x > limit, x - bias, torch.zeros_like(x)))
    return to_dtype(moved, x.dtype)


@operator("BitShift")
def shift(node: Node, x: Tensor, places: Tensor) -> Tensor:
    """Bits moved to the left or to the right."""
    moved = torch.bitwise_left_shift if node.text("direction") == "LEFT" else torch.bitwise_right_shift
    return moved(x, places)


@operator("Dropout", known=(1, 2), ignores=("ratio", "seed"))
def dropout(
    node: Node, x: Tensor, _ratio: list[float] | None = None, training: list[bool] | None = None
) -> tuple[Tensor, ...]:
    """The operand itself, since imported files are for inference, and a mask of ones."""
    if training and training[0]:
        raise node.unsupported("training_mode=1")
    return (x, torch.ones_like(x, dtype=torch.bool)) if node.wants(1) else (x,)


@operator("IsInf")
def is_infinite(node: Node, x: Tensor) -> Tensor:
    """Whether an element is infinite, on the sides that the attributes name."""
    below = torch.isneginf(x) if node.flag("detect_negative", True) else torch.zeros_like(x, dtype=torch.bool)
    return below | torch.isposinf(x) if node.flag("detect_positive", True) else below
