"""Rules: the specs that each kind of operator can give its output on a mesh, and what they cost.

A *spec* names for every axis of a tensor the mesh axis that splits it, or None. Mesh axes of one device split nothing.

A strategy of a dot is a mesh axis for some of its loops, as in an einsum: batch loops, the ``row`` (free axis of the
left input), the ``column`` (free axis of the right one) and the ``sum``. The specs of the three tensors follow from the
loops of their axes, and a split sum costs an all-reduce of what is left of the output.

Source: ``cluster_env.py`` and ``hlo.py`` of Alpa's solver, see `planner.literature.strategies.reader`.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple, TypeVar

from planner.literature.strategies.program import MeshCase, Shape, TensorOp

Spec = tuple[int | None, ...]

Loop = TypeVar("Loop", int, int | str)

MESH_AXES = (0, 1)
REPLICATED_PARAMETER = 2.0  # a little more than nothing, so that parameters are split if that is free
ALL_REDUCE_TIE, ALL_GATHER_TIE = 0.01, 0.1  # decide between collectives of the same price


class Strategy(NamedTuple):
    """A way to compute an operator."""

    spec: Spec  # of its output
    cost: float
    wants: tuple[Spec | None, ...] = ()  # the spec of each input; None for any


# --- prices ----------------------------------------------------------------------------------------------------------


def all_reduce(case: MeshCase, n_bytes: float, axis: int) -> float:
    """Return the price of an all-reduce of shards of ``n_bytes`` on an axis of the mesh."""
    n = case.mesh[axis]
    return int(case.alpha[axis] + case.beta[axis] * 2 * (n - 1) / n * n_bytes) + ALL_REDUCE_TIE


def all_gather_price(case: MeshCase, n_bytes: float, axis: int) -> float:
    """Return the price of an all-gather that ends with ``n_bytes`` on every device of an axis of the mesh."""
    n = case.mesh[axis]
    return case.all_gather_price or int(case.alpha[axis] + case.beta[axis] * (n - 1) / n * n_bytes) + ALL_GATHER_TIE


def resharding(case: MeshCase, n_bytes: float, have: Spec, want: Spec) -> float:
    """Return the price of turning one spec into another: an all-gather for every split that the other spec lacks."""
    return sum(all_gather_price(case, n_bytes, h) for h, w in zip(have, want, strict=True) if h is not None and h != w)


def shard_bytes(case: MeshCase, op: TensorOp, spec: Spec) -> float:
    """Return the bytes of the output that one device holds."""
    return op.n_bytes / prod(case.mesh[axis] for axis in spec if axis is not None)


# --- operators that choose -------------------------------------------------------------------------------------------


def chooses(op: TensorOp) -> bool:
    """Return whether an operator has strategies of its own; the others follow one of their inputs."""
    return op.kind in ("parameter", "constant", "replicate", "dot")


def strategies(op: TensorOp, case: MeshCase, ranks: Sequence[int]) -> tuple[Strategy, ...]:
    """Return the strategies of an operator that chooses, no two of one spec; ``ranks`` are those of its inputs."""
    whole: Spec = (None,) * len(op.shape)
    if op.kind == "parameter":
        one_axis = (
            Strategy(_spec(range(len(op.shape)), {axis: m}), 0.0)
            for axis, size in enumerate(op.shape)
            for m in MESH_AXES
            if 1 < case.mesh[m] <= size
        )
        return *one_axis, Strategy(whole, REPLICATED_PARAMETER)
    if op.kind == "constant":
        return (Strategy(whole, 0.0),)
    if op.kind == "replicate":
        return (Strategy(whole, 0.0, (whole,)),)
    return _dot_strategies(op, case, ranks)


def _dot_strategies(op: TensorOp, case: MeshCase, ranks: Sequence[int]) -> tuple[Strategy, ...]:
    """Return a strategy for each way to split the loops; no two give one spec."""
    n_batch = len(op.batch[0])
    tensors: list[tuple[int | str, ...]] = [(*range(n_batch), "row", "column")]
    for rank, batch, summed, free in zip(ranks, op.batch, op.contract, ("row", "column"), strict=True):
        loop: dict[int, int | str] = {axis: number for number, axis in enumerate(batch)}
        loop[summed] = "sum"
        tensors.append(tuple(loop.get(axis, free) for axis in range(rank)))
    found: dict[Spec, Strategy] = {}
    for split in _loop_splits(case, n_batch, op.shape):
        output, left, right = (_spec(tensor, split) for tensor in tensors)
        cost = all_reduce(case, shard_bytes(case, op, output), split["sum"]) if "sum" in split else 0.0
        found[output] = Strategy(output, cost, (left, right))
    return tuple(found.values())


def _loop_splits(case: MeshCase, n_batch: int, shape: Shape) -> Iterator[dict[int | str, int]]:
    """Yield the mesh axis of each loop that a strategy splits."""
    both = min(case.mesh) > 1
    if n_batch == 2 and both:
        yield {0: 0, 1: 1}
        return
    for x, y in (MESH_AXES, MESH_AXES[::-1]):
        yield {loop: m for loop, m in (("row", x), ("column", y)) if case.mesh[m] > 1}
        if case.mesh[y] > 1:
            yield {loop: m for loop, m in (("row", x), ("sum", y)) if case.mesh[m] > 1}
        if both:
            yield {"sum": x, "column": y}
    for number in range(n_batch):
        loop: int | str = number
        yield from ({loop: m} for m in MESH_AXES if 1 < case.mesh[m] <= shape[number])


def _spec(loops: Sequence[Loop], split: Mapping[Loop, int]) -> Spec:
    """Return the spec of a tensor whose axes belong to these loops."""
    return tuple(split.get(loop) for loop in loops)


# --- operators that follow -------------------------------------------------------------------------------------------


def follow(op: TensorOp, case: MeshCase, have: Spec, read: Shape) -> Strategy | None:
    """Return how an operator keeps the spec of its main input, of shape ``read``; None if it cannot."""
    cost = 0.0
    if op.kind == "broadcast":
        spec = _spec(range(len(op.shape)), {a: m for a, m in zip(op.axes, have, strict=False) if m is not None})
    elif op.kind == "transpose":
        spec = tuple(have[axis] for axis in op.axes)
    elif op.kind == "reshape":
        to = _reshaped(read, op.shape)
        splits = {to.get(axis): m for axis, m in enumerate(have) if m is not None}
        if None in splits:
            return None
        spec = _spec(range(len(op.shape)), {axis: m for axis, m in splits.items() if axis is not None})
    elif op.kind == "reduce":
        spec = tuple(m for axis, m in enumerate(have) if axis not in op.axes)
        dropped = [m for axis in op.axes if (m := have[axis]) is not None]
        cost = sum(all_reduce(case, shard_bytes(case, op, spec), m) for m in dropped)
    else:
        spec = have or (None,) * len(op.shape)  # a number has no axes, and what is made of it is whole
    return Strategy(spec, cost)


def _reshaped(old: Shape, new: Shape) -> dict[int, int]:
    """Return for each old axis the new axis with equally many values before it, if there is one."""
    at = {prod(new[:axis]): axis for axis in reversed(range(len(new)))}
    return {axis: at[before] for axis in range(len(old)) if (before := prod(old[:axis])) in at}
