"""Caches of a network that generates: who writes them, who reads them, and which are written in place.

::

    cache ──► index_put ──► after ──► attention        in place: the cache has no other reader, so its successor may
               ▲                 └──► (next call)      be written over it; the functional graph says the same
              new keys
"""

from collections.abc import Mapping

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

    The operator is the cache's only reader, so nothing can read the old value after it.
    """
    readers: dict[str, list[str]] = {}
    for op in graph.ops:
        for name in op.inputs:
            readers.setdefault(name, []).append(op.name)
    found = {}
    for cache, after in graph.caches:
        if after in graph.writer:
            writer = graph.ops[graph.writer[after]]
            if writer.kind in WRITERS and writer.inputs[0] == cache and readers[cache] == [writer.name]:
                found[writer.name] = (cache, after)
    return found


def users(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """Return for each cache the operators on its device: its readers, and the writer and readers of its successor."""
    numbers: dict[str, set[int]] = {}
    for number, op in enumerate(graph.ops):
        for name in (*op.inputs, *op.outputs):
            numbers.setdefault(name, set()).add(number)
    return tuple(tuple(sorted(numbers.get(cache, set()) | numbers.get(after, set()))) for cache, after in graph.caches)
