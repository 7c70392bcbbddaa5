"""Multilevel search: coarsen, anneal the coarsest level, refine level by level, and repeat from the result.

::

    cells      level 0   o o o o o o o o             ▲ annealed last, from the devices of level 1
               level 1    o   o   o   o              │
               level 2      o       o                │ annealed first, where moves are largest

A coarsening joins each cell with the neighbour with the most expensive nets; several cells may join one, up to a size.
A cycle from a placement joins only cells that share a device there, so that every level can express the placement. A
fresh cycle joins any cells.

Source: Karypis and Kumar, A Fast and High Quality Multilevel Scheme for Partitioning Irregular Graphs, SIAM Journal
on Scientific Computing 20(1), 1998 (heavy edges first); for cycles from a placement, Walshaw, Multilevel Refinement for
Combinatorial Optimisation Problems, Annals of Operations Research 131, 2004.
"""

from collections.abc import Callable
from math import inf, isfinite
from typing import NamedTuple

import numpy as np

from graphs.common.arrays import Floats, Ints
from planner.problem.problem import Goal
from planner.solvers.compiled import Seed, compiled, inner, random
from planner.solvers.local_search.annealing import AnnealingSchedule, anneal_placement
from planner.solvers.local_search.kernel import WORK, new_state
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
    """Return [n_cells], the cluster of each cell, numbered from 0 in the order of their leaders.

    Only cells of the same kind, [n_cells], are joined. No cluster has more than 1 / ``parts`` of all seconds, or of all
    bytes that there is room for. The seed draws the order in which cells choose a neighbour, and noise in the ratings.
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


@inner
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


COARSEST = 1.5  # cells for each device on the coarsest level
PARTS = 1.5  # a cluster has at most 1 / PARTS of a device's share
WORTHWHILE = 0.9  # share of the cells that a coarsening leaves at most
CHUNKS = 8  # parts of an annealing; after each, the energy is scaled by the best value
DOUBLINGS = 5  # of the energy's power, so to 32: a device 10 % above the others has the energy of 20 of them
WEIGHT = 0.3  # the work on a level grows with this power of its cells
HOT_FRESH, HOT, COLD = 0.5, 0.03, 0.001  # temperatures


class CellPlacement(NamedTuple):
    """A placement of cells."""

    value_s: float  # seconds of the goal; infinite if memory or a link is missing
    device: Ints  # [n_cells]
    work: int  # that found it, as `State.tally` counts work


class SearchEffort(NamedTuple):
    """How thoroughly to search."""

    work: int  # of a cycle
    enough_s: float  # a value that is good enough
    stop: Callable[[], bool]  # whether no time is left


class CoarseLevel(NamedTuple):
    """A netlist, and the cell of this level that holds each cell of the level below."""

    nets: Netlist
    cluster: Ints  # [n_cells of the level below], empty for the lowest level


def cycle(nets: Netlist, goal: Goal, start: Ints | None, effort: SearchEffort, seed: Seed) -> CellPlacement:
    """Coarsen, then anneal level by level, from a placement, [n_cells], or afresh."""
    levels, device = _coarsen(nets, start, seed)
    share = effort.work / sum(level.nets.n_cells**WEIGHT for level in levels)
    hot = HOT if start is not None else HOT_FRESH
    work = 0
    for level, below in zip(reversed(levels), reversed([levels[0], *levels[:-1]]), strict=True):
        level_work = int(share * level.nets.n_cells**WEIGHT)
        annealed = _anneal_level(level.nets, goal, device, hot, effort._replace(work=level_work), seed)
        device, hot, work = annealed.device, HOT, work + annealed.work
        if level is not below:
            device = device[level.cluster]
    return CellPlacement(annealed.value_s, device, work)


def _coarsen(nets: Netlist, start: Ints | None, seed: Seed) -> tuple[list[CoarseLevel], Ints]:
    """Return the levels, the finest first, and the devices of the coarsest cells."""
    levels = [CoarseLevel(nets, np.zeros(0, dtype=np.int64))]
    kind = np.zeros(nets.n_cells, dtype=np.int64) if start is None else start
    while nets.n_cells > COARSEST * nets.n_devices:
        cluster = cluster_cells(nets, kind, PARTS * nets.n_devices, seed)
        n_clusters = int(cluster.max()) + 1
        if n_clusters > WORTHWHILE * nets.n_cells:
            break
        kind_below, kind = kind, np.empty(n_clusters, dtype=np.int64)
        kind[cluster] = kind_below
        nets = nets.merge(cluster)
        levels.append(CoarseLevel(nets, cluster))
    return levels, nets.seconds.argmin(axis=1) if start is None else kind


def _anneal_level(
    nets: Netlist, goal: Goal, device: Ints, hot: float, effort: SearchEffort, seed: Seed
) -> CellPlacement:
    """Anneal from a placement, [n_cells]; return the best one, or the last one if none is feasible."""
    doublings = 0 if goal is Goal.COST else DOUBLINGS
    state = new_state(nets, device, seed)
    best_s, best, trial = inf, state.device, device.copy()
    for chunk in range(CHUNKS):
        scale_s = best_s if isfinite(best_s) else float(state.load_s.max() if doublings else state.load_s.sum())
        hotter, colder = (hot * (COLD / hot) ** (part / CHUNKS) for part in (chunk, chunk + 1))
        schedule = AnnealingSchedule(effort.work * (chunk + 1) // CHUNKS, hotter, colder, scale_s or 1.0, doublings)
        value_s = anneal_placement(nets, state, trial, schedule)
        if value_s < best_s:
            best_s, best = value_s, trial.copy()
        if best_s <= effort.enough_s or effort.stop():
            break
    return CellPlacement(best_s, best, int(state.tally[WORK]))
