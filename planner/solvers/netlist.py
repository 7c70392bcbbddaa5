"""Netlist: a placement problem as flat arrays, for searches that try hundreds of thousands of moves a second.

::

    cells    0   1   2   3                      the units to place: blocks of operators, or clusters of blocks
    nets     0 ─► 1, 2     2 ─► 3               start = [0, 3, 5]     pin = [0, 1, 2, 2, 3], the writer first

A net that is written on device s and read on R other devices d costs, in one model for every kind of transfer::

    load[s]          += once_out_s[n, s]              if R > 0
    load[s]          += each_out_s[n, s]              for each d
    load[d]          += each_in_s[n, d]               for each d
    load[s], load[d] += link_s[n, wire[s, d]]         for each d, if transfers keep devices busy
    channel[s, d]    += link_s[n, wire[s, d]]         for each d
"""

from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphs.common.arrays import Floats, Ints
from planner.problem.blocks import Blocks
from planner.problem.problem import Goal
from planner.solvers.boundary import boundary_costs

_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # odd multipliers of the hash "splitmix64" (Steele, Lea, Flood, OOPSLA 2014)
_MIX = np.uint64(0xBF58476D1CE4E5B9)


class Netlist(NamedTuple):
    """Cells, nets, and the resources that they occupy: first the devices, then the channels.

    Every array is writable and owns its memory, so that a compiled search sees the same types for every problem.
    """

    seconds: Floats  # [n_cells, n_devices], computing time of a cell; infinite where it cannot run or does not fit
    n_bytes: Floats  # [n_cells]
    room_bytes: Floats  # [n_devices]
    start: Ints  # [n_nets + 1], where the pins of each net begin
    pin: Ints  # [n_pins], the cells of each net: the writer, then the readers, ascending
    once_out_s: Floats  # [n_nets, n_devices]
    each_out_s: Floats  # [n_nets, n_devices]
    each_in_s: Floats  # [n_nets, n_devices]
    link_s: Floats  # [n_nets, n_link_classes]
    link_class: Ints  # [n_devices, n_devices], -1 without a link, and between a device and itself
    channel: Ints  # [n_devices, n_devices], the resource that a link occupies; -1 where there is none
    busy: bool  # whether a transfer keeps both devices busy
    first_net: Ints  # [n_cells + 1], where the nets of each cell begin
    net: Ints  # [n_pins], the nets of each cell, ascending
    n_resources: int  # devices and channels

    @property
    def n_cells(self) -> int:
        """The number of cells."""
        return len(self.n_bytes)

    @property
    def n_devices(self) -> int:
        """The number of devices."""
        return len(self.room_bytes)

    @property
    def readers(self) -> Ints:
        """[n_nets], the number of cells that read each net."""
        return np.diff(self.start) - 1

    def merge(self, cluster: Ints) -> "Netlist":
        """Return the netlist of clusters of cells; ``cluster``, [n_cells], numbers clusters from 0 without gaps."""
        n = int(cluster.max(initial=-1)) + 1
        seconds = _sum_by(cluster, self.seconds, n)
        n_bytes = _sum_by(cluster, self.n_bytes, n)
        seconds[n_bytes[:, None] > self.room_bytes] = np.inf
        is_reader = np.ones(len(self.pin), dtype=bool)
        is_reader[self.start[:-1]] = False
        ends = cluster[self.pin[self.start[:-1]]], cluster[self.pin[is_reader]], self.readers
        nets = _merge_nets(*ends, (self.once_out_s, self.each_out_s, self.each_in_s, self.link_s))
        return self._replace(seconds=seconds, n_bytes=n_bytes, **nets, **_nets_of_cells(n, nets["start"], nets["pin"]))


def netlist(blocks: Blocks, goal: Goal) -> Netlist:
    """Return the netlist of a problem. For the goal cost, a transfer counts once, on its channel and no device."""
    table = blocks.table
    n_flows, k = len(table.flows), table.n_devices
    writer = np.fromiter((flow.writer for flow in table.flows), dtype=np.int64, count=n_flows)
    readers = np.fromiter((len(flow.readers) for flow in table.flows), dtype=np.int64, count=n_flows)
    reader = np.fromiter(chain.from_iterable(flow.readers for flow in table.flows), dtype=np.int64)
    none, each_s = np.zeros((n_flows, k)), np.broadcast_to(table.overhead_s, (n_flows, k))
    costs = (none, each_s, each_s, table.link_s)
    counted = table.sharing != "unlimited" or goal is Goal.COST
    channel = np.where((table.channel >= 0) & counted, table.channel + k, -1)
    if own := boundary_costs(table):  # links only say which device may read what another one writes
        costs = (own.leave_s, none, own.enter_s, np.zeros_like(table.link_s))
        channel = np.full((k, k), -1)
    nets = _merge_nets(blocks.block[writer], blocks.block[reader], readers, costs)
    return Netlist(
        seconds=np.where(blocks.fits, blocks.forward_s, np.inf),
        n_bytes=blocks.n_bytes.copy(),
        room_bytes=blocks.room_bytes.copy(),
        link_class=table.link_class.copy(),
        channel=channel,
        busy=not table.overlap and goal is not Goal.COST,
        n_resources=max(k, int(channel.max(initial=-1)) + 1),
        **nets,
        **_nets_of_cells(blocks.n, nets["start"], nets["pin"]),
    )


def _merge_nets(writer: Ints, reader: Ints, readers: Ints, costs: tuple[Floats, ...]) -> dict[str, Any]:
    """Drop readers that are the writer or named twice, and make one net of all nets with the same ends.

    Readers of the first net come first, as many as ``readers`` [n_nets] says; one net gets the sums of the merged ones'
    costs: ``once_out_s``, ``each_out_s``, ``each_in_s`` and ``link_s``.
    """
    net = np.repeat(np.arange(len(writer)), readers)
    n_cells = int(max(writer.max(initial=0), reader.max(initial=0))) + 1
    pairs = np.unique((net * n_cells + reader)[reader != writer[net]])
    net, reader = np.divmod(pairs, n_cells)
    readers = np.bincount(net, minlength=len(writer))
    kept = np.flatnonzero(readers)
    first = np.cumsum(readers[kept]) - readers[kept]
    # Nets with equal sums of 64 random bits for each end have the same ends, except for one in 10^19 pairs of nets.
    ends = np.add.reduceat(_random_bits(reader), first) if len(first) else np.zeros(0, dtype=np.uint64)
    ends = ends * _MIX + _random_bits(writer[kept])
    _, leader, group = np.unique(ends, return_index=True, return_inverse=True)
    rank = np.empty(len(leader), dtype=np.int64)
    rank[np.argsort(leader)] = np.arange(len(leader))  # in the order of their first nets, not of the random bits
    chosen = kept[np.sort(leader)]
    is_chosen = np.zeros(len(writer), dtype=bool)
    is_chosen[chosen] = True
    start = np.concatenate(([0], np.cumsum(readers[chosen] + 1)))
    is_reader = np.ones(start[-1], dtype=bool)
    is_reader[start[:-1]] = False
    pin = np.empty(start[-1], dtype=np.int64)
    pin[~is_reader] = writer[chosen]
    pin[is_reader] = reader[is_chosen[net]]
    names = ("once_out_s", "each_out_s", "each_in_s", "link_s")
    sums = {name: _sum_by(rank[group], cost[kept], len(leader)) for name, cost in zip(names, costs, strict=True)}
    return {"start": start, "pin": pin, **sums}


def _nets_of_cells(n_cells: int, start: Ints, pin: Ints) -> dict[str, Any]:
    """Return the pins by cell instead of by net."""
    net = np.repeat(np.arange(len(start) - 1), np.diff(start))
    first_net = np.concatenate(([0], np.cumsum(np.bincount(pin, minlength=n_cells))))
    return {"first_net": first_net, "net": net[np.argsort(pin, kind="stable")]}


def _sum_by(group: Ints, values: Floats, n: int) -> Floats:
    """Return [n, ...], the sum of the rows of each group; no group is empty."""
    if len(group) == n:  # each row is a group of its own
        sums = np.empty_like(values, order="C", subok=False)
        sums[group] = values
        return sums
    in_order = np.argsort(group, kind="stable")
    first = np.searchsorted(group[in_order], np.arange(n))
    return np.ascontiguousarray(np.add.reduceat(values[in_order], first, axis=0))


def _random_bits(number: Ints) -> NDArray[np.uint64]:
    """64 pseudorandom bits for each number, always the same."""
    bits = (number.astype(np.uint64) + np.uint64(1)) * _SPREAD
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX
    return np.asarray(bits ^ (bits >> np.uint64(31)), dtype=np.uint64)
