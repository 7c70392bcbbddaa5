"""The shardings of all operators of a network, among them those that neighbours need to divide a tensor as one does."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from graphs.ir import Graph, Op
from graphs.rewrites.cache_shardings import Cache, caches_with_users, shard_of_cache
from graphs.rewrites.experts import by_rows
from graphs.rewrites.sharding import REPLICATED, Shard, Sharding
from graphs.rewrites.sharding_rules import shardings


def network_shardings(graph: Graph) -> Mapping[str, tuple[Sharding, ...]]:
    """Return the shardings of all operators by name, with those in runs that match a neighbour's.

    Operators that use a cache have none: its caller holds the whole of it.
    """
    cached = {op.name for ops in caches_with_users(graph).values() for op in ops}
    return MappingProxyType({name: () if name in cached else each for name, each in _shardings(graph).items()})


def _shardings(graph: Graph) -> dict[str, tuple[Sharding, ...]]:
    """Return the shardings of all operators, whatever they use."""
    found = {op.name: list(shardings(graph, op)) for op in graph.ops}
    near: dict[str, set[str]] = {op.name: set() for op in graph.ops}
    for flow in graph.flows:
        for reader in flow.readers:
            near[graph.ops[flow.writer].name].add(graph.ops[reader].name)
            near[graph.ops[reader].name].add(graph.ops[flow.writer].name)
    left = deque(found)
    while left:
        name = left.popleft()
        op = graph.ops[graph.index[name]]
        wanted = [_at(graph.ops[graph.index[other]], found[other]) for other in near[name]]
        known = {_everywhere(one): one for one in found[name]}
        before = len(known)
        for one in (one for shards in wanted for one in _matching(graph, op, found[name], shards)):
            known.setdefault(_everywhere(one), one)
        if len(known) > before:
            found[name] = sorted(known.values(), key=lambda one: one.name == REPLICATED)
            left.extend(near[name])
    return {name: tuple(each) for name, each in found.items()}


def phase_shardings(graphs: Sequence[Graph]) -> Mapping[str, tuple[Sharding, ...]]:
    """Return the shardings of a language model's operators that its phases have alike, by name.

    They divide no axis of tokens, which has other lengths in other phases, and operators that use a cache divide it.
    """
    first, *others = [_shardings(graph) for graph in graphs]
    caches: dict[str, list[Cache]] = {}
    for cache, ops in caches_with_users(graphs[0]).items():
        for op in ops:
            caches.setdefault(op.name, []).append(cache)

    def alike(op: Op, one: Sharding) -> bool:
        divided = [(shard.ends, 0) if shard.ends else (name, shard.axis) for name, shard in _at(op, [one])]
        lengths = {tuple(graph.tensor[name].shape[axis] for name, axis in divided) for graph in graphs}
        divides = all(shard_of_cache(op, one, cache) for cache in caches.get(op.name, ()))
        return divides and len(lengths) == 1 and all(one in other[op.name] for other in others)

    return MappingProxyType({op.name: tuple(o for o in first[op.name] if alike(op, o)) for op in graphs[0].ops})


def _everywhere(one: Sharding) -> tuple[object, ...]:
    return one.inputs, one.outputs, one.summed, one.halo


def _at(op: Op, each: Sequence[Sharding]) -> set[tuple[str, Shard]]:
    """Return the tensors with the shards at which some shardings divide them."""
    sides = [(op.inputs, one.inputs) for one in each] + [(op.outputs, one.outputs) for one in each]
    return {(name, shard) for names, shards in sides for name, shard in zip(names, shards, strict=True) if shard}


def _matching(graph: Graph, op: Op, own: Sequence[Sharding], wanted: set[tuple[str, Shard]]) -> Iterator[Sharding]:
    """Yield the shardings of an operator, in runs or by rows of experts, that divide a tensor as a neighbour does."""
    for one in own:
        for tensor, shard in _at(op, [one]):
            for runs, ends in [
                (near.runs, near.ends) for name, near in wanted if (name, near.axis) == (tensor, shard.axis)
            ]:
                if ends and (rows := by_rows(graph, op, one, ends)) is not None:
                    yield rows
                elif not ends and runs % shard.runs == 0 and one.refines(runs // shard.runs):
                    yield one.refined(runs // shard.runs)
