"""Pool: one device in place of several equal ones that pay for no transfer, as fast as all of them together.

::

    host0   host1   host2   host3          a host of four times the speed and room:
    a       b c     d       e f            a b c d e f          load = sum of loads / 4 <= the largest load

A bound for the pooled problem holds for the original one. With four equal hosts, a program spends its time on which of
them runs what, which hardly matters; with one, it spends its time on what the accelerators run. Afterwards, what the
one host runs is divided among the four.

Source: Karmarkar and Karp, The Differencing Method of Set Partitioning, Berkeley UCB/CSD 82/113, 1982.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heappush

import numpy as np

from costmodels.table import CostTable, Ints
from planner.problem.blocks import merge_blocks
from planner.problem.devices import interchangeable
from planner.problem.problem import Problem
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
"""The fields of a table whose last axis is the device."""


@dataclass(frozen=True)
class Pool:
    """A problem whose devices exchange tensors through a host, and the devices that are pooled."""

    original: Problem  # for throughput
    members: tuple[int, ...]  # two or more equal devices that pay for no transfer, ascending

    @cached_property
    def problem(self) -> Problem:
        """The problem with the first member alone, which has the speed and the memory of all members."""
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
        """A placement of the original problem as one of the pooled problem."""
        device = np.asarray(placement.device)
        device = np.where(np.isin(device, self.members), self.members[0], device)
        return Placement(tuple(np.searchsorted(self._kept, device).tolist()))

    def divided(self, placement: Placement) -> Placement:
        """A placement of the pooled problem as one of the original problem, divided among the members."""
        blocks = merge_blocks(self.original.table)
        device = self._kept[np.asarray(placement.device)[[members[0] for members in blocks.members]]]
        mine = np.flatnonzero(device == self.members[0])
        parts = divide(blocks.forward_s[mine, self.members[0]].tolist(), len(self.members))
        for member, part in zip(self.members, parts, strict=True):
            device[mine[list(part)]] = member
        return blocks.spread(device)

    @property
    def _kept(self) -> Ints:
        """[n_devices of the pooled problem], the original number of each."""
        return np.setdiff1d(np.arange(self.original.table.n_devices), self.members[1:])


def pool_of(problem: Problem) -> Pool | None:
    """The pool of the largest class of equal devices that pay for no transfer; None if no class has two devices."""
    table: CostTable = problem.table
    if table.offload is None or table.update is not None:
        return None
    pays = (table.offload.store_s + table.offload.fetch_s).sum(axis=0).tolist()
    largest = max((alike for alike in interchangeable(table) if pays[alike[0]] == 0), key=len, default=())
    return Pool(problem, largest) if len(largest) > 1 else None


def divide(seconds: Sequence[float], n_parts: int) -> list[tuple[int, ...]]:
    """The indices of each of ``n_parts`` parts of the numbers, with nearly equal sums.

    At first each number is a row of parts of its own, all but one of them empty. The two rows with the largest
    differences are merged until one row is left: the largest part of one row joins the smallest part of the other.
    """
    if not seconds:
        return [()] * n_parts
    empty: tuple[tuple[float, tuple[int, ...]], ...] = ((0.0, ()),) * (n_parts - 1)
    rows = [(-value, number, ((value, (number,)), *empty)) for number, value in enumerate(seconds)]
    heapify(rows)
    while len(rows) > 1:
        _, _, first = heappop(rows)
        _, number, second = heappop(rows)
        merged = sorted(((a + b, x + y) for (a, x), (b, y) in zip(first, reversed(second), strict=True)), reverse=True)
        heappush(rows, (merged[-1][0] - merged[0][0], number, tuple(merged)))
    return [part for _, part in rows[0][2]]
