"""Reduce: merges operators that share a device in every placement that can be best, before the search.

::

    contiguous operators   a ─► b ─► c      a and c on one device, b on another: back and forth, so all are together
    a limit of 10 s        a ─ 20 s ─► b    apart, one of the two devices would send or fetch for 20 s: together
    a single device        only one device can run a and b: together
    an unordered block x   a ◄─► x ─► b     if a pays less on the device of x, and so does the device x leaves: together
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodels.table import CostTable
from graphs.common.arrays import Floats
from planner.problem.blocks import Blocks, merge_blocks
from planner.problem.deadline import loading
from planner.problem.devices import alike
from planner.solvers.boundary import BoundaryCosts, boundary_costs

Group: TypeAlias = tuple[int, ...]

ROUNDING = 1e-9  # relative; sums of seconds are rounded


@dataclass(frozen=True)
class IntervalKinds:
    """Kinds of devices, which a search over intervals charges alike, and these charges.

    The charge equals the evaluator's where devices pay at their boundary (`planner.solvers.boundary`). If they send to
    each other, it is at most the evaluator's: once for each flow that leaves, over the cheapest link.
    """

    devices: tuple[tuple[int, ...], ...]  # of each kind, ascending
    enter_s: Floats  # [n_flows, n_kinds], seconds if a flow is written elsewhere and read here
    leave_s: Floats  # [n_flows, n_kinds], seconds if a flow is written here and read elsewhere
    exact: bool  # whether devices pay at their boundary

    @property
    def first(self) -> list[int]:
        """[n_kinds], one device of each."""
        return [devices[0] for devices in self.devices]

    def seconds(self, flows: Sequence[int]) -> tuple[Floats, Floats]:
        """Return the seconds of some flows together to enter and to leave, [n_kinds] each."""
        rows = list(flows)
        return self.enter_s[rows].sum(axis=0), self.leave_s[rows].sum(axis=0)


def kinds_of(table: CostTable) -> IntervalKinds:
    """Return the kinds, in the order of their first devices."""
    enter_s, leave_s = _charges(table)
    kinds = alike(table, enter_s, leave_s)
    first = [devices[0] for devices in kinds]
    return IntervalKinds(kinds, enter_s[:, first], leave_s[:, first], exact=boundary_costs(table) is not None)


def _charges(table: CostTable) -> BoundaryCosts:
    """Return the least seconds that a flow occupies a device to enter, and to leave, [n_flows, n_devices] each."""
    if costs := boundary_costs(table):
        return costs
    both = np.empty((2, len(table.flows), table.n_devices))
    for device in range(table.n_devices):
        for way, wires in enumerate((table.link_class[:, device], table.link_class[device])):
            links = np.unique(wires[wires >= 0])
            link_s = np.zeros_like(table.link_s[:, links]) if table.overlap else table.link_s[:, links]
            both[way, :, device] = link_s.min(axis=1, initial=inf) + table.overhead_s[device]
    return BoundaryCosts(both[0], both[1])


def reduce(table: CostTable, inside: frozenset[int], kinds: IntervalKinds, limit_s: float) -> Blocks:
    """Merge until nothing more must or may share a device in the best placement within ``limit_s``, if there is one."""
    groups: list[Group] = []
    while True:
        blocks = merge_blocks(table, groups)
        shared = _circles(blocks, inside) or _confined(blocks, limit_s) or _inseparable(blocks, kinds, limit_s)
        shared = shared or _followers(blocks, inside, kinds, limit_s)
        if not shared:
            return blocks
        groups += [tuple(op for block in some for op in blocks.members[block]) for some in shared]


def unordered(blocks: Blocks, inside: frozenset[int]) -> NDArray[np.bool_]:
    """Return [n_blocks], whether a block has no operator that must be contiguous, so it can be anywhere."""
    held = np.zeros(blocks.n, dtype=bool)
    held[blocks.block[sorted(inside)]] = True
    return ~held


def relations(blocks: Blocks, inside: frozenset[int]) -> list[tuple[int, int]]:
    """Return pairs of blocks of which the first may not come after the second."""
    block = blocks.block.tolist()
    pairs = {(block[a], block[b]) for a, b in blocks.table.edges if a in inside and b in inside}
    return sorted((a, b) for a, b in pairs if a != b)


def _circles(blocks: Blocks, inside: frozenset[int]) -> list[Group]:
    """Return blocks that come before and after each other: their devices would, too."""
    with loading():
        from scipy.sparse import coo_array  # late: scipy takes a third of a second to load
        from scipy.sparse.csgraph import connected_components

    pairs = np.asarray(relations(blocks, inside), dtype=np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(blocks.n, blocks.n))
    _, number = connected_components(graph, connection="strong")
    found: dict[int, list[int]] = {}
    for block, component in enumerate(number.tolist()):
        found.setdefault(component, []).append(block)
    return [tuple(some) for some in found.values() if len(some) > 1]


def _confined(blocks: Blocks, limit_s: float) -> list[Group]:
    """Return blocks that only one device can run within the limit, the same one for all."""
    can = blocks.fits & (blocks.forward_s <= limit_s * (1 + ROUNDING))
    only, device = can.sum(axis=1) == 1, can.argmax(axis=1)
    found = [tuple(np.flatnonzero(only & (device == d)).tolist()) for d in range(can.shape[1])]
    return [some for some in found if len(some) > 1]


def _inseparable(blocks: Blocks, kinds: IntervalKinds, limit_s: float) -> list[Group]:
    """Return pairs of blocks that, if apart, would keep a device busy for more than the limit."""
    apart: dict[tuple[int, int], Floats] = {}
    seconds = blocks.forward_s[:, kinds.first]
    for net in blocks.nets:
        enter_s, leave_s = kinds.seconds(net.flows)
        for reader in net.readers:
            for pair, extra_s in (((net.writer, reader), leave_s), ((reader, net.writer), enter_s)):
                apart.setdefault(pair, seconds[pair[0]].copy())
                apart[pair] += extra_s
    pairs = [(a, b) for a, b in apart if a < b]
    barred = np.diag([len(devices) < 2 for devices in kinds.devices])
    here_s = np.asarray([apart[a, b] for a, b in pairs]).reshape(-1, len(barred), 1)
    there_s = np.asarray([apart[b, a] for a, b in pairs]).reshape(-1, 1, len(barred))
    least_s = np.where(barred, inf, np.maximum(here_s, there_s)).min(axis=(1, 2), initial=inf)
    return [pairs[number] for number in np.flatnonzero(least_s > limit_s * (1 + ROUNDING))]


def _followers(blocks: Blocks, inside: frozenset[int], kinds: IntervalKinds, limit_s: float) -> list[Group]:
    """Unordered blocks, each with a neighbour that it may follow; no two of them have anything to do with each other.

    Only where devices pay at their boundary: the cost of a flow then does not depend on its readers.
    """
    found: list[Group] = []
    if not (kinds.exact and np.isfinite(kinds.enter_s).all() and np.isfinite(kinds.leave_s).all()):
        return found
    met: set[int] = set()
    for block in np.flatnonzero(unordered(blocks, inside)).tolist():
        ends = {end for net in blocks.nets_of[block] for end in (net.writer, *net.readers)}
        leader = next((end for end in sorted(ends - {block}) if _follows(block, end, blocks, kinds, limit_s)), None)
        if leader is not None and not ends & met:
            found.append((block, leader))
            met |= ends
    return found


def _follows(block: int, leader: int, blocks: Blocks, kinds: IntervalKinds, limit_s: float) -> bool:
    """Return whether moving an unordered block to the device of another one never makes any device busier.

    It compares what may be added with what is saved, on each device that they may come to or leave.
    """
    seconds, room_bytes = blocks.forward_s[:, kinds.first], blocks.room_bytes[kinds.first]
    there = (seconds[leader] <= limit_s * (1 + ROUNDING)) & (blocks.n_bytes[leader] <= room_bytes)
    if (blocks.n_bytes.sum() > room_bytes[there]).any():
        return False
    arrives, departs = seconds[block].copy(), -seconds[block]
    for net in blocks.nets_of[block]:
        enter_s, leave_s = kinds.seconds(net.flows)
        if net.writer == block:
            others = net.readers != (leader,)
            arrives += others * leave_s - (leader in net.readers) * enter_s
            departs += others * enter_s - (leader in net.readers) * leave_s
        elif net.writer == leader:
            if net.readers == (block,):
                arrives -= leave_s
                departs -= enter_s
        else:
            arrives += (leader not in net.readers) * enter_s
            departs += leave_s
    runs = np.isfinite(seconds[block])
    return bool((arrives[there] <= 0).all() and (departs[runs] <= 0).all())
