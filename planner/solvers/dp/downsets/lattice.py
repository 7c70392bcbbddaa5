"""Downsets: all that a row of devices can have done before the next one begins, and what one of them does in between.

::

        ┌─ b ─┐        downsets: {}  {a}  {a b}  {a c}  {a b c}  {a b c d}
    a ──┤     ├── d    a device that goes from {a} to {a b c} runs b and c
        └─ c ─┘

If devices follow one another, the operators of the first, of the first two, of the first three .. are downsets (sets
that hold everything that comes before one of them), each within the next. What a device does is the difference.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from typing import NamedTuple

import numpy as np

from costmodels.table import Floats, Ints
from planner.problem.blocks import Blocks
from planner.solvers.base import Budget
from planner.solvers.dp.downsets.kernel import (
    Bits,
    Listing,
    Order,
    Parts,
    Penalty,
    Pins,
    Words,
    list_downsets,
    open_nets,
    open_unordered,
    sum_up,
)
from planner.solvers.dp.downsets.reduce import IntervalKinds, relations, unordered

LOOK = 20_000_000  # steps of the search for downsets between two looks at the clock
BYTES_ROUNDING = 1e-12  # relative; of sums of bytes, which are whole numbers as a rule


class Tied(NamedTuple):
    """Pins and what they cost."""

    pins: Pins  # of nets, or of unordered blocks
    # [n_kinds, n], of each net, seconds on a device with a reader if the writer is elsewhere; of each pin of an
    # unordered block, seconds on a device with the neighbour if the block is elsewhere
    near_s: Floats
    far_s: Floats  # [n_kinds, n], the same on a device with the writer, or with the block


@dataclass(frozen=True)
class Elements:
    """What downsets consist of: blocks, in a topological order, and the nets between them; besides, unordered blocks.

    A unordered block follows no order. What one costs an interval is counted as if it were where that is best for the
    interval, which is never more than the truth: outside, with a transfer for each neighbour inside; or inside, with
    its computing and a transfer for each neighbour outside. Nets that an unordered block shares with others count for
    the others alone, nets between unordered blocks do not count.
    """

    blocks: Blocks  # what there is
    kinds: IntervalKinds  # of devices
    element: Ints  # [n_elements], blocks
    unordered: Ints  # [n_unordered], blocks
    start: Ints  # [n_elements + 1], where the elements right before each one start in ``before``
    before: Ints  # [n_relations], elements

    @cached_property
    def nets(self) -> Tied:
        """The nets between elements."""
        number = self._numbers(self.element)
        writer, readers, costs = [], [], []
        for net in self.blocks.nets:
            inside = [number[reader] for reader in net.readers if reader in number]
            if inside and net.writer in number:
                writer.append(number[net.writer])
                readers.append(inside)
                costs.append(self.kinds.seconds(net.flows))
        return Tied(_pins(writer, readers), *_columns(costs, len(self.kinds.devices)))

    @cached_property
    def ties(self) -> Tied:
        """The unordered blocks and their neighbours."""
        number, of_unordered = self._numbers(self.element), self._numbers(self.unordered)
        tied: list[dict[int, Floats]] = [{} for _ in of_unordered]
        for net in self.blocks.nets:
            reader = net.readers[0]
            enter_s, leave_s = self.kinds.seconds(net.flows)
            if len(net.readers) > 1:
                continue
            if net.writer in of_unordered and reader in number:
                some, other, cost = of_unordered[net.writer], number[reader], (enter_s, leave_s)
            elif net.writer in number and reader in of_unordered:
                some, other, cost = of_unordered[reader], number[net.writer], (leave_s, enter_s)
            else:
                continue
            tied[some][other] = tied[some].get(other, 0.0) + np.asarray(cost)
        costs = [cost for some in tied for cost in some.values()]
        return Tied(_pins([], [list(some) for some in tied]), *_columns(costs, len(self.kinds.devices)))

    def lattice(self, pays: Floats, spans: Floats, most: int, budget: Budget) -> "Lattice | None":
        """The downsets that pay what lies within a span, the empty one and the full one first and last if they do.

        Args:
            pays: [n_elements], 0 or more.
            spans: [n_spans, 2].
            most: downsets at most.
            budget: for the time.

        Returns:
            None if there are more, or time ran out.
        """
        n = len(self.element)
        rest = np.append(np.cumsum(pays[::-1])[::-1], 0.0)
        order = Order(self.start, self.before, pays, rest)

        def visit(found: Bits) -> int | None:
            listing = Listing(np.zeros(2, dtype=np.int64), np.zeros(n, dtype=np.int64), np.zeros(n + 1))
            while not list_downsets(order, spans, LOOK, listing, found):
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
    """The elements of blocks without circles: those with an operator that must be contiguous or is ``tracked``."""
    free = unordered(blocks, inside | tracked)
    first: dict[int, list[int]] = {block: [] for block in np.flatnonzero(~free).tolist()}
    for one, other in relations(blocks, inside):
        first[other].append(one)
    order = list(TopologicalSorter(first).static_order())
    number = {block: element for element, block in enumerate(order)}
    before = _pins([], [[number[one] for one in first[block]] for block in order])
    return Elements(blocks, kinds, np.asarray(order, dtype=np.int64), np.flatnonzero(free), before.start, before.reader)


def _pins(writer: Sequence[int], readers: Sequence[Sequence[int]]) -> Pins:
    start = np.concatenate(([0], np.cumsum([len(some) for some in readers]))).astype(np.int64)
    flat = np.asarray([reader for some in readers for reader in some], dtype=np.int64)
    return Pins(np.asarray(writer, dtype=np.int64), start, flat)


def _columns(costs: Sequence[tuple[Floats, Floats] | Floats], n_kinds: int) -> tuple[Floats, Floats]:
    """[n_kinds, n] each, of n pairs of [n_kinds]."""
    both = np.asarray(costs, dtype=np.float64).reshape(-1, 2, n_kinds)
    return np.ascontiguousarray(both[:, 0].T), np.ascontiguousarray(both[:, 1].T)


@dataclass(frozen=True)
class Lattice:
    """Some downsets of the elements."""

    elements: Elements  # what they hold
    downsets: Bits  # [n_downsets, n_elements], the empty one first and the full one last, if they are there

    @property
    def n(self) -> int:
        """How many downsets."""
        return len(self.downsets)

    def keep(self, chosen: Ints) -> "Lattice":
        """Only some of the downsets."""
        return Lattice(self.elements, self.downsets[chosen])

    def sums(self, *columns: Floats) -> list[Floats]:
        """[n_downsets] of each column, [n_elements]: the sum of its values in each downset."""
        total = np.zeros((self.n, len(columns)))
        sum_up(self.downsets, np.stack(columns, axis=1), total)
        return list(np.ascontiguousarray(total.T))

    def cut_s(self, forth_s: Floats, back_s: Floats) -> Floats:
        """[n_downsets], seconds, [n_nets], of nets that go from a downset to the rest or come back."""
        nets = self.open_nets
        seconds = np.where(nets.status[:, 1] > 0, forth_s[nets.what], back_s[nets.what])
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
        """The nets that each downset holds a part of."""
        pins = self.elements.nets.pins
        return _filled(self.n, lambda parts: open_nets(self.downsets, pins, parts))

    def penalties(self, limit_s: float) -> tuple[Penalty, Parts]:
        """What the interval from one downset to a larger one costs on each kind of device, and the unordered blocks in
        part.

        With S the interval from I to J, a net that neither I nor J holds in part costs S nothing. If only I does,
        S holds the other ends: it enters if the writer is in I, else it leaves; this is in ``starts_s[I]``. If only J
        does, S holds what ends are in J: it leaves if the writer is among them, else it enters; in ``ends_s[J]``. If
        both do, both have been counted, one as leaving and one as entering, or both as leaving; but it leaves once at
        most, and if S holds no end of it, it does not enter either.

        Unordered blocks count in the same way; and one with all its neighbours in S counts in ``ends_s[J]`` and, if it
        has some of them in I, back in ``starts_s[I]``.

        What is not possible costs twice the limit, so that sums and differences stay finite.
        """
        compute_s = self.compute_s(limit_s)
        found = [self._penalty(kind, _cap_s(limit_s), seconds) for kind, seconds in enumerate(compute_s)]
        return Penalty(*(np.stack(rows) for rows in zip(*(penalty for penalty, _ in found), strict=True))), found[0][1]

    def compute_s(self, limit_s: float) -> list[Floats]:
        """[n_downsets] for each kind of device, seconds of all in a downset; what cannot run takes two limits."""
        return self.sums(*self._block_s(_cap_s(limit_s))[self.elements.element].T)

    def _block_s(self, cap_s: float) -> Floats:
        """[n_blocks, n_kinds], seconds, with a cap instead of infinity."""
        blocks, first = self.elements.blocks, self.elements.kinds.first
        return np.where(blocks.fits[:, first], np.minimum(blocks.forward_s[:, first], cap_s), cap_s)

    def _penalty(self, kind: int, cap_s: float, compute_s: Floats) -> tuple[Penalty, Parts]:
        """The rows of one kind."""
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
        """The unordered blocks in part, what they add to ``starts_s`` and ``ends_s``, and the sums of their ties."""
        pins, near, far = self.elements.ties
        near_s, far_s = np.minimum(near[kind], cap_s), np.minimum(far[kind], cap_s)
        n_unordered = len(alone_s)
        closed = np.zeros((self.n, n_unordered), dtype=bool)
        parts = _filled(self.n, lambda parts: open_unordered(self.downsets, pins, near_s, far_s, closed, parts))
        what, status = parts.what, parts.status
        of_block = np.repeat(np.arange(n_unordered), np.diff(pins.start))
        near_all, far_all = _sum_by(of_block, near_s, n_unordered), _sum_by(of_block, far_s, n_unordered)
        least = np.minimum(near_all, alone_s)
        begun = np.minimum(near_all[what] - status[:, 0], alone_s[what] + status[:, 1]) - least[what]
        ended = np.minimum(status[:, 0], alone_s[what] + far_all[what] - status[:, 1])
        done = closed @ least
        starts_s = _sum_by(parts.of_downset, begun, self.n) - done
        ends_s = _sum_by(parts.of_downset, ended, self.n) + done
        return parts, starts_s, ends_s, (near_all, far_all)


def _cap_s(limit_s: float) -> float:
    """What stands for infinity under a limit."""
    return 2 * limit_s or 1.0


def _filled(n_downsets: int, fill: Callable[[Parts], None]) -> Parts:
    """Parts of a size that is only known after a first pass."""
    start = np.zeros(n_downsets + 1, dtype=np.int64)
    fill(Parts(start, np.zeros(0, dtype=np.int64), np.zeros((0, 2))))
    parts = Parts(start, np.zeros(start[-1], dtype=np.int64), np.zeros((start[-1], 2)))
    fill(parts)
    return parts


def _sum_by(number: Ints, values: Floats, n: int) -> Floats:
    """[n], the sum of the values of each number."""
    return np.bincount(number, values, minlength=n).astype(np.float64)
