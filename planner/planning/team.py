"""Teams: equal devices that compute operators together, and the time to pass a tensor on in another layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from costmodels.cluster.cluster import Cluster, Device, Link
from graphs.rewrites.sharding import Shard


class Overlapping(NamedTuple):
    """Shares that have some rows in common, as a convolution reads them."""

    shard: Shard  # the axis of the rows
    common: float  # the rows in common, as a share of all


WHOLE, EVERYWHERE, SUMMED = "whole", "everywhere", "summed"
Held: TypeAlias = Shard | Overlapping | str
"""How devices hold a tensor: the first one all of it, each all of it, each a term of a sum, or each a share."""


@dataclass(frozen=True)
class Team:
    """Equal devices that are all linked, which compute operators together."""

    numbers: tuple[int, ...]  # of the devices in their cluster
    device: Device  # any of them
    link: Link  # between any two of them

    @classmethod
    def of(cls, cluster: Cluster) -> Team | None:
        """Return the largest team on a host, or of one device of each host; None if no two equal devices are linked."""
        kinds: dict[str, list[int]] = {}
        of_host: dict[tuple[str, str], list[int]] = {}
        for number, device in enumerate(cluster.devices):
            kinds.setdefault(device.kind, []).append(number)
            of_host.setdefault((device.kind, device.host), []).append(number)
        near, far = (sorted(groups.values(), key=len, reverse=True) for groups in (of_host, kinds))
        for numbers in (*near, *far):
            linked = cluster.wired_pairs.link_class[np.ix_(numbers, numbers)] >= 0
            if len(numbers) > 1 and np.count_nonzero(linked) == len(numbers) * (len(numbers) - 1):
                return cls(tuple(numbers), cluster.devices[numbers[0]], cluster.link[numbers[0], numbers[1]])
        return None

    @property
    def size(self) -> int:
        """The number of devices."""
        return len(self.numbers)

    def send_s(self, n_bytes: float) -> float:
        """Return the seconds until another device has a tensor."""
        return float(self.link.seconds(np.array([n_bytes]))[0]) + 2 * self.device.overhead_s

    def copy_s(self, n_bytes: float) -> float:
        """Return the seconds of an operator that reads and writes ``n_bytes`` bytes."""
        return self.device.launch_s + 2 * n_bytes / self.device.memory_bytes_per_s

    def relaid_s(self, written: Held, read: Held, n_bytes: float) -> float:
        """Return the seconds to bring a tensor from one layout into another.

        Rows of experts have the shape of the whole, so that a reader adds them up.
        """
        if written in (read, EVERYWHERE):
            return 0.0
        written = SUMMED if isinstance(written, Shard) and written.ends else written
        read = EVERYWHERE if isinstance(read, Shard) and read.ends else read
        others = (self.size - 1) / self.size
        if isinstance(read, Overlapping) and read.shard == written:
            return self.send_s(n_bytes * read.common) + self.copy_s(n_bytes / self.size)
        if written == SUMMED:
            sent = n_bytes if read in (WHOLE, EVERYWHERE) else n_bytes * others
            return self.send_s(sent) + (self.size - 1) * self.copy_s(1.5 * sent)
        if written == WHOLE:
            return self.send_s(n_bytes if read == EVERYWHERE else n_bytes / self.size)
        if read in (WHOLE, EVERYWHERE):
            return self.send_s(n_bytes * others) + self.copy_s(n_bytes)
        return self.send_s(n_bytes * others / self.size) + self.copy_s(n_bytes / self.size)
