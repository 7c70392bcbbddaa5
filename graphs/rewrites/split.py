"""Splits: operators in parts, which compute shares of a result or terms of a sum, on several devices at once.

::

    up ──► gelu ──► down ──► y        up[0/2] ──► gelu[0/2] ──► down[0/2] ──► y           up by output features,
                                      up[1/2] ──► gelu[1/2] ──► down[1/2] ────┘           down by input features

Parts read slices of the model's own parameters. Where neighbours divide a tensor in the same way nothing stands between
them; else slices, concatenations and sums do. A tensor that is put together has its own name again. A cache that all
operators divide alike becomes several caches.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from graphs.common.brief import Brief
from graphs.common.errors import InputError
from graphs.footprint import Footprint, Run
from graphs.ir import Attr, Graph, Op, Role, Tensor
from graphs.operator_kinds import plain
from graphs.rewrites.cache_shardings import caches_with_users
from graphs.rewrites.choices import ChosenSharding, chosen_sharding, parts_of_cache, with_common_borders
from graphs.rewrites.experts import GROUPED_PRODUCTS, part_by_part
from graphs.rewrites.layouts import BETWEEN, Indices, Layout, LayoutWriter, Reader, Region, Slice
from graphs.rewrites.sharding import REPLICATED, Range, Sharding
from graphs.rewrites.sharding_rules import VIEWS

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
    caches: Mapping[str, Layout] = field(default_factory=dict)  # divided caches of the network, and their successors


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
        chosen = {name: chosen_sharding(graph, name, *choice) for name, choice in self.choices.items()}
        return _Splitting(graph, with_common_borders(graph, chosen), LayoutWriter(graph, self.shared)).result()


@dataclass
class _Splitting:
    """One pass over the operators of a graph."""

    graph: Graph
    chosen: Mapping[str, ChosenSharding]
    writer: LayoutWriter
    parts: dict[str, Origin] = field(default_factory=dict)
    part_of: dict[str, int] = field(default_factory=dict)  # parts by rows of experts, by name of the operator
    moved: set[str] = field(default_factory=set)  # tensors whose strides may not be those of the trace

    def result(self) -> SplitGraph:
        divided = dict(self._divided_caches())
        self.writer.layouts.update(divided)
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
        divided |= {after: self.writer.layouts[after] for cache, after in self.graph.caches if cache in divided}

        def held(name: str) -> tuple[str, ...]:
            return divided[name].names if name in divided else (name,)

        for name in self.graph.outputs:
            if name not in divided:
                self.writer.piece(name, None, Reader())
        inputs, outputs = (
            tuple(chain.from_iterable(map(held, each))) for each in (self.graph.inputs, self.graph.outputs)
        )
        caches = tuple(
            chain.from_iterable(zip(held(one), held(after), strict=True) for one, after in self.graph.caches)
        )
        used = {name for op in self.writer.ops for name in (*op.inputs, *op.outputs)}
        used.update(inputs, outputs)
        tensors = {tensor.name: tensor for tensor in self.graph.tensors} | self.writer.tensors
        kept = tuple(tensor for name, tensor in tensors.items() if name in used)
        ops = tuple(part_by_part(self.writer.ops, self.part_of))
        graph = Graph(self.graph.name, ops, kept, inputs, outputs, caches)
        return SplitGraph(graph, self.writer.slices, self.parts, divided)

    def _divided_caches(self) -> Iterator[tuple[str, Layout]]:
        """Yield the caches that all their users divide alike, with their parts, and describe these."""
        for pair, ops in caches_with_users(self.graph).items():
            whole, regions = self.graph.tensor[pair[0]], parts_of_cache(self.graph, pair, ops, self.chosen)
            names = tuple(part_name(whole.name, part, len(regions)) for part in range(len(regions)))
            for name, region in zip(names, regions, strict=True):
                self.writer.tensors[name] = Tensor(name, region.shape(whole.shape), whole.dtype, Role.CACHE)
            if regions:
                yield whole.name, Layout(names, regions)

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

    def _add_part(self, op: Op, choice: ChosenSharding, part: int) -> None:
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

    def _add_filters(self, op: Op, choice: ChosenSharding, part: int) -> None:
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

    def _regions(self, op: Op, choice: ChosenSharding, part: int) -> Iterator[Region]:
        """Yield the region of each output that a part writes."""
        for name, shard in zip(op.outputs, choice.sharding.outputs, strict=True):
            yield choice.region(shard, self.graph.tensor[name].shape, part)

    def _read(self, op: Op, choice: ChosenSharding, reader: Reader, number: int) -> str:
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

    def _lay(self, op: Op, choice: ChosenSharding) -> None:
        """Remember the layouts of an operator's outputs."""
        regions = [list(self._regions(op, choice, part)) for part in range(choice.parts)]
        for number, name in enumerate(op.outputs):
            names = tuple(_part_name(name, choice, part) for part in range(choice.parts))
            own = tuple(each[number] for each in regions)
            self.writer.layouts[name] = Layout(names, own, choice.sharding.summed)
            self.moved.add(name)


def _has_filters_in_groups(op: Op, choice: ChosenSharding) -> bool:
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


def _part_name(tensor: str, choice: ChosenSharding, part: int) -> str:
    """Return the name of a tensor that a part writes; the first of equal tensors keeps the name."""
    if not part and choice.sharding.name == REPLICATED:
        return tensor
    return part_name(tensor, part, choice.parts)


def _changed(op: Op, choice: ChosenSharding, part: int, shape: Sequence[int]) -> Op:
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
