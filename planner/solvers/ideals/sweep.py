"""Sweep: the dynamic program over ideals under one limit."""

from math import inf
from typing import NamedTuple

import numpy as np

from costmodels.table import Ints
from planner.solvers.base import Budget
from planner.solvers.ideals.kernel import Reached, Toll, extend
from planner.solvers.ideals.lattice import Elements, Lattice
from planner.solvers.ideals.loose import Loose
from planner.solvers.ideals.reduce import ROUNDING
from planner.solvers.ideals.windows import Counts, Windows
from simulator.placement import Placement

PAIRS_AT_ONCE = 20_000_000  # of ideals, between two looks at the clock


class Found(NamedTuple):
    """A placement that a sweep found.

    Attributes:
        counted_s: the busiest device's seconds, as intervals are charged: at most what the judge says.
        placement: of all operators.
        too_low: an operator of the loose block that is counted most too low; -1 if none is.
    """

    counted_s: float
    placement: Placement
    too_low: int


def sweep(elements: Elements, limit_s: float, budget: Budget) -> list[Found] | None:
    """The best placement within the limit for each number of devices, best first.

    Returns:
        None if there are too many ideals or time ran out; then nothing is known. An empty list if no placement is
        within the limit, which is then a bound.
    """
    windows = Windows(elements, limit_s)
    if not windows.possible:
        return []
    lattice = elements.lattice(windows.pays, windows.spans)
    if lattice is None or budget.left_s <= 0:
        return None
    lattice, opened = windows.open(lattice)
    if not lattice.n or lattice.ideals[0].any() or not lattice.ideals[-1].all():
        return []
    return _Sweep(lattice, opened, limit_s).run(budget)


class _Sweep:
    """F of `IdealDP`, and how each of its values was reached."""

    def __init__(self, lattice: Lattice, windows: dict[Counts, Ints], limit_s: float) -> None:
        self._lattice = lattice
        self._tolls = [lattice.toll(kind, limit_s) for kind in range(len(lattice.elements.kinds.devices))]
        self._reached = {
            state: Reached(ideal, np.full(len(ideal), inf), np.full(len(ideal), -1)) for state, ideal in windows.items()
        }
        self._by = {state: np.full(len(ideal), -1) for state, ideal in windows.items()}  # kind of the last device

    def run(self, budget: Budget) -> list[Found] | None:
        """Go through all states, fewer devices first."""
        for state, reached in self._reached.items():
            if not any(state):
                reached.busiest_s[reached.ideal == 0] = 0.0
            for kind, count in enumerate(state):
                if count and not self._take(state, kind, budget):
                    return None
        return self._found()

    def _take(self, state: Counts, kind: int, budget: Budget) -> bool:
        """Let a device of a kind be the last one of a state; False if time ran out."""
        toll, loose = self._tolls[kind]
        sources = self._sources(_without(state, kind), toll)
        step = max(1, PAIRS_AT_ONCE // max(1, len(sources.ideal)))
        for start in range(0, len(self._by[state]), step):
            if budget.left_s <= 0:
                return False
            targets = _rows(self._reached[state], slice(start, start + step))
            before = targets.busiest_s.copy()
            extend(sources, targets, self._lattice.words, self._lattice.open_nets, loose, toll)
            self._by[state][start : start + step][targets.busiest_s < before] = kind
        return True

    def _sources(self, state: Counts, toll: Toll) -> Reached:
        """What a state has reached, by the seconds of computing."""
        reached = self._reached[state]
        chosen = np.flatnonzero(np.isfinite(reached.busiest_s))
        chosen = chosen[np.argsort(toll.compute_s[reached.ideal[chosen]], kind="stable")]
        return _rows(reached, chosen)

    def _found(self) -> list[Found]:
        """The best for each number of devices that take everything."""
        best: dict[int, tuple[float, Counts]] = {}
        for state, reached in self._reached.items():
            whole = reached.busiest_s[reached.ideal == self._lattice.n - 1]
            if np.isfinite(whole).any():
                here = float(whole[0]), state
                best[sum(state)] = min(here, best.get(sum(state), here))
        return [self._read(*here) for here in sorted(best.values())]

    def _read(self, counted_s: float, state: Counts) -> Found:
        """Follow the choices back from the full ideal."""
        lattice, elements = self._lattice, self._lattice.elements
        device = np.zeros(elements.blocks.n, dtype=np.int64)
        ideal = lattice.n - 1
        while lattice.ideals[ideal].any():
            place = int(np.searchsorted(self._reached[state].ideal, ideal))
            kind, source = int(self._by[state][place]), int(self._reached[state].came_from[place])
            mine = lattice.ideals[ideal] & ~lattice.ideals[source]
            device[elements.element[mine]] = elements.kinds.devices[kind][state[kind] - 1]
            state, ideal = _without(state, kind), source
        loose = Loose(elements, device)
        loose.settle()
        too_low = loose.counted_too_low(ROUNDING * counted_s / max(1, len(elements.loose)))
        return Found(counted_s, elements.blocks.spread(device), too_low)


def _without(state: Counts, kind: int) -> Counts:
    """One device of a kind less."""
    return (*state[:kind], state[kind] - 1, *state[kind + 1 :])


def _rows(reached: Reached, chosen: Ints | slice) -> Reached:
    """Some of what is reached; the same arrays for a slice."""
    return Reached(reached.ideal[chosen], reached.busiest_s[chosen], reached.came_from[chosen])
