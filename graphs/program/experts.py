"""The operators of a mixture whose experts are apart: products of some experts' rows, and the rows of some experts.

::

    rows     a a a b b c c c c        sorted by expert; ends 3, 5, 9 are known when the network runs
    part     . . . b b . . . .        of expert b: the other rows are zero, so parts add up to the whole

All shapes are fixed and nothing waits for a device: the own rows are moved to the front, where the product of the
network's own kind begins, and back again. Both are compositions of PyTorch's operators, which differentiates them.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from graphs.program.expectations import NAMESPACE
from graphs.rewrites.experts import EXPERTS_ROWS, GROUPED_PRODUCTS

_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]


def _bounds(ends: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
    """The first row of an expert, and the row after those of the experts before ``last``."""
    return (ends[first - 1] if first else torch.zeros_like(ends[0])), ends[last - 1]


def _own_rows(x: Tensor, ends: Tensor, dim: int, first: int, last: int) -> Tensor:
    """A tensor whose rows of other experts are zero."""
    start, stop = _bounds(ends, first, last)
    at = torch.arange(x.shape[dim], device=x.device)
    own = (at >= start) & (at < stop)
    return x.masked_fill(~own.view([-1 if axis == dim else 1 for axis in range(x.dim())]), 0)


def _product(kind: str, x: Tensor, weight: Tensor, ends: Tensor, first: int) -> Tensor:
    """The product of the experts ``first`` to ``first + len(weight)``; the rows of others are zero.

    Rows that a product leaves as they are in memory pass neither a value nor a gradient.
    """
    start, stop = _bounds(ends, first, first + weight.shape[0])
    at = torch.arange(x.shape[0], device=x.device)
    others = (at >= stop - start).unsqueeze(-1)
    moved = x[(at + start) % x.shape[0]].masked_fill(others, 0)
    product = _operator(kind)(moved, weight, ends[first : first + weight.shape[0]] - start)
    return product.masked_fill(others, 0)[(at - start) % x.shape[0]]


def _operator(kind: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The network's own product."""
    namespace, name = kind.split(".")
    found: Callable[[Tensor, Tensor, Tensor], Tensor] = getattr(getattr(torch.ops, namespace), name)
    return found


def _define(kind: str, schema: str, function: Callable[..., Tensor]) -> None:
    name = kind.removeprefix(f"{NAMESPACE}.")
    _LIBRARY.define(f"{name.removesuffix('.default')}({schema}) -> Tensor")  # type: ignore[no-untyped-call]
    _LIBRARY.impl(name.removesuffix(".default"), function, "CompositeImplicitAutograd")  # type: ignore[no-untyped-call]


_define(EXPERTS_ROWS, "Tensor x, Tensor ends, int dim, int first, int last", _own_rows)
for whole, part in GROUPED_PRODUCTS.items():
    _define(part, "Tensor x, Tensor weight, Tensor ends, int first", partial(_product, whole))
