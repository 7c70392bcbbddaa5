"""Quick CPU kernels of products of rows and a weight, which is packed once: float32 by oneDNN, bfloat16 by PyTorch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import torch

from graphs.ir import Op
from graphs.kernels.kernel import Kernel, Pack, Read, held
from graphs.kernels.multiply import PackedProduct
from graphs.kernels.onednn import onednn
from graphs.kernels.rows import PAIR_BYTES, row_product, row_products
from graphs.program.program import Program
from graphs.rewrites.patterns import Step

PRODUCTS = frozenset({torch.ops.aten.linear.default, torch.ops.aten.addmm.default, torch.ops.aten.mm.default})
"""Operators that multiply rows by a weight."""


def multiplication(
    op: Op,
    multiply: Callable[..., torch.Tensor],
    packs: Mapping[str, Pack],
    factors: Sequence[str | None],
    steps: Sequence[Step] = (),
) -> Kernel:
    """The kernel of a multiplication of an input by a weight, with a bias, and of what follows."""
    arguments = (*factors, *(step.other for step in steps if step.other))
    return Kernel(op, multiply, packs=packs, arguments=tuple(name and Read(name) for name in arguments))


class _Factors(NamedTuple):
    """Names of the tensors that a product by a weight reads."""

    x: str
    weight: str
    bias: str | None
    transposed: bool  # whether the weight is [inputs, outputs]


def _factors(program: Program, op: Op, arguments: Sequence[Any]) -> _Factors | None:
    """Return what a product reads; None if its weight is computed, or no matrix with a bias for each output."""
    tensor, target = program.graph.tensor, leading_target(program, op)
    transposed = target is not torch.ops.aten.linear.default
    if target is torch.ops.aten.addmm.default:
        bias, x, weight = arguments
    else:
        x, weight, bias = (*arguments, None)[:3]
    if not held(program, weight, bias) or len(tensor[weight].shape) != 2:
        return None
    fits = not bias or tensor[bias].shape == (tensor[weight].shape[1 if transposed else 0],)
    return _Factors(x, weight, bias, transposed) if fits else None


def product_kernel(program: Program, op: Op, arguments: Sequence[Any], steps: Sequence[Step]) -> Kernel | None:
    """The kernel of a product of float32 numbers and of the steps that follow it; None for a weight that is computed.

    Nothing may follow the product of a single row.
    """
    factors, tensor = _factors(program, op, arguments), program.graph.tensor
    if factors is None:
        return None
    x, weight, bias, transposed = factors
    shape, n = tensor[x].shape, tensor[weight].shape[1 if transposed else 0]
    if prod(shape[:-1]) == 1:  # bound by memory: what follows takes no time, so that groups have no kernel
        packs = {weight: pack_of_rows(weight, transposed)}
        if op.members:
            return None
        alone = multiplication(op, row_product, packs, (x, weight, bias))
        return replace(alone, pair=row_products) if tensor[weight].n_bytes >= PAIR_BYTES else alone
    product = PackedProduct(shape, n, bool(bias), steps, tensor[op.outputs[0]].shape)
    packs = {weight: pack_of(product, weight, transposed)}
    return multiplication(op, product, packs, (x, weight, bias), steps)


REGISTER = 32
"""Numbers of bfloat16 in a row of AMX's registers."""


def half_product_kernel(program: Program, op: Op) -> Kernel | None:
    """The kernel of a product of bfloat16 numbers: PyTorch's operator for weights that oneDNN has packed.

    A weight that is not packed is packed again at each call, which takes as long as the product of a few rows. Of rows
    that are no multiple of a register, oneDNN's kernel for AMX reads beyond the end, into the next row: it multiplies
    that by 0, which is NaN where the next row has NaN or an infinity.
    """
    if leading_target(program, op) not in PRODUCTS or not (onednn() and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return None
    args, kwargs = program.arguments(op, str)
    factors = None if kwargs else _factors(program, op, args)
    if factors is None:
        return None
    x, weight, bias, transposed = factors
    if program.graph.tensor[x].shape[-1] % REGISTER:
        return None

    def packed(weight: torch.Tensor) -> torch.Tensor:
        rows = (weight.t() if transposed else weight).detach().contiguous()
        result: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight.default(rows)
        return result

    pack = Pack((weight,), packed, ("bfloat16", transposed))
    return multiplication(op, half_product, {weight: pack}, (x, weight, bias))


def half_product(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`torch.nn.functional.linear` with a weight that is packed for any number of rows."""
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, packed, bias, "none", [], "")
    return result


def pack_of(product: PackedProduct, weight: str, transposed: bool = False) -> Pack:
    """Return how the weight of a product is packed; all products of one primitive that read it share it."""
    form = product.primitive, transposed
    return Pack((weight,), lambda w: product.pack(w.t() if transposed else w), form)


def pack_of_rows(weight: str, transposed: bool = False) -> Pack:
    """Return how a weight is laid out for products with one row: as the model has it if its rows lie so already."""
    return Pack((weight,), lambda w: (w.t() if transposed else w).detach().contiguous(), ("rows", transposed))


def leading_target(program: Program, op: Op) -> Any:
    """Return PyTorch's operator that others may follow."""
    return program.calls[op.leading.name].node.target
