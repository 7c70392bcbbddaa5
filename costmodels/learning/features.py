"""Features of an operator that determine its time: amounts of work, and its place in its family."""

import math
from dataclasses import dataclass

from costmodels.memory.passes import inference_bytes
from costmodels.operators.formulas import FORMULAS, READS, Operands
from costmodels.operators.keys import KeyContent
from costmodels.operators.views import VIEW_KINDS, bases, operation
from graphs.ir import ITEM_BYTES, Attr, Graph, Op, Role, Tensor


@dataclass(frozen=True)
class Features:
    """The features of an operator."""

    family: str  # name of the operators that are fitted together
    terms: tuple[float, ...]  # amounts of work whose weighted sum approximates the time, see `TERMS`
    place: tuple[float, ...]  # coordinates in its family: logarithms to the base 2 of its sizes, and flags


TERMS = ("calls", "flop", "bytes", "state bytes", "bytes read again", "scattered bytes")
"""Amounts of work: one call, FLOP, bytes of inputs and outputs, bytes of state, bytes of state that each step of a
sequence reads again, and bytes of inputs that are not contiguous."""

PRODUCTS = frozenset({"aten.linear", "aten.addmm", "aten.mm"})
BATCHED = frozenset({"aten.matmul", "aten.bmm", "aten.baddbmm"})
CONVOLUTIONS = frozenset({"aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution"})
RECURRENT = {"aten.lstm": 2, "aten.gru": 1, "aten.rnn_tanh": 1, "aten.rnn_relu": 1}
WINDOWED = frozenset({"aten.max_pool2d", "aten.avg_pool2d", "aten.avg_pool3d", "aten.max_pool1d", "aten.avg_pool1d"})
FAMILIES = frozenset({"convolution", "product", "batched product", "attention", *RECURRENT}) | WINDOWED
"""Families of operators that do more than one pass over their tensors; every other kind is its own family."""

REUSING = frozenset({"convolution", "product", *RECURRENT})
"""Families with state. Their place starts with the logarithm of the uses of each element of the state in a call, and
ends with the distance of the memory level that has the state, which matters less for more uses."""

COPIES_IF_SCATTERED = frozenset({"aten.reshape", "aten.flatten", "aten.contiguous", "aten.ravel", "aten.reshape_as"})


def features_of(op: KeyContent, network_bytes: float) -> Features:
    """Features of an operator.

    ``network_bytes``, which one pass over its network touches, determine the memory level of its state.
    """
    name = op.operation
    family, place = _family(op, name)
    if family in REUSING:
        # The distance of state that was read one pass ago: a logarithm of bytes, limited to the sizes of caches.
        distance = _log(min(max(network_bytes, 2.0**22), 2.0**30)) - 22
        place = (*place, distance * max(0.0, 1 - place[0] / 8))
    operands = Operands(op.inputs, op.outputs, op.attrs)
    if _is_free(op):
        return Features(family, (1.0, *([0.0] * (len(TERMS) - 1))), place)
    formula = FORMULAS.get(name)
    flop = formula(operands) if formula else float(operands.elements)
    reads = READS.get(name)
    written = float(sum(t.n_bytes for t in op.outputs))
    state = float(sum(t.n_bytes for t in _state(op, name)))
    n_read = reads(operands) if reads else float(sum(t.n_bytes for t in op.inputs))
    scattered = float(sum(t.n_bytes for t, views in zip(op.inputs, op.views, strict=True) if views))
    once = float(sum(t.n_bytes for t in op.inputs)) if name in RECURRENT else n_read
    moved = max(0.0, once - state) + written
    return Features(family, (1.0, flop, moved, state, n_read - once, min(scattered, moved)), place)


def is_known(op: KeyContent) -> bool:
    """Return whether the work of an unmeasured kind of operators can be counted."""
    return op.operation in FORMULAS or op.operation in VIEW_KINDS


def pass_bytes(graph: Graph) -> int:
    """Bytes that one pass over a network touches: activations and state, of tables only the rows that are read."""
    tables = {name: op for op in graph.ops if operation(op.kind) == "aten.embedding" for name in op.inputs[:1]}
    state = {tensor for op in graph.ops for tensor in graph.state(op)}
    read = {name: sum(graph.tensor[out].n_bytes for out in op.outputs) for name, op in tables.items()}
    shared = {name for op in graph.ops if operation(op.kind) != "aten.embedding" for name in op.inputs}
    n_bytes = sum(t.n_bytes if t.name in shared else min(t.n_bytes, read.get(t.name, t.n_bytes)) for t in state)
    return n_bytes + inference_bytes(graph)


def _is_free(op: KeyContent) -> bool:
    """Return whether an operator is a view; see `costmodels.operators.views`."""
    if not op.outputs or not op.inputs:
        return False
    if any(op.views) and op.operation in COPIES_IF_SCATTERED:
        return False
    names = [f"in{i}" for i in range(len(op.inputs))]
    results = [f"out{i}" for i in range(len(op.outputs))]
    if op.operation in VIEW_KINDS:
        return True
    tensors = [Tensor(n, t.shape, t.dtype, Role.INPUT) for n, t in zip(names, op.inputs, strict=True)]
    tensors += [Tensor(n, t.shape, t.dtype, Role.ACTIVATION) for n, t in zip(results, op.outputs, strict=True)]
    one = Op("op", op.kind, tuple(names), tuple(results), attrs=op.attrs)
    base = bases(Graph("", (one,), tuple(tensors), tuple(names), ()))
    return all(result in base for result in results)


def _state(op: KeyContent, name: str) -> tuple[Tensor, ...]:
    """The parameters of an operator, guessed from its kind, since keys do not distinguish them from activations."""
    if name in CONVOLUTIONS or name == "aten.linear":
        return op.inputs[1:]
    if name == "aten.addmm":
        return op.inputs[2:]
    if name == "aten.mm":
        return op.inputs[1:2]
    if name in RECURRENT:
        return op.inputs[1 + RECURRENT[name] :]
    return ()


def _family(op: KeyContent, name: str) -> tuple[str, tuple[float, ...]]:
    if name in CONVOLUTIONS and len(op.inputs) > 1:
        return "convolution", _convolution(op)
    if name in PRODUCTS and op.inputs:
        return "product", _product(op, name)
    if name in BATCHED and len(op.inputs) > 1:
        return "batched product", _batched(op)
    if name in RECURRENT:
        return name, _recurrent(op, name)
    if name.startswith("aten.scaled_dot_product"):
        return "attention", _attention(op)
    if name in WINDOWED:
        return name, _windowed(op)
    return name, _simple(op)


_NOTHING = Tensor("", (), "float32", Role.ACTIVATION)


def _log(value: float) -> float:
    return math.log2(max(value, 1.0))


def _last(tensor: Tensor) -> int:
    """The last dimension of a tensor."""
    return tensor.shape[-1] if tensor.shape else 1


def _odd(n: int) -> float:
    """The share of unused elements in the last vector of 16."""
    return (-n % 16) / max(n, 16)


def _aligned(n: int) -> float:
    """1 for rows that start at the same offset of a page, and so compete for one cache line."""
    return float(n % 1024 == 0)


def _numbers(value: Attr, default: int, count: int) -> tuple[int, ...]:
    numbers = value if isinstance(value, tuple) else (value,)
    integers = tuple(n for n in numbers if isinstance(n, int)) or (default,)
    return integers * count if len(integers) == 1 else integers


def _convolution(op: KeyContent) -> tuple[float, ...]:
    image, weight, out = op.inputs[0], op.inputs[1], op.outputs[0]
    window = weight.shape[2:]
    stride = _numbers(op.attrs.get("stride"), 1, len(window))
    inner = weight.shape[1]
    groups = image.shape[-1 - len(window)] // max(inner, 1)
    return (
        _log(out.shape[0] * math.prod(out.shape[2:])),
        _log(out.shape[0]),
        _log(inner),
        _log(weight.shape[0] // max(groups, 1)),
        _log(math.prod(window)),
        float(max(window) == 1),
        _log(window[0]) - _log(window[-1]),
        _log(math.prod(stride)),
        _log(groups),
        float(inner == 1 and groups > 1),
        _odd(inner),
        _odd(weight.shape[0] // max(groups, 1)),
        _odd(out.shape[-1]),
        float(inner < 8 and groups == 1),
        float(len(op.inputs) > 2),
    )


def _product(op: KeyContent, name: str) -> tuple[float, ...]:
    first = op.inputs[1 if name == "aten.addmm" else 0]
    inner, out = _last(first), _last(op.outputs[0])
    rows = first.n_elements // max(inner, 1)
    return (
        _log(rows),
        float(rows == 1),
        float(2 <= rows <= 4),
        _log(inner),
        _log(out),
        float(name == "aten.linear"),
        _aligned(inner),
        _aligned(out),
    )


def _batched(op: KeyContent) -> tuple[float, ...]:
    out = op.outputs[0]
    rows, columns = (out.shape[-2] if len(out.shape) > 1 else 1), _last(out)
    products = out.n_elements / max(rows * columns, 1)
    scattered = [float(bool(views)) for views in op.views[-2:]]
    return (_log(products), _log(rows), _log(_last(op.inputs[-2])), _log(columns), *scattered)


def _recurrent(op: KeyContent, name: str) -> tuple[float, ...]:
    first = op.inputs[0]
    steps = first.shape[1 if op.attrs.get("batch_first") is True and len(first.shape) == 3 else 0]
    rows = first.n_elements // max(steps * first.shape[-1], 1)
    again_bytes = sum(t.n_bytes for t in op.inputs[1 + RECURRENT[name] :] if len(t.shape) == 2) / 2
    return (_log(rows * steps), _log(rows), _log(again_bytes) / 2)


def _attention(op: KeyContent) -> tuple[float, ...]:
    query, key = op.inputs[:2]
    rows = query.n_elements // max(query.shape[-1] * query.shape[-2], 1)
    causal = float(op.attrs.get("is_causal") is True)
    return (
        _log(rows),
        _log(query.shape[-2]),
        _log(key.shape[-2]),
        _log(query.shape[-1]),
        float(len(op.inputs) > 3),
        causal,
    )


def _windowed(op: KeyContent) -> tuple[float, ...]:
    out = op.outputs[0]
    window = _numbers(op.attrs.get("kernel_size"), 1, 2)
    stride = _numbers(op.attrs.get("stride"), window[0], 2)
    padding = max(_numbers(op.attrs.get("padding"), 0, 2))
    return (
        _log(out.n_elements),
        _log(math.prod(out.shape[2:])),
        _log(out.shape[-1]),
        _log(math.prod(window)),
        _log(math.prod(stride)),
        float(padding > 0),
    )


def _simple(op: KeyContent) -> tuple[float, ...]:
    """The place of an operator with one pass over its tensors."""
    out = next(iter((*op.outputs, *op.inputs)), _NOTHING)
    first = op.inputs[0] if op.inputs else out
    row = _last(out)
    dim = op.attrs.get("dim")
    chunk = math.prod(out.shape[dim:]) if isinstance(dim, int) and out.shape else row
    exponent = op.attrs.get("exponent", 2)
    return (
        _log(out.n_elements),
        _log(first.n_elements),
        _log(row),
        _log(chunk),
        float(len(op.inputs)),
        2.0 * any(op.views),
        2.0 * any(t.n_elements < out.n_elements for t in op.inputs),
        2.0 * ("float" not in first.dtype),
        2.0 * ("float" not in out.dtype),
        _log(ITEM_BYTES[first.dtype]),
        2.0 * (exponent not in (1, 2, 0.5)),
        2.0 * _is_free(op),
    )
