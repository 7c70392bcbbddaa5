"""Placement: which operator runs on which device, and in which order, for each copy of the network."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from costmodels.table import CostTable
from graphs.common.arrays import Floats
from graphs.common.brief import Brief
from graphs.common.errors import InputError


@dataclass(frozen=True)
class Placement(Brief):
    """A device for every operator, and one order of all operators.

    Each device runs its operators in ``order``. It is a topological order of the whole graph, so devices can never
    wait for each other in a circle.

    A network that streams may have several copies, which differ in where their operators are; devices hold a weight
    once for all of them. Micro-batch j goes through copy j modulo their number, as a replicated stage takes
    micro-batches in turns in PipeDream (Narayanan et al., SOSP 2019, section 3.3). ::

        micro-batch     0     1     2     3            copies of everything:   cpu0 │ cpu1
        goes through    copy  other copy  other        of the stage b alone:   a on cpu0, b on cpu1 │ b on cpu2

    Attributes:
        device: [n_ops], index of a device.
        order: [n_ops], operator indices; the graph's own order if left out.
        others: the placements of the other copies; none of these has others itself.
    """

    device: tuple[int, ...]
    order: tuple[int, ...] = ()
    others: "tuple[Placement, ...]" = ()

    def __post_init__(self) -> None:
        if not self.order:
            object.__setattr__(self, "order", tuple(range(len(self.device))))

    @property
    def copies(self) -> "tuple[Placement, ...]":
        """The copies of the network, in the order in which micro-batches go through them; one as a rule."""
        return (self, *self.others)

    @cached_property
    def used(self) -> tuple[int, ...]:
        """The devices that have anything to do, ascending."""
        return tuple(sorted({device for copy in self.copies for device in copy.device}))

    @cached_property
    def uncut(self) -> bool:
        """Whether each copy is on a single device."""
        return all(len(set(copy.device)) <= 1 for copy in self.copies)

    def operators(self, device: int) -> tuple[int, ...]:
        """Return the operators that a device runs in any copy, ascending."""
        return tuple(op for op, homes in enumerate(self.homes) if device in homes)

    @cached_property
    def homes(self) -> tuple[tuple[int, ...], ...]:
        """[n_ops], the devices that run each operator in some copy, in the order of the copies."""
        return tuple(tuple(dict.fromkeys(homes)) for homes in zip(*(copy.device for copy in self.copies), strict=True))

    @cached_property
    def rank(self) -> tuple[int, ...]:
        """[n_ops], position of each operator in the order."""
        rank = [0] * len(self.order)
        for position, op in enumerate(self.order):
            rank[op] = position
        return tuple(rank)

    def check(self, table: CostTable) -> None:
        """Check that it fits the table.

        Raises:
            InputError: for a missing operator, a device that does not exist or cannot run the operator, an order that
                is no topological one, or a flow between devices without a link.
        """
        for other in self.others:
            other.check(table)
        if len(self.device) != table.n_ops:
            raise InputError(f"the placement has {len(self.device)} operators, the graph has {table.n_ops}")
        placed = np.asarray(self.device, dtype=np.int64)
        for op in np.flatnonzero((placed < 0) | (placed >= table.n_devices)):
            raise InputError(
                f"operator '{table.ops[op]}' is on device {placed[op]}; there are {table.n_devices} devices"
            )
        for op in np.flatnonzero(~np.isfinite(table.forward_s[np.arange(table.n_ops), placed])):
            raise InputError(f"operator '{table.ops[op]}' cannot run on '{table.devices[placed[op]]}'")
        order = np.asarray(self.order, dtype=np.int64)
        if not np.array_equal(np.sort(order), np.arange(table.n_ops)):
            raise InputError("the placement's order must name every operator exactly once")
        rank = np.argsort(order)
        _, writers, readers = table.reads
        for writer, reader in table.reads[1:, rank[writers] > rank[readers]].T.tolist():
            ends = f"'{table.ops[reader]}' before '{table.ops[writer]}'"
            raise InputError(f"the placement's order runs {ends}, which writes its input")
        for flow, src, dst in self.cuts(table) if not table.linked.all() else ():
            if not table.linked[src, dst]:
                ends = f"from '{table.devices[src]}' to '{table.devices[dst]}'"
                raise InputError(
                    f"tensor '{table.flows[flow].tensor}' must go {ends}, but there is no link; "
                    "add a [[link]] to cluster.toml"
                )

    def cuts(self, table: CostTable) -> Iterator[tuple[int, int, int]]:
        """Yield every transfer of this copy: (flow, from device, to device), once for each remote reading device."""
        for f, flow in enumerate(table.flows):
            src = self.device[flow.writer]
            for dst in sorted({self.device[reader] for reader in flow.readers} - {src}):
                yield f, src, dst

    def all_cuts(self, table: CostTable) -> Iterator[tuple[int, int, int]]:
        """Return the transfers of all copies; each takes place once in as many micro-batches as there are copies."""
        return (cut for copy in self.copies for cut in copy.cuts(table))

    def costs(self, table: CostTable, streaming: bool) -> CostTable:
        """Return the costs of operators under this placement, see `contention` and `shared_copies`."""
        if streaming and self.shared_copies(table):
            return table.in_copies
        if not table.slowdown.any():
            return table
        share = self.contention(table, streaming)
        return table.contended if (share == 1).all() else table.with_contention(share)

    def shared_copies(self, table: CostTable) -> bool:
        """Return whether copies of the network share a cache: each on an own device of one contention group.

        In step, each weight is read from memory once for all of them; apart, as often as there are copies.
        """
        if not self.others or not self.uncut or len(self.used) < len(self.copies):
            return False
        return bool(table.contends[self.used[0], self.used[1:]].all())

    def contention(self, table: CostTable, streaming: bool) -> Floats:
        """Return [n_devices], the share of its work that a device does under contention: while others compute too.

        With everything on one device, or one micro-batch and each copy on one device, the others are idle. In a stream,
        all devices begin each micro-batch together, so the busiest one is under contention until the others have
        finished, see `contended_share`. For one micro-batch, or one step, it is unknown beforehand which device waits
        for which; every device is taken to be under contention all the time, which is never too short.
        """
        if self.uncut and (len(self.used) == 1 or not streaming):
            return np.zeros(table.n_devices)
        return self.contended_share(table) if streaming else np.ones(table.n_devices)

    def contended_share(self, table: CostTable) -> Floats:
        """Return [n_devices], the share of its work that a streaming device does under contention.

        Let others compute for a time L' while a device would take L if they never paused. Before they pause, it does
        the part L' / L of its work; the rest is done as on an idle host. So it has contention for that part, or for all
        of it if they take longer.
        """
        busy_s = self.busy_s(table.contended)
        part = np.minimum(1.0, busy_s / np.where(busy_s > 0, busy_s, np.inf)[:, None])
        return np.asarray((part * table.contends).sum(axis=1) / np.maximum(1, table.contends.sum(axis=1)))

    def held_bytes(self, n_bytes: Floats, n_devices: int) -> Floats:
        """Return [n_devices], bytes of the operators' weights, [n_ops], which a device holds once for all copies."""
        devices = np.asarray([copy.device for copy in self.copies], dtype=np.int64)  # [n_copies, n_ops]
        held = np.unique(devices * len(n_bytes) + np.arange(len(n_bytes))) if self.others else None
        device, op = (devices[0], np.arange(len(n_bytes))) if held is None else divmod(held, len(n_bytes))
        held_bytes = np.zeros(n_devices)
        np.add.at(held_bytes, device, n_bytes[op])
        return held_bytes

    def busy_s(self, table: CostTable) -> Floats:
        """Return [n_devices], seconds that each device computes for one micro-batch, in the mean of the copies."""
        busy = np.zeros(table.n_devices)
        for copy in self.copies:
            placed = np.asarray(copy.device, dtype=np.int64)
            np.add.at(busy, placed, table.forward_s[np.arange(table.n_ops), placed])
        return busy / len(self.copies)
