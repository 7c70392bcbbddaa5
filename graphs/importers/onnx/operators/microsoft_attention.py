"""Attention and rotary positions of the domain com.microsoft, with the caches that a pass reads and returns.

Source: onnxruntime's page on contrib operators (docs/ContribOperators.md).
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from graphs.importers.onnx.operators.attention import (
    Scoring,
    angles_at,
    attend,
    combined_mask,
    heads,
    hiding_rest,
    rotated,
    visible_keys,
)
from graphs.importers.onnx.operators.microsoft import DOMAIN, plus
from graphs.importers.onnx.operators.registry import Node, operator


def _mask(
    node: Node, query: Tensor, n_keys: int, n_past: int, given: Tensor | None, bias: Tensor | None
) -> Tensor | None:
    """Return the term to add to the scores of a query [batch, heads, steps, width] and its keys, or None.

    ``n_past`` keys are before the first step. ``given`` is 1 for keys to attend to and 0 for others: [batch, keys] or
    [batch, steps, keys]; or it has for each sample the number of its keys, or their ends and then their starts.
    """
    hidden, total, (batch, _, n_steps, _) = node.number("mask_filter_value", -10000.0), bias, query.shape
    if given is not None and given.dim() == 1 and given.shape[0] in (batch, 2 * batch, 3 * batch + 2):
        positions, ends = torch.arange(n_keys, device=query.device), given[:batch, None]
        within = positions < ends
        given = within & (positions >= given[batch:, None]) if given.shape[0] == 2 * batch else within
    if given is not None:
        if given.dim() not in (2, 3) or given.shape[-1] != n_keys:
            raise node.unsupported(f"a mask {list(given.shape)}")
        visible = given[:, None, None] if given.dim() == 2 else given[:, None]
        total = plus((1 - visible.to(query.dtype)) * hidden, total)
    if node.flag("unidirectional"):
        if n_keys != n_past + n_steps:
            raise node.unsupported(f"unidirectional=1 with {n_keys} keys for {n_steps} steps")
        later = query.new_full((n_steps, n_keys), float("-inf")).triu(1 + n_past)
        total = plus(later, total)
    return total


def _attended(node: Node, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """[batch, heads, steps, width] of each -> [batch, steps, heads·width]."""
    scale = node.number("scale", 0.0) or query.shape[-1] ** -0.5
    return attend(query, key, value, mask, Scoring(scale)).transpose(1, 2).flatten(2)


def _refuse_shared(node: Node, *operands: Tensor | None) -> None:
    if any(operand is not None for operand in operands) or node.flag("past_present_share_buffer"):
        raise node.unsupported("a cache that is written in place")


@operator(f"{DOMAIN}::Attention")
def projected_attention(
    node: Node,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    past: Tensor | None = None,
    added: Tensor | None = None,
    past_length: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """Self-attention with the projections to queries, keys and values in one weight [width, all three].

    The cache, an operand and the second result, is [2, batch, heads, steps, width]: keys and values.
    """
    _refuse_shared(node, past_length)
    if node.flag("do_rotary"):
        raise node.unsupported("do_rotary=1")
    projected, n_heads = plus(torch.matmul(x, weight), bias), node.integer("num_heads", 1)
    widths = node.integers("qkv_hidden_sizes") or [projected.shape[-1] // 3] * 3
    query, key, value = (heads(part, n_heads) for part in torch.split(projected, widths, -1))
    if past is not None:
        key, value = (torch.cat([old, new], 2) for old, new in zip(past, (key, value), strict=True))
    present = torch.stack([key, value]) if node.wants(1) else None
    mask = _mask(node, query, key.shape[2], 0 if past is None else past.shape[3], mask, added)
    return _attended(node, query, key, value, mask), present


@operator(f"{DOMAIN}::MultiHeadAttention")
def multi_head_attention(
    node: Node,
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    added: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    *shared: Tensor | None,
) -> tuple[Tensor, ...]:
    """Attention of [batch, steps, width] without projections; keys and values may be divided into heads already.

    All three may be one operand [batch, steps, heads, 3, width], and keys and values one with 2. The second and third
    result are all keys and values, with those of the cache.
    """
    _refuse_shared(node, *shared)
    if node.wants(3):
        raise node.unsupported("the scores as an output")
    query, key, value = _apart(node, query, key, value)
    if bias is not None:
        shares = torch.split(bias, [query.shape[-1], query.shape[-1], bias.shape[0] - 2 * query.shape[-1]])
        query = query + shares[0]
        key = key + shares[1] if key.dim() == 3 else key
        value = value + shares[2] if value.dim() == 3 else value
    n_heads = node.integer("num_heads", 1)
    q, k, v = (part if part.dim() == 4 else heads(part, n_heads) for part in (query, key, value))
    k, v = (x if past is None else torch.cat([past, x], 2) for x, past in ((k, past_key), (v, past_value)))
    mask = _mask(node, q, k.shape[2], 0 if past_key is None else past_key.shape[2], mask, added)
    return _attended(node, q, k, v, mask), k, v


def _apart(node: Node, query: Tensor, key: Tensor | None, value: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values that may have been in one operand or in two."""
    if key is None and query.dim() == 5:
        query, key, value = (part.flatten(2) for part in query.unbind(3))
    elif key is not None and key.dim() == 5:
        key, value = (part.flatten(2) for part in key.unbind(3))
    if key is None or value is None:
        raise node.unsupported(f"a query {list(query.shape)} without keys and values")
    return query, key, value


@operator(f"{DOMAIN}::RotaryEmbedding")
def rotary_positions(node: Node, x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions of [batch, heads, steps, width] or [batch, steps, heads·width].

    ``positions`` is [batch, steps], or one number: that of the first step.
    """
    if node.flag("is_packed_batching") or node.number("scale", 1.0) != 1.0:
        raise node.unsupported("is_packed_batching=1 or a scale")
    part, n_heads = node.integer("rotary_embedding_dim", 0), node.integer("num_heads", 0)
    divided = heads(x, n_heads if part else x.shape[-1] // (2 * cos.shape[-1])) if x.dim() == 3 else x
    if positions.dim() == 1:
        positions = positions + torch.arange(divided.shape[2], device=x.device)[None]
    y = rotated(divided, angles_at(positions, cos, sin), node.flag("interleaved"))
    return y.transpose(1, 2).flatten(2) if x.dim() == 3 else y


@operator(f"{DOMAIN}::GroupQueryAttention", known=(6,), ignores=("kv_cache_bit_width",))
def grouped_attention(
    node: Node,
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
    last: Tensor,
    total: list[int],
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    positions: Tensor | None = None,
    bias: Tensor | None = None,
    sink: Tensor | None = None,
    *rest: Tensor | None,
) -> tuple[Tensor, ...]:
    """Causal attention whose heads share keys and values, in one pass over a cache.

    The query may hold keys and values, too. ``last`` has the position of each sample's last step, ``total`` how many
    steps there are with those of the cache; a pass over all of them reads no cache. The second and third result are
    the caches [batch, heads, steps, width] with the steps of this pass.
    """
    _check_grouped(node, rest)
    q, k, v = _grouped_heads(node, query, key, value, rest[2:4])
    _check_lengths(node, k, (past_key, past_value), last, total)
    n_new = q.shape[2]
    first = 0 if n_new == total[0] else last.reshape(-1, 1) + 1 - n_new
    at = first + torch.arange(n_new, device=q.device)[None]  # [batch or 1, steps]
    if node.flag("do_rotary"):
        if cos is None or sin is None:
            raise node.unsupported("do_rotary=1 without tables of cosines and sines")
        angles = angles_at(at if positions is None else positions, cos, sin)
        q, k = (rotated(x, angles, node.flag("rotary_interleaved")) for x in (q, k))
    rows = at[:, None, :, None].expand(k.shape)
    k, v = (_cached(past, x, rows, total[0]) for past, x in ((past_key, k), (past_value, v)))
    return _grouped(node, q, k, v, _grouped_mask(node, q, k, at, last, bias), sink), k, v


def _grouped_heads(
    node: Node, query: Tensor, key: Tensor | None, value: Tensor | None, norms: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor, Tensor]:
    """Divide queries, keys and values, which may be in one operand, into heads; ``norms`` are weights of q and k."""
    n_heads, n_shared = node.integer("num_heads", 1), node.integer("kv_num_heads", 1)
    if (key is None) != (value is None) or n_heads < 1 or n_shared < 1:
        raise node.unsupported(f"num_heads={n_heads} and kv_num_heads={n_shared}, or keys without values")
    if key is None or value is None:
        width = query.shape[-1] // (n_heads + 2 * n_shared)
        query, key, value = torch.split(query, [n_heads * width, n_shared * width, n_shared * width], -1)
    q, k, v = (heads(x, count) for x, count in ((query, n_heads), (key, n_shared), (value, n_shared)))
    eps = node.number("qk_norm_epsilon", 1e-6)
    epsilons = [node.number(f"{side}_norm_epsilon", eps) for side in ("q", "k")]
    q, k, *_ = (
        x if weight is None else functional.rms_norm(x, [x.shape[-1]], weight, epsilon)
        for x, weight, epsilon in zip((q, k), [*norms, None, None], epsilons, strict=False)
    )
    return q, k, v


def _check_grouped(node: Node, rest: Sequence[Tensor | None]) -> None:
    """Refuse what a pass of floats over the whole cache can't give."""
    if any(operand is not None for operand in (*rest[:2], *rest[4:])):
        raise node.unsupported("a quantized cache (k_scale, v_scale) or query_seqlens")
    if {node.text("k_quant_type", "NONE"), node.text("v_quant_type", "NONE")} != {"NONE"}:
        raise node.unsupported("a quantized cache (k_quant_type, v_quant_type)")
    if node.flag("sliding_window_cache"):
        raise node.unsupported("sliding_window_cache=1")
    if node.integer("qk_output", 0) or node.wants(3):
        raise node.unsupported("the scores as an output")


def _check_lengths(node: Node, key: Tensor, past: Sequence[Tensor | None], last: Tensor, total: Sequence[int]) -> None:
    """Refuse lengths for another number of samples, and a cache that does not have the steps before those of a pass."""
    batch, n_shared, n_new, _ = key.shape
    shapes = [None if cache is None else [*cache.shape] for cache in past]
    alike = shapes[0] == shapes[1] and (shapes[0] is None or shapes[0][:2] == [batch, n_shared])
    if not alike or len(shapes[0] or [0] * 4) != 4:
        raise node.unsupported(f"a cache of keys {shapes[0]} and values {shapes[1]} for {batch} samples")
    if [*last.shape] not in ([batch], [batch, 1]) or last.is_floating_point():
        raise node.unsupported(f"seqlens_k {[*last.shape]} of {last.dtype} for {batch} samples")
    n_past = 0 if past[0] is None else past[0].shape[2]
    if len(total) != 1 or not n_new <= total[0] <= n_past + n_new:
        raise node.unsupported(f"total_sequence_length={total} for {n_new} steps and a cache of {n_past}")


def _cached(past: Tensor | None, new: Tensor, rows: Tensor, total: int) -> Tensor:
    """Write the keys or values of a pass into the rows of a cache, which are given for each element."""
    n_past, n_new = 0 if past is None else past.shape[2], new.shape[2]
    if n_past == 0 and n_new == total:
        return new
    past = new[:, :, :0] if past is None else past
    grown = functional.pad(past, [0, 0, 0, total - n_past]) if total > n_past else past
    return grown.scatter(2, rows, new)


def _grouped_mask(
    node: Node, query: Tensor, key: Tensor, at: Tensor, last: Tensor, bias: Tensor | None
) -> Tensor | None:
    """Return the mask of steps at positions ``at`` [batch or 1, steps], which see no later ones unless causal=0.

    None stands for steps of which each sees all before it and there are no others.
    """
    window, causal = node.integer("local_window_size", -1), node.flag("causal", True)
    if causal and window <= 0 and bias is None and query.shape[2] == key.shape[2]:
        return None
    sides = [window - 1 if window > 0 else -1, 0 if causal else -1]
    visible = visible_keys(query, key, at[:, None, :1, None], sides, None if causal else last + 1)
    return combined_mask(hiding_rest(bias, key.shape[2]), visible)


def _grouped(node: Node, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, sink: Tensor | None) -> Tensor:
    """Return the values by the scores; a sink is for each head the score of one more key, whose value is 0."""
    scale, softcap = node.number("scale", 0.0) or query.shape[-1] ** -0.5, node.number("softcap", 0.0)
    sink = query.new_zeros(1) if sink is None and node.integer("smooth_softmax", -1) == 1 else sink
    if mask is None and (softcap or sink is not None):
        mask = visible_keys(query, key, 0, [-1, 0], None)
    causal = mask is None
    if mask is not None and sink is not None:
        mask = mask if mask.is_floating_point() else query.new_zeros(()).masked_fill(~mask, float("-inf"))
        steps = query.shape[:3]
        mask = torch.cat([mask.expand(*steps, mask.shape[-1]), sink[:, None, None].expand(*steps, 1)], -1)
        key, value = (functional.pad(x, [0, 0, 0, 1]) for x in (key, value))
    return attend(query, key, value, mask, Scoring(scale, softcap, causal)).transpose(1, 2).flatten(2)
