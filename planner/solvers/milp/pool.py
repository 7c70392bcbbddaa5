"""Pool: devices alike that pay for no transfer, as one that is as quick as all of them; its bounds hold for them.

::

    host0   host1   host2   host3          a host of four times the speed and room:
    a       b c     d       e f            a b c d e f          load = sum of loads / 4 <= the largest load

A program with four hosts alike spends its time on which host runs what, which hardly matters; with one it decides what
the accelerators run. What the one host runs is then divided among the four.

Source: Karmarkar and Karp, The Differencing Method of Set Partitioning, Berkeley UCB/CSD 82/113, 1982.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heappush

import numpy as np

from costmodels.table import CostTable, Ints
from planner.problem.blocks import merge_blocks
from planner.problem.problem import Problem
from planner.solvers.devices import interchangeable
from simulator.placement import Placement

COLUMNS = (
    "forward_s",
    "source",
    "backward_s",
    "spread",
    "slowdown",
    "capacity_bytes",
    "overhead_s",
    "contention_group",
)
"""What a table says of each device, which is the last axis."""


@dataclass(frozen=True)
class Pool:
    """Devices of a problem that exchange tensors through a host, some of them as one."""

    original: Problem  # the problem, for throughput
    members: tuple[int, ...]  # devices alike that pay for no transfer, two at least, ascending

    @cached_property
    def problem(self) -> Problem:
        """The problem with the first member alone, which is as quick as all of them and has the room of all."""
        table, kept = self.original.table, self._kept
        assert table.offload is not None
        first = np.where(kept == self.members[0], len(self.members), 1)
        columns = {name: getattr(table, name)[..., kept] for name in COLUMNS}
        columns |= {"forward_s": columns["forward_s"] / first, "capacity_bytes": columns["capacity_bytes"] * first}
        offload = replace(
            table.offload,
            store_s=table.offload.store_s[:, kept],
            fetch_s=table.offload.fetch_s[:, kept],
            host=table.offload.host[kept],
        )
        pooled = replace(
            table,
            **columns,
            devices=tuple(table.devices[device] for device in kept.tolist()),
            link_class=table.link_class[np.ix_(kept, kept)],
            channel=table.channel[np.ix_(kept, kept)],
            offload=offload,
        )
        return replace(self.original, table=pooled)

    def pooled(self, placement: Placement) -> Placement:
        """A placement of the original problem, with all members as one."""
        device = np.asarray(placement.device)
        device = np.where(np.isin(device, self.members), self.members[0], device)
        return Placement(tuple(np.searchsorted(self._kept, device).tolist()))

    def divided(self, placement: Placement) -> Placement:
        """A placement of the pooled problem, with what the one member has divided among all of them."""
        blocks = merge_blocks(self.original.table)
        device = self._kept[np.asarray(placement.device)[[members[0] for members in blocks.members]]]
        mine = np.flatnonzero(device == self.members[0])
        parts = divide(blocks.forward_s[mine, self.members[0]].tolist(), len(self.members))
        for member, part in zip(self.members, parts, strict=True):
            device[mine[list(part)]] = member
        return blocks.spread(device)

    @property
    def _kept(self) -> Ints:
        """[n_devices of the pooled problem], their numbers in the original one."""
        return np.setdiff1d(np.arange(self.original.table.n_devices), self.members[1:])


def pool_of(problem: Problem) -> Pool | None:
    """The largest class of devices alike that pay for no transfer, as one; None if none has two devices."""
    table: CostTable = problem.table
    if table.offload is None or table.update is not None:
        return None
    pays = (table.offload.store_s + table.offload.fetch_s).sum(axis=0).tolist()
    largest = max((known for known in interchangeable(table) if pays[known[0]] == 0), key=len, default=())
    return Pool(problem, largest) if len(largest) > 1 else None


def divide(seconds: Sequence[float], n_parts: int) -> list[tuple[int, ...]]:
    """Parts of numbers with nearly equal sums: the indices of each.

    At first, each number is a row of parts on its own, all but one of them empty. Always the two rows with the largest
    differences become one: the largest part of the one joins the smallest part of the other.
    """
    if not seconds:
        return [()] * n_parts
    empty: tuple[tuple[float, tuple[int, ...]], ...] = ((0.0, ()),) * (n_parts - 1)
    rows = [(-one, number, ((one, (number,)), *empty)) for number, one in enumerate(seconds)]
    heapify(rows)
    while len(rows) > 1:
        _, _, one = heappop(rows)
        _, number, other = heappop(rows)
        both = sorted(((a + b, x + y) for (a, x), (b, y) in zip(one, reversed(other), strict=True)), reverse=True)
        heappush(rows, (both[-1][0] - both[0][0], number, tuple(both)))
    return [part for _, part in rows[0][2]]
