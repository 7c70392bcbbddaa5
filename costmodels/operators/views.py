"""Determines views: tensors that share the storage of another tensor, need no computation and no memory; and gradients.

::

    base    x ──► transpose ──► reshape ──► slice        x.T is a view of x; its reshape copies, the slice is a view
            x         x          reshape    reshape

The graph has no strides, so a tensor counts as scattered after its dimensions were exchanged, expanded or cut.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from graphs.ir import Graph, Op, Role
from graphs.operator_kinds import aten_kinds

_MOVING = aten_kinds("transpose permute t mT mH adjoint numpy_T movedim swapaxes swapdims")
_CUTTING = aten_kinds(
    "slice select narrow split split_with_sizes chunk unbind tensor_split diagonal unfold real imag as_strided "
    "expand expand_as broadcast_to"  # expanding scatters, too
)
_PAIRWISE = aten_kinds("broadcast_tensors meshgrid")  # the i-th output is a view of the i-th input

STRIDING_KINDS = _MOVING | _CUTTING | _PAIRWISE
"""Kinds of views, without their overload, whose elements need not be contiguous in storage."""

VIEW_KINDS = STRIDING_KINDS | {"getitem"}
VIEW_KINDS |= aten_kinds("view view_as _reshape_alias _unsafe_view unflatten alias unsqueeze squeeze detach lift_fresh")
VIEW_KINDS |= aten_kinds("view_as_real view_as_complex")
"""Kinds whose outputs are always views of an input."""

_UNLESS_SCATTERED = aten_kinds("reshape reshape_as flatten contiguous ravel")
_UNLESS_CONVERTED = aten_kinds("to type_as")
_UNLESS_DROPPING = aten_kinds("dropout feature_dropout alpha_dropout feature_alpha_dropout")

STOPS = aten_kinds(
    "detach zeros_like ones_like full_like empty_like rand_like randint_like uniform normal_functional exponential "
    "multinomial randn_like new_zeros new_ones new_full new_empty bernoulli argmax argmin sign floor ceil round one_hot"
)
"""Kinds, without their overload, that no gradient passes: constants, and functions that are flat everywhere."""


def operation(kind: str) -> str:
    """A kind without its overload and the suffix of in-place operators: "aten.add_.Tensor" is "aten.add"."""
    name = ".".join(kind.split(".")[:2])
    return name if name.endswith("__") else name.removesuffix("_")


def bases(graph: Graph) -> Mapping[str, str]:
    """The base of every view, which is no view itself."""
    base: dict[str, str] = {}
    scattered: set[str] = set()
    for op in graph.ops:
        for output, source in _shown(graph, op, scattered):
            base[output] = base.get(source, source)
            if source in scattered or _scatters(graph, op, output, source):
                scattered.add(output)
    return base


def _shown(graph: Graph, op: Op, scattered: set[str]) -> Iterator[tuple[str, str]]:
    """The outputs that are views, each with the input that it views."""
    name = operation(op.kind)
    if not (op.inputs and op.outputs):
        return
    source = op.inputs[0]
    if name in _PAIRWISE:
        yield from zip(op.outputs, op.inputs, strict=False)  # a graph made by hand may have more of one
    elif (
        name in VIEW_KINDS
        or (name in _UNLESS_SCATTERED and source not in scattered)
        or (name in _UNLESS_CONVERTED and graph.tensor[op.outputs[0]].dtype == graph.tensor[source].dtype)
        or (name in _UNLESS_DROPPING and (op.attrs.get("train") is not True or op.attrs.get("p") == 0))
    ):
        yield from ((output, source) for output in op.outputs)


def _scatters(graph: Graph, op: Op, output: str, source: str) -> bool:
    """Return whether the elements of a view are not contiguous."""
    shown, shows = graph.tensor[source], graph.tensor[output]
    if operation(op.kind) in _MOVING:
        long = [[d for d in tensor.shape if d != 1] for tensor in (shown, shows)]
        return long[0] != long[1] or len(set(long[0])) < len(long[0])  # dimensions of size 1 do not matter
    return operation(op.kind) in _CUTTING | _PAIRWISE and shown.n_elements != shows.n_elements


def differentiated(graph: Graph, frozen: Collection[str] = ()) -> frozenset[str]:
    """Return the names of the tensors that get a gradient: parameters, and floating-point results that depend on them.

    The inputs of the network get no gradient, and neither do operators that depend on inputs only. Parameters named in
    ``frozen`` are not trained.
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
    data; an operator without gradients has no backward pass. ``shapes`` are those of the operator's inputs that get a
    gradient.
    """
    dimensions = [len(shape) for shape in shapes]
    return min(2, max(sum(n > 1 for n in dimensions), bool(dimensions)))


def backward_passes(graph: Graph) -> NDArray[np.float64]:
    """[n_ops], how many passes forward an operator's backward pass is like."""
    found = differentiated(graph)
    shapes = ([graph.tensor[name].shape for name in op.inputs if name in found] for op in graph.ops)
    return np.array([float(backward_products(each)) for each in shapes])
