"""Lattice: the downsets that the first devices of a contiguous placement can have taken, and the cost of intervals.

::

        ┌─ b ─┐        downsets: {}  {a}  {a b}  {a c}  {a b c}  {a b c d}
    a ──┤     ├── d    a device that goes from {a} to {a b c} runs b and c
        └─ c ─┘

If devices follow one another, the operators of the first device, of the first two, of the first three .. are downsets
(sets that contain everything before each of their operators), each within the next. A device runs the difference
between two of them, which is an interval.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from typing import NamedTuple

import numpy as np

from graphs.common.arrays import Floats, Ints
from planner.problem.blocks import Blocks
from planner.solvers.base import Budget
from planner.solvers.compiled import flat
from planner.solvers.dp.downsets.kernel import Penalty, Words
from planner.solvers.dp.downsets.listing import (
    Bits,
    Listing,
    Order,
    Parts,
    Pins,
    list_downsets,
    open_parts,
    sum_up,
)
from planner.solvers.dp.downsets.reduce import IntervalKinds, relations, unordered

LOOK = 20_000_000  # steps of `list_downsets` between two looks at the clock
BYTES_ROUNDING = 1e-12  # relative; of sums of bytes, which are whole numbers as a rule


class PinCosts(NamedTuple):
    """The pins of nets or unordered blocks, and seconds for each net, or for each pin of a block."""

    pins: Pins
    near_s: Floats  # [n_kinds, n], on a reader's device if the writer is elsewhere, on a neighbour's if the block is
    far_s: Floats  # [n_kinds, n], on the writer's device if a reader is elsewhere, on the block's if the neighbour is


@dataclass(frozen=True)
class Elements:
    """The elements of downsets, which are blocks in a topological order; the nets between them; and unordered blocks.

    An unordered block may be on any device. An interval is charged for it as if the block were where that costs the
    interval least, which is never more than the exact cost: outside, with a transfer for each neighbour inside; or
    inside, with its computing and a transfer for each neighbour outside. A net that an unordered block shares with
    other readers counts for the other readers alone, and a net between unordered blocks does not count.
    """

    blocks: Blocks
    kinds: IntervalKinds
    element: Ints  # [n_elements], blocks
    unordered: Ints  # [n_unordered], blocks
    start: Ints  # [n_elements + 1], where the elements right before each one start in ``before``
    before: Ints  # [n_relations], elements

    @cached_property
    def nets(self) -> PinCosts:
        """The nets between elements."""
        number = self._numbers(self.element)
        ends, costs = [], []
        for net in self.blocks.nets:
            readers = [number[reader] for reader in net.readers if reader in number]
            if readers and net.writer in number:
                ends.append([number[net.writer], *readers])
                costs.append(self.kinds.seconds(net.flows))
        return PinCosts(Pins(*flat(ends)), *_columns(costs, len(self.kinds.devices)))

    @cached_property
    def flows(self) -> list[tuple[int, ...]]:
        """[n_nets], the flows of each net between elements."""
        number = self._numbers(self.element)
        return [
            net.flows for net in self.blocks.nets if net.writer in number and not number.keys().isdisjoint(net.readers)
        ]

    @cached_property
    def ties(self) -> PinCosts:
        """The unordered blocks and their neighbours."""
        number, of_unordered = self._numbers(self.element), self._numbers(self.unordered)
        tied: list[dict[int, Floats]] = [{} for _ in of_unordered]
        for net in self.blocks.nets:
            reader = net.readers[0]
            enter_s, leave_s = self.kinds.seconds(net.flows)
            if len(net.readers) > 1:
                continue
            if net.writer in of_unordered and reader in number:
                block, neighbour, cost = of_unordered[net.writer], number[reader], (enter_s, leave_s)
            elif net.writer in number and reader in of_unordered:
                block, neighbour, cost = of_unordered[reader], number[net.writer], (leave_s, enter_s)
            else:
                continue
            tied[block][neighbour] = tied[block].get(neighbour, 0.0) + np.asarray(cost)
        costs = [cost for neighbours in tied for cost in neighbours.values()]
        return PinCosts(Pins(*flat([list(each) for each in tied])), *_columns(costs, len(self.kinds.devices)))

    def lattice(self, pays: Floats, spans: Floats, most: int, budget: Budget) -> "Lattice | None":
        """Return the downsets whose price is within a span; the empty one is first and the full one last, if within.

        Elements pay ``pays``, [n_elements], 0 or more; ``spans``, [n_spans, 2], have lower and upper ends.

        Returns:
            None if there are more downsets, or time runs out.
        """
        n = len(self.element)
        rest = np.append(np.cumsum(pays[::-1])[::-1], 0.0)
        order = Order(self.start, self.before, pays, rest)

        def visit(rows: Bits) -> int | None:
            listing = Listing(np.zeros(2, dtype=np.int64), np.zeros(n, dtype=np.int64), np.zeros(n + 1))
            while not list_downsets(order, spans, LOOK, listing, rows):
                if budget.left_s <= 0 or listing.at[1] > most:
                    return None
            return int(listing.at[1])

        count = visit(np.zeros((0, n), dtype=bool))
        if count is None or count > most:
            return None
        downsets = np.zeros((count, n), dtype=bool)
        return None if visit(downsets) is None else Lattice(self, downsets)

    @staticmethod
    def _numbers(blocks: Ints) -> dict[int, int]:
        return {block: number for number, block in enumerate(blocks.tolist())}


def elements_of(blocks: Blocks, inside: frozenset[int], kinds: IntervalKinds, tracked: frozenset[int]) -> Elements:
    """Return the elements of acyclic blocks: those with an operator that must be contiguous or is ``tracked``."""
    free = unordered(blocks, inside | tracked)
    before: dict[int, list[int]] = {block: [] for block in np.flatnonzero(~free).tolist()}
    for first, second in relations(blocks, inside):
        before[second].append(first)
    order = list(TopologicalSorter(before).static_order())
    number = {block: element for element, block in enumerate(order)}
    starts = flat([[number[first] for first in before[block]] for block in order])
    return Elements(blocks, kinds, np.asarray(order, dtype=np.int64), np.flatnonzero(free), *starts)


def _columns(costs: Sequence[tuple[Floats, Floats] | Floats], n_kinds: int) -> tuple[Floats, Floats]:
    """Return n pairs of [n_kinds] as two arrays, [n_kinds, n] each."""
    both = np.asarray(costs, dtype=np.float64).reshape(-1, 2, n_kinds)
    return np.ascontiguousarray(both[:, 0].T), np.ascontiguousarray(both[:, 1].T)


@dataclass(frozen=True)
class Lattice:
    """Some downsets of the elements."""

    elements: Elements
    downsets: Bits  # [n_downsets, n_elements], the empty one first and the full one last, if they are among them

    @property
    def n(self) -> int:
        """The number of downsets."""
        return len(self.downsets)

    def keep(self, chosen: Ints) -> "Lattice":
        """Return the lattice of some of the downsets."""
        return Lattice(self.elements, self.downsets[chosen])

    def sums(self, *columns: Floats) -> list[Floats]:
        """Return [n_downsets] of each column, [n_elements]: the sum of its values in each downset."""
        total = np.zeros((self.n, len(columns)))
        sum_up(self.downsets, np.stack(columns, axis=1), total)
        return list(np.ascontiguousarray(total.T))

    def cut_s(self, forth_s: Floats, back_s: Floats) -> Floats:
        """Return [n_downsets], the summed seconds, [n_nets], of nets that leave a downset or enter it."""
        nets = self.open_nets
        seconds = np.where(nets.status[:, 1] > 0, forth_s[nets.item], back_s[nets.item])
        return _sum_by(nets.of_downset, seconds, self.n)

    @cached_property
    def words(self) -> Words:
        """[n_downsets, n_words], the elements as bits of integers."""
        packed = np.packbits(self.downsets, axis=1)
        padded = np.zeros((self.n, max(8, -(-packed.shape[1] // 8) * 8)), dtype=np.uint8)
        padded[:, : packed.shape[1]] = packed
        return padded.view(np.uint64)

    @cached_property
    def open_nets(self) -> Parts:
        """The nets of which each downset holds a part; the status counts the readers and the writers inside."""
        pins, closed = self.elements.nets.pins, np.zeros((0, 0), dtype=bool)
        weight = np.tile([1.0, 0.0], (len(pins.element), 1))
        weight[pins.start[:-1]] = 0.0, 1.0
        return _filled(self.n, lambda parts: open_parts(self.downsets, pins, weight, closed, parts))

    def penalties(self, limit_s: float) -> tuple[Penalty, Parts]:
        """Return the cost of intervals on each kind of device, and the unordered blocks in part.

        Let S be the interval from I to J. A net costs S nothing if neither I nor J holds a part of it. If only I does,
        the other ends are in S: the net enters S if the writer is in I, else it leaves S; ``starts_s[I]`` counts this.
        If only J does, the ends in J are in S: the net leaves S if the writer is in J, else it enters S; ``ends_s[J]``
        counts this. If both do, both count it, either once as leaving and once as entering, or twice as leaving. But
        the net leaves S once at most; and if no end is in S, it does not enter S either. `_twice_s` corrects this.

        Unordered blocks count in the same way. A block with all neighbours in S counts in ``ends_s[J]``; if some of its
        neighbours are in I, ``starts_s[I]`` subtracts it again.

        An impossible interval costs twice the limit, so that sums and differences stay finite.
        """
        rows = [self._penalty(kind, _cap_s(limit_s), seconds) for kind, seconds in enumerate(self.compute_s(limit_s))]
        return Penalty(*map(np.stack, zip(*(penalty for penalty, _ in rows), strict=True))), rows[0][1]

    def compute_s(self, limit_s: float) -> list[Floats]:
        """Return [n_downsets] by kind of device, seconds of a downset; a block that cannot run takes two limits."""
        return self.sums(*self._block_s(_cap_s(limit_s))[self.elements.element].T)

    def _block_s(self, cap_s: float) -> Floats:
        """Return [n_blocks, n_kinds], seconds, with a cap instead of infinity."""
        blocks, first = self.elements.blocks, self.elements.kinds.first
        return np.where(blocks.fits[:, first], np.minimum(blocks.forward_s[:, first], cap_s), cap_s)

    def _penalty(self, kind: int, cap_s: float, compute_s: Floats) -> tuple[Penalty, Parts]:
        """Return the rows of one kind."""
        elements, blocks, device = self.elements, self.elements.blocks, self.elements.kinds.first[kind]
        _, near_s, far_s = elements.nets
        enter_s, leave_s = np.minimum(near_s[kind], cap_s), np.minimum(far_s[kind], cap_s)
        alone_s = self._block_s(cap_s)[elements.unordered, kind]
        parts, starts_s, ends_s, (near, far) = self._unordered(kind, alone_s, cap_s)
        penalty = Penalty(
            compute_s=compute_s,
            starts_s=self.cut_s(enter_s, leave_s) + starts_s,
            ends_s=self.cut_s(leave_s, enter_s) + ends_s,
            enter_s=enter_s,
            leave_s=leave_s,
            alone_s=alone_s,
            near_s=near,
            far_s=far,
            parts_s=parts.status,
            room_bytes=np.asarray(blocks.room_bytes[device] + BYTES_ROUNDING * blocks.n_bytes.sum()),
        )
        return penalty, parts

    def _unordered(
        self, kind: int, alone_s: Floats, cap_s: float
    ) -> tuple[Parts, Floats, Floats, tuple[Floats, Floats]]:
        """Return the unordered blocks in part, their share of ``starts_s`` and ``ends_s``, and sums of ties."""
        pins, near, far = self.elements.ties
        near_s, far_s = np.minimum(near[kind], cap_s), np.minimum(far[kind], cap_s)
        n_unordered, weight = len(alone_s), np.stack([near_s, far_s], axis=1)
        closed = np.zeros((self.n, n_unordered), dtype=bool)
        parts = _filled(self.n, lambda parts: open_parts(self.downsets, pins, weight, closed, parts))
        item, status = parts.item, parts.status
        of_block = np.repeat(np.arange(n_unordered), np.diff(pins.start))
        near_all, far_all = _sum_by(of_block, near_s, n_unordered), _sum_by(of_block, far_s, n_unordered)
        least = np.minimum(near_all, alone_s)
        begun = np.minimum(near_all[item] - status[:, 0], alone_s[item] + status[:, 1]) - least[item]
        ended = np.minimum(status[:, 0], alone_s[item] + far_all[item] - status[:, 1])
        done = closed @ least
        starts_s = _sum_by(parts.of_downset, begun, self.n) - done
        ends_s = _sum_by(parts.of_downset, ended, self.n) + done
        return parts, starts_s, ends_s, (near_all, far_all)


def _cap_s(limit_s: float) -> float:
    """Return the seconds that stand for infinity under a limit."""
    return 2 * limit_s or 1.0


def _filled(n_downsets: int, fill: Callable[[Parts], None]) -> Parts:
    """Return parts after two passes: the first one counts the entries, the second one fills them in."""
    start = np.zeros(n_downsets + 1, dtype=np.int64)
    fill(Parts(start, np.zeros(0, dtype=np.int64), np.zeros((0, 2))))
    parts = Parts(start, np.zeros(start[-1], dtype=np.int64), np.zeros((start[-1], 2)))
    fill(parts)
    return parts


def _sum_by(number: Ints, values: Floats, n: int) -> Floats:
    """Return [n], the sum of the values of each number."""
    return np.bincount(number, values, minlength=n).astype(np.float64)
