"""Coarsening: expensive nets join their cells into clusters; compiled.

::

    a ═══ b ─── c ═══ d           [a b] ─── [c d]              a cell joins the neighbour with the most expensive nets

Source: Karypis and Kumar, A Fast and High Quality Multilevel Scheme for Partitioning Irregular Graphs, SIAM Journal
on Scientific Computing 20(1), 1998 (heavy edges first). Here several cells may join one, up to a size.
"""

from typing import NamedTuple

import numpy as np

from costmodels.table import Floats, Ints
from planner.solvers.compiled import Seed, compiled, random
from planner.solvers.netlist import Netlist

MOST_PINS = 40  # larger nets join no cells
TINY_S = 1e-12  # with which nets that cost nothing join cells too
NOISE = 0.8  # ratings are multiplied by 1 - NOISE / 2 to 1 + NOISE / 2, so that coarsenings differ


class Clusters(NamedTuple):
    """The state of a clustering."""

    kind: Ints  # [n_cells]; only cells of the same kind are joined
    size: Floats  # [n_cells], share of a cell, or of the cluster that it leads, in all seconds or bytes
    weight: Floats  # [n_nets], seconds that a cut costs, for each reader
    order: Ints  # [n_cells], the order in which cells choose a neighbour
    leader: Ints  # [n_cells], the first cell of each cell's cluster
    joined: Ints  # [n_cells], 1 if other cells have joined a cell
    rating: Floats  # [n_cells], all zeros between two cells
    near: Ints  # [n_cells], room for the neighbours of a cell


def cluster_cells(nets: Netlist, kind: Ints, parts: float, seed: Seed) -> Ints:
    """[n_cells], the cluster of each cell, numbered from 0 in the order of their leaders.

    Args:
        nets: what to coarsen.
        kind: [n_cells]; only cells of the same kind are joined.
        parts: no cluster has more than 1 / ``parts`` of all seconds, or of all bytes that there is room for.
        seed: of the order in which cells choose a neighbour, and of the noise in the ratings.
    """
    n = nets.n_cells
    size = np.where(np.isfinite(nets.seconds), nets.seconds, 0.0).sum(axis=1)
    room_bytes = np.clip(nets.room_bytes, 1.0, max(1.0, float(nets.n_bytes.sum()))).sum()
    weight = (nets.once_out_s + nets.each_out_s + nets.each_in_s).max(axis=1)
    weight += nets.link_s.mean(axis=1) if nets.link_s.shape[1] else 0.0
    clusters = Clusters(
        kind=kind,
        size=np.maximum(size / (size.sum() or 1.0), nets.n_bytes / room_bytes),
        weight=weight / np.maximum(1, nets.readers),
        order=np.random.default_rng(int(seed[0])).permutation(n),
        leader=np.arange(n),
        joined=np.zeros(n, dtype=np.int64),
        rating=np.zeros(n),
        near=np.zeros(n, dtype=np.int64),
    )
    _join(nets, clusters, 1.0 / parts, seed)
    return np.unique(clusters.leader, return_inverse=True)[1]


@compiled
def _join(nets: Netlist, clusters: Clusters, most: float, seed: Seed) -> None:
    """Let each cell that no other cell has joined join the best neighbour's cluster, if that stays small enough."""
    for cell in clusters.order:
        if clusters.joined[cell] or clusters.leader[cell] != cell:
            continue
        best, top = -1, 0.0
        for place in range(_rate(nets, clusters, cell)):
            leader = clusters.near[place]
            rating = clusters.rating[leader] * (1 + NOISE * (random(seed) - 0.5))
            clusters.rating[leader] = 0.0
            if rating > top and clusters.size[leader] + clusters.size[cell] <= most:
                best, top = leader, rating
        if best >= 0:
            clusters.leader[cell] = best
            clusters.joined[best] = 1
            clusters.size[best] += clusters.size[cell]


@compiled
def _rate(nets: Netlist, clusters: Clusters, cell: int) -> int:
    """Add up the nets to each neighbouring cluster of a cell's kind; return the number of these clusters."""
    n_near = 0
    for place in range(nets.first_net[cell], nets.first_net[cell + 1]):
        net = nets.net[place]
        first, end = nets.start[net], nets.start[net + 1]
        if end - first > MOST_PINS:
            continue
        for pin in range(first, end):
            leader = clusters.leader[nets.pin[pin]]
            if leader == cell or clusters.kind[leader] != clusters.kind[cell]:
                continue
            if clusters.rating[leader] == 0:
                clusters.near[n_near] = leader
                n_near += 1
            clusters.rating[leader] += clusters.weight[net] + TINY_S
    return n_near
