"""Matrix products, Einstein summation, and attention as one operator (opset 23 on)."""

import torch
from torch import Tensor
from torch.nn import functional

from graphs.importers.onnx.operators.registry import Node, operator, plain, to_dtype

operator("MatMul")(plain(torch.matmul))
operator("Det")(plain(torch.det))
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
    node: Node, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *cache: Tensor | None
) -> Tensor:
    """Scaled dot-product attention (Vaswani et al. 2017).

    The query is [batch, heads, steps, width] or [batch, steps, heads·width], as are key and value; heads of the query
    may share those of key and value. A mask has numbers that are added to the scores, or booleans that select scores.
    """
    if any(operand is not None for operand in cache) or any(node.wants(output) for output in (1, 2, 3)):
        raise node.unsupported("a cache of keys and values, or the scores as an output,")
    if node.number("softcap", 0.0):
        raise node.unsupported("softcap")
    if any(node.integer(f"{side}_window_size", -1) != -1 for side in ("left", "right")):
        raise node.unsupported("a window")
    flat = query.dim() == 3
    if flat:
        query = heads(query, node.integer("q_num_heads", 1))
        key, value = (heads(x, node.integer("kv_num_heads", 1)) for x in (key, value))
    scale = node.number("scale", query.shape[-1] ** -0.5)
    causal, shared = node.flag("is_causal"), query.shape[1] != key.shape[1]
    if causal and mask is not None:
        raise node.unsupported("is_causal=1 together with a mask")
    y = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=shared
    )
    return y.transpose(1, 2).flatten(2) if flat else y


def heads(x: Tensor, n_heads: int) -> Tensor:
    """[batch, steps, heads·width] -> [batch, heads, steps, width]."""
    batch, n_steps, width = x.shape
    return x.reshape(batch, n_steps, n_heads, width // n_heads).transpose(1, 2)
