"""Sweep: the dynamic program over downsets under one limit on every device."""

from math import inf
from typing import NamedTuple

import numpy as np

from planner.solvers.base import Budget
from planner.solvers.dp.downsets.kernel import Bits, Field, Reached, extend
from planner.solvers.dp.downsets.lattice import Elements, Lattice
from planner.solvers.dp.downsets.reduce import ROUNDING
from planner.solvers.dp.downsets.unordered import Unordered
from planner.solvers.dp.downsets.windows import Counts, Windows
from simulator.placement import Placement

LOOK = 20_000_000  # pairs of downsets between two looks at the clock
MOST_BYTES = 1_500_000_000  # for the downsets and everything computed from them
BYTES_EACH = 400  # of a downset, about, besides two for each element: most of them for the nets that it cuts
BYTES_EACH_STATE = 20  # of a downset in a state


class SweptPlacement(NamedTuple):
    """A placement that a sweep found."""

    counted_s: float  # the busiest device's seconds as intervals are charged, at most what the evaluator says
    placement: Placement
    too_low: int  # an operator of the unordered block that is undercounted most; -1 if none is


class Posed(NamedTuple):
    """The downsets and states under a limit."""

    lattice: Lattice
    states: list[Counts]
    opened: Bits  # [n_downsets, n_states], whether the devices of a state can have taken a downset
    limit_s: float  # of every device

    @property
    def pairs(self) -> int:
        """The number of pairs of downsets with no more than the limit of computing between them: the work."""
        n, count = self.lattice.n, 0
        for seconds in self.lattice.compute_s(self.limit_s):
            seconds.sort()
            count += n * (n + 1) // 2 - int(np.searchsorted(seconds, seconds - self.limit_s).sum())
        return count

    def sweep(self, budget: Budget) -> list[SweptPlacement] | None:
        """The best placement within the limit for each number of devices, best first.

        Returns:
            None if time runs out. An empty list if no placement is within the limit, which is then a bound.
        """
        downsets = self.lattice.downsets
        if not len(downsets) or downsets[0].any() or not downsets[-1].all():
            return []
        return DownsetSweep(self).run(budget)


def pose(elements: Elements, limit_s: float, budget: Budget, most: int | None = None) -> Posed | None:
    """The downsets and states under a limit; None if they exceed ``most`` or the memory, or time runs out."""
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


class DownsetSweep:
    """The table F of `DownsetDP`, with the choice behind each of its values."""

    def __init__(self, posed: Posed) -> None:
        lattice, self._states, opened, limit_s = posed
        self._lattice = lattice
        self._number = {state: number for number, state in enumerate(self._states)}
        counts = np.asarray(self._states)  # [n_states, n_kinds], in the order of `itertools.product`
        penalty, unordered = lattice.penalties(limit_s)
        rank = np.argsort(penalty.compute_s, axis=1, kind="stable")
        self.field = Field(
            words=lattice.words,
            n_bytes=lattice.sums(lattice.elements.blocks.n_bytes[lattice.elements.element])[0],
            nets=lattice.open_nets,
            unordered=unordered,
            penalty=penalty,
            most_s=limit_s * (1 + ROUNDING),
            rank=rank,
            ranked_s=np.take_along_axis(penalty.compute_s, rank, axis=1),
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

    def run(self, budget: Budget) -> list[SweptPlacement] | None:
        """Go through all downsets, each after those within it."""
        done = 0
        while done < self._lattice.n:
            if budget.left_s <= 0:
                return None
            done = extend(self.field, self.reached, done, LOOK)
        return self._found()

    def _found(self) -> list[SweptPlacement]:
        """The best placement of each number of devices."""
        best: dict[int, tuple[float, Counts]] = {}
        for state, busiest_s in zip(self._states, self.reached.busiest_s[-1].tolist(), strict=True):
            if busiest_s < inf:
                best[sum(state)] = min((busiest_s, state), best.get(sum(state), (inf, state)))
        return [self._read(*choice) for choice in sorted(best.values())]

    def _read(self, counted_s: float, state: Counts) -> SweptPlacement:
        """The placement that the choices lead to, from the full downset back."""
        lattice, elements = self._lattice, self._lattice.elements
        device = np.zeros(elements.blocks.n, dtype=np.int64)
        downset = lattice.n - 1
        while downset:
            number = self._number[state]
            kind, source = int(self.reached.by[downset, number]), int(self.reached.came_from[downset, number])
            taken = lattice.downsets[downset] & ~lattice.downsets[source]
            device[elements.element[taken]] = elements.kinds.devices[kind][state[kind] - 1]
            state, downset = (*state[:kind], state[kind] - 1, *state[kind + 1 :]), source
        unordered = Unordered(elements, device)
        unordered.settle()
        too_low = unordered.counted_too_low(ROUNDING * counted_s / max(1, len(elements.unordered)))
        return SweptPlacement(counted_s, elements.blocks.spread(device), too_low)
