"""Matrix products and Einstein summation."""

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
