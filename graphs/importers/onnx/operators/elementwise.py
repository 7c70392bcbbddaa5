"""Elementwise operators: activations, arithmetic, comparison, logic, casts."""

import functools
import operator as python
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graphs.importers.onnx.operators.registry import Compute, Node, operator, plain
from graphs.importers.onnx.tensors import dtype_of, to_dtype

_PLAIN: dict[str, Callable[..., Tensor]] = {
    "Abs": torch.abs,
    "And": torch.logical_and,
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseNot": torch.bitwise_not,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "HardSwish": functional.hardswish,
    "Identity": lambda x: x,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Mish": functional.mish,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Or": torch.logical_or,
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
    "Xor": torch.logical_xor,
}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {  # Python's operators accept a number on either side
    "Add": python.add,
    "Equal": python.eq,
    "Greater": python.gt,
    "GreaterOrEqual": python.ge,
    "Less": python.lt,
    "LessOrEqual": python.le,
    "Mul": python.mul,
    "Sub": python.sub,
}
_FOLDED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Max": torch.maximum,
    "Min": torch.minimum,
    "Sum": torch.add,
}  # operators on any number of operands
_WITH_ALPHA: dict[str, tuple[Callable[[Tensor, float], Tensor], float]] = {  # with the default of alpha
    "Celu": (functional.celu, 1.0),
    "Elu": (functional.elu, 1.0),
    "LeakyRelu": (functional.leaky_relu, 0.01),
    "Swish": (lambda x, alpha: functional.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x), 1.0),
    "ThresholdedRelu": (lambda x, alpha: functional.threshold(x, alpha, 0.0), 1.0),
}


def _folded(function: Callable[[Tensor, Tensor], Tensor]) -> Compute:
    return plain(lambda *operands: functools.reduce(function, operands))


def _with_alpha(function: Callable[[Tensor, float], Tensor], default: float) -> Compute:
    return lambda node, x: function(x, node.number("alpha", default))


for _kind, _function in _PLAIN.items():
    operator(_kind)(plain(_function))
for _kind, _binary in _BINARY.items():
    operator(_kind, scalars=(0, 1))(plain(_binary))
for _kind, _reduced in _FOLDED.items():
    operator(_kind)(_folded(_reduced))
for _kind, (_activation, _alpha) in _WITH_ALPHA.items():
    operator(_kind)(_with_alpha(_activation, _alpha))
operator("Mean")(plain(lambda *operands: functools.reduce(torch.add, operands) / len(operands)))
operator("Where", scalars=(1, 2))(plain(torch.where))


@operator("Div", scalars=(0, 1))
def div(_node: Node, a: Any, b: Any) -> Tensor:
    """Division, which truncates integers."""
    tensor: Tensor = a if isinstance(a, Tensor) else b
    if tensor.is_floating_point():
        quotient: Tensor = a / b
        return quotient
    a = a if isinstance(a, Tensor) else torch.as_tensor(a, dtype=tensor.dtype, device=tensor.device)
    return torch.div(a, b, rounding_mode="trunc")


@operator("Pow", scalars=(0, 1))
def power(_node: Node, base: Any, exponent: Any) -> Tensor:
    """Power; the result has the base's dtype."""
    result = torch.pow(base, exponent)
    return to_dtype(result, base.dtype) if isinstance(base, Tensor) else result


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


@operator("Cast", ignores=("saturate", "round_mode"))
def cast(node: Node, x: Tensor) -> Tensor:
    """Conversion to another dtype, which truncates."""
    return to_dtype(x, dtype_of(node.integer("to", 0), f"node {node.name!r} (Cast)"))


@operator("CastLike", described=(1,), ignores=("saturate", "round_mode"))
def cast_like(_node: Node, x: Tensor, like: Tensor) -> Tensor:
    """Conversion to the dtype of another tensor."""
    return to_dtype(x, like.dtype)


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


@operator("PRelu")
def prelu(_node: Node, x: Tensor, slope: Tensor) -> Tensor:
    """x where positive, slope·x elsewhere; PyTorch's own function takes one slope, or one for each channel."""
    per_channel = x.dim() > 1 and slope.shape == (x.shape[1], *[1] * (x.dim() - 2))
    if slope.numel() == 1 or per_channel:
        return functional.prelu(x, slope.reshape(-1))
    return torch.where(x < 0, slope * x, x)


@operator("Selu")
def selu(node: Node, x: Tensor) -> Tensor:
    """Scaled Elu; PyTorch's own function has fixed alpha and gamma."""
    alpha, gamma = node.number("alpha", 1.67326319217681884765625), node.number("gamma", 1.05070102214813232421875)
    return gamma * functional.elu(x, alpha)


@operator("HardSigmoid")
def hard_sigmoid(node: Node, x: Tensor) -> Tensor:
    """alpha·x + beta, clamped to [0, 1]."""
    return torch.clamp(x * node.number("alpha", 0.2) + node.number("beta", 0.5), 0.0, 1.0)


@operator("Gelu")
def gelu(node: Node, x: Tensor) -> Tensor:
    """Gaussian error linear unit, exact or with tanh."""
    return functional.gelu(x, approximate=node.text("approximate", "none"))
