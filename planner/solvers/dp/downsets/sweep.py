"""Sweep: the dynamic program over downsets under one limit on every device."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import inf
from typing import NamedTuple, TypeAlias

import numpy as np

from graphs.common.arrays import Floats, Ints
from planner.solvers.base import Budget
from planner.solvers.compiled import zeros
from planner.solvers.dp.downsets.kernel import BITS, DownsetTable, Field, Reaching, Sources, extend
from planner.solvers.dp.downsets.lattice import BYTES_ROUNDING, Elements, Lattice
from planner.solvers.dp.downsets.listing import Bits
from planner.solvers.dp.downsets.reduce import ROUNDING
from planner.solvers.dp.downsets.retrace import Interval, Tracked, WayBack
from simulator.placement import Placement

Counts: TypeAlias = tuple[int, ...]
"""The number of devices of each kind."""


class Windows:
    """The downsets that a count of devices can have taken if no device may be busier than a limit.

    ::

        seconds     0 ········ 10 ········ 20 ········ 30      three devices alike, 28 s to compute, a limit of 10 s:
        1 device             8 ─ 10                            the others can do 20 s, so one has done 8 s at least
        2 devices                        18 ─ 20

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

    @property
    def worth(self) -> Floats:
        """[n_kinds], what an interval on a device of each kind pays at most."""
        return self._worth(np.eye(len(self._every), dtype=np.int64))

    def open(self, lattice: Lattice) -> tuple[Lattice, Bits]:
        """Return the downsets in any window, by what they pay, and [n_downsets, n_states], in which states' windows.

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
        """Return [...], the worth of the time of devices, [..., n_kinds], within the limit, plus a rounding margin."""
        worth = self._limit_s * (counts * self._price).sum(axis=-1)
        return np.asarray(worth + ROUNDING * np.maximum(worth, self.pays.sum()))

    def _within(self, state: Ints, n_bytes: Floats, sides: dict[tuple[bool, ...], tuple[Floats, Floats]]) -> Bits:
        """Return [n_downsets], whether the devices of a state can take a downset, and the other devices the rest."""
        total_bytes = self._n_bytes.sum()
        within = np.ones(len(n_bytes), dtype=bool)
        for side, (counts, taken) in enumerate(((state, n_bytes), (self._every - state, total_bytes - n_bytes))):
            used = counts > 0
            room_bytes = float((counts[used] * self._room_bytes[used]).sum())
            within &= sides[tuple(used.tolist())][side] <= self._worth(counts)
            within &= taken <= room_bytes + BYTES_ROUNDING * total_bytes
        return within

    def _sides(self, lattice: Lattice, used: tuple[bool, ...]) -> tuple[Floats, Floats]:
        """Return the price of a downset and of the rest on some kinds of devices, with cut nets, [n_downsets] each."""
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


ROUNDS = 3  # of moving each unordered block to where it is cheapest


@dataclass(frozen=True)
class UnorderedBlocks:
    """The unordered blocks of a placement."""

    elements: Elements
    device: Ints  # [n_blocks], of all blocks; `settle` changes the devices of unordered blocks

    def settle(self) -> None:
        """Move each unordered block to the device where it costs least in all, several times."""
        fits = self.elements.blocks.fits
        for _ in range(ROUNDS):
            for block in self.elements.unordered.tolist():
                able = [device for device in range(fits.shape[1]) if fits[block, device]]
                total_s = {}
                for device in able:
                    self.device[block] = device
                    total_s[device] = sum(self._true_s(block).values())
                self.device[block] = min(total_s, key=total_s.__getitem__)

    def counted_too_low(self, least_s: float = 0.0) -> int:
        """Return an operator of the unordered block that is undercounted most, by more than ``least_s``; else -1.

        A block on a device without room for it comes first, because the search does not count its bytes at all.
        """
        worst, most_s, blocks = -1, least_s, self.elements.blocks
        n_bytes = np.bincount(self.device, blocks.n_bytes, minlength=blocks.table.n_devices)
        full = n_bytes > blocks.room_bytes
        for number, block in enumerate(self.elements.unordered.tolist()):
            for device, true_s in self._true_s(block).items():
                missing_s = true_s - self._counted_s(number, device)
                if full[device] and device == self.device[block]:
                    missing_s = inf
                if missing_s > most_s:
                    worst, most_s = blocks.members[block][0], missing_s
        return worst

    @cached_property
    def _kind(self) -> dict[int, int]:
        return {device: kind for kind, devices in enumerate(self.elements.kinds.devices) for device in devices}

    def _true_s(self, block: int) -> dict[int, float]:
        """Return seconds of a block and its nets on each device."""
        elements, own = self.elements, int(self.device[block])
        seconds = {own: float(elements.blocks.forward_s[block, own])}
        for net in elements.blocks.nets_of[block]:
            src = int(self.device[net.writer])
            remote = {int(self.device[reader]) for reader in net.readers} - {src}
            enter_s, leave_s = elements.kinds.seconds(net.flows)
            for device in remote:
                seconds[device] = seconds.get(device, 0.0) + float(enter_s[self._kind[device]])
            if remote:
                seconds[src] = seconds.get(src, 0.0) + float(leave_s[self._kind[src]])
        return seconds

    def _counted_s(self, number: int, device: int) -> float:
        """Return the seconds that the search counts for an unordered block on a device, see `Elements`."""
        elements, kind = self.elements, self._kind[device]
        pins, near_s, far_s = elements.ties
        mine = slice(pins.start[number], pins.start[number + 1])
        inside = self.device[elements.element[pins.element[mine]]] == device
        if not inside.any():
            return 0.0
        alone_s = float(elements.blocks.forward_s[elements.unordered[number], device])
        near: Floats = near_s[kind, mine][inside]
        return min(float(near.sum()), alone_s + float(far_s[kind, mine][~inside].sum()))


FIRST_STEP = 1e-3  # from the least seconds to the first limit of a way back, relative; each step is twice the last
LOOK = 20_000_000  # pairs of downsets between two looks at the clock
MOST_BYTES = 1_500_000_000  # for the downsets and everything computed from them
BYTES_EACH = 400  # of a downset, about, besides two for each element: most of them for the nets that it cuts
BYTES_EACH_STATE = 20  # of a downset in a state


class SweptPlacement(NamedTuple):
    """A placement that a sweep found."""

    counted_s: float  # the busiest device's seconds as intervals are charged, at most what the evaluator says
    placement: Placement
    too_low: int  # an operator of the unordered block that is undercounted most; -1 if none is


class Swept(NamedTuple):
    """The findings of a sweep or of a way back."""

    answers: list[SweptPlacement]  # for each number of devices, the best one first; none if there is none in the limit
    bound_s: float  # no placement is below it
    done: bool = True  # whether neither time nor memory ran out


class SearchSpace(NamedTuple):
    """The downsets and states under a limit."""

    lattice: Lattice
    states: list[Counts]
    opened: Bits  # [n_downsets, n_states], whether the devices of a state can have taken a downset
    paid: Floats  # [n_downsets], ascending: what the elements of a downset pay
    worth: Floats  # [n_kinds], what an interval on each kind of device pays at most
    limit_s: float  # of every device
    floor_s: float = 0.0  # no placement is below it

    @property
    def pairs(self) -> int:
        """The number of pairs of downsets with no more than the limit of computing between them: the work."""
        n, count = self.lattice.n, 0
        for seconds in self.lattice.compute_s(self.limit_s):
            seconds.sort()
            count += n * (n + 1) // 2 - int(np.searchsorted(seconds, seconds - self.limit_s).sum())
        return count

    @property
    def whole(self) -> bool:
        """Whether the empty and the full downset are among them; else no placement is within the limit."""
        downsets = self.lattice.downsets
        return bool(len(downsets) and not downsets[0].any() and downsets[-1].all())


def pose(elements: Elements, limit_s: float, budget: Budget, most: int | None = None) -> SearchSpace | None:
    """Return the downsets and states under a limit; None if they exceed ``most`` or the memory, or time runs out."""
    windows = Windows(elements, limit_s)
    n = len(elements.element)
    if not windows.possible:
        nothing = np.zeros((0, n), dtype=bool)
        return SearchSpace(Lattice(elements, nothing), windows.states, nothing, np.zeros(0), np.zeros(0), limit_s)
    room = MOST_BYTES // (BYTES_EACH + 2 * n + BYTES_EACH_STATE * len(windows.states))
    lattice = elements.lattice(windows.pays, windows.spans, room if most is None else min(most, room), budget)
    if lattice is None:
        return None
    lattice, opened = windows.open(lattice)
    (paid,) = lattice.sums(windows.pays)
    return SearchSpace(lattice, windows.states, opened, paid, windows.worth, limit_s)


class DownsetSweep:
    """The table F of `DownsetDP`, with the choice that led to each value."""

    def __init__(self, posed: SearchSpace) -> None:
        lattice, self._states, opened, limit_s = posed.lattice, posed.states, posed.opened, posed.limit_s
        self._lattice, self._limit_s = lattice, limit_s
        self._number = {state: number for number, state in enumerate(self._states)}
        counts = np.asarray(self._states)  # [n_states, n_kinds], in the order of `itertools.product`
        penalty, unordered = lattice.penalties(limit_s)
        self.field = Field(
            words=lattice.words,
            n_bytes=lattice.sums(lattice.elements.blocks.n_bytes[lattice.elements.element])[0],
            paid=posed.paid,
            worth=posed.worth,
            nets=lattice.open_nets,
            unordered=unordered,
            penalty=penalty,
            most_s=limit_s * (1 + ROUNDING),
            floor_s=posed.floor_s,
            stride=np.asarray([self._number[tuple(one)] for one in np.eye(counts.shape[1], dtype=int).tolist()]),
            barred=np.ascontiguousarray((counts == counts[-1]).T),
            above=np.asarray((counts[None] >= counts[:, None]).all(axis=2)),
        )
        sizes = {
            "n_downsets": lattice.n,
            "n_words": lattice.words.shape[1],
            "n_kinds": counts.shape[1],
            "n_states": len(counts),
            "n_state_words": -(-len(counts) // BITS),
            "n_nets": penalty.enter_s.shape[1],
            "n_unordered": penalty.alone_s.shape[1],
        }
        self.sources = zeros(Sources, sizes)
        empty = {name: np.full(sizes[size], -1) for name, size in (("net", "n_nets"), ("block", "n_unordered"))}
        self.scratch = zeros(Reaching, sizes, **empty)
        self.reached = DownsetTable(
            open=opened,
            busiest_s=np.full(opened.shape, inf),
            came_from=np.full(opened.shape, -1, dtype=np.int32),
            by=np.full(opened.shape, -1, dtype=np.int16),
        )
        self.reached.busiest_s[0, 0] = 0.0  # no device and nothing done

    def run(self, budget: Budget) -> Swept:
        """Go through all downsets, each after those within it."""
        done = 0
        while done < self._lattice.n:
            if budget.left_s <= 0:
                return Swept([], 0.0, done=False)
            done = extend(self.field, self.sources, self.scratch, self.reached, done, LOOK)
        answers = self._found()
        return Swept(answers, answers[0].counted_s if answers else self._limit_s)

    def retrace(self, flows: frozenset[int], between_s: tuple[float, float], budget: Budget) -> Swept:
        """Go back through all downsets and charge some flows for each device that reads them, see `retrace`.

        It looks for the best placement that takes the first of two seconds at least and the second one at most, first
        among those that take little more than the first.
        """
        bound_s, most_s = between_s[0], min(self._limit_s, between_s[1])
        tracked, least_s, step_s = self._tracked(flows), self._least_s, FIRST_STEP * bound_s
        while True:
            within_s = min(bound_s + step_s or most_s, most_s)
            field = self.field._replace(most_s=within_s * (1 + ROUNDING))
            way, done = WayBack(field, self.sources, self.scratch, least_s, tracked), self._lattice.n - 1
            while done > 0:
                if budget.left_s <= 0:
                    return Swept([], bound_s, done=False)
                done = way.go_on(done)
            if done < 0:
                return Swept([], bound_s, done=False)
            answers = [self._placed(*found) for found in way.best]
            if answers or within_s == most_s:
                return Swept(answers, answers[0].counted_s if answers else most_s)
            bound_s, step_s = within_s, 2 * step_s

    @property
    def _least_s(self) -> Floats:
        """[n_downsets, n_states], the least seconds of the busiest device with the devices of a state at most."""
        counts = [len(devices) + 1 for devices in self._lattice.elements.kinds.devices]
        least_s = self.reached.busiest_s.reshape(-1, *counts)
        for axis in range(1, len(counts) + 1):
            least_s = np.minimum.accumulate(least_s, axis=axis)
        return np.ascontiguousarray(least_s.reshape(self.reached.busiest_s.shape))

    def _tracked(self, flows: frozenset[int]) -> Tracked:
        """Return the nets of some flows."""
        elements = self._lattice.elements
        chosen = np.asarray([not flows.isdisjoint(some) for some in elements.flows], dtype=bool)
        pins = elements.nets.pins
        return Tracked(
            of_net=np.where(chosen, np.cumsum(chosen) - 1, -1),
            written=self._lattice.downsets[:, pins.element[pins.start[:-1][chosen]]],
            leave_s=np.ascontiguousarray(self.field.penalty.leave_s[:, chosen]),
        )

    def _found(self) -> list[SweptPlacement]:
        """Return the best placement of each number of devices."""
        best: dict[int, tuple[float, Counts]] = {}
        for state, busiest_s in zip(self._states, self.reached.busiest_s[-1].tolist(), strict=True):
            if busiest_s < inf:
                best[sum(state)] = min((busiest_s, state), best.get(sum(state), (inf, state)))
        return [self._read(*choice) for choice in sorted(best.values())]

    def _read(self, counted_s: float, state: Counts) -> SweptPlacement:
        """Return the placement that the choices lead to, from the full downset back."""
        intervals: list[Interval] = []
        downset = self._lattice.n - 1
        while downset:
            number = self._number[state]
            kind, source = int(self.reached.by[downset, number]), int(self.reached.came_from[downset, number])
            intervals.append((kind, source, downset))
            state, downset = (*state[:kind], state[kind] - 1, *state[kind + 1 :]), source
        return self._placed(counted_s, intervals[::-1])

    def _placed(self, counted_s: float, intervals: Sequence[Interval]) -> SweptPlacement:
        """Return the placement of intervals, the first one first."""
        lattice, elements = self._lattice, self._lattice.elements
        device, left = np.zeros(elements.blocks.n, dtype=np.int64), [list(each) for each in elements.kinds.devices]
        for kind, source, target in intervals:
            taken = lattice.downsets[target] & ~lattice.downsets[source]
            device[elements.element[taken]] = left[kind].pop(0)
        unordered = UnorderedBlocks(elements, device)
        unordered.settle()
        too_low = unordered.counted_too_low(ROUNDING * counted_s / max(1, len(elements.unordered)))
        return SweptPlacement(counted_s, elements.blocks.spread(device), too_low)
