"""Splits: operators in parts, which compute shares of a result or terms of a sum, on several devices at once.

::

    up ──► gelu ──► down ──► y        up[0/2] ──► gelu[0/2] ──► down[0/2] ──► y           up by output features,
                                      up[1/2] ──► gelu[1/2] ──► down[1/2] ────┘           down by input features

Parts read slices of the model's own parameters. Where neighbours divide a tensor in the same way nothing stands between
them; else slices, concatenations and sums do. A tensor that is put together has its own name again.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd

from graphs.common.brief import Brief
from graphs.common.errors import InputError
from graphs.footprint import Footprint, Run
from graphs.ir import Attr, Graph, Op
from graphs.rewrites.experts import GROUPED_PRODUCTS, named_by_rows, part_by_part
from graphs.rewrites.layouts import BETWEEN, ExpertRows, Indices, Layout, LayoutWriter, Reader, Region, Slice
from graphs.rewrites.patterns import plain
from graphs.rewrites.sharding import REPLICATED, Range, Shard, Sharding, ranges, sharding_named, shares
from graphs.rewrites.sharding_rules import VIEWS, shardings

RESHAPE, MM = "aten.reshape.default", "aten.mm.default"
PART = re.compile(r"(.*)\[(\d+)/\d+\](?:\.\d+)?")  # a name by `part_name`, perhaps of one group of its filters
STRIDED = frozenset({"aten.view", "aten._unsafe_view"})  # kinds that need the strides of the trace


def part_name(name: str, part: int, parts: int) -> str:
    """Return the name of a part of an operator or tensor."""
    return f"{name}[{part}/{parts}]"


def undivided(name: str) -> str:
    """Return the name of the operator that one with this name is a part of; itself for others."""
    found = PART.fullmatch(name)
    return found[1] if found else name


def stands_between(op: Op) -> bool:
    """Return whether an operator of a split graph slices or puts together parts, by its kind and name."""
    written = op.kind in BETWEEN and (op.name,) == op.outputs
    return written and not part_number(op.name) and not {*"[@+ "}.isdisjoint(op.name)


def part_number(name: str) -> int | None:
    """Return the number of a part, by its name; None for an operator that is none."""
    found = PART.fullmatch(name)
    return int(found[2]) if found else None


@dataclass(frozen=True)
class Origin:
    """Where a new operator comes from."""

    op: str  # the operator of the network
    left_out: tuple[int, ...] = ()  # positions of its inputs that the new one does not read


@dataclass(frozen=True)
class SplitGraph(Brief):
    """A split graph, and how it follows from the network."""

    graph: Graph  # the new graph
    slices: Mapping[str, Slice]  # parameters and buffers that are parts of the network's, by name
    parts: Mapping[str, Origin]  # where operators come from, by name; slices, concatenations and sums come from none


@dataclass(frozen=True)
class Split:
    """The split of some operators."""

    choices: Mapping[str, tuple[str, int]]  # for each operator by name its sharding by name, and the number of parts
    shared: bool = False  # whether parts that read a whole parameter share it and a device, as training needs

    def __call__(self, graph: Graph) -> Graph:
        """Return the split graph.

        Raises:
            InputError: if an operator does not exist, or cannot be split this way or into this number of parts.
        """
        return self.applied(graph).graph

    def applied(self, graph: Graph) -> SplitGraph:
        """Return the split graph, with where it comes from; raises as `__call__`."""
        if not self.choices:
            raise InputError(f"a split of no operator changes nothing in '{graph.name}'; leave it out")
        if fused := next((op.name for op in graph.ops if op.members), ""):
            raise InputError(f"operator '{fused}' is fused; split the network before it is fused")
        chosen = {name: _chosen(graph, name, *choice) for name, choice in self.choices.items()}
        return _Splitting(graph, _aligned(graph, chosen), LayoutWriter(graph, self.shared)).result()


@dataclass(frozen=True)
class _Chosen:
    """A sharding, a number of parts, and the units that are divided together."""

    sharding: Sharding
    parts: int
    grain: int = 1

    @property
    def shares(self) -> tuple[Range, ...]:
        """[parts], in units."""
        if self.sharding.name == REPLICATED:
            return ((0, 1),) * self.parts
        divided = shares(self.sharding.units // self.grain, self.parts)
        return tuple((start * self.grain, stop * self.grain) for start, stop in divided)

    def region(self, shard: Shard | None, shape: Sequence[int], part: int) -> Region:
        """Return the region of a tensor that a part has; None for the whole tensor."""
        if shard is None:
            return None
        if shard.ends:
            return ExpertRows(shard.axis, shard.ends, *self.shares[part])
        return Indices(shard.axis, ranges(shard, shape[shard.axis], self.sharding.units, self.shares[part]))


def _chosen(graph: Graph, name: str, sharding: str, parts: int) -> _Chosen:
    if name not in graph.index:
        raise InputError(f"operator '{name}' is to be split, and '{graph.name}' has none; plan for this model")
    op = graph.ops[graph.index[name]]
    own = {one.name: one for one in shardings(graph, op)}
    if sharding not in own and not can_be_split(graph, op):
        raise InputError(f"operator '{name}' ({op.kind}) cannot be split; {nearest_split(graph, op)}")
    found = sharding_named(own, sharding) or named_by_rows(graph, op, own, sharding)
    if found is None:
        raise InputError(f"operator '{name}' ({op.kind}) cannot be split by {sharding}; it can by {', '.join(own)}")
    if not 2 <= parts <= found.units:
        raise InputError(
            f"operator '{name}' ({op.kind}) can be divided by {found.name} into 2 to {found.units} parts, not {parts}"
        )
    return _Chosen(found, parts)


def can_be_split(graph: Graph, op: Op) -> bool:
    """Return whether parts of an operator can compute less than all of it."""
    return any(one.name != REPLICATED for one in shardings(graph, op))


def nearest_split(graph: Graph, op: Op) -> str:
    """Return the operator nearest to another that can be split, in words."""
    at = graph.index[op.name]
    for other in sorted(graph.ops, key=lambda each: abs(graph.index[each.name] - at)):
        if own := [one.name for one in shardings(graph, other) if one.name != REPLICATED]:
            return f"the nearest that can be is '{other.name}' ({other.kind}), by {', '.join(own)}"
    return "no operator of this network can be"


def _aligned(graph: Graph, chosen: Mapping[str, _Chosen]) -> dict[str, _Chosen]:
    """Return the choices with borders at the same places wherever one operator divides a tensor as the next one does.

    So the output features before an attention are divided as its heads are.
    """
    group = {name: name for name in chosen}

    def root(name: str) -> str:
        while group[name] != name:
            name = group[name]
        return name

    for flow in graph.flows:
        writer = graph.ops[flow.writer]
        for reader in (graph.ops[number] for number in flow.readers):
            if {writer.name, reader.name} <= chosen.keys() and _meet(writer, reader, flow.tensor, chosen):
                group[root(reader.name)] = root(writer.name)
    units: dict[str, int] = {}
    for name, choice in chosen.items():
        units[root(name)] = gcd(units.get(root(name), 0), choice.sharding.units)
    return {
        name: replace(choice, grain=choice.sharding.units // units[root(name)])
        if units[root(name)] >= choice.parts
        else choice
        for name, choice in chosen.items()
    }


def _meet(writer: Op, reader: Op, tensor: str, chosen: Mapping[str, _Chosen]) -> bool:
    """Return whether two neighbours divide the tensor between them along the same loop."""
    one, other = chosen[writer.name], chosen[reader.name]
    written = one.sharding.outputs[writer.outputs.index(tensor)]
    read = other.sharding.inputs[reader.inputs.index(tensor)]
    return written is not None and written == read and one.parts == other.parts and other.sharding.halo is None


@dataclass
class _Splitting:
    """One pass over the operators of a graph."""

    graph: Graph
    chosen: Mapping[str, _Chosen]
    writer: LayoutWriter
    parts: dict[str, Origin] = field(default_factory=dict)
    part_of: dict[str, int] = field(default_factory=dict)  # parts by rows of experts, by name of the operator
    moved: set[str] = field(default_factory=set)  # tensors whose strides may not be those of the trace

    def result(self) -> SplitGraph:
        for op in self.graph.ops:
            self.writer.module = op.module
            if op.name in self.chosen:
                add = self._add_filters if _has_filters_in_groups(op, self.chosen[op.name]) else self._add_part
                for part in range(self.chosen[op.name].parts):
                    add(op, self.chosen[op.name], part)
                self._lay(op, self.chosen[op.name])
            else:
                self._add_whole(op)
        self.writer.module = ""
        for name in self.graph.outputs:
            self.writer.piece(name, None, Reader())
        used = {name for op in self.writer.ops for name in (*op.inputs, *op.outputs)}
        used.update(self.graph.inputs, self.graph.outputs)
        tensors = {tensor.name: tensor for tensor in self.graph.tensors} | self.writer.tensors
        kept = tuple(tensor for name, tensor in tensors.items() if name in used)
        graph = replace(self.graph, ops=tuple(part_by_part(self.writer.ops, self.part_of)), tensors=kept)
        return SplitGraph(graph, self.writer.slices, self.parts)

    def _add_whole(self, op: Op) -> None:
        """Add an operator as it is; its inputs are put together under the names that it knows."""
        for name in op.inputs:
            self.writer.piece(name, None, Reader())
        if any(name in self.moved for name in op.inputs):
            self.moved.update(op.outputs)
            if plain(op.kind) in STRIDED:
                op = replace(_as_reshape(op, self.graph.tensor[op.outputs[0]].shape), footprint=None)
        self.parts[op.name] = Origin(op.name)
        self.writer.ops.append(op)

    def _add_part(self, op: Op, choice: _Chosen, part: int) -> None:
        sharding, reader = choice.sharding, Reader(part, choice.parts)
        left_out = sharding.once if part else ()
        inputs = [self._read(op, choice, reader, number) for number in range(len(op.inputs)) if number not in left_out]
        outputs = tuple(_part_name(name, choice, part) for name in op.outputs)
        shapes = {
            new: region.shape(self.graph.tensor[name].shape) if region else self.graph.tensor[name].shape
            for new, name, region in zip(outputs, op.outputs, self._regions(op, choice, part), strict=True)
        }
        name = part_name(op.name, part, choice.parts)
        new = replace(op, name=name, inputs=tuple(inputs), outputs=outputs, footprint=None)
        first = shapes[outputs[0]]
        new = _changed(new, choice, part, first)
        self.parts[name] = Origin(op.name, left_out)
        self.part_of |= {name: part} if sharding.ends else {}
        self.writer.add(new, shapes, op.outputs)
        self.writer.ops[-1] = replace(new, footprint=_footprint(op, self.writer, new))

    def _add_filters(self, op: Op, choice: _Chosen, part: int) -> None:
        """Some filters of a convolution in groups: whole groups together, those of a divided group alone."""
        x, *weights = op.inputs
        groups, reader = op.attrs["groups"], Reader(part, choice.parts)
        assert isinstance(groups, int)
        (output,), (region,) = op.outputs, self._regions(op, choice, part)
        assert isinstance(region, Indices)
        shape, n_read = self.graph.tensor[output].shape, self.graph.tensor[x].shape[1] // groups
        segments = list(_filters(region.ranges, shape[1] // groups))
        name, written = part_name(op.name, part, choice.parts), _part_name(output, choice, part)
        names = [f"{written}.{number}" for number in range(len(segments))] if len(segments) > 1 else [written]
        for own, (filters, first, count) in zip(names, segments, strict=True):
            read = Indices(1, ((first * n_read, (first + count) * n_read),))
            inputs = [self.writer.piece(x, read, reader)]
            inputs += [self.writer.piece(weight, Indices(0, (filters,)), reader) for weight in weights]
            kernel = name if len(names) == 1 else own
            new = replace(op, name=kernel, inputs=tuple(inputs), outputs=(own,), attrs={**op.attrs, "groups": count})
            self.parts[kernel] = Origin(op.name)
            self.writer.add(new, {own: Indices(1, (filters,)).shape(shape)}, op.outputs)
            self.writer.ops[-1] = replace(new, footprint=_footprint(op, self.writer, new))
        self.writer.cat(written, names, 1)

    def _regions(self, op: Op, choice: _Chosen, part: int) -> Iterator[Region]:
        """Yield the region of each output that a part writes."""
        for name, shard in zip(op.outputs, choice.sharding.outputs, strict=True):
            yield choice.region(shard, self.graph.tensor[name].shape, part)

    def _read(self, op: Op, choice: _Chosen, reader: Reader, number: int) -> str:
        """Return the tensor that a part reads as one of its inputs."""
        name, shard, halo = op.inputs[number], choice.sharding.inputs[number], choice.sharding.halo
        shape = self.graph.tensor[name].shape
        if shard is None or halo is None or number:
            return self.writer.piece(name, choice.region(shard, shape, reader.part), reader)
        start, stop = halo.reach(choice.shares[reader.part])
        rows = max(start, 0), min(stop, shape[shard.axis])
        wanted, padding = Indices(shard.axis, (rows,)), (rows[0] - start, stop - rows[1])
        if not any(padding):
            return self.writer.piece(name, wanted, reader)
        return self.writer.padded(name, wanted, reader, padding, halo)

    def _lay(self, op: Op, choice: _Chosen) -> None:
        """Remember the layouts of an operator's outputs."""
        regions = [list(self._regions(op, choice, part)) for part in range(choice.parts)]
        for number, name in enumerate(op.outputs):
            names = tuple(_part_name(name, choice, part) for part in range(choice.parts))
            own = tuple(each[number] for each in regions)
            self.writer.layouts[name] = Layout(names, own, choice.sharding.summed)
            self.moved.add(name)


def _has_filters_in_groups(op: Op, choice: _Chosen) -> bool:
    """Return whether a convolution in groups is divided by its filters, which may divide groups."""
    weights = choice.sharding.inputs[1:]
    return "groups" in op.attrs and op.attrs["groups"] != 1 and choice.sharding.inputs[0] is None and any(weights)


def _filters(pieces: Sequence[Range], group: int) -> Iterator[tuple[Range, int, int]]:
    """Filters with the number of their first group and of their groups, of which only a single one may be divided."""
    for start, stop in pieces:
        at = start
        while at < stop:
            whole = (stop - at) // group if at % group == 0 else 0
            end = at + whole * group if whole else min(stop, at + group - at % group)
            yield (at, end), at // group, max(whole, 1)
            at = end


def _part_name(tensor: str, choice: _Chosen, part: int) -> str:
    """Return the name of a tensor that a part writes; the first of equal tensors keeps the name."""
    if not part and choice.sharding.name == REPLICATED:
        return tensor
    return part_name(tensor, part, choice.parts)


def _changed(op: Op, choice: _Chosen, part: int, shape: Sequence[int]) -> Op:
    """Return a part with the arguments for its share, which writes a tensor of this shape."""
    kind, sharding = plain(op.kind).removeprefix("aten."), choice.sharding
    start, stop = choice.shares[part]
    attrs: dict[str, Attr] = {}
    if plain(op.kind) in VIEWS:
        return _as_reshape(op, shape)
    if plain(op.kind) in GROUPED_PRODUCTS:
        return replace(op, kind=GROUPED_PRODUCTS[plain(op.kind)], attrs={"first": start})
    if kind == "addmm" and part and sharding.once:
        return replace(op, kind=MM, attrs={})
    if kind == "expand":
        attrs = {"size": tuple(shape)}
    elif (groups := _divided_groups(op, sharding)) is not None:
        name, runs = groups
        attrs = {name: (stop - start) * runs}
    elif kind in ("split", "split_with_sizes") and sharding.inputs[0] and sharding.inputs[0].runs > 1:
        extent = shape[sharding.inputs[0].axis]
        attrs = {"split_size": extent} if kind == "split" else {"split_sizes": (extent,) * len(op.outputs)}
    elif sharding.halo and "padding" in op.attrs:
        padding = op.attrs["padding"]
        attrs = {"padding": (0, padding[-1] if isinstance(padding, tuple) else padding)}
    return replace(op, attrs={**op.attrs, **attrs})


def _divided_groups(op: Op, sharding: Sharding) -> tuple[str, int] | None:
    """Return the argument with the groups of channels that a sharding divides, and the runs; None without one."""
    shard = sharding.inputs[0] if sharding.inputs else None
    for name in ("groups", "num_groups"):
        groups = op.attrs.get(name)
        if shard and shard.axis == 1 and isinstance(groups, int) and groups > 1:
            return name, shard.runs
    return None


def _as_reshape(op: Op, shape: Sequence[int]) -> Op:
    return replace(op, kind=RESHAPE, attrs={"shape": tuple(shape)})


def _footprint(op: Op, writer: LayoutWriter, part: Op) -> Footprint | None:
    """Return the memory of a part, with all of the temporary memory; None for views: kinds say what they share."""
    if op.footprint is None or not all(isinstance(each, int) for each in op.footprint.inference.writes):
        return None
    n_bytes = tuple(writer.tensors[name].n_bytes for name in part.outputs)
    return Footprint(Run(n_bytes, op.footprint.inference.extra_bytes))
