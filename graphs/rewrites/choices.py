"""Choices: the sharding of each operator that is to be split, with borders where those of its neighbours are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

from graphs.common.errors import InputError
from graphs.ir import Graph, Op
from graphs.rewrites.cache_shardings import Cache, caches_with_users, shard_of_cache
from graphs.rewrites.experts import named_by_rows
from graphs.rewrites.layouts import ExpertRows, Indices, Region
from graphs.rewrites.sharding import REPLICATED, Range, Shard, Sharding, ranges, sharding_named, shares
from graphs.rewrites.sharding_rules import shardings


@dataclass(frozen=True)
class ChosenSharding:
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


def chosen_sharding(graph: Graph, name: str, sharding: str, parts: int) -> ChosenSharding:
    """Return the choice of an operator by names; raise InputError if the operator does not exist or divide so."""
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
    return ChosenSharding(found, parts)


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


def with_common_borders(graph: Graph, chosen: Mapping[str, ChosenSharding]) -> dict[str, ChosenSharding]:
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
    for cache, ops in caches_with_users(graph).items():
        if _divide_alike(cache, ops, chosen):
            group.update({root(op.name): root(ops[0].name) for op in ops})
    units: dict[str, int] = {}
    for name, choice in chosen.items():
        units[root(name)] = gcd(units.get(root(name), 0), choice.sharding.units)
    return {
        name: replace(choice, grain=choice.sharding.units // units[root(name)])
        if units[root(name)] >= choice.parts
        else choice
        for name, choice in chosen.items()
    }


def _meet(writer: Op, reader: Op, tensor: str, chosen: Mapping[str, ChosenSharding]) -> bool:
    """Return whether two neighbours divide the tensor between them along the same loop."""
    one, other = chosen[writer.name], chosen[reader.name]
    written = one.sharding.outputs[writer.outputs.index(tensor)]
    read = other.sharding.inputs[reader.inputs.index(tensor)]
    return written is not None and written == read and one.parts == other.parts and other.sharding.halo is None


def _divide_alike(cache: Cache, ops: Sequence[Op], chosen: Mapping[str, ChosenSharding]) -> bool:
    """Return whether all operators that use a cache divide it along the same loop, and one of them writes it anew."""
    ways = set()
    for op in ops:
        choice = chosen.get(op.name)
        shard = shard_of_cache(op, choice.sharding, cache) if choice else None
        ways.add((choice.parts, shard) if choice and shard else None)
    return len(ways) == 1 and None not in ways and any(cache[1] in op.outputs for op in ops)


def parts_of_cache(
    graph: Graph, cache: Cache, ops: Sequence[Op], chosen: Mapping[str, ChosenSharding]
) -> tuple[Indices, ...]:
    """Return the regions of a cache that the parts of all its operators use alike; none if it stays whole."""
    if not _divide_alike(cache, ops, chosen):
        return ()
    layouts, shape = set(), graph.tensor[cache[0]].shape
    for op in ops:
        choice = chosen[op.name]
        shard = shard_of_cache(op, choice.sharding, cache)
        found = (choice.region(shard, shape, part) for part in range(choice.parts))
        layouts.add(tuple(region for region in found if isinstance(region, Indices)))
    regions = layouts.pop()
    return () if layouts else regions  # borders at different places where they cannot be aligned
