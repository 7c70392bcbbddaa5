"""Determines views: tensors that share the storage of another tensor, need no computation and no memory; and gradients.

::

    base    x ──► transpose ──► reshape ──► slice        x.T is a view of x; its reshape copies, the slice is a view
            x         x          reshape    reshape

The graph has no strides, so a tensor counts as scattered after its dimensions were exchanged, expanded or cut.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from graphs.ir import Graph, Op, Role

_MOVING = frozenset(
    {"aten.transpose", "aten.permute", "aten.t", "aten.mT", "aten.mH", "aten.adjoint", "aten.numpy_T", "aten.movedim"}
    | {"aten.swapaxes", "aten.swapdims"}
)
_CUTTING = frozenset(
    {"aten.slice", "aten.select", "aten.narrow", "aten.split", "aten.split_with_sizes", "aten.chunk", "aten.unbind"}
    | {"aten.tensor_split", "aten.diagonal", "aten.unfold", "aten.real", "aten.imag", "aten.as_strided"}
    | {"aten.expand", "aten.expand_as", "aten.broadcast_to"}  # expanding scatters, too
)
_PAIRWISE = frozenset({"aten.broadcast_tensors", "aten.meshgrid"})  # the i-th output is a view of the i-th input

STRIDING_KINDS = _MOVING | _CUTTING | _PAIRWISE
"""Kinds of views, without their overload, whose elements need not be contiguous in storage."""

VIEW_KINDS = (
    STRIDING_KINDS
    | {"aten.view", "aten.view_as", "aten._reshape_alias", "aten._unsafe_view", "aten.unflatten", "aten.alias"}
    | {"aten.unsqueeze", "aten.squeeze", "aten.detach", "aten.lift_fresh", "aten.view_as_real", "aten.view_as_complex"}
    | {"getitem"}
)
"""Kinds whose outputs are always views of an input."""

_UNLESS_SCATTERED = frozenset({"aten.reshape", "aten.reshape_as", "aten.flatten", "aten.contiguous", "aten.ravel"})
_UNLESS_CONVERTED = frozenset({"aten.to", "aten.type_as"})
_UNLESS_DROPPING = frozenset(
    {"aten.dropout", "aten.feature_dropout", "aten.alpha_dropout", "aten.feature_alpha_dropout"}
)


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
    """Whether the elements of a view are not contiguous."""
    shown, shows = graph.tensor[source], graph.tensor[output]
    if operation(op.kind) in _MOVING:
        long = [[d for d in tensor.shape if d != 1] for tensor in (shown, shows)]
        return long[0] != long[1] or len(set(long[0])) < len(long[0])  # dimensions of size 1 do not matter
    return operation(op.kind) in _CUTTING | _PAIRWISE and shown.n_elements != shows.n_elements


STOPS = frozenset(
    {"aten.detach", "aten.zeros_like", "aten.ones_like", "aten.full_like", "aten.empty_like", "aten.rand_like"}
    | {"aten.randint_like", "aten.uniform", "aten.normal_functional", "aten.exponential", "aten.multinomial"}
    | {"aten.randn_like", "aten.new_zeros", "aten.new_ones", "aten.new_full", "aten.new_empty", "aten.bernoulli"}
    | {"aten.argmax", "aten.argmin", "aten.sign", "aten.floor", "aten.ceil", "aten.round", "aten.one_hot"}
)
"""Kinds, without their overload, that no gradient passes: constants, and functions that are flat everywhere."""


def differentiated(graph: Graph, frozen: Collection[str] = ()) -> frozenset[str]:
    """Names of the tensors that get a gradient: parameters, and floating-point results that depend on them.

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
