"""Tensors written as an einsum writes them: a letter for each axis, and what a letter in several tensors divides."""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from graphs.ir import Attr, Graph, Op
from graphs.rewrites.sharding import Shard, Sharding

Shape: TypeAlias = tuple[int, ...]
Axes: TypeAlias = Sequence[str]
"""A letter, or name, for each axis of a tensor."""

LEADING = ("batch", "sequence")


def loops(graph: Graph, op: Op, inputs: Sequence[Axes], outputs: Sequence[Axes], added: int = -1) -> Iterator[Sharding]:
    """Yield a sharding for each letter; ``added`` is the position of an input that is added to a product.

    A letter that no output has is summed over.
    """
    shapes = [graph.tensor[name].shape for name in op.inputs]
    results = [graph.tensor[name].shape for name in op.outputs]
    letters = dict.fromkeys(letter for axes in (*outputs, *inputs) for letter in axes if letter)
    for letter in letters:
        shards, written = _shards(inputs, shapes, letter), _shards(outputs, results, letter)
        extents = {s[c.axis] for s, c in zip((*shapes, *results), (*shards, *written), strict=True) if c}
        if len(extents) != 1:
            continue
        summed = not any(letter in axes for axes in outputs)
        once = (added,) if summed and 0 <= added < len(op.inputs) else ()
        yield Sharding(letter, extents.pop(), shards, written, summed, once)


def _shards(tensors: Sequence[Axes], shapes: Sequence[Shape], letter: str) -> tuple[Shard | None, ...]:
    return tuple(
        Shard(axes.index(letter)) if letter in axes and shape[axes.index(letter)] > 1 else None
        for axes, shape in zip(tensors, shapes, strict=True)
    )


def leading(n: int) -> list[str]:
    """Return the names of the axes before those that an operator works along."""
    return [LEADING[axis] if axis < len(LEADING) else f"axis {axis}" for axis in range(n)]


def numbered(n: int) -> list[str]:
    """Return the names of axes that have no other."""
    return [f"axis {axis}" for axis in range(n)]


def rank_of(graph: Graph, name: str) -> int:
    """Return the number of axes of a tensor."""
    return len(graph.tensor[name].shape)


def dims_of(value: Attr, rank: int) -> tuple[int, ...]:
    """Dimensions of an attribute, counted from the front."""
    given = value if isinstance(value, tuple) else (value,)
    return tuple(int(dim) % rank for dim in given if isinstance(dim, int))
