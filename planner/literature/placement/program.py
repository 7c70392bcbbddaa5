"""The integer program for a host with accelerators: each accelerator pays for tensors that enter and leave it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from costmodels.table import CostTable
from graphs.common.arrays import Floats, Ints
from planner.literature.placement.offload import offload_of
from planner.problem.blocks import merge_blocks
from planner.problem.devices import interchangeable
from planner.problem.problem import Problem
from planner.solvers.milp.model import PlacementModel
from simulator.placement import Placement


class Share(NamedTuple):
    """All nets with the same ends, which cross the boundary of a device together."""

    writer: int  # a block; -1 if it does not matter which block writes
    pins: tuple[int, ...]  # all blocks, ascending
    store_s: Floats  # [n_devices], seconds of the writer's device
    fetch_s: Floats  # [n_devices], seconds of a reader's device


class TransferVariables(NamedTuple):
    """A variable that is 1 if a share is stored by a device, fetched by it, or either."""

    variable: Any
    share: Share
    device: int
    stores: bool
    fetches: bool


class OffloadModel(PlacementModel):
    """Minimise the busiest device.

    Source: Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020, section
    5, with one variable where a device pays the same to store as to fetch, and one share for all nets with the same
    ends.
    """

    @property
    def families(self) -> Sequence[Callable[[], None]]:
        """The constraints, in the order in which they are added."""
        return (self._somewhere, self._crosses, self._busy, self._memory)

    def _crosses(self) -> None:
        """Demand that a share crosses the boundary of a device that has some of its blocks but not all.

        ::

            store[n, d] >= on[w, d] - on[r, d]         for every reader r, if block w writes
            fetch[n, d] >= on[r, d] - on[w, d]
            cross[n, d] >= |on[a, d] - on[b, d]|       if both cost the same; a is the heaviest block, b any other
        """
        self.crossings: list[TransferVariables] = []
        for number, share in enumerate(self.shares):
            for device in range(self.table.n_devices):
                if share.writer < 0:
                    kinds = [("cross", True, True)] if share.store_s[device] > 0 else []
                else:
                    kinds = [("store", True, False)] if share.store_s[device] > 0 else []
                    kinds += [("fetch", False, True)] if share.fetch_s[device] > 0 else []
                for name, stores, fetches in kinds:
                    variable = self.share(f"{name}_{number}_{device}", 1.0)
                    self.crossings.append(TransferVariables(variable, share, device, stores, fetches))
                    self._at_boundary(self.crossings[-1])

    def _at_boundary(self, crossing: TransferVariables) -> None:
        """Add the inequalities of one variable."""
        device, pins = crossing.device, crossing.share.pins
        heaviest = min(pins, key=self._rank.__getitem__)
        first = heaviest if crossing.share.writer < 0 else crossing.share.writer
        on_first = self.is_on.get((first, device))
        for pin in pins:
            on_pin = self.is_on.get((pin, device))
            if pin == first:
                continue
            if crossing.stores and on_first is not None:
                self.add([(crossing.variable, 1.0), (on_first, -1.0), *self._term(on_pin, 1.0)], ">=", 0.0)
            if crossing.fetches and on_pin is not None:
                self.add([(crossing.variable, 1.0), (on_pin, -1.0), *self._term(on_first, 1.0)], ">=", 0.0)

    def _busy(self) -> None:
        """sum_b takes[b, d] * on[b, d] + crossings of d <= busiest, for every device d."""
        for device in range(self.table.n_devices):
            self.add([*self._load(device), (self.busiest, -1.0)], "<=", 0.0)

    def _load(self, device: int) -> list[tuple[Any, float]]:
        """Return the seconds of a device, as terms."""
        takes = self.blocks.forward_s[:, device] / self.scale_s
        terms = [(variable, float(takes[b])) for (b, d), variable in self.is_on.items() if d == device]
        return terms + [(c.variable, self._pays(c)) for c in self.crossings if c.device == device]

    def _pays(self, crossing: TransferVariables) -> float:
        seconds = crossing.share.store_s if crossing.stores else crossing.share.fetch_s
        return self.units(float(seconds[crossing.device]))

    def start(self, placement: Placement) -> Mapping[Any, float]:
        """Return the value of every variable for a placement."""
        device = self._canonical(self.blocks.devices_of(placement)).tolist()
        values = dict(super().start(placement))
        for crossing in self.crossings:
            share = crossing.share
            inside = [device[pin] == crossing.device for pin in share.pins]
            crosses = any(inside) and not all(inside)
            if crossing.stores != crossing.fetches:
                crosses &= (device[share.writer] == crossing.device) == crossing.stores
            values[crossing.variable] = float(crosses)
        return values

    @cached_property
    def _rank(self) -> dict[int, int]:
        """The position of each block by falling seconds."""
        return {block: rank for rank, block in enumerate(self.heaviest_first)}

    @cached_property
    def shares(self) -> list[Share]:
        """The shares of all nets."""
        offload = offload_of(self.table)
        shares: dict[tuple[int, tuple[int, ...]], Share] = {}
        for net in self.blocks.nets:
            flows = list(net.flows)
            store_s, fetch_s = offload.store_s[flows].sum(axis=0), offload.fetch_s[flows].sum(axis=0)
            writer = -1 if np.array_equal(store_s, fetch_s) else net.writer
            key = writer, tuple(sorted((net.writer, *net.readers)))
            share = shares.get(key, Share(*key, np.zeros_like(store_s), np.zeros_like(fetch_s)))
            shares[key] = Share(*key, share.store_s + store_s, share.fetch_s + fetch_s)
        return list(shares.values())


class OffloadCostModel(OffloadModel):
    """Minimise the sum of the seconds of all devices."""

    def _busy(self) -> None:
        """Demand loads of all devices <= total."""
        loads = [term for device in range(self.table.n_devices) for term in self._load(device)]
        self.add([*loads, (self.busiest, -1.0)], "<=", 0.0)


@dataclass(frozen=True)
class Pool:
    """One device in place of several equal ones that pay for no transfer, as fast as all of them together.

    ::

        host0   host1   host2   host3          a host of four times the speed and room:
        a       b c     d       e f            a b c d e f          load = sum of loads / 4 <= the largest load

    A bound for the pooled problem holds for the original one. With four equal hosts, a program spends its time on which
    of them runs what, which hardly matters; with one, on what the accelerators run. Afterwards, what the one host runs
    is divided among the four.
    """

    original: Problem  # for throughput
    members: tuple[int, ...]  # two or more equal devices that pay for no transfer, ascending

    @cached_property
    def problem(self) -> Problem:
        """The problem with the first member alone, which has the speed and the memory of all members."""
        table, size = self.original.table.of_devices(self._kept.tolist()), len(self.members)
        times = np.where(self._kept == self.members[0], size, 1)
        pooled = replace(table, forward_s=table.forward_s / times, capacity_bytes=table.capacity_bytes * times)
        return replace(self.original, table=pooled)

    def pooled(self, placement: Placement) -> Placement:
        """Return a placement of the original problem as one of the pooled problem."""
        device = np.asarray(placement.device)
        device = np.where(np.isin(device, self.members), self.members[0], device)
        return Placement(tuple(np.searchsorted(self._kept, device).tolist()))

    def divided(self, placement: Placement) -> Placement:
        """Return a placement of the pooled problem as one of the original problem, divided among the members."""
        blocks = merge_blocks(self.original.table)
        device = self._kept[np.asarray(placement.device)[[members[0] for members in blocks.members]]]
        mine = np.flatnonzero(device == self.members[0])
        parts = karmarkar_karp(blocks.forward_s[mine, self.members[0]].tolist(), len(self.members))
        for member, part in zip(self.members, parts, strict=True):
            device[mine[list(part)]] = member
        return blocks.spread(device)

    @property
    def _kept(self) -> Ints:
        """[n_devices of the pooled problem], the original number of each."""
        return np.setdiff1d(np.arange(self.original.table.n_devices), self.members[1:])


def pool_of(problem: Problem) -> Pool | None:
    """Return the pool of the most equal devices that pay for no transfer; None if no two devices are equal."""
    table: CostTable = problem.table
    offload = offload_of(table)
    pays = (offload.store_s + offload.fetch_s).sum(axis=0).tolist()
    largest = max((alike for alike in interchangeable(table) if pays[alike[0]] == 0), key=len, default=())
    return Pool(problem, largest) if len(largest) > 1 else None


def karmarkar_karp(seconds: Sequence[float], n_parts: int) -> list[tuple[int, ...]]:
    """Return the indices of each of ``n_parts`` parts of the numbers, with nearly equal sums.

    At first each number is a row of parts of its own, all but one of them empty. The two rows with the largest
    differences are merged until one row is left: the largest part of one row joins the smallest part of the other.

    Source: Karmarkar and Karp, The Differencing Method of Set Partitioning, Berkeley UCB/CSD 82/113, 1982.
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
