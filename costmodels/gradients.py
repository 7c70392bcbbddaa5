"""Which tensors get a gradient when a network is trained, as far as its graph tells."""

from collections.abc import Collection, Iterable, Sequence

from costmodels.views import operation
from graphs.ir import Graph, Role

STOPS = frozenset(
    {"aten.detach", "aten.zeros_like", "aten.ones_like", "aten.full_like", "aten.empty_like", "aten.rand_like"}
    | {"aten.randint_like", "aten.uniform", "aten.normal_functional", "aten.exponential", "aten.multinomial"}
    | {"aten.randn_like", "aten.new_zeros", "aten.new_ones", "aten.new_full", "aten.new_empty", "aten.bernoulli"}
    | {"aten.argmax", "aten.argmin", "aten.sign", "aten.floor", "aten.ceil", "aten.round", "aten.one_hot"}
)
"""Kinds, without their overload, through which nothing is learned: constants, and steps that are flat everywhere."""


def differentiated(graph: Graph, frozen: Collection[str] = ()) -> frozenset[str]:
    """Names of the tensors that get a gradient: parameters, and what is computed from them in floating point.

    The inputs of the network get none, so neither do operators that read nothing else.

    Args:
        graph: the network.
        frozen: names of parameters that are not trained.
    """
    floating = {t.name for t in graph.tensors if "float" in t.dtype or "complex" in t.dtype}
    found = {t.name for t in graph.tensors if t.role is Role.PARAMETER and t.name not in frozen} & floating
    for op in graph.ops:
        if operation(op.kind) not in STOPS and not found.isdisjoint(op.inputs):
            found |= floating.intersection(op.outputs)
    return frozenset(found)


def backward_products(shapes: Iterable[Sequence[int]]) -> int:
    """How many times the work of its forward pass an operator's backward pass has, before anything is measured.

    A product of two matrices has a product for the gradient of each; everything else has one pass over its data; what
    gives nobody a gradient has none.

    Args:
        shapes: of the operator's inputs that get a gradient.
    """
    dimensions = [len(shape) for shape in shapes]
    return min(2, max(sum(n > 1 for n in dimensions), bool(dimensions)))
