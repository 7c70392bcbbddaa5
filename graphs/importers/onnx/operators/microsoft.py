"""Operators of the domain com.microsoft, which onnxruntime's optimizer writes where it has fused standard ones.

Source: onnxruntime's page on contrib operators (docs/ContribOperators.md).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graphs.importers.onnx.operators.normalization import layer_norm, rms_norm
from graphs.importers.onnx.operators.products import gemm, heads
from graphs.importers.onnx.operators.registry import Node, operator
from graphs.importers.onnx.operators.windows import conv

DOMAIN = "com.microsoft"


def _plus(x: Tensor, *others: Tensor | None) -> Tensor:
    """The sum of the operands that are there."""
    for other in others:
        x = x if other is None else x + other
    return x


operator(f"{DOMAIN}::Gelu")(lambda _, x: functional.gelu(x))
operator(f"{DOMAIN}::BiasGelu")(lambda _, x, bias: functional.gelu(x + bias))
operator(f"{DOMAIN}::FastGelu")(lambda _, x, bias=None: functional.gelu(_plus(x, bias), approximate="tanh"))
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
    return _plus(x, skip, bias)


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
    return _activated(node, _plus(conv(node, x, weight, bias), added), given)


@operator(f"{DOMAIN}::FusedGemm", ignores=("activation_gamma",))
def fused_gemm(node: Node, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    """A matrix product, a sum and an activation."""
    names = ("activation_alpha", "activation_beta")
    given = [node.number(name, 0.0) for name in names if name in node.attributes]
    return _activated(node, gemm(node, a, b, c), given)


def _mask(node: Node, query: Tensor, n_keys: int, given: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """Return the term to add to the scores [batch, heads, steps, keys] of a query [batch, steps, width], or None.

    ``given`` is 1 for keys to attend to and 0 for others: [batch, keys] or [batch, steps, keys].
    """
    hidden, total, n_steps = node.number("mask_filter_value", -10000.0), bias, query.shape[1]
    if given is not None:
        if given.dim() not in (2, 3) or given.shape[-1] != n_keys:
            raise node.unsupported(f"a mask {list(given.shape)}")
        shown = given[:, None, None] if given.dim() == 2 else given[:, None]
        part = (1 - shown.to(query.dtype)) * hidden
        total = part if total is None else total + part
    if node.flag("unidirectional"):
        later = query.new_full((n_steps, n_keys), hidden).triu(1 + n_keys - n_steps)
        total = later if total is None else total + later
    return total


def _attended(node: Node, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """[batch, heads, steps, width] of each -> [batch, steps, heads·width]."""
    scale = node.number("scale", 0.0) or None
    return functional.scaled_dot_product_attention(query, key, value, mask, scale=scale).transpose(1, 2).flatten(2)


@operator(f"{DOMAIN}::Attention")
def projected_attention(
    node: Node,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    past: Tensor | None = None,
    added: Tensor | None = None,
) -> Tensor:
    """Self-attention with the projections to queries, keys and values in one weight [width, all three]."""
    if past is not None or node.wants(1) or node.flag("do_rotary"):
        raise node.unsupported("a cache of keys and values, or rotary positions,")
    projected, n_heads = _plus(torch.matmul(x, weight), bias), node.integer("num_heads", 1)
    widths = node.integers("qkv_hidden_sizes") or [projected.shape[-1] // 3] * 3
    query, key, value = (heads(part, n_heads) for part in torch.split(projected, widths, -1))
    return _attended(node, query, key, value, _mask(node, x, x.shape[1], mask, added))


@operator(f"{DOMAIN}::MultiHeadAttention")
def multi_head_attention(
    node: Node,
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    added: Tensor | None = None,
    *cache: Tensor | None,
) -> Tensor:
    """Attention of [batch, steps, width] without projections; keys and values may be divided into heads already."""
    if key is None or value is None or query.dim() != 3:
        raise node.unsupported("queries, keys and values in one operand")
    if any(operand is not None for operand in cache) or node.wants(1) or node.wants(2):
        raise node.unsupported("a cache of keys and values")
    if bias is not None:
        shares = torch.split(bias, [query.shape[-1], query.shape[-1], bias.shape[0] - 2 * query.shape[-1]])
        query = query + shares[0]
        key = key + shares[1] if key.dim() == 3 else key
        value = value + shares[2] if value.dim() == 3 else value
    n_heads = node.integer("num_heads", 1)
    q, k, v = (part if part.dim() == 4 else heads(part, n_heads) for part in (query, key, value))
    return _attended(node, q, k, v, _mask(node, query, k.shape[2], mask, added))
