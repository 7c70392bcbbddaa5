"""Caches of a network that generates: who writes them, who reads them, and which are written in place.

::

    cache ──► index_put ──► after ──► attention        in place: the cache has no other reader, so its successor may
               ▲                 └──► (next call)      be written over it; the functional graph says the same
              new keys

An encoder writes keys and values that the decoder only reads. A pass runs one of the two, so both ends of such a cache
are apart in the graph::

    source ──► encoder ──► index_put ──► after ──► (next call)
                               ▲
                             cache ──► attention of the decoder
"""

from collections.abc import Iterable, Iterator, Mapping

from graphs.ir import Graph

WRITERS: Mapping[str, str] = {
    f"aten.{name}": f"aten.{name.replace('.', '_.', 1)}"
    for name in (
        "index_put.default",
        "index_copy.default",
        "scatter.src",
        "index_add.default",
        "masked_scatter.default",
    )
}
"""Kinds of operators that return their first argument with some elements replaced, and the same in place."""


def in_place(graph: Graph) -> dict[str, tuple[str, str]]:
    """Return the operators that can write a cache in place, each with the cache and its successor.

    The operator is the cache's only reader of the passes that run it, so nothing can read the old value after it.
    """
    once = encoded(graph)
    return {
        graph.ops[writer].name: (cache, after)
        for cache, after, writer, others in _written(graph)
        if not others or cache in once
    }


def encoded(graph: Graph) -> frozenset[str]:
    """Return the caches that an encoder writes once for a sequence: nothing leads both to their writers and readers."""
    apart = [(cache, writer, others) for cache, after, writer, others in _written(graph) if others]
    encoder = _leading_to(graph, (writer for _, writer, _ in apart))
    return frozenset(cache for cache, _, others in apart if encoder.isdisjoint(_leading_to(graph, others)))


def ops_of_pass(graph: Graph, tokens: int) -> frozenset[int]:
    """Return the operators that a pass over some tokens runs: the encoder for a pass over none, otherwise the rest.

    A network without an encoder runs as a whole.
    """
    once = encoded(graph)
    if not once:
        return frozenset(range(len(graph.ops)))
    writers = [graph.writer[after] for cache, after in graph.caches if cache in once]
    encoder = _leading_to(graph, writers)
    if tokens == 0:
        return encoder
    results = {*graph.outputs}.difference(after for cache, after in graph.caches if cache in once)
    decoder = _leading_to(graph, (graph.writer[name] for name in results if name in graph.writer))
    return frozenset(range(len(graph.ops))) - encoder | decoder


def _written(graph: Graph) -> Iterator[tuple[str, str, int, frozenset[int]]]:
    """Yield caches with their successors, the operators that write these over them, and other readers of the caches."""
    readers: dict[str, set[int]] = {}
    for number, op in enumerate(graph.ops):
        for name in op.inputs:
            readers.setdefault(name, set()).add(number)
    for cache, after in graph.caches:
        if after in graph.writer:
            writer = graph.writer[after]
            op = graph.ops[writer]
            if op.kind in WRITERS and op.inputs[0] == cache and cache not in op.inputs[1:]:
                yield cache, after, writer, frozenset(readers[cache] - {writer})


def _leading_to(graph: Graph, ops: Iterable[int]) -> frozenset[int]:
    """Return some operators and all that lead to them."""
    found, left = set[int](), [*ops]
    while left:
        number = left.pop()
        if number not in found:
            found.add(number)
            left += [graph.writer[name] for name in graph.ops[number].inputs if name in graph.writer]
    return frozenset(found)


def users(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """Return for each cache the operators on its device: its readers, and the writer and readers of its successor."""
    numbers: dict[str, set[int]] = {}
    for number, op in enumerate(graph.ops):
        for name in (*op.inputs, *op.outputs):
            numbers.setdefault(name, set()).add(number)
    return tuple(tuple(sorted(numbers.get(cache, set()) | numbers.get(after, set()))) for cache, after in graph.caches)
