"""Attention and rotary positions as one operator (opset 23 on), and the parts that other domains' operators share."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from graphs.importers.onnx.operators.registry import Node, operator


@operator("Attention", ignores=("softmax_precision",))
def attention(
    node: Node,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """Scaled dot-product attention (Vaswani et al. 2017).

    The query is [batch, heads, steps, width] or [batch, steps, heads·width], as are key and value; heads of the query
    may share those of key and value. A mask has numbers that are added to the scores, or booleans that select scores;
    ``lengths`` are those of each sample's keys. The results are what is attended to, all keys, all values, and the
    scores at the stage that the node names.
    """
    flat = query.dim() == 3
    if flat:
        n_heads = [node.integer(f"{side}_num_heads", 1) for side in ("q", "kv", "kv")]
        query, key, value = map(heads, (query, key, value), n_heads)
    n_new = key.shape[2]
    key, value = (x if past is None else torch.cat([past, x], 2) for x, past in ((key, past_key), (value, past_value)))
    offset = key.shape[2] - n_new if lengths is None else lengths.reshape(-1, 1, 1, 1) - query.shape[2]
    mask = hiding_rest(mask, key.shape[2])
    scale, softcap = node.number("scale", query.shape[-1] ** -0.5), node.number("softcap", 0.0)
    stage = node.integer("qk_matmul_output_mode", 0)
    left, right = (node.integer(f"{side}_window_size", -1) for side in ("left", "right"))
    causal = node.flag("is_causal")
    plain = causal and (left, right, softcap) == (-1, -1, 0) and not node.wants(3)
    plain = plain and all(each is None for each in (mask, past_key, lengths))
    if not plain:
        mask = combined_mask(mask, visible_keys(query, key, offset, [left, 0 if causal else right], lengths))
    way = Scoring(scale, softcap, plain)
    y = attend(query, key, value, mask, way)
    scores = _scores(query, key, mask, way)[stage] if node.wants(3) else None
    return (y.transpose(1, 2).flatten(2) if flat else y), key, value, scores


@dataclass(frozen=True)
class Scoring:
    """The way from products of queries and keys to scores."""

    scale: float  # factor of the products
    softcap: float = 0.0  # scores stay within ± this number, unless it is 0
    causal: bool = False  # whether step i sees keys 0 to i only; then there is no mask and no softcap


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, way: Scoring) -> Tensor:
    """Return the values by the scores of a query, all [batch, heads, steps, width]."""
    if way.softcap:  # which PyTorch's function lacks
        return _scores(query, key, mask, way)[-1] @ _for_each_head(query, value)
    shared = query.shape[1] != key.shape[1]
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=way.causal, scale=way.scale, enable_gqa=shared
    )


def hiding_rest(mask: Tensor | None, n_keys: int) -> Tensor | None:
    """Return a mask that hides the keys that it has no number for."""
    if mask is None or mask.shape[-1] >= n_keys:
        return mask
    hiding = 0.0 if mask.dtype is torch.bool else float("-inf")
    return functional.pad(mask, [0, n_keys - mask.shape[-1]], value=hiding)


def visible_keys(
    query: Tensor, key: Tensor, offset: Tensor | int, windows: Sequence[int], lengths: Tensor | None
) -> Tensor | None:
    """Say which keys each step may look at, by their distance before and after it; None for all of them.

    Step i is at position ``offset`` + i among the keys; −1 leaves a side of the window open.
    """
    positions = torch.arange(key.shape[2], device=query.device)
    ahead = positions - torch.arange(query.shape[2], device=query.device)[:, None] - offset
    conditions = [ahead >= -windows[0]] if windows[0] >= 0 else []
    conditions += [ahead <= windows[1]] if windows[1] >= 0 else []
    conditions += [positions < lengths.reshape(-1, 1, 1, 1)] if lengths is not None else []
    return functools.reduce(torch.logical_and, conditions) if conditions else None


def combined_mask(mask: Tensor | None, visible: Tensor | None) -> Tensor | None:
    """Return a mask that hides what either of the two hides."""
    if mask is None or visible is None:
        return visible if mask is None else mask
    return torch.logical_and(mask, visible) if mask.dtype is torch.bool else mask.masked_fill(~visible, float("-inf"))


def _for_each_head(query: Tensor, x: Tensor) -> Tensor:
    """Repeat keys or values that several heads of a query share."""
    share = query.shape[1] // x.shape[1]
    return x.repeat_interleave(share, 1) if share > 1 else x


def _scores(query: Tensor, key: Tensor, mask: Tensor | None, way: Scoring) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the scores as products, capped, masked, and as shares that add up to 1.

    A step that sees nothing has shares of 0.
    """
    products = query @ _for_each_head(query, key).transpose(-1, -2) * way.scale
    capped = way.softcap * torch.tanh(products / way.softcap) if way.softcap else products
    if mask is None:
        return products, capped, capped, torch.softmax(capped, -1)
    hidden = ~mask if mask.dtype is torch.bool else mask == float("-inf")
    masked = capped.masked_fill(hidden, float("-inf")) if mask.dtype is torch.bool else capped + mask
    return products, capped, masked, torch.softmax(masked, -1).masked_fill(hidden.all(-1, keepdim=True), 0.0)


def heads(x: Tensor, n_heads: int) -> Tensor:
    """[batch, steps, heads·width] -> [batch, heads, steps, width]."""
    return x.reshape(*x.shape[:2], n_heads, -1).transpose(1, 2)


@operator("RotaryEmbedding")
def rotary_embedding(node: Node, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None) -> Tensor:
    """Rotary positions of [batch, heads, steps, width] or [batch, steps, heads·width] (Su et al. 2021).

    ``cos`` and ``sin`` have a row for each position, or for each step of each sample without ``positions``.
    """
    angles = (cos, sin) if positions is None else angles_at(positions, cos, sin)
    node.integer("rotary_embedding_dim", 0)  # the width of the tables says the same
    divided = heads(x, node.integer("num_heads", 1)) if x.dim() == 3 else x
    y = rotated(divided, angles, node.flag("interleaved"))
    return y.transpose(1, 2).flatten(2) if x.dim() == 3 else y


def angles_at(positions: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of the tables of cosines and sines for positions [batch, steps]."""
    return functional.embedding(positions, cos), functional.embedding(positions, sin)


def rotated(x: Tensor, angles: tuple[Tensor, Tensor], interleaved: bool) -> Tensor:
    """Turn pairs of elements of [batch, heads, steps, width] by angles; the rest stays.

    The angles are given by their cosines and sines, each [batch, steps, pairs]. Elements of a pair are neighbours if
    ``interleaved``, and half the turned width apart otherwise.
    """
    cos, sin = (x.unsqueeze(1) for x in angles)
    width = 2 * cos.shape[-1]
    turned, rest = (x, None) if width == x.shape[-1] else (x[..., :width], x[..., width:])
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    pairs = [a * cos - b * sin, a * sin + b * cos]
    turned = torch.stack(pairs, -1).flatten(-2) if interleaved else torch.cat(pairs, -1)
    return turned if rest is None else torch.cat([turned, rest], -1)
