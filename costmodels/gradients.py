"""Determines from a graph which tensors get a gradient in training."""

from collections.abc import Collection, Iterable, Sequence

from costmodels.views import operation
from graphs.ir import Graph, Role

STOPS = frozenset(
    {"aten.detach", "aten.zeros_like", "aten.ones_like", "aten.full_like", "aten.empty_like", "aten.rand_like"}
    | {"aten.randint_like", "aten.uniform", "aten.normal_functional", "aten.exponential", "aten.multinomial"}
    | {"aten.randn_like", "aten.new_zeros", "aten.new_ones", "aten.new_full", "aten.new_empty", "aten.bernoulli"}
    | {"aten.argmax", "aten.argmin", "aten.sign", "aten.floor", "aten.ceil", "aten.round", "aten.one_hot"}
)
"""Kinds, without their overload, that no gradient passes: constants, and functions that are flat everywhere."""


def differentiated(graph: Graph, frozen: Collection[str] = ()) -> frozenset[str]:
    """Names of the tensors that get a gradient: parameters, and floating-point results that depend on them.

    The inputs of the network get no gradient, and neither do operators that depend on inputs only.

    Args:
        graph: the network.
        frozen: names of parameters that are not trained.
    """
    floating = {t.name for t in graph.tensors if "float" in t.dtype or "complex" in t.dtype}
    names = {t.name for t in graph.tensors if t.role is Role.PARAMETER and t.name not in frozen} & floating
    for op in graph.ops:
        if operation(op.kind) not in STOPS and not names.isdisjoint(op.inputs):
            names |= floating.intersection(op.outputs)
    return frozenset(names)


def backward_products(shapes: Iterable[Sequence[int]]) -> int:
    """An estimate of the work of an operator's backward pass, as a multiple of the work of its forward pass.

    A product of two matrices has a product for the gradient of each matrix; another operator has one pass over its
    data; an operator without gradients has no backward pass.

    Args:
        shapes: shapes of the operator's inputs that get a gradient.
    """
    dimensions = [len(shape) for shape in shapes]
    return min(2, max(sum(n > 1 for n in dimensions), bool(dimensions)))
