"""The devices and the links between them.

`costmodels.cluster.file` reads them from cluster.toml, `costmodels.cluster.writer` writes them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, isfinite
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

import numpy as np

from costmodels.cluster.collectives import Port, ring_all_reduce
from costmodels.cluster.links import (
    Level,
    LevelLinks,
    WiredPairs,
    check_levels,
    check_not_negative,
    check_positive,
    wired_pairs,
)
from costmodels.cluster.links import Link as Link  # re-exported: a cluster and its parts are found in one place
from costmodels.cluster.prices import HourlyPrice, total_price
from costmodels.cluster.sheet import DataSheet
from costmodels.units import write_bytes
from graphs.common.brief import Brief
from graphs.common.checks import check_fields, fits, integer
from graphs.common.errors import InputError
from graphs.ir import ITEM_BYTES
from graphs.kernels.choice import Kernels


@dataclass(frozen=True, slots=True)
class Replicas:
    """Copies of a whole cluster that train the same network on different micro-batches.

    ::

        gpu0 gpu1 │ gpu0 gpu1 │ ...     count copies; after each step, the gpu0 of all of them add up their gradients
          └─────────┘ bytes_per_s       in a ring, and so do the gpu1; rings of one uplink that run at once share it

    Raises:
        InputError: for less than two, no bandwidth, a negative latency, or no ring on an uplink.
    """

    count: int  # number of copies, with this cluster; 2 or more
    bytes_per_s: float  # bandwidth of an uplink
    latency_s: float = 0.0  # seconds of an empty message
    rings: int = 1  # how many neighbouring devices have their rings on one uplink

    def __post_init__(self) -> None:
        if self.count < 2:
            raise InputError(f"{self.count} replicas; it must be 2 or more, or leave them out")
        if not self.bytes_per_s > 0:
            raise InputError(f"replicas have the bandwidth {self.bytes_per_s}; it must be more than 0")
        if not (self.latency_s >= 0 and isfinite(self.latency_s)):
            raise InputError(f"replicas have the latency {self.latency_s}; it must be a finite number, 0 or more")
        integer(self.rings, "the number of rings on an uplink", 1)

    @property
    def sync_s_per_byte(self) -> float:
        """Seconds for each byte of a sum, while no other ring uses the uplink."""
        return ring_all_reduce(1.0, self.count, Port(0.0, self.bytes_per_s)).time_s

    @property
    def sync_latency_s(self) -> float:
        """Seconds of a sum of no bytes."""
        return ring_all_reduce(0.0, self.count, Port(self.latency_s, self.bytes_per_s)).time_s


Sharing: TypeAlias = Literal["fifo", "fair", "unlimited"]
"""How tensors share a channel: one after the other ("fifo"), all at once with equal parts of its bandwidth ("fair"), or
all at once with all of it ("unlimited"), as in the literature on list scheduling."""

SHARINGS: tuple[Sharing, ...] = get_args(Sharing)


@dataclass(frozen=True, slots=True)
class Device(Brief):
    """A device that computes one operator at a time.

    A device with ``cores`` is a thread of this host bound to these processors, and a device with ``cuda`` is a GPU of
    this host. A device with neither is hypothetical: it can be planned for and simulated.

    Attributes:
        name: unique name in the cluster.
        kind: devices of one kind take the same time for the same operator.
        memory_bytes: capacity of its memory.
        reserve_bytes: what of it no plan uses: contexts, buffers of communication, gaps between allocations.
        flops_per_s: peak by dtype; one multiply-add is 2 FLOP.
        memory_bytes_per_s: peak bandwidth of its memory.
        launch_s: seconds to start one operator, even an empty one.
        overhead_s: seconds that each sent or received tensor occupies the device, besides the transfer.
        request_s: in inference, seconds that each micro-batch occupies the devices that begin and end it, half of them
            each: the runtime takes its inputs from the caller's thread and gives the answer back.
        cores: processor numbers of its host.
        cuda: index of the GPU in its host.
        profile: fingerprint of its measured operators; empty if there are none.
        kernels: "exact" for the bits of the reference model; "quick" allows a CPU other rounding in inference.
        host: name of its host in a cluster of several hosts; empty for this host.
        price: what it costs by the hour; None if that is unknown.
        sheet: further figures of its data sheet; None if they are unknown, so that times follow from its peaks alone.
    """

    name: str
    kind: str
    memory_bytes: float
    flops_per_s: Mapping[str, float]
    memory_bytes_per_s: float
    launch_s: float = 0.0
    overhead_s: float = 0.0
    request_s: float = 0.0
    cores: tuple[int, ...] = ()
    cuda: int | None = None
    profile: str = ""
    kernels: Kernels = "exact"
    host: str = ""
    price: HourlyPrice | None = None
    reserve_bytes: float = 0.0
    sheet: DataSheet | None = None

    def __post_init__(self) -> None:
        where = f"device '{self.name}'"
        check_fields(self, where)
        if not self.name:
            raise InputError("a device has an empty name; name it, for example 'cpu0'")
        if self.quick and self.cuda is not None:
            raise InputError(f"{where} is a GPU with quick kernels; those are for CPUs, leave kernels out")
        check_positive(where, "memory", self.memory_bytes)
        check_not_negative(where, "reserve", self.reserve_bytes)
        if self.reserve_bytes >= self.memory_bytes:
            kept, memory = write_bytes(self.reserve_bytes), write_bytes(self.memory_bytes)
            raise InputError(
                f"{where} keeps a reserve of {kept}, which is all of its {memory} of memory; make it smaller"
            )
        check_positive(where, "memory_bandwidth", self.memory_bytes_per_s)
        for dtype, flops_per_s in self.flops_per_s.items():
            if dtype not in ITEM_BYTES:
                raise InputError(f"{where} has flops for the unknown dtype '{dtype}'; known: {', '.join(ITEM_BYTES)}")
            check_positive(where, f"flops.{dtype}", flops_per_s)
        if not self.flops_per_s:
            raise InputError(f"{where} has no flops; give at least flops.float32, for example '100 GFLOP/s'")
        check_not_negative(where, "launch", self.launch_s)
        check_not_negative(where, "overhead", self.overhead_s)
        check_not_negative(where, "request", self.request_s)
        if any(core < 0 for core in self.cores) or len(set(self.cores)) < len(self.cores):
            raise InputError(f"{where} has cores = {list(self.cores)}; name each processor once, by its number from 0")
        if self.cuda is not None and self.cuda < 0:
            raise InputError(f"{where} has cuda = {self.cuda}; GPUs are numbered from 0")
        if self.cores and self.cuda is not None:
            raise InputError(f"{where} has both cores and cuda; a device is either processors or one GPU")

    @property
    def usable_bytes(self) -> float:
        """Memory that a plan may use."""
        return self.memory_bytes - self.reserve_bytes

    def with_memory(self, n_bytes: float) -> "Device":
        """The device with other memory, of which the reserve has the same share."""
        return replace(self, memory_bytes=n_bytes, reserve_bytes=self.reserve_bytes * (n_bytes / self.memory_bytes))

    @property
    def quick(self) -> bool:
        """Whether it has quick kernels."""
        return self.kernels == "quick"

    @property
    def is_processor(self) -> bool | None:
        """Whether it is a host's processors and no GPU; None for a device on paper of which nothing says so."""
        if self.cores or self.cuda is not None:
            return bool(self.cores)
        return self.sheet.is_processor if self.sheet else None

    @property
    def rounding(self) -> tuple[str, Kernels, int, bool]:
        """Equal for devices on which equal operators give equal bits."""
        return self.kind, self.kernels, len(self.cores), self.cuda is None


@dataclass(frozen=True)
class Cluster(Brief):
    """Devices, what joins them, and how transfers share the machine.

    Attributes:
        name: descriptive name.
        devices: at least one device.
        links: at most one link for each ordered pair that may exchange tensors.
        overlap: whether a device computes while it sends or receives. If not, a transfer occupies both its ends.
        sharing: how tensors share a channel.
        replicas: copies of the cluster which train the same network; None without copies.
        levels: instead of links, groups of neighbouring devices within larger groups, the smallest first.

    Raises:
        InputError: for a name used twice, a link to an unknown device, a second link for a pair, an unknown sharing,
            or levels that do not fit together.
    """

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    overlap: bool = True
    sharing: Sharing = "fifo"
    replicas: Replicas | None = None
    levels: tuple[Level, ...] = ()
    index: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(self, f"cluster '{self.name}'")
        if not self.devices:
            raise InputError(f"cluster '{self.name}' has no device; add a [[device]]")
        index: dict[str, int] = {}
        for device in self.devices:
            if device.name in index:
                raise InputError(f"two devices are named '{device.name}'; names must be unique")
            index[device.name] = len(index)
        seen: set[tuple[str, str]] = set()
        for link in self.links:
            for end in (link.src, link.dst):
                if end not in index:
                    raise InputError(
                        f"a link names the device '{end}', which does not exist; known: {', '.join(index)}"
                    )
            if (link.src, link.dst) in seen:
                raise InputError(f"two links go from '{link.src}' to '{link.dst}'; keep one")
            seen.add((link.src, link.dst))
        currencies = sorted({device.price.currency for device in self.devices if device.price})
        if len(currencies) > 1:
            raise InputError(f"devices of cluster '{self.name}' have prices in {' and '.join(currencies)}; use one")
        if self.links and self.levels:
            raise InputError(f"cluster '{self.name}' has both links and levels; keep [[link]] or [[level]]")
        check_levels(self.levels, len(self.devices))
        object.__setattr__(self, "index", MappingProxyType(index))

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of devices, each once, in order of appearance."""
        return tuple(dict.fromkeys(device.kind for device in self.devices))

    @cached_property
    def link(self) -> Mapping[tuple[int, int], Link]:
        """The links by the indices of their ends, those of levels included."""
        if self.levels:
            return LevelLinks(tuple(self.index), self.levels)
        return MappingProxyType({(self.index[link.src], self.index[link.dst]): link for link in self.links})

    @cached_property
    def wired_pairs(self) -> WiredPairs:
        """The links as arrays."""
        return wired_pairs(self.link, len(self.devices))

    @cached_property
    def price(self) -> HourlyPrice | None:
        """Price of all devices, those of replicas included; None if the price of one is unknown."""
        return total_price([device.price for device in self.devices] * (self.replicas.count if self.replicas else 1))

    def listed(self) -> "Cluster":
        """Return the cluster with a link for each pair instead of levels."""
        return replace(self, links=tuple(self.link.values()), levels=()) if self.levels else self

    def first(self, n_devices: int) -> "Cluster":
        """Return the cluster of the first ``n_devices`` devices.

        Raises:
            InputError: if it has fewer devices.
        """
        if not fits(n_devices, int) or not 1 <= n_devices <= len(self.devices):
            raise InputError(f"{n_devices} devices asked for; cluster '{self.name}' has {len(self.devices)}")
        kept = {device.name for device in self.devices[:n_devices]}
        links = tuple(link for link in self.links if link.src in kept and link.dst in kept)
        above = next((i for i, level in enumerate(self.levels) if level.size >= n_devices), 0)
        levels = self.levels[: above + 1] if n_devices > 1 else ()
        return replace(self, devices=self.devices[:n_devices], links=links, levels=levels)

    def priced(self, price: HourlyPrice) -> "Cluster":
        """The cluster with a price for each device.

        Raises:
            InputError: if it is no HourlyPrice.
        """
        return replace(self, devices=tuple(replace(device, price=price) for device in self.devices))

    def divided(self, count: int) -> "Cluster":
        """The first of ``count`` equal parts of neighbouring devices, with the other parts as its replicas.

        The devices of each place in the parts form a ring, as fast as the slowest of all links between counterparts.
        The rings of neighbours that meet in channels share an uplink; where others meet too, each has its part.

        Raises:
            InputError: if there are replicas already, the parts are not equal, or a link of the ring is missing.
        """
        if integer(count, "the number of parts", 1) == 1:
            return self
        size, rest = divmod(len(self.devices), count)
        if rest or not size or self.replicas:
            already = "replicas already" if self.replicas else f"{len(self.devices)} devices"
            raise InputError(f"cluster '{self.name}' has {already}, which {count} equal parts cannot be made of")
        _check_parts_alike(self, size)
        ring = [self.link.get((i, (i + size) % len(self.devices))) for i in range(len(self.devices))]
        for i, link in enumerate(ring):
            if link is None:
                ends = f"'{self.devices[i].name}' to '{self.devices[(i + size) % len(self.devices)].name}'"
                raise InputError(f"replicas need a link from {ends} to add up their gradients; add a [[link]]")
        return replace(self.first(size), replicas=_rings(count, [link for link in ring if link is not None]))

    def grouped(self, size: int) -> "Cluster":
        """Return one device for each group of ``size`` equal neighbours; all devices of a group send at once.

        Raises:
            InputError: if the groups are not equal.
        """
        if integer(size, "the size of the groups", 1) == 1:
            return self
        if len(self.devices) % size or any(level.size % size and size % level.size for level in self.levels):
            raise InputError(f"cluster '{self.name}' cannot be made of equal groups of {size} neighbours")
        _check_groups_alike(self, size)
        leaders, sender = self.devices[::size], Counter[tuple[int, int, str]]()
        joined = {} if self.levels else self.link
        for (src, dst), link in joined.items():
            if src % size == dst % size and link.channel:
                sender[src // size, dst // size, link.channel] += 1
        links = tuple(
            _shared_by(link, max(1, sender[src // size, dst // size, link.channel]))
            for (src, dst), link in joined.items()
            if not (src % size or dst % size)
        )
        ring, levels = self.replicas, _grouped_levels(self.levels, size)
        if ring:
            rate = ring.bytes_per_s / min(size, ring.rings)
            ring = replace(ring, bytes_per_s=rate, rings=ceil(ring.rings / size))
        return replace(self, devices=leaders, links=links, levels=levels, replicas=ring)


def _rings(count: int, links: Sequence[Link]) -> Replicas:
    """The rings of replicas, from the link of each device to its counterpart in the next part."""
    size = len(links) // count
    senders = Counter((link.channel, i % size) for i, link in enumerate(links) if link.channel)
    met: dict[str, set[int]] = {}
    for channel, ring in senders:
        met.setdefault(channel, set()).add(ring)
    rings = max(map(len, met.values()), default=1)
    if any(min(each) // rings != max(each) // rings for each in met.values()):
        rings, senders = 1, Counter({key: senders[key] * len(met[key[0]]) for key in senders})
    rate = min(link.bytes_per_s / max(1, senders[link.channel, i % size]) for i, link in enumerate(links))
    return Replicas(count, rate, max(link.latency_s for link in links), rings)


def _shared_by(link: Link, senders: int) -> Link:
    """Return the link with the share of its bandwidth that each of several simultaneous senders gets."""
    return link if senders == 1 else replace(link, bytes_per_s=link.bytes_per_s / senders, points=())


def _grouped_levels(levels: Sequence[Level], size: int) -> tuple[Level, ...]:
    """The levels above groups of devices, whose members send at once."""
    found, below = [], 1
    for level in levels:
        if level.size > size:
            sharers, groups = below // level.cards, max(1, below // size)
            rate = level.bytes_per_s / min(size, sharers)
            found.append(replace(level, size=level.size // size, bytes_per_s=rate, cards=min(level.cards, groups)))
        below = level.size
    return tuple(found)


def _check_groups_alike(cluster: Cluster, size: int) -> None:
    """Check that the devices of a group are alike, and joined to other groups alike."""
    for number, device in enumerate(cluster.devices):
        like = cluster.devices[number - number % size]
        if not _alike(device, like):
            raise InputError(f"device '{device.name}' is not like '{like.name}', with which it would share layers")
    link_class = cluster.wired_pairs.link_class
    for member in range(1, size):
        if (link_class[member::size, member::size] != link_class[::size, ::size]).any():
            raise InputError(f"the links of device '{cluster.devices[member].name}' are not like its neighbour's")


def _alike(device: Device, like: Device) -> bool:
    """Return whether two devices differ in nothing but what names them."""
    return replace(device, **{name: getattr(like, name) for name in ("name", "kind", "cores", "cuda", "host")}) == like


def _check_parts_alike(cluster: Cluster, size: int) -> None:
    """Check that devices and links of every part of ``size`` neighbours equal those of the first part."""
    link_class = cluster.wired_pairs.link_class
    for start in range(size, len(cluster.devices), size):
        for device, like in zip(cluster.devices[start : start + size], cluster.devices, strict=False):
            if not _alike(device, like):
                raise InputError(f"device '{device.name}' is not like '{like.name}', whose replica it would be")
        part = link_class[start : start + size, start : start + size]
        for src, dst in (start + np.argwhere(part != link_class[:size, :size])).tolist():
            names = f"'{cluster.devices[src].name}' to '{cluster.devices[dst].name}'"
            raise InputError(f"the link from {names} is not like that of the devices whose replicas they would be")
