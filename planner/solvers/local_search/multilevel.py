"""Multilevel search: coarsen, anneal what is coarse, refine level by level; and again from what was found.

::

    cells      level 0   o o o o o o o o             ▲ annealed last, from the devices of level 1
               level 1    o   o   o   o              │
               level 2      o       o                │ annealed first, most thoroughly: moves are large

A cycle that goes on from a placement clusters only what shares a device there, so that every level can express it; a
fresh one clusters whatever belongs together.

Source: Karypis and Kumar, as in `coarsen`; cycles from a placement on: Walshaw, Multilevel Refinement for
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
PARTS = 1.5  # clusters have at most one of so many parts of a device's share
WORTHWHILE = 0.9  # a coarsening leaves at most so many of the cells
CHUNKS = 8  # parts of an annealing; after each, the scale of the energy follows the best value
DOUBLINGS = 5  # of the energy's power; with 32, a device 10 % above the others costs 20 of them
WEIGHT = 0.3  # effort on a level grows with this power of its cells
HOT_FRESH, HOT, COLD = 0.5, 0.03, 0.001  # temperatures


class CellPlacement(NamedTuple):
    """A placement of cells."""

    value_s: float  # what the goal says of it; infinite if it breaks something
    device: Ints  # [n_cells]
    work: int  # how much was done to find it, as `State.tally` counts it


class SearchEffort(NamedTuple):
    """How thoroughly to search."""

    work: int  # what to spend on a cycle
    enough_s: float  # a value that is good enough
    stop: Callable[[], bool]  # asked from time to time whether there is no time left


class Level(NamedTuple):
    """A netlist, and which of its cells each cell of the level below is in; nothing for the lowest."""

    nets: Netlist
    cluster: Ints


def cycle(nets: Netlist, goal: Goal, start: Ints | None, effort: SearchEffort, seed: Seed) -> CellPlacement:
    """One way down and up the levels, from a placement on, [n_cells], or afresh."""
    levels, device = _coarsen(nets, start, seed)
    share = effort.work / sum(level.nets.n_cells**WEIGHT for level in levels)
    hot = HOT if start is not None else HOT_FRESH
    work = 0
    for level, below in zip(reversed(levels), reversed([levels[0], *levels[:-1]]), strict=True):
        spend = int(share * level.nets.n_cells**WEIGHT)
        found = _anneal_level(level.nets, goal, device, hot, effort._replace(work=spend), seed)
        device, hot, work = found.device, HOT, work + found.work
        if level is not below:
            device = device[level.cluster]
    return CellPlacement(found.value_s, device, work)


def _coarsen(nets: Netlist, start: Ints | None, seed: Seed) -> tuple[list[Level], Ints]:
    """The levels, the finest first, and devices for the cells of the coarsest."""
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
    """Anneal from a placement, [n_cells]; where it finds none that breaks nothing, the last is its answer."""
    doublings = 0 if goal is Goal.COST else DOUBLINGS
    state = new_state(nets, device, seed)
    best_s, best, trial = inf, state.device, device.copy()
    for chunk in range(CHUNKS):
        known_s = best_s if isfinite(best_s) else float(state.load_s.max() if doublings else state.load_s.sum())
        hotter, colder = (hot * (COLD / hot) ** (part / CHUNKS) for part in (chunk, chunk + 1))
        schedule = AnnealingSchedule(effort.work * (chunk + 1) // CHUNKS, hotter, colder, known_s or 1.0, doublings)
        value_s = anneal(nets, state, trial, schedule)
        if value_s < best_s:
            best_s, best = value_s, trial.copy()
        if best_s <= effort.enough_s or effort.stop():
            break
    return CellPlacement(best_s, best, int(state.tally[WORK]))
