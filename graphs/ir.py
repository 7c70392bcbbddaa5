"""The computation graph: operators and the tensors between them, without the code that executes them.

::

    image ──► conv1 ──► relu ──┬──► branch_a ──► cat ──► scores        op      conv1, relu, ...
                weight ──┘     └──► branch_b ──┘                       tensor  image, weight, relu's output, ...
                                                                       flow    relu ──► {branch_a, branch_b}
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import TypeAlias

from graphs.common.brief import Brief
from graphs.common.errors import InputError
from graphs.common.notebook import html_table
from graphs.footprint import Footprint, check_footprint

Attr: TypeAlias = "bool | int | float | str | tuple[Attr, ...] | None"
"""An operator's argument that is no tensor: a JSON value (with finite numbers), with tuples for lists."""

ITEM_BYTES: Mapping[str, int] = MappingProxyType(
    {"bool": 1, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1}
    | {"float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1}
    | {"int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2}
    | {"int32": 4, "uint32": 4, "float32": 4, "complex32": 4}
    | {"int64": 8, "uint64": 8, "float64": 8, "complex64": 8, "complex128": 16}
)
"""Bytes of one element by dtype; the dtypes are PyTorch's names without ``torch.``"""

MOST_NAMED = 8  # kinds of operators and modules, in a notebook


class Role(StrEnum):
    """The source of a tensor."""

    INPUT = "input"  # passed by the caller
    PARAMETER = "parameter"  # trained; placed with the operators that read it
    BUFFER = "buffer"  # kept but not trained: running means, position tables, constants
    ACTIVATION = "activation"  # written by an operator
    CACHE = "cache"  # lives from call to call: the keys and values of earlier tokens, the state of a recurrence


STATE = (Role.PARAMETER, Role.BUFFER)
"""The roles of what a network holds."""


@dataclass(frozen=True, slots=True)
class Tensor(Brief):
    """A value with a fixed shape.

    Raises:
        InputError: for a negative dimension or a dtype without a known size.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role

    def __post_init__(self) -> None:
        if any(d < 0 for d in self.shape):
            raise InputError(f"tensor '{self.name}' has the shape {self.shape}; dimensions are 0 or more")
        if self.dtype not in ITEM_BYTES:
            raise InputError(
                f"tensor '{self.name}' has the unknown dtype '{self.dtype}'; known: {', '.join(ITEM_BYTES)}"
            )

    @property
    def n_elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return prod(self.shape)

    @property
    def n_bytes(self) -> int:
        """Bytes of the tensor when it is stored densely."""
        return self.n_elements * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Op(Brief):
    """One operator, the smallest unit of placement.

    Attributes:
        name: unique name in the graph.
        kind: the computation, for example ``aten.conv2d.default``.
        inputs: names of the tensors it reads, in the order of its arguments, repeated if read twice.
        outputs: names of the tensors it writes.
        module: path of its module, for example ``inception3a.branch1.conv``; empty at the root.
        attrs: its other arguments by name (strides, dimensions, ...).
        members: the operators that a fused operator consists of, in their order; empty for an original operator.
        footprint: its memory, if an importer recorded it. The footprint follows from the kind and the tensors, so the
            fingerprint does not include it.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    module: str = ""
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    members: tuple["Op", ...] = ()
    footprint: Footprint | None = None

    @property
    def leading(self) -> "Op":
        """The member that a fused operator has its name of; an original operator itself."""
        return next((member for member in self.members if member.name == self.name), self)


def unfused(ops: Iterable[Op]) -> Iterator[Op]:
    """Yield the operators, with each fused one replaced by its members."""
    for op in ops:
        yield from op.members or (op,)


@dataclass(frozen=True, slots=True)
class Flow(Brief):
    """One activation with its writer and all its readers (indices into ``Graph.ops``).

    The activation is sent once to each device that has a reader, however many readers that device has.
    """

    tensor: str
    writer: int
    readers: tuple[int, ...]


@dataclass(frozen=True)
class Graph(Brief):
    """A computation graph: operators in a topological order and the tensors that they read and write.

    A cache is an input that lives from call to call: of each pair in ``caches`` the first is the cache, of the role
    CACHE, and the second the output that is the cache of the next call.

    Raises:
        InputError: if a name is used twice or has a lone surrogate, a tensor is read that does not exist or before an
            operator writes it, or a cache has no successor of its shape.
    """

    name: str
    ops: tuple[Op, ...]
    tensors: tuple[Tensor, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    caches: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        _check_letters(self)
        _check_unique("tensor", (t.name for t in self.tensors))
        _check_unique("operator", (op.name for op in self.ops))
        _check_ends(self)
        _check_order(self)
        _check_caches(self)

    @cached_property
    def tensor(self) -> Mapping[str, Tensor]:
        """The tensors by name."""
        return MappingProxyType({t.name: t for t in self.tensors})

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Position of every operator in ``ops``, by name."""
        return MappingProxyType({op.name: i for i, op in enumerate(self.ops)})

    @cached_property
    def writer(self) -> Mapping[str, int]:
        """Position of the operator that writes each tensor that one writes, by the tensor's name."""
        return MappingProxyType({name: i for i, op in enumerate(self.ops) for name in op.outputs})

    @cached_property
    def flows(self) -> tuple[Flow, ...]:
        """Every activation that some operator reads, in the order of their writers."""
        readers: dict[str, list[int]] = {}
        for i, op in enumerate(self.ops):
            for name in dict.fromkeys(op.inputs):
                readers.setdefault(name, []).append(i)
        return tuple(
            Flow(name, i, tuple(readers[name]))
            for i, op in enumerate(self.ops)
            for name in op.outputs
            if name in readers
        )

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Every pair (writer, reader) of operator indices once, sorted."""
        return tuple(sorted({(flow.writer, reader) for flow in self.flows for reader in flow.readers}))

    @cached_property
    def largest_bytes(self) -> int:
        """Bytes of the largest tensor that an operator writes."""
        return max((t.n_bytes for t in self.tensors if t.role is Role.ACTIVATION), default=0)

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that change when the computation changes; the graph's name does not count."""
        document = [
            [[t.name, t.shape, t.dtype, t.role] for t in self.tensors],
            [_described(op) for op in self.ops],
            [self.inputs, self.outputs],
            *([self.caches] if self.caches else []),
        ]
        return hashlib.sha256(json.dumps(document, separators=(",", ":"), allow_nan=False).encode()).hexdigest()[:12]

    def _repr_html_(self) -> str:
        """The view of a notebook: a summary of the graph."""
        parameters = [tensor for tensor in self.tensors if tensor.role is Role.PARAMETER]
        n_elements, n_bytes = (sum(getattr(t, name) for t in parameters) for name in ("n_elements", "n_bytes"))
        rows = [
            ("inputs", self._ends(self.inputs)),
            ("outputs", self._ends(self.outputs)),
            ("parameters", f"{n_elements:,} in {len(parameters):,} tensors, {n_bytes / 2**20:,.1f} MiB"),
            ("kinds", _most(Counter(op.kind for op in self.ops))),
            ("modules", _most(Counter(op.module.split(".")[0] for op in self.ops if op.module))),
            ("fingerprint", self.fingerprint),
        ]
        return html_table(f"{self.name}: {len(self.ops):,} operators, {len(self.flows):,} flows", (), rows)

    def _ends(self, names: Sequence[str]) -> str:
        tensors = [self.tensor[name] for name in names]
        return ", ".join(f"{t.name} {list(t.shape)} {t.dtype}" for t in tensors) or "none"

    def inside(self, op: Op) -> "Graph":
        """The members of a fused operator, or a single one, as a graph of their own with the ends of the operator."""
        members = op.members or (op,)
        names = dict.fromkeys(name for member in members for name in (*member.inputs, *member.outputs))
        given = {name for name in op.inputs if self.tensor[name].role not in STATE}
        tensors = (replace(self.tensor[n], role=Role.INPUT) if n in given else self.tensor[n] for n in names)
        inputs = tuple(name for name in names if name in given)
        return Graph(op.name, members, tuple(tensors), inputs, op.outputs)

    def state(self, op: Op) -> Iterator[Tensor]:
        """The parameters and buffers that an operator reads, each once."""
        for name in dict.fromkeys(op.inputs):
            if self.tensor[name].role in STATE:
                yield self.tensor[name]


def _described(op: Op) -> list[object]:
    """Return an operator with its tensors, attributes and members as JSON."""
    own: list[object] = [op.name, op.kind, op.inputs, op.outputs, op.module, dict(sorted(op.attrs.items()))]
    return own + ([[_described(member) for member in op.members]] if op.members else [])


def _most(counts: Counter[str]) -> str:
    """The most frequent names with their counts, and how many other names there are."""
    named = [f"{name} {count:,}" for name, count in counts.most_common(MOST_NAMED)]
    left = len(counts) - len(named)
    return ", ".join([*named, *([f"{left:,} more"] if left else [])]) or "none"


def _check_letters(graph: Graph) -> None:
    """Refuse names with a lone surrogate, which no file can hold."""
    names = [graph.name, *(t.name for t in graph.tensors), *(part for op in graph.ops for part in (op.name, op.module))]
    try:
        "\n".join(names).encode()
    except UnicodeEncodeError as error:
        name = next(name for name in names if error.object[error.start] in name)
        raise InputError(f"the name {name!a} has half a letter, which no file can hold; rename it") from error


def _check_unique(what: str, names: Iterator[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"two {what}s are named '{name}'; names must be unique")
        seen.add(name)


def _check_ends(graph: Graph) -> None:
    """Check that inputs and outputs exist, and that exactly the tensors of role INPUT are inputs."""
    for name in (*graph.inputs, *graph.outputs):
        if name not in graph.tensor:
            raise InputError(f"graph '{graph.name}' names the tensor '{name}' among its ends but does not describe it")
    declared = {t.name for t in graph.tensors if t.role in (Role.INPUT, Role.CACHE)}
    if declared != set(graph.inputs):
        odd = sorted(declared ^ set(graph.inputs))[0]
        raise InputError(f"tensor '{odd}' must be an input by its role and in the list of inputs, or by neither")


def _check_caches(graph: Graph) -> None:
    """Check that exactly the tensors of role CACHE are caches, each with an output of its shape for the next call."""
    kept = [t.name for t in graph.tensors if t.role is Role.CACHE]
    if sorted(kept) != sorted(name for name, _ in graph.caches):
        odd = min({*kept} ^ {name for name, _ in graph.caches}, default=kept[0] if kept else "")
        raise InputError(f"tensor '{odd}' must be a cache by its role and in the list of caches once, or by neither")
    for name, after in graph.caches:
        if after not in graph.outputs:
            raise InputError(f"the cache '{name}' is followed by '{after}', which is no output of '{graph.name}'")
        one, other = graph.tensor[name], graph.tensor[after]
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            raise InputError(
                f"the cache '{name}' is {list(one.shape)} {one.dtype}, and '{after}', which follows it, is "
                f"{list(other.shape)} {other.dtype}; both must be alike"
            )


def _check_order(graph: Graph) -> None:
    """Check that every tensor is written once, and before an operator reads it."""
    available = {t.name for t in graph.tensors if t.role is not Role.ACTIVATION}
    for op in graph.ops:
        _check_members(graph, op)
        for member in (op, *op.members):
            if member.footprint is not None:
                check_footprint(member.footprint, member.name, member.inputs, member.outputs)
        for name in op.inputs:
            if name not in graph.tensor:
                raise InputError(f"operator '{op.name}' reads the tensor '{name}', which the graph does not describe")
            if name not in available:
                raise InputError(f"operator '{op.name}' reads the tensor '{name}' before any operator has written it")
        for name in op.outputs:
            if name not in graph.tensor:
                raise InputError(f"operator '{op.name}' writes the tensor '{name}', which the graph does not describe")
            if name in available:
                raise InputError(f"operator '{op.name}' writes the tensor '{name}', which is there already")
            available.add(name)
    for name in graph.outputs:
        if name not in available:
            raise InputError(f"the output '{name}' of graph '{graph.name}' is written by no operator")


def _check_members(graph: Graph, op: Op) -> None:
    """Check that the members of a fused operator compute its outputs from its inputs."""
    if not op.members:
        return
    known = set(op.inputs)
    for member in op.members:
        for name in (*member.inputs, *member.outputs):
            if name not in graph.tensor or (name in member.inputs and name not in known):
                raise InputError(
                    f"operator '{member.name}' in the fused operator '{op.name}' uses the tensor '{name}', which is "
                    "neither an input nor made by a member before it; fuse the network again"
                )
        known.update(member.outputs)
    if missing := set(op.outputs) - known:
        raise InputError(f"no member of the fused operator '{op.name}' writes '{min(missing)}'; fuse the network again")
