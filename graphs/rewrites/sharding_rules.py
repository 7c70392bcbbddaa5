"""Sharding rules: the shardings of each kind of operator, as a table.

A rule writes the tensors of an operator as an einsum does, a letter for each axis; a letter with the same meaning in
several tensors is a loop. Axes of one element have no letter, since nothing can be divided there.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import prod
from types import MappingProxyType
from typing import TypeAlias

from graphs.ir import Attr, Graph, Op
from graphs.operator_kinds import aten_kind, aten_kinds, changes, plain
from graphs.rewrites.experts import EXPERTS, GROUPED_PRODUCTS
from graphs.rewrites.letters import Shape, dims_of, leading, loops, numbered, rank_of
from graphs.rewrites.sharding import CHANNELS, REPLICATED, Halo, Shard, Sharding

Rule: TypeAlias = "Callable[[Graph, Op], Iterator[Sharding]]"

OUTPUT_FEATURES, INPUT_FEATURES = "output features", "input features"
OUTPUT_CHANNELS, INPUT_CHANNELS = "output channels", "input channels"
ROWS, HEADS = "rows", "heads"


def shardings(graph: Graph, op: Op) -> tuple[Sharding, ...]:
    """Return the shardings of an operator; the last one gives the whole operator to each part.

    Returns:
        None at all for an operator that draws random numbers or updates statistics, or is fused.
    """
    if op.members or changes(op):
        return ()
    rule = RULES.get(plain(op.kind))
    divided = rule(graph, op) if rule else ()
    replicated = Sharding(REPLICATED, _MANY, (None,) * len(op.inputs), (None,) * len(op.outputs))
    return (*(one for one in divided if one.units > 1), replicated)


_MANY = 2**31
# --- products --------------------------------------------------------------------------------------------------------


def _linear(graph: Graph, op: Op) -> Iterator[Sharding]:
    lead = leading(rank_of(graph, op.inputs[0]) - 1)
    weight = [OUTPUT_FEATURES, INPUT_FEATURES]
    inputs = [[*lead, INPUT_FEATURES], weight, [OUTPUT_FEATURES]]
    if rank_of(graph, op.inputs[1]) == 2:
        yield from loops(graph, op, inputs[: len(op.inputs)], [[*lead, OUTPUT_FEATURES]], added=2)


def _addmm(graph: Graph, op: Op) -> Iterator[Sharding]:
    matrix = ["batch", OUTPUT_FEATURES]
    bias = matrix[2 - rank_of(graph, op.inputs[0]) :]
    inputs = [bias, ["batch", INPUT_FEATURES], [INPUT_FEATURES, OUTPUT_FEATURES]]
    for one in loops(graph, op, inputs, [matrix], added=0):
        if not (one.summed and op.attrs):  # factors of the terms
            yield one


def _matmul(graph: Graph, op: Op) -> Iterator[Sharding]:
    """Yield the shardings of a product of the last two axes; those before are aligned from the right."""
    ranks = [rank_of(graph, name) for name in (*op.inputs, *op.outputs)]
    if min(ranks[:2]) < 2:
        return
    lead = ["batch", HEADS] if ranks[2] == 4 else leading(ranks[2] - 2)
    before = [lead[len(lead) - rank + 2 :] for rank in ranks]
    rows = "batch" if ranks[2] == 2 else ROWS
    pairs = ([rows, INPUT_FEATURES], [INPUT_FEATURES, OUTPUT_FEATURES], [rows, OUTPUT_FEATURES])
    x, y, result = ([*own, *pair] for own, pair in zip(before, pairs, strict=True))
    yield from loops(graph, op, [x, y], [result])


def _grouped_product(graph: Graph, op: Op) -> Iterator[Sharding]:
    """Yield the sharding of rows that are sorted by expert, each expert with a matrix of its own, by experts."""
    shapes = [graph.tensor[name].shape for name in op.inputs]
    if [len(shape) for shape in shapes] == [2, 3, 1] and not any(value is not None for value in op.attrs.values()):
        rows = Shard(0, ends=op.inputs[2])
        yield Sharding(EXPERTS, shapes[1][0], (rows, Shard(0), None), (rows,))


def _convolution(graph: Graph, op: Op) -> Iterator[Sharding]:
    x, weight = (graph.tensor[name].shape for name in op.inputs[:2])
    groups, n = op.attrs.get("groups", 1), len(weight)
    if len(x) != n or not isinstance(groups, int):
        return
    blank = [""] * (n - 2)
    if groups == 1:
        weights = [[OUTPUT_CHANNELS, INPUT_CHANNELS, *blank], [OUTPUT_CHANNELS]][: len(op.inputs) - 1]
        inputs = [["batch", INPUT_CHANNELS, *blank], *weights]
        yield from loops(graph, op, inputs, [["batch", OUTPUT_CHANNELS, *blank]], added=2)
    else:
        images, whole = ["batch", "", *blank], [[""] * n, [""]][: len(op.inputs) - 1]
        yield from loops(graph, op, [images, *whole], [images])
        yield Sharding(CHANNELS, groups, (Shard(1), *[Shard(0)] * (len(op.inputs) - 1)), (Shard(1),))
        yield Sharding(OUTPUT_CHANNELS, weight[0], (None, *[Shard(0)] * (len(op.inputs) - 1)), (Shard(1),))
    yield from _image_rows(graph, op, weight[2])


def _image_rows(graph: Graph, op: Op, window: int, fill: float = 0.0) -> Iterator[Sharding]:
    """Yield the sharding by rows of an image, where a part also reads the neighbouring rows that its window needs."""
    shape = graph.tensor[op.outputs[0]].shape
    stride, before, dilation = (_first(op.attrs.get(name), default) for name, default in _WINDOW.items())
    if len(shape) != 4 or stride is None or before is None or dilation is None or op.attrs.get("ceil_mode"):
        return
    halo = Halo(stride, before, (window - 1) * dilation + 1, fill)
    if halo.before >= halo.window:
        return  # some rows of the output read no row of the image
    others = (None,) * (len(op.inputs) - 1)
    yield Sharding(ROWS, shape[2], (Shard(2), *others), (Shard(2),), halo=halo)


_WINDOW = {"stride": 1, "padding": 0, "dilation": 1}


def _first(value: Attr, default: int) -> int | None:
    """Return the number for rows; None if it is not written as a number."""
    if value is None:
        return default
    number = value[0] if isinstance(value, tuple) and value else value
    return number if isinstance(number, int) else None


# --- attention, embedding, norms -------------------------------------------------------------------------------------


def _attention(graph: Graph, op: Op) -> Iterator[Sharding]:
    q, k, *_ = (graph.tensor[name].shape for name in op.inputs)
    if not len(q) == len(k) == 4:
        return
    mask = ["batch", HEADS, "sequence", ""][4 - rank_of(graph, op.inputs[3]) :] if len(op.inputs) > 3 else []
    query, key = ["batch", HEADS, "sequence", ""], ["batch", HEADS, "", ""]
    masks = [mask] if mask else []
    for one in loops(graph, op, [query, key, key, *masks], [query]):
        if one.name != "sequence" or op.attrs.get("is_causal") is not True:
            yield one
    if k[1] < q[1] and q[1] % k[1] == 0 and not (masks and graph.tensor[op.inputs[3]].shape[-3:-2] == (q[1],)):
        yield Sharding(HEADS, k[1], (Shard(1), Shard(1), Shard(1), *[None] * len(masks)), (Shard(1),))


def _embedding(graph: Graph, op: Op) -> Iterator[Sharding]:
    lead = leading(rank_of(graph, op.inputs[1]))
    return loops(graph, op, [["", OUTPUT_FEATURES], lead], [[*lead, OUTPUT_FEATURES]])


def _batch_norm(graph: Graph, op: Op) -> Iterator[Sharding]:
    rest = numbered(rank_of(graph, op.inputs[0]))[2:]
    image = ["batch", CHANNELS, *rest]
    return loops(graph, op, [image, *[[CHANNELS]] * (len(op.inputs) - 1)], [image])


def _layer_norm(graph: Graph, op: Op) -> Iterator[Sharding]:
    normalized = op.attrs.get("normalized_shape")
    n = len(normalized) if isinstance(normalized, tuple) else 1
    rank = rank_of(graph, op.inputs[0])
    axes = [*leading(rank - n), *[""] * n]
    return loops(graph, op, [axes, *[[""] * n] * (len(op.inputs) - 1)], [axes])


def _group_norm(graph: Graph, op: Op) -> Iterator[Sharding]:
    n, groups = rank_of(graph, op.inputs[0]), op.attrs.get("num_groups")
    axes = ["batch", *[""] * (n - 1)]
    yield from loops(graph, op, [axes, *[[""]] * (len(op.inputs) - 1)], [axes])
    if isinstance(groups, int):
        yield Sharding(CHANNELS, groups, (Shard(1), *[Shard(0)] * (len(op.inputs) - 1)), (Shard(1),))


# --- element by element, along an axis -------------------------------------------------------------------------------


def _elementwise(graph: Graph, op: Op) -> Iterator[Sharding]:
    """Return the shardings of broadcast operands, aligned from the right."""
    axes = numbered(rank_of(graph, op.outputs[0]))
    inputs = [axes[len(axes) - rank_of(graph, name) :] for name in op.inputs]
    return loops(graph, op, inputs, [axes] * len(op.outputs))


def _along(graph: Graph, op: Op) -> Iterator[Sharding]:
    """Return the shardings of an operator that works along an axis, which stays whole, and keeps the shape."""
    axes = numbered(rank_of(graph, op.inputs[0]))
    whole = dims_of(op.attrs.get("dim", -1), len(axes))
    axes = ["" if axis in whole else name for axis, name in enumerate(axes)]
    return loops(graph, op, [axes], [axes] * len(op.outputs))


def _reduction(graph: Graph, op: Op) -> Iterator[Sharding]:
    """Return the shardings of a reduction over some axes; only terms of a sum can be added up."""
    rank = rank_of(graph, op.inputs[0])
    given = op.attrs.get("dim")
    gone = dims_of(given, rank) if given not in (None, ()) else tuple(range(rank))
    axes = numbered(rank)
    kept = bool(op.attrs.get("keepdim"))
    result = [name if axis not in gone else "" for axis, name in enumerate(axes) if kept or axis not in gone]
    adds = plain(op.kind) == "aten.sum"
    read = [name if adds or axis not in gone else "" for axis, name in enumerate(axes)]
    return loops(graph, op, [read], [result] * len(op.outputs))


def _pooling(graph: Graph, op: Op) -> Iterator[Sharding]:
    """Yield the shardings of windows over an image; an average counts what its windows see at the borders."""
    axes = ["batch", CHANNELS, *[""] * (rank_of(graph, op.inputs[0]) - 2)]
    if len(axes) != 4:
        return
    yield from loops(graph, op, [axes], [axes])
    window = _first(op.attrs.get("kernel_size"), 0)
    floating = "float" in graph.tensor[op.inputs[0]].dtype  # a whole number is not infinite
    counts = op.attrs.get("count_include_pad", True) is True or not _first(op.attrs.get("padding"), 0)
    if window and floating and (plain(op.kind) == "aten.max_pool2d" or counts):
        own = op if op.attrs.get("stride") else replace(op, attrs={**op.attrs, "stride": window})  # side by side
        yield from _image_rows(graph, own, window, float("-inf") if "max" in op.kind else 0.0)


def _images(graph: Graph, op: Op) -> Iterator[Sharding]:
    """Yield the shardings of an operator that treats each image and each channel by itself."""
    rank = rank_of(graph, op.inputs[0])
    axes = ["batch", CHANNELS, *[""] * (rank - 2)]
    if rank == (3 if "1d" in op.kind else 4):
        yield from loops(graph, op, [axes], [axes] * len(op.outputs))


# --- shapes ----------------------------------------------------------------------------------------------------------


def _reshape(graph: Graph, op: Op) -> Iterator[Sharding]:
    """Yield the loops that an axis of the input shares with an axis of the output, as digits of the same number.

    ::

        [4, 2304] -> [4, 3, 12, 64]      axis 1 in 1 run  <-> axis 1, 3 units
                                         axis 1 in 3 runs <-> axis 2, 12 units
    """
    old, new = (graph.tensor[name].shape for name in (op.inputs[0], op.outputs[0]))
    if 0 in old:
        return
    for a, b in product(range(len(old)), range(len(new))):
        before, after = (max(f(old, a), f(new, b)) for f in (_before, _after))
        runs = before // _before(old, a), before // _before(new, b)
        units = prod(old) // (before * after)
        within = all(
            before % _before(shape, axis) == 0 and after % _after(shape, axis) == 0
            for shape, axis in ((old, a), (new, b))
        )
        if within and units > 1 and units * before * after == prod(old):
            name = f"axis {b}" + (f" in {runs[1]} runs" if runs[1] > 1 else "")
            yield Sharding(name, units, (Shard(a, runs[0]),), (Shard(b, runs[1]),))


def _before(shape: Shape, axis: int) -> int:
    return prod(shape[:axis])


def _after(shape: Shape, axis: int) -> int:
    return prod(shape[axis + 1 :])


def _permute(graph: Graph, op: Op) -> Iterator[Sharding]:
    rank = rank_of(graph, op.inputs[0])
    order = list(range(rank))
    if "dims" in op.attrs:
        order = list(dims_of(op.attrs["dims"], rank))
    elif rank > 1:
        a, b = (dims_of(op.attrs.get(name, default), rank)[0] for name, default in (("dim0", 0), ("dim1", 1)))
        order[a], order[b] = order[b], order[a]
    axes = numbered(rank)
    read = [axes[order.index(axis)] for axis in range(rank)]
    return loops(graph, op, [read], [axes])


def _expand(graph: Graph, op: Op) -> Iterator[Sharding]:
    axes = numbered(rank_of(graph, op.outputs[0]))
    return loops(graph, op, [axes[len(axes) - rank_of(graph, op.inputs[0]) :]], [axes])


def _slice(graph: Graph, op: Op) -> Iterator[Sharding]:
    """Return the shardings of a part of one axis, which stays whole; a selection drops the axis."""
    rank = rank_of(graph, op.inputs[0])
    (dim,) = dims_of(op.attrs.get("dim", 0), rank)
    axes = ["" if axis == dim else f"axis {axis}" for axis in range(rank)]
    kept = axes if rank_of(graph, op.outputs[0]) == rank else [*axes[:dim], *axes[dim + 1 :]]
    return loops(graph, op, [axes], [kept] * len(op.outputs))


def _pieces(graph: Graph, op: Op) -> Iterator[Sharding]:
    """Yield the shardings of equal pieces of an axis, each of which can be divided along it."""
    yield from _slice(graph, op)
    (dim,) = dims_of(op.attrs.get("dim", 0), rank_of(graph, op.inputs[0]))
    sizes = {graph.tensor[name].shape[dim] for name in op.outputs}
    if len(sizes) == 1:
        yield Sharding(f"axis {dim}", sizes.pop(), (Shard(dim, len(op.outputs)),), (Shard(dim),) * len(op.outputs))


def _cat(graph: Graph, op: Op) -> Iterator[Sharding]:
    rank, n = rank_of(graph, op.outputs[0]), len(op.inputs)
    (dim,) = dims_of(op.attrs.get("dim", 0), rank)
    axes = ["" if axis == dim else f"axis {axis}" for axis in range(rank)]
    stacked = plain(op.kind) == "aten.stack"
    if not stacked and any(rank_of(graph, name) != rank for name in op.inputs):
        return
    yield from loops(graph, op, [[*axes[:dim], *axes[dim + 1 :]] if stacked else axes] * n, [axes])
    sizes = {graph.tensor[name].shape[dim] for name in op.inputs} if not stacked else set()
    if len(sizes) == 1:
        yield Sharding(f"axis {dim}", sizes.pop(), (Shard(dim),) * n, (Shard(dim, n),))


def _pad(graph: Graph, op: Op) -> Iterator[Sharding]:
    shapes = [graph.tensor[name].shape for name in (op.inputs[0], op.outputs[0])]
    padding = op.attrs.get("pad")
    padded = len(padding) // 2 if isinstance(padding, tuple) else len(shapes[0])
    axes = ["" if axis >= len(shapes[0]) - padded else f"axis {axis}" for axis in range(len(shapes[0]))]
    return loops(graph, op, [axes], [axes])


# --- writes into a tensor --------------------------------------------------------------------------------------------


def _index_put(graph: Graph, op: Op) -> Iterator[Sharding]:
    """Yield the axes that are not indexed. New values have them where indexing puts them (NumPy's advanced indexing).

    ::

        cache [rows, heads, positions, width], indices [rows, None, positions]  ◄──  [rows, positions, heads, width]
    """
    cache, *indices, _ = op.inputs
    if any(graph.tensor[name].dtype == "bool" for name in indices):
        return  # a mask stands for several axes
    given = op.attrs.get("indices") or ("tensor",) * len(indices)
    at = [axis for axis, each in enumerate(given) if each is not None] if isinstance(given, tuple) else []
    if len(at) != len(indices) or not at:
        return
    axes = ["" if axis in at else name for axis, name in enumerate(numbered(rank_of(graph, cache)))]
    before = at[0] if at[-1] - at[0] == len(at) - 1 else 0
    free = [name for name in axes if name]
    written = [*free[:before], *[""] * max(rank_of(graph, name) for name in indices), *free[before:]]
    values = written[len(written) - rank_of(graph, op.inputs[-1]) :]
    yield from loops(graph, op, [axes, *([""] * rank_of(graph, name) for name in indices), values], [axes])


def _index_copy(graph: Graph, op: Op) -> Iterator[Sharding]:
    """Yield the axes of both tensors besides the one of which indices are written."""
    rank = rank_of(graph, op.inputs[0])
    (dim,) = dims_of(op.attrs.get("dim", 0), rank)
    axes = ["" if axis == dim else name for axis, name in enumerate(numbered(rank))]
    if rank_of(graph, op.inputs[2]) == rank:
        yield from loops(graph, op, [axes, [""] * rank_of(graph, op.inputs[1]), axes], [axes])


# --- the table -------------------------------------------------------------------------------------------------------

UNARY = (
    "relu relu6 sigmoid tanh silu gelu hardswish hardsigmoid hardtanh leaky_relu elu selu mish softplus clamp "
    "clamp_min clamp_max exp log sqrt rsqrt reciprocal neg abs sign floor ceil round erf sin cos logical_not "
    "bitwise_not square isnan logsigmoid log_sigmoid dropout contiguous clone to _to_copy type_as detach alias "
    "full_like zeros_like ones_like"
)
BINARY = (
    "add sub rsub mul div pow maximum minimum eq ne lt le gt ge logical_and logical_or bitwise_and bitwise_or where "
    "masked_fill addcmul addcdiv lerp atan2 remainder floor_divide __and__ __or__"
)


_VIEWS = "view reshape _unsafe_view flatten unflatten unsqueeze squeeze ravel"
VIEWS = aten_kinds(_VIEWS)
"""Kinds that give the same elements, in the same order, another shape."""


def _table(rules: Mapping[str, Rule]) -> Mapping[str, Rule]:
    named = ((kind, rule) for kinds, rule in rules.items() for kind in kinds.split())
    return MappingProxyType({aten_kind(kind): rule for kind, rule in named})


RULES: Mapping[str, Rule] = _table(
    {
        "linear": _linear,
        "addmm": _addmm,
        "mm matmul bmm": _matmul,
        " ".join(GROUPED_PRODUCTS): _grouped_product,
        "conv1d conv2d conv3d": _convolution,
        "scaled_dot_product_attention": _attention,
        "embedding": _embedding,
        "batch_norm": _batch_norm,
        "layer_norm rms_norm": _layer_norm,
        "group_norm": _group_norm,
        f"{UNARY} {BINARY}": _elementwise,
        "softmax _softmax log_softmax _log_softmax cumsum": _along,
        "sum mean amax amin": _reduction,
        "max_pool2d avg_pool2d": _pooling,
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool2d upsample_nearest2d upsample_bilinear2d": _images,
        _VIEWS: _reshape,
        "permute transpose t": _permute,
        "expand": _expand,
        "slice select narrow unbind": _slice,
        "split chunk split_with_sizes": _pieces,
        "cat stack": _cat,
        "pad constant_pad_nd": _pad,
        "index_put": _index_put,
        "index_copy index_add": _index_copy,
    }
)
"""The rule of each kind, without its overload."""
