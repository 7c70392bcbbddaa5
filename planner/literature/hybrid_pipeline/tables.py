"""Tables: the stages that a network can be cut into, and the seconds of each, for the sweep over downsets."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from graphs.common.arrays import Floats, Ints
from planner.literature.hybrid_pipeline.kernel import MARGIN, StageTable, let_rise
from planner.literature.hybrid_pipeline.network import HybridNetwork
from planner.literature.hybrid_pipeline.stages import BOTH_WAYS, REDUCED
from planner.literature.hybrid_pipeline.variants import Rows, variant_steps
from planner.problem.blocks import by_priority

MOST_DOWNSETS = 2_000  # with more, those of a few orders of the nodes are tried
MOST_ROWS = 200_000_000  # stages times nodes then
MOST_TIMES = 50_000_000  # of stages, by tensor-parallel degree and micro-batches in flight: 400 MB


class StageCuts(NamedTuple):
    """The stages that the search considers."""

    network: HybridNetwork
    rows: Rows  # [n_stages, n_nodes]
    degrees: Sequence[int]  # tensor-parallel degrees, at most the number of devices
    most_copies: int  # of all stages
    blank: StageTable  # without compute times
    complete: bool  # whether the stages are those between all downsets

    @property
    def n_downsets(self) -> int:
        """The number of downsets, and so of ways to cut the network in two."""
        return len(self.blank.before_s)


class TooManyStages(Exception):  # noqa: N818  # no error: fewer are tried then
    """The times of all these stages take too much memory."""


def stage_cuts(network: HybridNetwork, most: int = MOST_DOWNSETS) -> StageCuts:
    """Return the stages between all downsets, or between those of a few orders of the nodes if there are too many."""
    every = _downsets(network, most)
    downsets = every or _in_orders(network, most)
    n = len(network.node_ids)
    bits = np.asarray([[downset >> node & 1 for node in range(n)] for downset in downsets], bool)
    start, end, rows = _between(bits)
    degrees = [t for t in network.degrees if t <= network.devices] or [network.degrees[0]]
    most = min(network.devices, network.micro_batches)
    data = np.asarray([d for d in range(1, most + 1) if network.micro_batches % d == 0])
    crossing_s, reduce_s = _traffic(network, rows, degrees)
    nothing = np.zeros(0)
    before_s = bits @ np.asarray(least_work_s(network))
    blank = StageTable(
        start, end, before_s, np.zeros(1, np.int64), nothing, crossing_s, reduce_s, data, np.asarray(degrees)
    )
    return StageCuts(network, rows, degrees, most, blank, every is not None)


def least_work_s(network: HybridNetwork) -> list[float]:
    """Return the least seconds of each node, added up over the devices that share it."""
    return [
        min(degree * variant.compute_s for degree, own in by_degree.items() for variant in own.variants)
        for by_degree in network.sharing
    ]


def stage_tables(cuts: StageCuts, limit_s: float) -> tuple[StageTable, StageTable]:
    """Return the seconds of stages with the variants that are found, and lower bounds of them.

    A slow stage needs many copies to keep the limit, and each copy then has few micro-batches in flight; entries for
    more of them are left out.

    Args:
        cuts: the stages.
        limit_s: the tables are for this limit and for smaller ones.

    Raises:
        TooManyStages: if the tables would have more than `MOST_TIMES` entries.
    """
    sizes = [_most_in_flight(cuts, number, limit_s) for number in range(len(cuts.degrees))]
    at = np.cumsum([0, *np.concatenate(sizes).tolist()])
    if at[-1] > MOST_TIMES:
        raise TooManyStages
    found, bound = np.full(at[-1], inf), np.full(at[-1], inf)
    for number, (degree, most) in enumerate(zip(cuts.degrees, sizes, strict=True)):
        first = at[number * len(cuts.rows) :]
        stages = np.flatnonzero(most)
        for y in range(most.max(initial=0)):
            stages = stages[most[stages] > y]
            times = variant_steps(cuts.network, degree, y + 1).times(cuts.rows, stages, cuts.network.memory_bytes)
            found[first[stages] + y], bound[first[stages] + y] = times
            stages = stages[np.isfinite(times.found_s)]
            if not len(stages):
                break
    let_rise(at, found)
    let_rise(at, bound)
    return cuts.blank._replace(at=at, compute_s=found), cuts.blank._replace(at=at, compute_s=bound)


def _most_in_flight(cuts: StageCuts, number: int, limit_s: float) -> Ints:
    """Return [n_stages], the most micro-batches that a copy of each stage can hold within the limit, 0 or more."""
    network, degree = cuts.network, cuts.degrees[number]
    compute_s = variant_steps(network, degree, 1).fastest_s(cuts.rows)
    most = np.zeros(len(cuts.rows), np.int64)
    for data in reversed(cuts.blank.data.tolist()):
        copies = min(network.micro_batches, network.devices - (degree - 1) * data)
        if copies >= data:
            sent_s = cuts.blank.crossing_s[number] + (data - 1) * cuts.blank.reduce_s[number]
            most[compute_s + sent_s <= limit_s * data * (1 + MARGIN)] = -(-copies // data)
    return most


def _downsets(network: HybridNetwork, most: int) -> list[int] | None:
    """Return all downsets, as sets of bits, by rising size; None if there are too many."""
    before = [0] * len(network.node_ids)
    for source, reader, _ in network.edges:
        before[reader] |= 1 << source
    found = [0]
    seen = {0}
    for downset in found:
        for node, needed in enumerate(before):
            more = downset | 1 << node
            if more not in seen and needed & ~downset == 0:
                seen.add(more)
                found.append(more)
        if len(found) > most:
            return None
    return found


def _in_orders(network: HybridNetwork, most: int) -> list[int]:
    """Return the downsets that a few topological orders of the nodes go through, by rising size.

    The orders are that of the file, level by level, and branch by branch. Of many nodes, some follow each other in
    every stage.
    """
    n = len(network.node_ids)
    edges = [(source, reader) for source, reader, _ in network.edges]
    level, last = [0] * n, [0] * n
    for source, reader in sorted(edges):  # positions are in a topological order
        level[reader] = max(level[reader], level[source] + 1)
        last[reader] = max(last[reader], source)  # whose branch it goes on
    orders = [[0.0] * n, [-float(depth) for depth in level], [float(source) for source in last]]
    each = max(1, int((2 * MOST_ROWS / n) ** 0.5) // len(orders))
    found = {0, (1 << n) - 1}
    for priority in orders:
        order, downset = by_priority(priority, edges), 0
        step = max(1, -(-n // max(1, min(each, most // len(orders)))))
        for place, node in enumerate(order, 1):
            downset |= 1 << node
            if place % step == 0:
                found.add(downset)
    return sorted(found, key=lambda downset: (downset.bit_count(), downset))


def _between(bits: Rows) -> tuple[Ints, Ints, Rows]:
    """Return the stages between nested downsets: where each downset's begin, their ends, their nodes."""
    ends, rows, start = [], [], [0]
    for i in range(len(bits)):
        above = i + 1 + np.flatnonzero(~(bits[i] & ~bits[i + 1 :]).any(axis=1))
        ends.append(above)
        rows.append(bits[above] & ~bits[i])
        start.append(start[-1] + len(above))
    return np.asarray(start), np.concatenate(ends), np.concatenate(rows)


def _traffic(network: HybridNetwork, rows: Rows, degrees: Sequence[int]) -> tuple[Floats, Floats]:
    """Return [n_degrees, n_stages] seconds of messages across the border, and of gradients for one more copy."""
    crossing, reduced = np.zeros((len(degrees), len(rows))), np.zeros((len(degrees), len(rows)))
    has = np.ascontiguousarray(rows.T)
    own = [[by_degree.get(degree) for by_degree in network.sharing] for degree in degrees]
    for number, shared in enumerate(own):
        weight = np.asarray([sharing.parameter_bytes if sharing else 0.0 for sharing in shared])
        reduced[number] = rows @ weight * REDUCED / network.micro_batches
    for source, reader, n_bytes in network.edges:
        into, out = np.flatnonzero(has[reader] & ~has[source]), np.flatnonzero(has[source] & ~has[reader])
        for number, shared in enumerate(own):
            reads, writes = shared[reader], shared[source]
            crossing[number, into] += n_bytes + (reads.from_bytes[source] if reads else 0.0)
            crossing[number, out] += n_bytes + (writes.to_bytes[reader] if writes else 0.0)
    return BOTH_WAYS * crossing / network.bytes_per_s, reduced / network.bytes_per_s
