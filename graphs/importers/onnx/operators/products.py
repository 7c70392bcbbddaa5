"""Matrix products, Einstein summation, and attention as one operator (opset 23 on)."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from graphs.importers.onnx.operators.registry import Node, lift, operator, to_dtype

operator("MatMul")(lift(torch.matmul))
operator("Det")(lift(torch.det))
operator("Einsum")(lambda node, *operands: torch.einsum(node.text("equation"), *operands))


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
    if not a.is_floating_point() and (alpha, beta) != (1.0, 1.0):  # PyTorch would truncate the factors
        exact = alpha * torch.mm(a, b).double()
        return to_dtype(exact if c is None else exact + beta * c, a.dtype)
    if isinstance(c, Tensor):
        return torch.addmm(c, a, b, beta=beta, alpha=alpha)
    product = torch.mm(a, b) if alpha == 1.0 else alpha * torch.mm(a, b)
    return product if c is None else product + beta * c


@operator("Attention", ignores=("qk_matmul_output_mode", "softmax_precision"))
def attention(
    node: Node,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Scaled dot-product attention (Vaswani et al. 2017).

    The query is [batch, heads, steps, width] or [batch, steps, heads·width], as are key and value; heads of the query
    may share those of key and value. A mask has numbers that are added to the scores, or booleans that select scores;
    ``lengths`` are those of each sample's keys. The second and third result are all keys and values.
    """
    if node.wants(3):
        raise node.unsupported("the scores as an output")
    flat = query.dim() == 3
    if flat:
        n_heads = [node.integer(f"{side}_num_heads", 1) for side in ("q", "kv", "kv")]
        query, key, value = map(heads, (query, key, value), n_heads)
    n_new = key.shape[2]
    key, value = (x if past is None else torch.cat([past, x], 2) for x, past in ((key, past_key), (value, past_value)))
    offset = key.shape[2] - n_new if lengths is None else lengths.reshape(-1, 1, 1, 1) - query.shape[2]
    mask = _hiding_rest(mask, key.shape[2])
    windows = [node.integer(f"{side}_window_size", -1) for side in ("left", "right")]
    plain = node.flag("is_causal") and windows == [-1, -1] and all(each is None for each in (mask, past_key, lengths))
    if not plain or node.number("softcap", 0.0):
        shown = _shown(query, key, offset, [windows[0], 0 if node.flag("is_causal") else windows[1]], lengths)
        mask, plain = _joined(mask, shown), False
    y = _attended(node, query, key, value, mask, plain)
    return (y.transpose(1, 2).flatten(2) if flat else y), key, value


def _attended(node: Node, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Return the values by the scores of a query, capped if the node says so."""
    scale, softcap = node.number("scale", query.shape[-1] ** -0.5), node.number("softcap", 0.0)
    if softcap:
        return _capped(query, key, value, mask, scale, softcap)
    shared = query.shape[1] != key.shape[1]
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=shared
    )


def _hiding_rest(mask: Tensor | None, n_keys: int) -> Tensor | None:
    """Return a mask that hides the keys that it has no number for."""
    if mask is None or mask.shape[-1] >= n_keys:
        return mask
    hiding = 0.0 if mask.dtype is torch.bool else float("-inf")
    return functional.pad(mask, [0, n_keys - mask.shape[-1]], value=hiding)


def _shown(
    query: Tensor, key: Tensor, offset: Tensor | int, windows: Sequence[int], lengths: Tensor | None
) -> Tensor | None:
    """Which keys each step may look at, by their distance before and after it; None for all of them.

    Step i is at position ``offset`` + i among the keys; −1 leaves a side of the window open.
    """
    positions = torch.arange(key.shape[2], device=query.device)
    ahead = positions - torch.arange(query.shape[2], device=query.device)[:, None] - offset
    conditions = [ahead >= -windows[0]] if windows[0] >= 0 else []
    conditions += [ahead <= windows[1]] if windows[1] >= 0 else []
    conditions += [positions < lengths.reshape(-1, 1, 1, 1)] if lengths is not None else []
    return functools.reduce(torch.logical_and, conditions) if conditions else None


def _joined(mask: Tensor | None, shown: Tensor | None) -> Tensor | None:
    """A mask that hides what either of the two hides."""
    if mask is None or shown is None:
        return shown if mask is None else mask
    return torch.logical_and(mask, shown) if mask.dtype is torch.bool else mask.masked_fill(~shown, float("-inf"))


def _capped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, cap: float) -> Tensor:
    """Attention whose scores stay within ±cap, which PyTorch's function lacks; a step that sees nothing gives 0."""
    share = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(share, 1) for x in (key, value)) if share > 1 else (key, value)
    scores = cap * torch.tanh(query @ key.transpose(-1, -2) * scale / cap)
    if mask is not None:
        hidden = ~mask if mask.dtype is torch.bool else mask == float("-inf")
        scores = scores.masked_fill(hidden, float("-inf")) if mask.dtype is torch.bool else scores + mask
        return torch.softmax(scores, -1).masked_fill(hidden.all(-1, keepdim=True), 0.0) @ value
    return torch.softmax(scores, -1) @ value


def heads(x: Tensor, n_heads: int) -> Tensor:
    """[batch, steps, heads·width] -> [batch, heads, steps, width]."""
    batch, n_steps, width = x.shape
    return x.reshape(batch, n_steps, n_heads, width // n_heads).transpose(1, 2)
