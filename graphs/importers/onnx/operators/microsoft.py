"""Operators of the domain com.microsoft, which onnxruntime's optimizer writes where it has fused standard ones.

Source: onnxruntime's page on contrib operators (docs/ContribOperators.md).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graphs.importers.onnx.operators.normalization import layer_norm, rms_norm
from graphs.importers.onnx.operators.products import gemm
from graphs.importers.onnx.operators.registry import Node, operator
from graphs.importers.onnx.operators.windows import conv

DOMAIN = "com.microsoft"


def plus(x: Tensor, *others: Tensor | None) -> Tensor:
    """The sum of the operands that are there."""
    for other in others:
        x = x if other is None else x + other
    return x


operator(f"{DOMAIN}::Gelu")(lambda _, x: functional.gelu(x))
operator(f"{DOMAIN}::BiasGelu")(lambda _, x, bias: functional.gelu(x + bias))
operator(f"{DOMAIN}::FastGelu")(lambda _, x, bias=None: functional.gelu(plus(x, bias), approximate="tanh"))
operator(f"{DOMAIN}::QuickGelu")(lambda node, x: x * torch.sigmoid(node.number("alpha", 1.702) * x))
operator(f"{DOMAIN}::LayerNormalization", ignores=("stash_type",))(layer_norm)


@operator(f"{DOMAIN}::SimplifiedLayerNormalization", ignores=("stash_type",))
def simplified_layer_norm(node: Node, x: Tensor, scale: Tensor) -> Any:
    """Normalization by the root mean square."""
    if node.wants(1):
        raise node.unsupported("the inverse deviation as an output")
    return rms_norm(node, x, scale)


@operator(f"{DOMAIN}::SkipLayerNormalization")
def skip_layer_norm(
    node: Node, x: Tensor, skip: Tensor, gamma: Tensor, beta: Tensor | None = None, bias: Tensor | None = None
) -> tuple[Tensor | None, ...]:
    """Layer normalization of a sum; the fourth output is the sum."""
    total, eps = _skipped(node, x, skip, bias), node.number("epsilon", 1e-12)
    return functional.layer_norm(total, total.shape[-1:], gamma, beta, eps), None, None, total


@operator(f"{DOMAIN}::SkipSimplifiedLayerNormalization")
def skip_rms_norm(
    node: Node, x: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None
) -> tuple[Tensor | None, ...]:
    """Normalization of a sum by its root mean square; the fourth output is the sum."""
    total, eps = _skipped(node, x, skip, bias), node.number("epsilon", 1e-12)
    return functional.rms_norm(total, list(total.shape[-1:]), gamma, eps), None, None, total


def _skipped(node: Node, x: Tensor, skip: Tensor, bias: Tensor | None) -> Tensor:
    if node.wants(1) or node.wants(2):
        raise node.unsupported("the mean or the inverse deviation as an output")
    return plus(x, skip, bias)


@operator(f"{DOMAIN}::EmbedLayerNormalization", ignores=("mask_index_type",))
def embedded_layer_norm(
    node: Node,
    words: Tensor,
    segments: Tensor | None,
    word_table: Tensor,
    position_table: Tensor,
    segment_table: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None = None,
    positions: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """Layer normalization of a sum of embeddings; then the number of words of each sample, and the sum."""
    placed = position_table[: words.shape[1]] if positions is None else functional.embedding(positions, position_table)
    total = functional.embedding(words, word_table) + placed
    if segments is not None and segment_table is not None:
        total = total + functional.embedding(segments, segment_table)
    lengths = None
    if node.wants(1):
        lengths = (torch.zeros_like(words) if mask is None else mask).sum(1, dtype=torch.int32)
    norm = functional.layer_norm(total, total.shape[-1:], gamma, beta, node.number("epsilon", 1e-12))
    return norm, lengths, total


@operator(f"{DOMAIN}::FusedMatMul")
def fused_matmul(node: Node, a: Tensor, b: Tensor) -> Tensor:
    """alpha·A·B, with A or B transposed."""
    if node.flag("transBatchA") or node.flag("transBatchB"):
        raise node.unsupported("transBatchA=1 or transBatchB=1")
    a = a.transpose(-1, -2) if node.flag("transA") and a.dim() > 1 else a
    b = b.transpose(-1, -2) if node.flag("transB") and b.dim() > 1 else b
    alpha, product = node.number("alpha", 1.0), torch.matmul(a, b)
    return product if alpha == 1.0 else alpha * product


_ACTIVATIONS: dict[str, Callable[[Tensor, Sequence[float]], Tensor]] = {
    "": lambda x, _: x,
    "Relu": lambda x, _: torch.relu(x),
    "Sigmoid": lambda x, _: torch.sigmoid(x),
    "Tanh": lambda x, _: torch.tanh(x),
    "LeakyRelu": lambda x, given: functional.leaky_relu(x, given[0] if given else 0.01),
    "Clip": lambda x, given: torch.clamp(x, *given),
    "HardSigmoid": lambda x, given: torch.clamp(x * (given or [0.2, 0.5])[0] + (given or [0.2, 0.5])[1], 0.0, 1.0),
}


def _activated(node: Node, x: Tensor, given: Sequence[float]) -> Tensor:
    name = node.text("activation")
    if name not in _ACTIVATIONS:
        raise node.unsupported(f"activation={name!r}")
    return _ACTIVATIONS[name](x, given)


@operator(f"{DOMAIN}::FusedConv", ignores=("kernel_shape",))
def fused_conv(
    node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None, added: Tensor | None = None
) -> Tensor:
    """A convolution, a sum and an activation."""
    given = [float(value) for value in node.attributes.get("activation_params", [])]
    return _activated(node, plus(conv(node, x, weight, bias), added), given)


@operator(f"{DOMAIN}::FusedGemm", ignores=("activation_gamma",))
def fused_gemm(node: Node, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    """A matrix product, a sum and an activation."""
    names = ("activation_alpha", "activation_beta")
    given = [node.number(name, 0.0) for name in names if name in node.attributes]
    return _activated(node, gemm(node, a, b, c), given)
