"""Sweep: the dynamic program over ideals under one limit."""

from math import inf
from typing import NamedTuple

import numpy as np

from planner.solvers.base import Budget
from planner.solvers.dp.downsets.kernel import Bits, Field, Reached, extend
from planner.solvers.dp.downsets.lattice import Elements, Lattice
from planner.solvers.dp.downsets.reduce import ROUNDING
from planner.solvers.dp.downsets.unordered import Loose
from planner.solvers.dp.downsets.windows import Counts, Windows
from simulator.placement import Placement

LOOK = 20_000_000  # pairs of ideals between two looks at the clock
MOST_BYTES = 1_500_000_000  # for the ideals and what is known of them
BYTES_EACH = 400  # of an ideal, about, besides two for each element: most of them for the nets that it cuts
BYTES_EACH_STATE = 20  # of an ideal in a state


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


class Posed(NamedTuple):
    """What there is to look at under a limit.

    Attributes:
        lattice: the ideals that some devices can have taken.
        states: counts of devices.
        opened: [n_ideals, n_states], whether these devices can have taken an ideal.
        limit_s: of every device.
    """

    lattice: Lattice
    states: list[Counts]
    opened: Bits
    limit_s: float

    @property
    def pairs(self) -> int:
        """How many pairs of ideals there are between which a device computes for no longer than the limit: the work."""
        n, count = self.lattice.n, 0
        for seconds in self.lattice.compute_s(self.limit_s):
            seconds.sort()
            count += n * (n + 1) // 2 - int(np.searchsorted(seconds, seconds - self.limit_s).sum())
        return count

    def sweep(self, budget: Budget) -> list[Found] | None:
        """The best placement within the limit for each number of devices, best first.

        Returns:
            None if time ran out; then nothing is known. An empty list if no placement is within the limit, which is
            then a bound.
        """
        ideals = self.lattice.ideals
        if not len(ideals) or ideals[0].any() or not ideals[-1].all():
            return []
        return Sweep(self).run(budget)


def pose(elements: Elements, limit_s: float, budget: Budget, most: int | None = None) -> Posed | None:
    """What to look at under a limit; None if there are more ideals than ``most`` or memory allows, or time ran out."""
    windows = Windows(elements, limit_s)
    n = len(elements.element)
    if not windows.possible:
        nothing = np.zeros((0, n), dtype=bool)
        return Posed(Lattice(elements, nothing), windows.states, nothing, limit_s)
    room = MOST_BYTES // (BYTES_EACH + 2 * n + BYTES_EACH_STATE * len(windows.states))
    lattice = elements.lattice(windows.pays, windows.spans, room if most is None else min(most, room), budget)
    if lattice is None:
        return None
    lattice, opened = windows.open(lattice)
    return Posed(lattice, windows.states, opened, limit_s)


class Sweep:
    """F of `IdealDP`, and how each of its values was reached.

    Attributes:
        field: what the inner loops look at.
        reached: what they fill in.
    """

    def __init__(self, posed: Posed) -> None:
        lattice, self._states, opened, limit_s = posed
        self._lattice = lattice
        self._number = {state: number for number, state in enumerate(self._states)}
        counts = np.asarray(self._states)  # [n_states, n_kinds], in the order of `itertools.product`
        toll, loose = lattice.tolls(limit_s)
        rank = np.argsort(toll.compute_s, axis=1, kind="stable")
        self.field = Field(
            words=lattice.words,
            n_bytes=lattice.sums(lattice.elements.blocks.n_bytes[lattice.elements.element])[0],
            nets=lattice.open_nets,
            loose=loose,
            toll=toll,
            most_s=limit_s * (1 + ROUNDING),
            rank=rank,
            ranked_s=np.take_along_axis(toll.compute_s, rank, axis=1),
            ranked=np.ascontiguousarray(lattice.words[rank].transpose(0, 2, 1)),
            within=np.zeros(lattice.n, dtype=np.int64),
            known_s=np.zeros(len(self._states)),
            stride=np.asarray([self._number[tuple(one)] for one in np.eye(counts.shape[1], dtype=int).tolist()]),
            barred_s=np.where(counts[-1][:, None] > counts.T, 0.0, inf),
        )
        self.reached = Reached(
            open=opened,
            busiest_s=np.full(opened.shape, inf),
            came_from=np.full(opened.shape, -1, dtype=np.int32),
            by=np.full(opened.shape, -1, dtype=np.int16),
        )
        self.reached.busiest_s[0, 0] = 0.0  # no device and nothing done

    def run(self, budget: Budget) -> list[Found] | None:
        """Go through all ideals, each behind those that it holds."""
        done = 0
        while done < self._lattice.n:
            if budget.left_s <= 0:
                return None
            done = extend(self.field, self.reached, done, LOOK)
        return self._found()

    def _found(self) -> list[Found]:
        """The best for each number of devices that take everything."""
        best: dict[int, tuple[float, Counts]] = {}
        for state, busiest_s in zip(self._states, self.reached.busiest_s[-1].tolist(), strict=True):
            if busiest_s < inf:
                here = busiest_s, state
                best[sum(state)] = min(here, best.get(sum(state), here))
        return [self._read(*here) for here in sorted(best.values())]

    def _read(self, counted_s: float, state: Counts) -> Found:
        """Follow the choices back from the full ideal."""
        lattice, elements = self._lattice, self._lattice.elements
        device = np.zeros(elements.blocks.n, dtype=np.int64)
        ideal = lattice.n - 1
        while ideal:
            number = self._number[state]
            kind, source = int(self.reached.by[ideal, number]), int(self.reached.came_from[ideal, number])
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
