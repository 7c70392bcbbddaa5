"""Groups of operators that one kernel computes.

A batch norm, an activation or an addition may follow a convolution or a product; a border of zeros may precede a
convolution.

::

    conv2d ─► batch_norm ─► add ─► relu         Step(fold), Step(add, other=shortcut), Step(relu)
                             ▲
              shortcut ──────┘
    addmm ─► view ─► gelu                       Step(gelu)

The steps of a group are read off its members, so that the builder of a kernel need not know the members.
"""

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from graphs.ir import STATE, Attr, Graph, Op, Role
from graphs.operator_kinds import changes, plain

CONVOLUTIONS = frozenset({"aten.conv1d", "aten.conv2d"})
ANCHORS = CONVOLUTIONS | {"aten.linear", "aten.addmm"}
"""Kinds, without their overload, whose result a kernel can go on computing with before it is written."""

PADS = frozenset({"aten.pad", "aten.constant_pad_nd"})


@dataclass(frozen=True)
class Step:
    """An operation of a kernel on each element of its result, before the element is written."""

    function: str  # "batch_norm", "add", "mul", or an activation by oneDNN's name
    scalars: tuple[float, ...] = ()  # parameters of an activation
    algorithm: str = ""  # variant of an activation
    other: str = ""  # name of the second operand, of the same shape, of "add" and "mul"
    strided: bool = False  # whether PyTorch computes GELU of a tensor that is not contiguous, by another kernel


def activation(steps: Sequence[Step]) -> Step | None:
    """Return the activation among the steps after a multiplication, or None; the others have a second operand."""
    return next((step for step in steps if not step.other), None)


Attrs: TypeAlias = Mapping[str, Attr]


def _clamp(attrs: Attrs) -> Step | None:
    least, most = attrs.get("min"), attrs.get("max")
    if isinstance(least, int | float) and isinstance(most, int | float):
        return Step("hardtanh", (float(least), float(most)))
    return None


def _number(attrs: Attrs, name: str, default: float) -> float:
    value = attrs.get(name, default)
    return float(value) if isinstance(value, int | float) else default


def _leaky_relu(attrs: Attrs) -> Step | None:
    slope = _number(attrs, "negative_slope", 0.01)
    return Step("leaky_relu", (slope,)) if slope else None  # PyTorch has NaN for -inf times 0, kernels 0


ACTIVATIONS: Mapping[str, Callable[[Attrs], Step | None]] = MappingProxyType(
    {
        "aten.relu": lambda _: Step("relu"),
        "aten.sigmoid": lambda _: Step("sigmoid"),
        "aten.tanh": lambda _: Step("tanh"),
        "aten.silu": lambda _: Step("swish"),
        "aten.hardswish": lambda _: Step("hardswish"),
        "aten.gelu": lambda attrs: Step("gelu", algorithm=str(attrs.get("approximate", "none"))),
        "aten.leaky_relu": _leaky_relu,
        "aten.hardtanh": lambda attrs: Step(
            "hardtanh", (_number(attrs, "min_val", -1.0), _number(attrs, "max_val", 1.0))
        ),
        "aten.relu6": lambda _: Step("hardtanh", (0.0, 6.0)),
        "aten.clamp": _clamp,
    }
)
"""The step of an activation by its kind."""

COMPOSED: Mapping[str, Step] = MappingProxyType(
    {
        "mul(x, sigmoid(x))": Step("swish"),
        "mul(mul(x, 0.5), add(tanh(mul(add(x, mul(pow(x, 3), 0.044715)), 0.797885)), 1))": Step(
            "gelu", algorithm="tanh"
        ),
    }
)
"""Activations that networks spell out, as the formula of their operators."""

ARITHMETIC = frozenset({"aten.add", "aten.mul", "aten.pow", "aten.tanh", "aten.sigmoid"})
IDENTITIES = frozenset({"aten.dropout", "aten.view", "aten.reshape", "aten._unsafe_view"})
BINARY = {"aten.add": "add", "aten.mul": "mul"}
MOST_AXES = 3  # of sums; images lie in more than one order
MOST_COMPOSED = max(formula.count("(") for formula in COMPOSED)


RESPONSE_NORM = tuple(
    f"aten.{name}" for name in ["mul", "view", "pad", "avg_pool3d", "squeeze", "view", "mul", "add", "pow", "div"]
)
"""Kinds of the operators that a local response norm of images consists of: x / (k + a * mean of x * x) ** b."""

SCALED_RELU = ("aten.batch_norm", "aten.relu")

RMS_NORMS = tuple(
    tuple(f"aten.{name}" for name in ["pow", "mean", "add", "rsqrt", "mul", *cast, "mul"]) for cast in ([], ["to"])
)
"""Kinds of the operators that a norm by the root mean square consists of, as LLaMA has it, maybe with a cast."""


@dataclass(frozen=True)
class Readers:
    """A graph with the readers of each of its tensors."""

    graph: Graph
    of: Mapping[str, Sequence[int]]  # by tensor, the indices of the operators that read it, once for each time

    @classmethod
    def in_graph(cls, graph: Graph) -> "Readers":
        """Return the readers of all tensors; the caller reads the outputs."""
        of: dict[str, list[int]] = {name: [len(graph.ops)] for name in graph.outputs}
        for i, op in enumerate(graph.ops):
            for name in op.inputs:
                of.setdefault(name, []).append(i)
        return cls(graph, of)

    def only(self, name: str) -> int | None:
        """Return the operator that alone reads a tensor, once."""
        readers = self.of.get(name, ())
        return readers[0] if len(readers) == 1 and readers[0] < len(self.graph.ops) else None


Found: TypeAlias = "tuple[list[int], Step | None] | None"
"""Operators that follow, and the step that they compute, which is None if they only pass a tensor on."""


def chain(readers: Readers, start: int, taken: Collection[int] = ()) -> tuple[list[int], list[Step]]:
    """Return the operators that one kernel can compute with an anchor, which is the first, and the steps after it.

    The operators in ``taken`` belong to other kernels.

    A kernel folds a batch norm into the weights of a convolution, adds or multiplies by another tensor, and applies an
    activation, each at most once and in this order; a product has one of the last two.
    """
    members, steps = [start], list[Step]()
    while (found := _next(readers, members, steps)) is not None and not set(found[0]).intersection(taken):
        members += found[0]
        steps += [found[1]] if found[1] else []
    return members, steps


def border(graph: Graph, op: Op) -> tuple[int, ...] | None:
    """Return the columns left and right and the rows above and below of a padding of images; None for another operator.

    They are zeros.
    """
    mode, value, widths = op.attrs.get("mode", "constant"), op.attrs.get("value"), op.attrs.get("pad")
    pads = plain(op.kind) in PADS and (mode, value or 0) == ("constant", 0)
    if not pads or not isinstance(widths, tuple) or len(graph.tensor[op.inputs[0]].shape) != 4 or len(widths) > 4:
        return None
    around = [width for width in widths if isinstance(width, int) and width >= 0]
    return (*around, *[0] * (4 - len(around))) if len(around) == len(widths) else None


def behind_border(readers: Readers, number: int) -> int:
    """Return the convolution that alone reads images which an operator pads with zeros, else that operator."""
    graph, op = readers.graph, readers.graph.ops[number]
    reader = readers.only(op.outputs[0]) if op.outputs and border(graph, op) is not None else None
    if reader is None or plain(graph.ops[reader].kind) not in CONVOLUTIONS:
        return number
    return reader if graph.ops[reader].inputs[0] == op.outputs[0] else number


def find_response_norm(readers: Readers, start: int) -> list[int] | None:
    """Return the operators of a local response norm whose first one is this; None if it is none."""
    graph, first = readers.graph, readers.graph.ops[start]
    members = _one_behind_another(readers, start, RESPONSE_NORM)
    if members is None or len(first.inputs) != 2 or len(set(first.inputs)) != 1:
        return None
    divided = graph.ops[members[-1]].inputs[0] == first.inputs[0]
    return members if divided and len(graph.tensor[first.inputs[0]].shape) == 4 else None


def _one_behind_another(readers: Readers, start: int, kinds: Sequence[str]) -> list[int] | None:
    """Return operators of these kinds, each the only reader of the one before; None if the first is of another kind."""
    graph, members = readers.graph, [start]
    for kind in kinds[1:]:
        number = readers.only(graph.ops[members[-1]].outputs[0])
        if number is None or plain(graph.ops[number].kind) != kind:
            return None
        members.append(number)
    return members if plain(graph.ops[start].kind) == kinds[0] else None


def find_scaled_relu(readers: Readers, start: int) -> list[int] | None:
    """Return the operators of a batch norm of images and a relu, if the first one is this; None if they are none."""
    graph, norm = readers.graph, readers.graph.ops[start]
    members = _one_behind_another(readers, start, SCALED_RELU)
    return members if members and _folds(graph, norm) and len(graph.tensor[norm.inputs[0]].shape) == 4 else None


def find_rms_norm(readers: Readers, start: int) -> list[int] | None:
    """Return the operators of a norm by the root mean square over the last axis that begins here; None if none does.

    It is weight * (x * rsqrt(mean(x ** 2) + eps)), see https://arxiv.org/abs/1910.07467.
    """
    found = (_one_behind_another(readers, start, kinds) for kinds in RMS_NORMS)
    members = next(filter(None, found), None)
    return members if members and _is_rms_norm(readers.graph, [readers.graph.ops[m] for m in members]) else None


def _is_rms_norm(graph: Graph, members: Sequence[Op]) -> bool:
    square, mean, shift, _, scaled, *_, weighted = members
    tensor = graph.tensor
    weights = [tensor[name] for name in weighted.inputs if tensor[name].role is Role.PARAMETER]
    return (
        square.attrs.get("exponent") == 2
        and (mean.attrs.get("dim"), mean.attrs.get("keepdim")) == ((-1,), True)
        and isinstance(shift.attrs.get("other"), float)
        and square.inputs[0] in scaled.inputs
        and [len(weight.shape) for weight in weights] == [1]
        and tensor[weighted.outputs[0]].shape == tensor[square.inputs[0]].shape
        and all(tensor[op.outputs[0]].dtype == "float32" for op in members)
    )


def find_sum_of_three(readers: Readers, start: int) -> list[int] | None:
    """Return the operators of a sum of three float32 tensors, if the first one is this; None if there is none.

    Two parts of a split product are added up so, with what skips the product.
    """
    graph, members = readers.graph, [start]
    while adds(graph, graph.ops[start]) and (number := readers.only(graph.ops[members[-1]].outputs[0])) is not None:
        op, tensor = graph.ops[number], graph.ops[members[-1]].outputs[0]
        members.append(number)
        if plain(op.kind) not in IDENTITIES or not _passes(graph, op, tensor, convolves=False):
            return members if adds(graph, op) else None
    return None


def adds(graph: Graph, op: Op) -> bool:
    """Return whether an operator adds two float32 tensors of one shape that are neither images nor single numbers."""
    if plain(op.kind) != "aten.add" or len(op.inputs) != 2 or op.attrs:
        return False
    result, *terms = (graph.tensor[name] for name in (*op.outputs, *op.inputs))
    alike = {each.shape for each in terms} == {result.shape}
    return alike and result.dtype == "float32" and 0 < len(result.shape) <= MOST_AXES


ONE_PASS = (find_response_norm, find_scaled_relu, find_rms_norm, find_sum_of_three)
"""Functions that find operators which read and write each element once: norms, a scaled ReLU, sums."""


def constants(readers: Readers) -> list[list[int]]:
    """Return operators whose results are always the same, such as masks and positions, in groups that read each other.

    They read nothing but buffers. Tensors that the caller gets or that an operator writes to, and the tensors that
    these are made of, are computed each time.
    """
    graph = readers.graph
    given = {name for op in graph.ops if _writes_what_it_reads(op) for name in op.inputs}.union(graph.outputs)
    for op in (graph.ops[number] for number in reversed(unchanging(graph))):
        if given.intersection(op.outputs):
            given.update(op.inputs)
    group_of: dict[str, list[int]] = {}  # by tensor
    for number in unchanging(graph, given):
        together = [number]
        read = [group_of[name] for name in graph.ops[number].inputs if name in group_of]
        for group in {id(group): group for group in read}.values():
            together += group
        for member in together:
            group_of.update(dict.fromkeys(graph.ops[member].outputs, together))
    groups = sorted(sorted(group) for group in {id(group): group for group in group_of.values()}.values())
    return [group for group in groups if not set(group).issuperset(_reading(readers, group))]


def _writes_what_it_reads(op: Op) -> bool:
    """Return whether an operator works in place, as its name says: "add_" and "__iand__" do, "__and__" does not."""
    name = plain(op.kind).removeprefix("aten.")
    return name.startswith("__i") if name.endswith("__") else name.endswith("_")


def unchanging(graph: Graph, given: Set[str] = frozenset()) -> list[int]:
    """Return the operators whose results are always the same, without those that read or write given tensors."""
    names = {tensor.name for tensor in graph.tensors if tensor.role is Role.BUFFER} - given
    found = []
    for number, op in enumerate(graph.ops):
        if names.issuperset(op.inputs) and not changes(op) and given.isdisjoint(op.outputs):
            names.update(op.outputs)
            found.append(number)
    return found


def _reading(readers: Readers, numbers: Sequence[int]) -> set[int]:
    """Return the operators that read what some operators write."""
    written = (name for number in numbers for name in readers.graph.ops[number].outputs)
    return {reader for name in written for reader in readers.of.get(name, ())}


def _next(readers: Readers, members: Sequence[int], steps: Sequence[Step]) -> Found:
    """Return the operators and the step that follow the members in their kernel, or None."""
    graph = readers.graph
    tensor, convolves = graph.ops[members[-1]].outputs[0], plain(graph.ops[members[0]].kind) in CONVOLUTIONS
    number = readers.only(tensor)
    if number is None:
        found = _composed(readers, tensor)
    else:
        op = graph.ops[number]
        if len(op.outputs) != 1 or graph.tensor[op.outputs[0]].dtype != graph.tensor[tensor].dtype:
            return None
        if plain(op.kind) in IDENTITIES:
            return ([number], None) if _passes(graph, op, tensor, convolves) else None
        found = [number], _step(graph, op, tensor)
    return found if found and found[1] and _may_follow(found[1], steps, convolves) else None


def _may_follow(step: Step, steps: Sequence[Step], convolves: bool) -> bool:
    """Return whether a kernel can apply a step after others: see `chain`."""
    done = [each.function for each in steps if each.function != "batch_norm"]
    if step.function == "batch_norm":
        return convolves and not steps
    return not done or (not step.other and convolves and done in (["add"], ["mul"]))


def _step(graph: Graph, op: Op, tensor: str) -> Step | None:
    """Return the step that an operator applies to each element of a tensor; None if no kernel knows it."""
    kind = plain(op.kind)
    if kind == "aten.batch_norm":
        return Step("batch_norm") if _folds(graph, op) else None
    if kind in ACTIVATIONS and op.inputs == (tensor,):
        return ACTIVATIONS[kind](op.attrs)
    if kind in BINARY and len(op.inputs) == 2 and not op.attrs:
        first, second = (graph.tensor[name] for name in op.inputs)
        alike = first.shape == second.shape == graph.tensor[op.outputs[0]].shape and first.dtype == second.dtype
        (other,) = (name for name in op.inputs if name != tensor)
        return Step(BINARY[kind], other=other) if alike else None
    return None


def _passes(graph: Graph, op: Op, tensor: str, convolves: bool) -> bool:
    """Return whether an operator returns its input, with other dimensions before the last one at most."""
    before, after = graph.tensor[tensor].shape, graph.tensor[op.outputs[0]].shape
    if plain(op.kind) == "aten.dropout":
        return op.attrs.get("train") is False
    return before == after or not (convolves or before[-1:] != after[-1:])


def _folds(graph: Graph, op: Op) -> bool:
    """Return whether a batch norm multiplies by and adds constants."""
    held = all(graph.tensor[name].role in STATE for name in op.inputs[1:])
    return held and len(op.inputs) == 5 and op.attrs.get("training") is False


def _composed(readers: Readers, tensor: str) -> Found:
    """Return the operators of an activation that is spelled out, if they alone read the tensor and each other."""
    graph, formula = readers.graph, {tensor: "x"}
    region: list[int] = []
    for number in range(min(readers.of.get(tensor, [0])), len(graph.ops)):
        op = graph.ops[number]
        if plain(op.kind) not in ARITHMETIC or not formula.keys() >= set(op.inputs):
            continue
        written = _formula(op, formula)
        formula[op.outputs[0]] = written
        region.append(number)
        if written in COMPOSED:
            inner = [name for name in formula if name != op.outputs[0]]
            closed = all(set(readers.of.get(name, ())) <= set(region) for name in inner)
            return (region, COMPOSED[written]) if closed else None
        if len(region) > MOST_COMPOSED:
            break
    return None


def _formula(op: Op, formula: Mapping[str, str]) -> str:
    numbers = (f"{value:.6g}" for value in op.attrs.values() if isinstance(value, int | float))
    return f"{plain(op.kind).removeprefix('aten.')}({', '.join([*(formula[name] for name in op.inputs), *numbers])})"
