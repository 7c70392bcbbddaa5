"""Windows: the downsets that a count of devices can have taken if no device may be busier than a limit.

::

    seconds     0 ········ 10 ········ 20 ········ 30      three devices alike, 28 s to compute, a limit of 10 s:
    1 device             8 ─ 10                            the others can do 20 s, so one has done 8 s at least
    2 devices                        18 ─ 20

Nets count as well: devices on both sides pay for the cut between a downset and the rest.
"""

from itertools import product
from math import inf
from typing import TypeAlias

import numpy as np

from costmodels.table import Floats, Ints
from planner.solvers.dp.downsets.kernel import Bits
from planner.solvers.dp.downsets.lattice import BYTES_ROUNDING, Elements, Lattice
from planner.solvers.dp.downsets.reduce import ROUNDING

Counts: TypeAlias = tuple[int, ...]
"""The number of devices of each kind."""


class Windows:
    """What blocks and nets pay at least if a second of a device has a price, and what the time of devices is worth.

    Let each block of some devices pay the price of its cheapest device that can run it within the limit, and each net
    between them and the other devices that of the cheapest of them. For any prices, they pay at most what the devices'
    time within the limit is worth. So the devices in use bound their downset from above, and the devices left bound it
    from below. The price of a device is the inverse of its time for all blocks.
    """

    def __init__(self, elements: Elements, limit_s: float) -> None:
        blocks, kinds = elements.blocks, elements.kinds
        self._elements, self._limit_s = elements, limit_s
        self._every = np.asarray([len(devices) for devices in kinds.devices])
        self.states = list(product(*(range(count + 1) for count in self._every)))
        seconds = blocks.forward_s[:, kinds.first]
        can = blocks.fits[:, kinds.first] & (seconds <= limit_s * (1 + ROUNDING))
        self.possible = bool(can.any(axis=1).all())
        all_s = np.where(np.isfinite(seconds), seconds, 0.0).sum(axis=0)
        self._price = np.divide(1.0, all_s, out=np.zeros_like(all_s), where=all_s > 0)
        pays = np.multiply(seconds, self._price, out=np.full(can.shape, inf), where=can)[elements.element]
        self.pays, self._pays_on, self._n_bytes = pays.min(axis=1), pays, blocks.n_bytes[elements.element]
        self._room_bytes = np.maximum(blocks.room_bytes[kinds.first], 0.0)

    @property
    def spans(self) -> Floats:
        """[n_spans, 2], what the downsets of all states pay without transfers, as disjoint ascending intervals."""
        used = np.asarray(self.states)
        behind, before = self._worth(self._every - used), self._worth(used)
        spans: list[list[float]] = []
        for low, high in sorted(zip((self.pays.sum() - behind).tolist(), before.tolist(), strict=True)):
            if spans and low <= spans[-1][1]:
                spans[-1][1] = max(spans[-1][1], high)
            elif low <= high:
                spans.append([low, high])
        return np.asarray(spans, dtype=np.float64).reshape(-1, 2)

    def open(self, lattice: Lattice) -> tuple[Lattice, Bits]:
        """The downsets in any window, by what they pay, and [n_downsets, n_states], in which states' windows.

        In this order, downsets that are compared are near each other in memory, and each comes after all within it.
        """
        sides = {
            used: self._sides(lattice, used) for used in sorted({tuple(c > 0 for c in state) for state in self.states})
        }
        paid, n_bytes = lattice.sums(self.pays, self._n_bytes)
        windows = np.stack([self._within(np.asarray(state), n_bytes, sides) for state in self.states], axis=1)
        kept = np.flatnonzero(windows.any(axis=1))
        kept = kept[np.argsort(paid[kept], kind="stable")]
        return lattice.keep(kept), windows[kept]

    def _worth(self, counts: Ints) -> Floats:
        """[...], the worth of the time of devices, [..., n_kinds], within the limit, and a little for rounding."""
        worth = self._limit_s * (counts * self._price).sum(axis=-1)
        return np.asarray(worth + ROUNDING * np.maximum(worth, self.pays.sum()))

    def _within(self, state: Ints, n_bytes: Floats, sides: dict[tuple[bool, ...], tuple[Floats, Floats]]) -> Bits:
        """[n_downsets], whether the devices of a state can take a downset, and the other devices the rest."""
        total_bytes = self._n_bytes.sum()
        within = np.ones(len(n_bytes), dtype=bool)
        for side, (counts, taken) in enumerate(((state, n_bytes), (self._every - state, total_bytes - n_bytes))):
            used = counts > 0
            room_bytes = float((counts[used] * self._room_bytes[used]).sum())
            within &= sides[tuple(used.tolist())][side] <= self._worth(counts)
            within &= taken <= room_bytes + BYTES_ROUNDING * total_bytes
        return within

    def _sides(self, lattice: Lattice, used: tuple[bool, ...]) -> tuple[Floats, Floats]:
        """[n_downsets] each, what a downset and what the rest pay on devices of some kinds, with the cut nets."""
        chosen = np.flatnonzero(used)
        too_much = 2 * float(self._worth(self._every))  # for what none of the devices can run
        pays = np.minimum(self._pays_on[:, chosen].min(axis=1, initial=inf), too_much)
        (paid,) = lattice.sums(pays)
        rest = np.maximum(0.0, pays.sum() - paid)
        if not len(chosen):
            return paid, rest
        _, near_s, far_s = self._elements.nets
        enter, leave = (
            (np.minimum(way[chosen], 2 * self._limit_s) * self._price[chosen, None]).min(axis=0)
            for way in (near_s, far_s)
        )
        return paid + lattice.cut_s(leave, enter), rest + lattice.cut_s(enter, leave)
