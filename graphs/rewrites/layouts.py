"""Layouts of tensors in a graph that is being split, and the operators that make one layout of another.

::

    divided   [0:2] [2:4]  ──cat──────────►  [0:4]                an all-gather, if each part makes its own
    terms     a    +    b  ──add──────────►  a + b                an all-reduce
    terms     a    +    b  ──slice, add───►  (a + b)[0:2]         a reduce-scatter
    divided   rows         ──slice, cat───►  columns              an all-to-all
    parameter              ──────────────►   parameter[0:2]       a slice of the model's own
    rows of experts        ──rows, add───►   all rows             an all-reduce of what each expert has, zero elsewhere
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from graphs.ir import STATE, Attr, Graph, Op, Role, Tensor
from graphs.rewrites.experts import EXPERTS_ROWS
from graphs.rewrites.sharding import Halo, Range

SLICE, CAT, ADD, PAD = "aten.slice.Tensor", "aten.cat.default", "aten.add.Tensor", "aten.pad.default"
BETWEEN = frozenset({SLICE, CAT, ADD, PAD, EXPERTS_ROWS})
"""The kinds of operators that make one layout of another."""


class Indices(NamedTuple):
    """Some indices along one axis of a tensor."""

    axis: int
    ranges: tuple[Range, ...]

    @property
    def extent(self) -> int:
        """How many indices."""
        return sum(stop - start for start, stop in self.ranges)

    @property
    def text(self) -> str:
        """As numpy writes it: "[:, 0:48]"."""
        return f"[{':, ' * self.axis}{','.join(f'{start}:{stop}' for start, stop in self.ranges)}]"

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the region of a tensor."""
        return (*whole[: self.axis], self.extent, *whole[self.axis + 1 :])


class ExpertRows(NamedTuple):
    """The rows of some experts, in a tensor with the rows of all."""

    axis: int
    ends: str  # the tensor with the end of each expert's rows
    first: int
    last: int  # the expert after the last one

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the tensor, which has all rows."""
        return tuple(whole)


Wanted: TypeAlias = Indices | None
"""The part of a tensor that a reader needs; None for the whole."""

Region: TypeAlias = Indices | ExpertRows | None
"""The part of a tensor that a part of an operator reads or writes; None for the whole."""


class Reader(NamedTuple):
    """The reader of a tensor: one of the parts of an operator, or a whole operator."""

    part: int = 0
    parts: int = 1

    @property
    def suffix(self) -> str:
        """End of the names of tensors that are made for one part only."""
        return f"@{self.part}/{self.parts}" if self.parts > 1 else ""


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in the graph."""

    names: tuple[str, ...]  # the tensors of the parts
    regions: tuple[Region, ...]  # what each part holds; None for the whole
    summed: bool = False  # whether the parts are terms of a sum

    @property
    def indices(self) -> tuple[Indices, ...]:
        """The regions of a tensor that has fixed parts alone, such as a cache."""
        return tuple(region for region in self.regions if isinstance(region, Indices))


class Slice(NamedTuple):
    """A parameter or buffer that is a part of one of the model's own."""

    source: str
    region: Wanted  # None for a second holder of the whole


@dataclass
class LayoutWriter:
    """Writes the operators of a new graph, in their order, and remembers how each tensor of the old one lies."""

    old: Graph  # the graph before
    shared: bool  # whether parts that read a whole parameter read the same one, so that they share a device
    ops: list[Op] = field(default_factory=list)  # the new operators
    tensors: dict[str, Tensor] = field(default_factory=dict)  # new tensors that they read and write, by name
    slices: dict[str, Slice] = field(default_factory=dict)  # the new parameters and buffers
    layouts: dict[str, Layout] = field(default_factory=dict)  # the layouts of tensors that are not whole
    written: set[str] = field(default_factory=set)
    module: str = ""  # of the operator that is being written, and so of the operators that put together its inputs

    def tensor(self, name: str) -> Tensor:
        """Return a tensor of the new graph."""
        return self.tensors.get(name) or self.old.tensor[name]

    def add(self, op: Op, shapes: Mapping[str, Sequence[int]], like: Sequence[str]) -> None:
        """Write an operator whose outputs have these shapes, and the dtypes of the tensors that they are ``like``."""
        for name, source in zip(op.outputs, like, strict=True):
            self.tensors[name] = Tensor(name, tuple(shapes[name]), self.tensor(source).dtype, Role.ACTIVATION)
        self.ops.append(op)
        self.written.update(op.outputs)

    def piece(self, name: str, wanted: Region, reader: Reader) -> str:
        """Return the name of a tensor that holds the wanted part of another; write it if there is none."""
        if isinstance(wanted, ExpertRows):
            held = (
                dict(zip(self.layouts[name].regions, self.layouts[name].names, strict=True))
                if name in self.layouts
                else {}
            )
            if wanted in held:
                return held[wanted]
            wanted = None
        pieces, axis = self._pieces(name, wanted, reader)
        return self.cat(self._named(name, wanted, reader), pieces, axis)

    def _named(self, name: str, wanted: Wanted, reader: Reader) -> str:
        """Return the name of the tensor that is put together for a reader; the whole tensor keeps its name."""
        wanted = self._unless_whole(name, wanted)
        return f"{name}{wanted.text if wanted else ''}{reader.suffix}"

    def _unless_whole(self, name: str, wanted: Wanted) -> Wanted:
        """Return the wanted part of a tensor; None if it is the whole tensor."""
        extent = self.old.tensor[name].shape[wanted.axis] if wanted else 0
        return None if wanted and wanted.ranges == ((0, extent),) else wanted

    def _pieces(self, name: str, wanted: Wanted, reader: Reader) -> tuple[list[str], int]:
        """Tensors that make up the wanted part of another one along an axis."""
        whole = self.old.tensor[name]
        wanted = self._unless_whole(name, wanted)
        if whole.role in STATE:
            return [self._held(whole, wanted, reader)], 0
        layout = self.layouts.get(name, Layout((name,), (None,)))
        own = reader.part if len(layout.names) == reader.parts else 0
        region = layout.regions[own]
        if layout.summed or isinstance(region, ExpertRows):
            held = [self._own_rows(*pair) for pair in zip(layout.names, layout.regions, strict=True)]
            terms = [self._sliced(term, wanted) for term in held]
            return [self._sum(self._named(name, wanted, reader), terms)], 0
        if region is None:
            return [self._sliced(layout.names[own], wanted)], 0
        along = wanted.ranges if wanted and wanted.axis == region.axis else ((0, whole.shape[region.axis]),)
        rest = None if wanted and wanted.axis == region.axis else wanted
        held = [
            self._sliced(layout.names[part], Indices(region.axis, local))
            for part, local in _cover(layout.regions, along, own)
        ]
        return [self._sliced(each, rest) for each in held], region.axis

    def padded(self, name: str, wanted: Indices, reader: Reader, padding: Range, halo: Halo) -> str:
        """Rows of an image, with rows of a constant above and below them."""
        piece = self.piece(name, wanted, reader)
        result = f"{name}{wanted.text} padded {padding[0]}, {padding[1]} with {halo.fill:g}{reader.suffix}"
        value: Attr = halo.fill if abs(halo.fill) < float("inf") else str(halo.fill)
        shape = self.tensor(piece).shape
        attrs: dict[str, Attr] = {"pad": (0, 0, *padding), "mode": "constant", "value": value}
        self._add(Op(result, PAD, (piece,), (result,), attrs=attrs), (*shape[:2], shape[2] + sum(padding), shape[3]))
        return result

    def _held(self, whole: Tensor, wanted: Wanted, reader: Reader) -> str:
        name = f"{whole.name}{wanted.text}" if wanted else whole.name
        if not wanted and (self.shared or whole.role is Role.BUFFER or not reader.part):
            return name
        name = name if wanted else f"{name}{reader.suffix}"
        shape = wanted.shape(whole.shape) if wanted else whole.shape
        self.tensors[name] = Tensor(name, shape, whole.dtype, whole.role)
        self.slices[name] = Slice(whole.name, wanted)
        return name

    def _sliced(self, name: str, wanted: Wanted) -> str:
        shape = self.tensor(name).shape
        if wanted is None or wanted.ranges == ((0, shape[wanted.axis]),):
            return name
        names = []
        for start, stop in wanted.ranges:
            region = Indices(wanted.axis, ((start, stop),))
            names.append(f"{name}{region.text}")
            attrs: dict[str, Attr] = {"dim": wanted.axis, "start": start, "end": stop}
            self._add(Op(names[-1], SLICE, (name,), (names[-1],), attrs=attrs), region.shape(shape))
        return self.cat(f"{name}{wanted.text}", names, wanted.axis)

    def cat(self, name: str, names: Sequence[str], axis: int) -> str:
        """Return the name of the tensors put together along an axis; one alone keeps its own."""
        if len(names) == 1:
            return names[0]
        first, *others = (self.tensor(each).shape for each in names)
        extent = first[axis] + sum(shape[axis] for shape in others)
        self._add(
            Op(name, CAT, tuple(names), (name,), attrs={"dim": axis}), (*first[:axis], extent, *first[axis + 1 :])
        )
        return name

    def _own_rows(self, name: str, region: Region) -> str:
        """Return the name of a tensor whose rows of other experts are zero; of itself if it has no such rows."""
        if not isinstance(region, ExpertRows):
            return name
        result = f"{name} + rows of {region.first}:{region.last}"
        attrs: dict[str, Attr] = {"dim": region.axis, "first": region.first, "last": region.last}
        ends = self.piece(region.ends, None, Reader())
        self._add(Op(result, EXPERTS_ROWS, (name, ends), (result,), attrs=attrs), self.tensor(name).shape)
        return result

    def _sum(self, name: str, terms: Sequence[str]) -> str:
        total = terms[0]
        for number, term in enumerate(terms[1:], 2):
            result = name if number == len(terms) else f"{name}+{number}"
            self._add(Op(result, ADD, (total, term), (result,)), self.tensor(term).shape)
            total = result
        return total

    def _add(self, op: Op, shape: Sequence[int]) -> None:
        """Write an operator unless it is there."""
        if op.outputs[0] not in self.written:
            self.add(replace(op, module=self.module), {op.outputs[0]: shape}, op.inputs[:1])


def _cover(regions: Sequence[Region], wanted: Sequence[Range], own: int) -> Iterator[tuple[int, tuple[Range, ...]]]:
    """Yield the parts that hold the wanted indices, in their order, with what to take of each by its own count.

    Where several parts hold the same, the reader's ``own`` part comes first.
    """
    order = [own, *(part for part in range(len(regions)) if part != own)]
    found: list[tuple[int, list[Range]]] = []
    for start, stop in wanted:
        at = start
        while at < stop:
            part, local, left = next(
                (part, *place) for part in order if (place := _place(regions[part], at)) is not None
            )
            n = min(left, stop - at)
            if found and found[-1][0] == part and found[-1][1][-1][1] == local:
                found[-1][1][-1] = (found[-1][1][-1][0], local + n)
            elif found and found[-1][0] == part:
                found[-1][1].append((local, local + n))
            else:
                found.append((part, [(local, local + n)]))
            at += n
    yield from ((part, tuple(local)) for part, local in found)


def _place(region: Region, index: int) -> tuple[int, int] | None:
    """Where a part holds an index by its own count, and how many follow; None if it does not."""
    before = 0
    for start, stop in region.ranges if isinstance(region, Indices) else ():
        if start <= index < stop:
            return before + index - start, stop - index
        before += stop - start
    return None
