"""Operators that compute every element by itself: activations, arithmetic, comparison, logic, casts."""

import functools
import operator as python
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graphs.importers.onnx.operators.registry import Node, operator, plain
from graphs.importers.onnx.tensors import dtype_of, to_dtype

_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "BitwiseNot": torch.bitwise_not,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "HardSwish": functional.hardswish,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Mish": functional.mish,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Round": torch.round,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Softplus": functional.softplus,
    "Softsign": functional.softsign,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
}
_LOGICAL: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "And": torch.logical_and,
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
    "Or": torch.logical_or,
    "Xor": torch.logical_xor,
}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {  # Python's operators take a number on either side
    "Add": python.add,
    "Equal": python.eq,
    "Greater": python.gt,
    "GreaterOrEqual": python.ge,
    "Less": python.lt,
    "LessOrEqual": python.le,
    "Mul": python.mul,
    "Sub": python.sub,
}
for _kind, _unary in _UNARY.items():
    operator(_kind)(plain(_unary))
for _kind, _logical in _LOGICAL.items():
    operator(_kind)(plain(_logical))
for _kind, _binary in _BINARY.items():
    operator(_kind, scalars=(0, 1))(plain(_binary))


@operator("Identity")
def identity(_node: Node, x: Tensor) -> Tensor:
    """The operand itself."""
    return x


@operator("Div", scalars=(0, 1))
def div(_node: Node, a: Any, b: Any) -> Tensor:
    """Division; integers are cut towards zero."""
    tensor: Tensor = a if isinstance(a, Tensor) else b
    if tensor.is_floating_point():
        quotient: Tensor = a / b
        return quotient
    a = a if isinstance(a, Tensor) else torch.as_tensor(a, dtype=tensor.dtype, device=tensor.device)
    return torch.div(a, b, rounding_mode="trunc")


@operator("Pow", scalars=(0, 1))
def power(_node: Node, base: Any, exponent: Any) -> Tensor:
    """Power; the result has the base's type, also where the exponent has another."""
    result = torch.pow(base, exponent)
    return to_dtype(result, base.dtype) if isinstance(base, Tensor) else result


@operator("Mod", scalars=(1,))
def mod(node: Node, a: Tensor, b: Any) -> Tensor:
    """Remainder with the sign of the divisor, or of the dividend with fmod=1."""
    return torch.fmod(a, b) if node.flag("fmod") else torch.remainder(a, b)


@operator("Where", scalars=(1, 2))
def where(_node: Node, condition: Tensor, x: Any, y: Any) -> Tensor:
    """One or the other, element by element."""
    return torch.where(condition, x, y)


@operator("Max")
def maximum(_node: Node, *operands: Tensor) -> Tensor:
    """The largest of any number of operands."""
    return functools.reduce(torch.maximum, operands)


@operator("Min")
def minimum(_node: Node, *operands: Tensor) -> Tensor:
    """The smallest of any number of operands."""
    return functools.reduce(torch.minimum, operands)


@operator("Sum")
def total(_node: Node, *operands: Tensor) -> Tensor:
    """The sum of any number of operands."""
    return functools.reduce(torch.add, operands)


@operator("Mean")
def mean(_node: Node, *operands: Tensor) -> Tensor:
    """The mean of any number of operands."""
    return functools.reduce(torch.add, operands) / len(operands)


@operator("Clip", scalars=(1, 2))
def clip(node: Node, x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    """Clamps to [low, high]: attributes before opset 11, operands from then on."""
    if node.opset < 11:
        low, high = node.attributes.get("min"), node.attributes.get("max")
    if isinstance(low, Tensor) != isinstance(high, Tensor):  # PyTorch wants both alike
        low, high = (
            bound if bound is None else torch.as_tensor(bound, dtype=x.dtype, device=x.device) for bound in (low, high)
        )
    return x if low is None and high is None else torch.clamp(x, low, high)


@operator("Cast", ignores=("saturate", "round_mode"))
def cast(node: Node, x: Tensor) -> Tensor:
    """To another element type; numbers lose what the type can't hold, towards zero."""
    return to_dtype(x, dtype_of(node.integer("to", 0), f"node {node.name!r} (Cast)"))


@operator("CastLike", described=(1,), ignores=("saturate", "round_mode"))
def cast_like(_node: Node, x: Tensor, like: Tensor) -> Tensor:
    """To the element type of another tensor."""
    return to_dtype(x, like.dtype)


@operator("Dropout", known=(1, 2), ignores=("ratio", "seed"))
def dropout(
    node: Node, x: Tensor, _ratio: list[float] | None = None, training: list[bool] | None = None
) -> tuple[Tensor, ...]:
    """Nothing, as the model is run and not trained by the file; the mask keeps everything."""
    if training and training[0]:
        raise node.unsupported("training_mode=1")
    return (x, torch.ones_like(x, dtype=torch.bool)) if node.wants(1) else (x,)


@operator("IsInf")
def is_infinite(node: Node, x: Tensor) -> Tensor:
    """Whether an element is infinite, on the sides that the attributes name."""
    below = torch.isneginf(x) if node.flag("detect_negative", True) else torch.zeros_like(x, dtype=torch.bool)
    return below | torch.isposinf(x) if node.flag("detect_positive", True) else below


@operator("LeakyRelu")
def leaky_relu(node: Node, x: Tensor) -> Tensor:
    """x where positive, alpha·x elsewhere."""
    return functional.leaky_relu(x, node.number("alpha", 0.01))


@operator("PRelu")
def prelu(_node: Node, x: Tensor, slope: Tensor) -> Tensor:
    """x where positive, slope·x elsewhere; a slope per channel goes through PyTorch's own function."""
    per_channel = x.dim() > 1 and slope.shape == (x.shape[1], *[1] * (x.dim() - 2))
    if slope.numel() == 1 or per_channel:
        return functional.prelu(x, slope.reshape(-1))
    return torch.where(x < 0, slope * x, x)


@operator("Elu")
def elu(node: Node, x: Tensor) -> Tensor:
    """x where positive, alpha·(exp(x) − 1) elsewhere."""
    return functional.elu(x, node.number("alpha", 1.0))


@operator("Celu")
def celu(node: Node, x: Tensor) -> Tensor:
    """x where positive, alpha·(exp(x/alpha) − 1) elsewhere."""
    return functional.celu(x, node.number("alpha", 1.0))


@operator("Selu")
def selu(node: Node, x: Tensor) -> Tensor:
    """Elu with a scale; PyTorch's own function fixes both numbers, so the general one is written out."""
    alpha, gamma = node.number("alpha", 1.67326319217681884765625), node.number("gamma", 1.05070102214813232421875)
    return gamma * functional.elu(x, alpha)


@operator("ThresholdedRelu")
def thresholded_relu(node: Node, x: Tensor) -> Tensor:
    """x where above alpha, 0 elsewhere."""
    return functional.threshold(x, node.number("alpha", 1.0), 0.0)


@operator("HardSigmoid")
def hard_sigmoid(node: Node, x: Tensor) -> Tensor:
    """alpha·x + beta, clamped to [0, 1]."""
    return torch.clamp(x * node.number("alpha", 0.2) + node.number("beta", 0.5), 0.0, 1.0)


@operator("Gelu")
def gelu(node: Node, x: Tensor) -> Tensor:
    """Gaussian error linear unit, exact or with tanh."""
    return functional.gelu(x, approximate=node.text("approximate", "none"))


@operator("Swish")
def swish(node: Node, x: Tensor) -> Tensor:
    """x·sigmoid(alpha·x)."""
    alpha = node.number("alpha", 1.0)
    return functional.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x)
