"""Variants: the fastest choice of a variant for every node of a stage that keeps the memory, for many stages at once.

For a tensor-parallel degree and a number y of micro-batches in flight, every node begins with its fastest variant.
Steps to smaller variants follow by rising seconds a byte, along the convex hull of each node's variants, until it
all fits: the greedy algorithm for the multiple-choice knapsack, whose fractional last step gives a lower bound.
`exact_choice` is for the few stages where that is not good enough.

Source: Dyer, Mathematical Programming 1984; Zemel, Information Processing Letters 1984.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphs.common.arrays import Floats, Ints
from planner.literature.hybrid_pipeline.network import HybridNetwork, NodeVariant
from planner.solvers.compiled import compiled

MOST_KEPT = 20_000  # choices of one stage that `exact_choice` keeps

Rows = NDArray[np.bool_]
"""[n_stages, n_nodes], the nodes of each stage."""


class StageTimes(NamedTuple):
    """The compute times of stages; infinite where the memory does not suffice."""

    found_s: Floats  # [n_stages], of the choice that was found
    bound_s: Floats  # [n_stages], no choice is faster


class VariantSteps(NamedTuple):
    """All nodes under one degree and one number of micro-batches in flight."""

    first: Ints  # [n_nodes], the fastest variant of each node; -1 where the node has none of the degree
    first_s: Floats  # [n_nodes], its time; infinite without one
    first_bytes: Floats  # [n_nodes], its memory
    owner: Ints  # [n_steps], the node of each step, by rising seconds a byte
    to: Ints  # [n_steps], the variant after it
    more_s: Floats  # [n_steps], the time that it costs
    less_bytes: Floats  # [n_steps], the memory that it frees

    def fastest_s(self, rows: Rows) -> Floats:
        """Return [n_stages], the times of stages with the fastest variants, whatever their memory."""
        able = ~(rows & (self.first < 0)).any(axis=1)
        return np.where(able, rows @ np.where(self.first < 0, 0.0, self.first_s), inf)

    def times(self, rows: Rows, stages: Ints, memory_bytes: float) -> StageTimes:
        """Return the times of some of the stages."""
        times = StageTimes(np.empty(len(stages)), np.empty(len(stages)))
        _take_steps(self, rows, stages, memory_bytes, times)
        return times

    def choice(self, row: Rows, memory_bytes: float) -> dict[int, int]:
        """Return the variant of each node of one stage, as `times` finds it."""
        chosen = {node: int(self.first[node]) for node in np.flatnonzero(row).tolist()}
        missing = np.cumsum([-memory_bytes, *self.first_bytes[row]])[-1]  # added up as in `times`
        if missing <= 0:
            return chosen
        has = row[self.owner]
        last = int(np.argmax(np.cumsum(has * self.less_bytes) >= missing))
        taken = np.flatnonzero(has[: last + 1]).tolist()
        return chosen | {int(self.owner[step]): int(self.to[step]) for step in taken}


@compiled
def _take_steps(steps: VariantSteps, rows: Rows, stages: Ints, memory_bytes: float, times: StageTimes) -> None:
    """Fill in the times of each stage."""
    for number in range(len(stages)):
        row = rows[stages[number]]
        seconds, missing = 0.0, -memory_bytes
        for node in range(len(row)):
            if row[node]:
                seconds += steps.first_s[node]
                missing += steps.first_bytes[node]
        found = bound = seconds if missing <= 0 else inf
        freed, size, alike = 0.0, 0.0, True
        for step in range(len(steps.owner)):
            if missing <= 0 or seconds == inf or (found < inf and not alike):
                break
            if row[steps.owner[step]]:
                less, more_s = steps.less_bytes[step], steps.more_s[step]
                alike = alike and size in (0.0, less)
                size = less
                if found == inf and freed + less >= missing:
                    found, bound = seconds + more_s, seconds + (missing - freed) / less * more_s
                freed += less
                seconds += more_s
        times.found_s[number] = found
        times.bound_s[number] = found if alike else bound  # of steps of one size, the cheapest are the best


def variant_steps(network: HybridNetwork, degree: int, in_flight: int) -> VariantSteps:
    """Return the steps under a degree and a number of micro-batches in flight."""
    n = len(network.node_ids)
    first, first_s, first_bytes = np.full(n, -1), np.full(n, inf), np.zeros(n)
    steps: list[tuple[float, int, int, float, float]] = []  # seconds a byte, node, variant, seconds, bytes
    for node, by_degree in enumerate(network.sharing):
        if degree not in by_degree:
            continue
        hull = _hull(by_degree[degree].variants, in_flight)
        first[node], first_s[node], first_bytes[node] = hull[0]
        for (_, fast_s, large), (variant, slow_s, small) in pairwise(hull):
            more_s, less = slow_s - fast_s, large - small
            steps.append((more_s / less, node, variant, more_s, less))
    steps.sort()
    columns = list(zip(*steps, strict=True)) or [(), (), (), (), ()]
    owner, to = np.asarray(columns[1], np.int64), np.asarray(columns[2], np.int64)
    return VariantSteps(first, first_s, first_bytes, owner, to, np.asarray(columns[3]), np.asarray(columns[4]))


def _hull(variants: Sequence[NodeVariant], in_flight: int) -> list[tuple[int, float, float]]:
    """Variant, seconds and bytes along the lower convex hull, from the fastest variant to the smallest."""
    points = sorted(_points(variants, in_flight))
    hull: list[tuple[int, float, float]] = []
    for seconds, n_bytes, number in points:
        if hull and n_bytes >= hull[-1][2]:
            continue
        while len(hull) > 1 and _rate(hull[-2], hull[-1]) >= _rate(hull[-1], (number, seconds, n_bytes)):
            hull.pop()
        hull.append((number, seconds, n_bytes))
    return hull


def _rate(one: tuple[int, float, float], other: tuple[int, float, float]) -> float:
    """Return seconds a byte from one variant to a smaller one."""
    return (other[1] - one[1]) / (one[2] - other[2])


def exact_choice(
    network: HybridNetwork, nodes: Sequence[int], degree: int, in_flight: int
) -> tuple[float, dict[int, int]] | None:
    """Return the fastest choice of variants within the memory, with its time; None after too many steps.

    The dynamic program goes through the nodes and keeps what is neither slower nor larger than another choice.
    """
    options = [_points(network.sharing[node][degree].variants, in_flight) for node in nodes]
    rest = np.cumsum([0.0, *(min(n_bytes for _, n_bytes, _ in points) for points in reversed(options))])[::-1]
    seconds, n_bytes = np.zeros(1), np.zeros(1)
    taken: list[tuple[Ints, list[int]]] = []
    for points, rest_bytes in zip(options, rest[1:].tolist(), strict=True):
        more_s, more_bytes = (np.asarray(column) for column in list(zip(*points, strict=True))[:2])
        all_s, all_bytes = np.add.outer(seconds, more_s).ravel(), np.add.outer(n_bytes, more_bytes).ravel()
        order = np.lexsort((all_bytes, all_s))
        order = order[all_bytes[order] + rest_bytes <= network.memory_bytes]
        least = np.minimum.accumulate(all_bytes[order])
        order = order[np.concatenate([[True], all_bytes[order][1:] < least[:-1]])] if len(order) else order
        if not 0 < len(order) <= MOST_KEPT:
            return None
        seconds, n_bytes = all_s[order], all_bytes[order]
        taken.append((order, [number for _, _, number in points]))
    at, choice = 0, {}
    for node, (order, numbers) in zip(reversed(nodes), reversed(taken), strict=True):
        at, option = divmod(int(order[at]), len(numbers))
        choice[node] = numbers[option]
    return float(seconds[0]), choice


def _points(variants: Sequence[NodeVariant], in_flight: int) -> list[tuple[float, float, int]]:
    """Seconds, bytes and number of each variant."""
    return [
        (variant.compute_s, variant.in_flight_bytes * in_flight + variant.fixed_bytes, number)
        for number, variant in enumerate(variants)
    ]
