"""Experts of a mixture apart: the rows of a tensor that is sorted by expert are divided where the experts' rows end.

::

    rows a a a b b c c c c  ──► product with W[a], W[b], W[c] ──► bias, gate ──► product ──► ...      all experts: units
    ends 3, 5, 9                W[a]  on one device:  rows of a  ──────────────► rows of a
                                W[b:] on another one: rows of b and c ─────────► rows of b and c

The values of the ends are known when the network runs, so a part has as many rows as the whole, of which its own count.
Operators that treat each row by itself are divided along with the products.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from graphs.ir import Graph, Op
from graphs.rewrites.sharding import REPLICATED, Shard, Sharding

EXPERTS, BY = "experts", " by "

GROUPED_PRODUCTS: Mapping[str, str] = MappingProxyType(
    {
        f"{namespace}.{name}": f"placement_planner.experts_mm.{namespace}"
        for namespace, name in (("aten", "_grouped_mm"), ("transformers", "grouped_mm_fallback"))
    }
)
"""Kinds of products of sorted rows with a matrix for each expert, and the kinds of the product of some experts."""

EXPERTS_ROWS = "placement_planner.experts_rows.default"
"""The kind of the operator that keeps the rows of some experts; all others are zero."""


def by_rows(graph: Graph, op: Op, sharding: Sharding, ends: str) -> Sharding | None:
    """Return the sharding that gives each part the rows of some experts.

    Returns:
        None if it does not divide single rows, or the ends are not known before the operator runs.
    """
    if graph.writer.get(ends, -1) >= graph.index[op.name]:
        return None
    shards = list(zip((*op.inputs, *op.outputs), (*sharding.inputs, *sharding.outputs), strict=True))
    divided = [(graph.tensor[name].shape[shard.axis], shard) for name, shard in shards if shard]
    rows = all(extent == sharding.units and shard.runs == 1 and not shard.ends for extent, shard in divided)
    if not rows or sharding.summed or sharding.halo or sharding.name == REPLICATED:
        return None

    def shard(one: Shard | None) -> Shard | None:
        return one and one._replace(ends=ends)

    units, name = graph.tensor[ends].shape[0], f"{sharding.name}{BY}{ends}"
    own = tuple(map(shard, sharding.inputs)), tuple(map(shard, sharding.outputs))
    return replace(sharding, name=name, units=units, inputs=own[0], outputs=own[1])


def named_by_rows(graph: Graph, op: Op, own: Mapping[str, Sharding], name: str) -> Sharding | None:
    """Return a sharding by its name, which ends with "by" and the ends of the rows; None if there is none."""
    base, _, ends = name.rpartition(BY)
    known = base in own and ends in graph.tensor and len(graph.tensor[ends].shape) == 1
    return by_rows(graph, op, own[base], ends) if known else None


def part_by_part(ops: Iterable[Op], part_of: Mapping[str, int]) -> Iterator[Op]:
    """Yield the operators, those of one part after those of another, so that few of their results are kept at once.

    Operators that are no parts, or that read what a later part writes, wait for all parts that come before them.

    Args:
        ops: in a topological order.
        part_of: the number of the part of some operators, by name.
    """
    waiting: dict[int, list[Op]] = {}
    writer: dict[str, int] = {}  # tensor -> the part whose operator waits
    for op in ops:
        part = part_of.get(op.name, -1)
        if any(writer.get(name, part) > part for name in op.inputs):
            yield from (each for number in sorted(waiting) for each in waiting[number])
            waiting, writer = {}, {}
        if part < 0:
            yield op
        else:
            waiting.setdefault(part, []).append(op)
            writer.update(dict.fromkeys(op.outputs, part))
    yield from (each for number in sorted(waiting) for each in waiting[number])
