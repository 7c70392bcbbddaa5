"""Multilevel search: coarsen, anneal the coarsest level, refine level by level, and repeat from the result.

::

    cells      level 0   o o o o o o o o             ▲ annealed last, from the devices of level 1
               level 1    o   o   o   o              │
               level 2      o       o                │ annealed first, where moves are largest

A cycle from a placement joins only cells that share a device there, so that every level can express the placement. A
fresh cycle joins any cells.

Source: Karypis and Kumar, as in `coarsen`; for cycles from a placement, Walshaw, Multilevel Refinement for
Combinatorial Optimisation Problems, Annals of Operations Research 131, 2004.
"""

from collections.abc import Callable
from math import inf, isfinite
from typing import NamedTuple

import numpy as np

from costmodels.table import Ints
from planner.problem.problem import Goal
from planner.solvers.compiled import Seed
from planner.solvers.local_search.annealing import AnnealingSchedule, anneal
from planner.solvers.local_search.coarsen import cluster_cells
from planner.solvers.local_search.kernel import WORK, new_state
from planner.solvers.netlist import Netlist

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


class Level(NamedTuple):
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


def _coarsen(nets: Netlist, start: Ints | None, seed: Seed) -> tuple[list[Level], Ints]:
    """The levels, the finest first, and the devices of the coarsest cells."""
    levels = [Level(nets, np.zeros(0, dtype=np.int64))]
    kind = np.zeros(nets.n_cells, dtype=np.int64) if start is None else start
    while nets.n_cells > COARSEST * nets.n_devices:
        cluster = cluster_cells(nets, kind, PARTS * nets.n_devices, seed)
        n_clusters = int(cluster.max()) + 1
        if n_clusters > WORTHWHILE * nets.n_cells:
            break
        kind_below, kind = kind, np.empty(n_clusters, dtype=np.int64)
        kind[cluster] = kind_below
        nets = nets.merge(cluster)
        levels.append(Level(nets, cluster))
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
        value_s = anneal(nets, state, trial, schedule)
        if value_s < best_s:
            best_s, best = value_s, trial.copy()
        if best_s <= effort.enough_s or effort.stop():
            break
    return CellPlacement(best_s, best, int(state.tally[WORK]))
