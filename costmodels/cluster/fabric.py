"""Fabric: hosts of equally many devices, what joins the devices of a host, and what joins the hosts.

::

    host 0            host 1
    d0 d1 d2 d3       d4 d5 d6 d7         a group has a size and a stride: size 4 and stride 2 is d0 d2 d4 d6,
    └──inside──┘                          two hosts with two of its devices in each
     │  │  │  │   between   │  │  │  │    every device has a port of its own, or a part of its host's

Within a group, an all-reduce is one ring, or rings within hosts and between them, whichever is faster.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd, inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.cluster.cluster import Cluster, Device
from costmodels.cluster.collectives import Port, all_gather, hierarchical_all_reduce, ring_all_reduce
from costmodels.cluster.links import Level, WiredPairs
from graphs.common.arrays import Floats, Ints
from graphs.common.brief import Brief
from graphs.common.errors import InputError

NO_PORT = Port(0.0, inf)


class FabricGroup(NamedTuple):
    """Devices that communicate, by the hosts that they are on."""

    hosts: int
    devices: int  # of each host

    @property
    def size(self) -> int:
        """How many there are."""
        return self.hosts * self.devices


@dataclass(frozen=True)
class Fabric(Brief):
    """Devices in the order of their hosts, the fastest hosts first."""

    devices: tuple[Device, ...]  # of all hosts
    host_devices: int  # of each host; the largest number that divides all hosts, where they differ
    inside: Port  # a device's port within its host
    between: Port  # a device's port to other hosts while all devices of its host use theirs

    def group(self, size: int, stride: int) -> FabricGroup:
        """The hosts of a group whose members are ``stride`` devices apart."""
        if self._one_host:
            return FabricGroup(1, size)
        each = max(1, min(size, self.host_devices // stride)) if self.host_devices % stride == 0 else 1
        return FabricGroup(size // each, each) if size % each == 0 else FabricGroup(size, 1)

    def places(self, size: int) -> Ints:
        """The numbers of the first devices of groups of a size: within a host, or from the beginning of one on."""
        each, at = self.host_devices, np.arange(len(self.devices) - size + 1)
        return np.asarray(at[(at % each == 0) | (at % each + size <= each)])

    def all_reduce(self, n_bytes: float, group: FabricGroup) -> float:
        """Return the seconds until every member has the sum."""
        if group.hosts == 1:
            return ring_all_reduce(n_bytes, group.devices, self.inside).time_s
        whole = Port(self.between.latency_s, self.between.bytes_per_s * group.devices)
        parts = hierarchical_all_reduce(n_bytes, group.hosts, group.devices, whole, self.inside)
        return min(parts.time_s, ring_all_reduce(n_bytes, group.size, self.between).time_s)

    def all_gather(self, n_bytes: float, group: FabricGroup) -> float:
        """Seconds until every member has the parts of all, ``n_bytes`` together; a reduce-scatter takes as long."""
        if group.hosts == 1:
            return all_gather(n_bytes, group.devices, self.inside).time_s
        within = all_gather(n_bytes, group.devices, self.inside)
        across = all_gather(n_bytes / group.devices, group.hosts, self.between)
        return min(within.time_s + across.time_s, all_gather(n_bytes, group.size, self.between).time_s)

    def all_to_all(self, n_bytes: float, group: FabricGroup) -> float:
        """Seconds until every member has sent ``n_bytes``, another part to each member, and received as many.

        A device's ports within its host and to other hosts work at once.
        """
        part, others = n_bytes / group.size, group.size - group.devices
        return max((group.devices - 1) * self.inside.time_s(part), others * self.between.time_s(part) if others else 0)

    def message(self, n_bytes: float, stride: int, size: int) -> float:
        """Return the seconds of a message to a neighbour in a group, at its slowest border."""
        inside = self._one_host or self.host_devices % (stride * size) == 0
        return (self.inside if inside else self.between).time_s(n_bytes)

    @property
    def _one_host(self) -> bool:
        return len(self.devices) <= self.host_devices

    def all_like(self, device: Device) -> Cluster:
        """A cluster of as many devices, all like one, joined as these are."""
        n, each = len(self.devices), self.host_devices
        names = (replace(device, name=own.name, host="") for own in self.devices)
        inside = [Level(each, self.inside.bytes_per_s, self.inside.latency_s)] if each > 1 else []
        between = [Level(n, self.between.bytes_per_s, self.between.latency_s, cards=each)] if n > each else []
        return Cluster(f"devices like {device.name}", tuple(names), levels=(*inside, *between))

    def slowed(self, inside: float, between: float) -> "Fabric":
        """The fabric with these shares of its bandwidths."""
        return replace(self, inside=_slowed(self.inside, inside), between=_slowed(self.between, between))


def _slowed(port: Port, share: float) -> Port:
    return Port(port.latency_s, port.bytes_per_s * share)


def fabric_of(cluster: Cluster) -> Fabric:
    """The hosts of a cluster: by the names that devices give, or else by its fastest links; replicas are more hosts.

    Raises:
        InputError: if some devices do not reach each other.
    """
    hosts = _hosts(cluster)
    _check_reached(cluster)
    host_of = np.empty(len(cluster.devices), dtype=np.int64)
    for number, host in enumerate(hosts):
        host_of[host] = number
    same_host = host_of[:, None] == host_of[None, :]
    between = _slowest(cluster.wired_pairs, ~same_host)
    hosts = sorted(hosts, key=lambda host: -min(_speed(cluster.devices[device]) for device in host))
    devices = tuple(cluster.devices[device] for host in hosts for device in host)
    host_devices = gcd(*map(len, hosts))
    if cluster.replicas is not None:
        again = Port(cluster.replicas.latency_s, cluster.replicas.bytes_per_s / cluster.replicas.rings)
        between = again if between is NO_PORT or again.bytes_per_s < between.bytes_per_s else between
        devices *= cluster.replicas.count
    return Fabric(devices, host_devices, _slowest(cluster.wired_pairs, same_host), between)


def _speed(device: Device) -> float:
    return max(device.flops_per_s.values())


def _slowest(pairs: WiredPairs, chosen: NDArray[np.bool_]) -> Port:
    """The port of the slowest chosen link, where each device has its part of a channel that several send through."""
    chosen = chosen & (pairs.link_class >= 0)
    if not chosen.any():
        return NO_PORT
    src, channel = np.nonzero(chosen)[0], pairs.channel[chosen]
    sending = np.unique(channel * len(chosen) + src) // len(chosen)
    senders = np.bincount(sending)
    rates = np.array([link.bytes_per_s for link in pairs.examples])[pairs.link_class[chosen]]
    latency_s = max(pairs.examples[kind].latency_s for kind in np.unique(pairs.link_class[chosen]))
    return Port(latency_s, float((rates / senders[channel]).min()))


def _hosts(cluster: Cluster) -> list[list[int]]:
    """The devices of each host."""
    if any(device.host for device in cluster.devices):
        by_name: dict[str, list[int]] = {}
        for index, device in enumerate(cluster.devices):
            by_name.setdefault(device.host, []).append(index)
        return list(by_name.values())
    rates = _rates(cluster)
    return list(_reached(rates >= rates.max(initial=0.0)))


def _rates(cluster: Cluster) -> Floats:
    """[n_devices, n_devices], bytes per second; 0 without a link."""
    rates = np.array([*(link.bytes_per_s for link in cluster.wired_pairs.examples), 0.0])
    return rates[cluster.wired_pairs.link_class]


def _check_reached(cluster: Cluster) -> None:
    """Check that messages can go from any device to any other."""
    linked = _rates(cluster) > 0
    parts = list(_reached(linked))
    if len(parts) > 1:
        names, largest = [device.name for device in cluster.devices], max(parts, key=len)
        one, other = parts[0][0], parts[1][0]
        src, dst = (other, one) if linked[one, other] else (one, other)
        together = (
            f"the {len(largest)} devices from '{names[largest[0]]}' to '{names[largest[-1]]}', which reach each other"
        )
        kept = together if len(largest) > 1 else "a single device"
        raise InputError(f"no link leads from '{names[src]}' to '{names[dst]}'; add a [[link]], or keep {kept}")


def _reached(linked: NDArray[np.bool_]) -> Iterator[list[int]]:
    """The parts whose devices reach each other, both ways."""
    linked = linked & linked.T
    seen = np.zeros(len(linked), dtype=bool)
    for first in range(len(linked)):
        if seen[first]:
            continue
        part = np.zeros(len(linked), dtype=bool)
        part[first], border = True, [first]
        while len(border):
            fresh = linked[border].any(axis=0) & ~part
            part |= fresh
            border = np.flatnonzero(fresh).tolist()
        seen |= part
        yield np.flatnonzero(part).tolist()
