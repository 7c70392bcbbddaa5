"""Windows: which ideals a count of devices can have taken, if no device may be busier than a limit.

::

    seconds     0 ········ 10 ········ 20 ········ 30      three devices alike, 28 s to compute, a limit of 10 s:
    1 device             8 ─ 10                            the others can do 20 s, so one has done 8 s at least
    2 devices                        18 ─ 20

Nets count as well: what the cut between an ideal and the rest costs is paid by devices on either side.
"""

from itertools import product
from math import inf
from typing import TypeAlias

import numpy as np

from costmodels.table import Floats, Ints
from planner.solvers.ideals.kernel import Bits
from planner.solvers.ideals.lattice import BYTES_ROUNDING, Elements, Lattice
from planner.solvers.ideals.reduce import ROUNDING

Counts: TypeAlias = tuple[int, ...]
"""How many devices of each kind."""


class Windows:
    """What blocks and nets pay at least, if a second of a device's time has a price, and what devices earn at most.

    For any prices, the blocks of some devices, each as on the cheapest device that can run it within the limit, and
    the nets between them and the others, each as on the cheapest of them, pay at most what the devices' time within
    the limit is worth. So the devices used bound the ideal that they have taken from above, and those left bound it
    from below. A device's price is the inverse of its time for all blocks.
    """

    def __init__(self, elements: Elements, limit_s: float) -> None:
        blocks, kinds = elements.blocks, elements.kinds
        self._elements, self._limit_s = elements, limit_s
        self._every = np.asarray([len(devices) for devices in kinds.devices])
        self.states = sorted(product(*(range(count + 1) for count in self._every)), key=lambda c: (sum(c), c))
        seconds = blocks.forward_s[:, kinds.first]
        can = blocks.fits[:, kinds.first] & (seconds <= limit_s * (1 + ROUNDING))
        self.possible = bool(can.any(axis=1).all())
        all_s = np.where(np.isfinite(seconds), seconds, 0.0).sum(axis=0)
        self._price = np.divide(1.0, all_s, out=np.zeros_like(all_s), where=all_s > 0)
        pays = np.multiply(seconds, self._price, out=np.full(can.shape, inf), where=can).min(axis=1)
        self.pays, self._n_bytes = pays[elements.element], blocks.n_bytes[elements.element]
        self._room_bytes = np.maximum(blocks.room_bytes[kinds.first], 0.0)

    @property
    def spans(self) -> Floats:
        """[n_spans, 2], what the ideals of some state pay, transfers aside; ascending, none touches another."""
        used = np.asarray(self.states)
        behind, before = self._worth(self._every - used), self._worth(used)
        spans: list[list[float]] = []
        for low, high in sorted(zip((self.pays.sum() - behind).tolist(), before.tolist(), strict=True)):
            if spans and low <= spans[-1][1]:
                spans[-1][1] = max(spans[-1][1], high)
            elif low <= high:
                spans.append([low, high])
        return np.asarray(spans, dtype=np.float64).reshape(-1, 2)

    def open(self, lattice: Lattice) -> tuple[Lattice, dict[Counts, Ints]]:
        """The ideals in some window, and which of them are in that of each state."""
        taken = np.stack(lattice.sums(self.pays, self._n_bytes), axis=1)
        cut = {
            used: self._cut(lattice, used) for used in sorted({tuple(c > 0 for c in state) for state in self.states})
        }
        windows = {state: self._within(np.asarray(state), taken, cut) for state in self.states}
        some = np.logical_or.reduce(list(windows.values()))
        return lattice.keep(some), {state: np.flatnonzero(window[some]) for state, window in windows.items()}

    def _worth(self, counts: Ints) -> Floats:
        """[...], what counts of devices, [..., n_kinds], earn within the limit, and a little for rounding."""
        worth = self._limit_s * (counts * self._price).sum(axis=-1)
        return np.asarray(worth + ROUNDING * np.maximum(worth, self.pays.sum()))

    def _within(self, state: Ints, taken: Floats, cut: dict[tuple[bool, ...], tuple[Floats, Floats]]) -> Bits:
        """[n_ideals], whether the devices of a state can have taken an ideal, and those left can take the rest."""
        total = np.asarray([self.pays.sum(), self._n_bytes.sum()])
        within = np.ones(len(taken), dtype=bool)
        for side, (counts, load) in enumerate(((state, taken), (self._every - state, total - taken))):
            used = counts > 0
            room_bytes = float((counts[used] * self._room_bytes[used]).sum())
            within &= load[:, 0] + cut[tuple(used.tolist())][side] <= self._worth(counts)
            within &= load[:, 1] <= room_bytes + BYTES_ROUNDING * total[1]
        return within

    def _cut(self, lattice: Lattice, used: tuple[bool, ...]) -> tuple[Floats, Floats]:
        """[n_ideals] each, what the nets cut pay on devices of some kinds that have taken the ideal, or the rest."""
        chosen = np.flatnonzero(used)
        if not len(chosen):
            return np.zeros(lattice.n), np.zeros(lattice.n)
        _, near_s, far_s = self._elements.nets
        enter, leave = (
            (np.minimum(way[chosen], 2 * self._limit_s) * self._price[chosen, None]).min(axis=0)
            for way in (near_s, far_s)
        )
        return lattice.cut_s(leave, enter), lattice.cut_s(enter, leave)
