"""The split that puts the experts of a mixture apart, so that each part can be where its weights fit."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from graphs.ir import STATE, Graph, Op, Role
from graphs.operator_kinds import plain
from graphs.rewrites.experts import EXPERTS
from graphs.rewrites.network_shardings import network_shardings
from graphs.rewrites.sharding import Shard, Sharding
from graphs.rewrites.split import Split


def experts_apart(graph: Graph, parts: int, known: Mapping[str, Sequence[Sharding]] | None = None) -> Split | None:
    """Return the split of all products of experts, of what lies between two of them, and of views of their weights.

    Args:
        graph: the network as it was imported.
        parts: of each mixture; one with fewer experts has a part for each.
        known: the shardings of operators by name, by default all.

    Returns:
        None if the network has no experts that can be divided.
    """
    known = network_shardings(graph) if known is None else known
    products = {op.name: found for op in graph.ops if (found := _by_experts(graph, op, known)) is not None}
    mixtures: dict[str, list[str]] = {}
    for name, sharding in products.items():
        mixtures.setdefault(sharding.ends or graph.ops[graph.index[name]].module, []).append(name)
    chosen = dict(products)
    for names in mixtures.values():
        own = [graph.ops[graph.index[name]] for name in names]
        chosen |= (pair for op in own for pair in _views(graph, known, op.inputs[1]))
        chosen |= _between(graph, known, own, products[names[0]].outputs[0])
    choices = {
        op.name: (chosen[op.name].name, min(parts, chosen[op.name].units)) for op in graph.ops if op.name in chosen
    }
    return Split(choices) if choices else None


def _by_experts(graph: Graph, op: Op, known: Mapping[str, Sequence[Sharding]]) -> Sharding | None:
    """Return the sharding of a product that divides its weight along the experts; None for other operators.

    The rows are sorted by expert, or all experts have as many, as in a product of batches.
    """
    for one in known[op.name]:
        if one.name == EXPERTS:
            return one
        if plain(op.kind) == "aten.bmm" and one.inputs[1] == one.outputs[0] == Shard(0):
            *views, (weight, _) = [(op.inputs[1], None), *_views(graph, known, op.inputs[1])]
            root = graph.ops[graph.index[weight]].inputs[0] if views else weight
            return one if graph.tensor[root].role is Role.PARAMETER else None
    return None


def _views(graph: Graph, known: Mapping[str, Sequence[Sharding]], weight: str) -> Iterator[tuple[str, Sharding]]:
    """Yield what makes a weight of parameters and buffers, divided along its experts."""
    while graph.tensor[weight].role not in STATE and weight in graph.writer:
        op = graph.ops[graph.writer[weight]]
        own = (one for one in known[op.name] if one.outputs[op.outputs.index(weight)] == one.inputs[0] == Shard(0))
        found = next(own, None)
        if found is None:
            return
        yield op.name, found
        weight = op.inputs[0]


def _between(
    graph: Graph, known: Mapping[str, Sequence[Sharding]], own: Sequence[Op], shard: Shard | None
) -> Iterator[tuple[str, Sharding]]:
    """Yield the operators that divide their result as a product does which leads to them, and lead to another one."""
    products = {op.name for op in own}
    after = _reached(((op.name, op.inputs, op.outputs) for op in graph.ops), {op.outputs[0] for op in own})
    before = _reached(((op.name, op.outputs, op.inputs) for op in reversed(graph.ops)), {op.inputs[0] for op in own})
    for op in graph.ops:
        rows = (one for one in known[op.name] if shard in one.outputs)
        if op.name in after & before and op.name not in products and (found := next(rows, None)):
            yield op.name, found


def _reached(ops: Iterable[tuple[str, Sequence[str], Sequence[str]]], tensors: set[str]) -> set[str]:
    """Return the names of the operators, each with the tensors that lead to it and from it, that tensors lead to."""
    found = set()
    for name, to, onward in ops:
        if not tensors.isdisjoint(to):
            found.add(name)
            tensors = tensors.union(onward)
    return found
