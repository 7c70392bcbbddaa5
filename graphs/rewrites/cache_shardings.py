"""Caches in parts: an operator that uses a cache divides it as all others that do, or uses the whole of it.

::

    keys [rows, 0:2 of 4 heads, positions, width] ──► index_put[0/2] ──► attention[0/2]        on one device
    keys [rows, 2:4 of 4 heads, positions, width] ──► index_put[1/2] ──► attention[1/2]        on another one
"""

from collections.abc import Mapping
from typing import TypeAlias

from graphs.caches import users
from graphs.ir import Graph, Op
from graphs.rewrites.sharding import Shard, Sharding

Cache: TypeAlias = tuple[str, str]
"""A cache and its successor."""


def caches_with_users(graph: Graph) -> Mapping[Cache, tuple[Op, ...]]:
    """Return the operators that use each cache, in their order."""
    numbers = zip(graph.caches, users(graph), strict=True)
    return {cache: tuple(graph.ops[number] for number in each) for cache, each in numbers}


def shard_of_cache(op: Op, sharding: Sharding | None, cache: Cache) -> Shard | None:
    """Return where an operator that uses a cache divides it; None if it uses the whole, or divides it in two ways."""
    if sharding is None:
        return None
    ends = (*zip(op.inputs, sharding.inputs, strict=True), *zip(op.outputs, sharding.outputs, strict=True))
    found = {shard for name, shard in ends if name in cache}
    return found.pop() if len(found) == 1 else None
