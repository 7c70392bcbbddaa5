"""Settings: changes of single figures of a cluster, and one more device.

::

    gpu1.memory=40GiB               a device by its name, or several by a pattern: 'cpu*.flops.float32=2TFLOP/s'
    link.bandwidth=100Gb/s          all links, or those from and to devices: 'gpu0->*.latency=5us'
    cluster.overlap=false           whether devices compute while they send
    replicas.count=64               and their bandwidth and latency
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Self

from costmodels.cluster.catalogue import catalogue
from costmodels.cluster.cluster import Cluster, Replicas
from costmodels.cluster.dictionary import VERSION
from costmodels.cluster.file import cluster_of
from costmodels.units import parse_bytes, parse_bytes_per_s, parse_flops_per_s, parse_seconds
from graphs.common.errors import InputError, nearest

Parser = Callable[[object, str], float]

DEVICE_FIELDS: dict[str, tuple[str, Parser]] = {
    "memory": ("memory_bytes", parse_bytes),
    "reserve": ("reserve_bytes", parse_bytes),
    "memory_bandwidth": ("memory_bytes_per_s", parse_bytes_per_s),
    "launch": ("launch_s", parse_seconds),
    "overhead": ("overhead_s", parse_seconds),
    "request": ("request_s", parse_seconds),
}
LINK_FIELDS: dict[str, tuple[str, Parser]] = {
    "bandwidth": ("bytes_per_s", parse_bytes_per_s),
    "latency": ("latency_s", parse_seconds),
}
FLOPS = "flops."
KNOWN = (
    f"{', '.join(DEVICE_FIELDS)} and {FLOPS}float32 of devices, {' and '.join(LINK_FIELDS)} of links and replicas, "
    "replicas.count, cluster.overlap"
)
TRUTH = {"true": True, "false": False}


@dataclass(frozen=True)
class Setting:
    """A new value for one figure of a cluster."""

    target: str  # pattern of device names, "link", a pattern such as "gpu0->gpu1", "replicas", or "cluster"
    field: str  # its name in cluster.toml, for example "memory" or "flops.float32"
    value: str  # as written in cluster.toml

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read TARGET.FIELD=VALUE.

        Raises:
            InputError: for any other text.
        """
        fields = "|".join([*DEVICE_FIELDS, *LINK_FIELDS, re.escape(FLOPS) + r"\w+", "overlap", "count"])
        match = re.fullmatch(rf"(.+?)\.({fields})=(.*)", text)
        if match is None:
            named = text.partition("=")[0].rpartition(".")[2]
            close = nearest(named, [*DEVICE_FIELDS, *LINK_FIELDS, "overlap", "count"])
            raise InputError(f"'{text}' sets nothing; write for example gpu0.memory=40GiB. Known: {KNOWN}{close}")
        return cls(*match.groups())


def apply_setting(cluster: Cluster, setting: Setting) -> Cluster:
    """Return the cluster with the new value.

    Raises:
        InputError: for an unknown target or field, or a malformed value.
    """
    target, field, value = setting.target, setting.field, setting.value
    where = f"{target}.{field}"
    if target == "cluster" and field == "overlap":
        if value not in TRUTH:
            raise InputError(f"{where} is '{value}'; it must be true or false")
        return replace(cluster, overlap=TRUTH[value])
    if target == "replicas" and field in ("count", *LINK_FIELDS):
        return replace(cluster, replicas=_set_replicas(cluster.replicas, field, value, where))
    if field in LINK_FIELDS:
        return _set_links(cluster, target, _read(LINK_FIELDS, field, value, where))
    chosen = _chosen(target, [device.name for device in cluster.devices], "device")
    devices = list(cluster.devices)
    for i in chosen:
        if field.startswith(FLOPS):
            rate = {field.removeprefix(FLOPS): parse_flops_per_s(value, where)}
            devices[i] = replace(devices[i], flops_per_s={**devices[i].flops_per_s, **rate})
        elif field == "memory":
            devices[i] = devices[i].with_memory(parse_bytes(value, where))
        elif field in DEVICE_FIELDS:
            devices[i] = replace(devices[i], **_read(DEVICE_FIELDS, field, value, where))
        else:
            raise InputError(f"{where} cannot be set; known: {KNOWN}")
    return replace(cluster, devices=tuple(devices))


def _set_links(cluster: Cluster, target: str, change: Mapping[str, Any]) -> Cluster:
    """Return the cluster with other figures for the links that the target names."""
    if target == "link" and cluster.levels:
        return replace(cluster, levels=tuple(replace(level, **change) for level in cluster.levels))
    cluster = cluster.listed()
    chosen = _chosen(target, [f"{link.src}->{link.dst}" for link in cluster.links], "link")
    links = (replace(link, points=(), **change) if i in chosen else link for i, link in enumerate(cluster.links))
    return replace(cluster, links=tuple(links))


def add_device(cluster: Cluster, like: str, name: str = "") -> Cluster:
    """Return the cluster with one more device, the last one, on paper only.

    The device has the links of its model and one more pair of links to it. The model is the device called ``like``; for
    a name of the catalogue it is the first device.

    Raises:
        InputError: for a model that neither the cluster nor the catalogue has, or a name that is taken.
    """
    name = name or next(
        free for n in range(2, len(cluster.devices) + 3) if (free := f"{like}-{n}") not in cluster.index
    )
    if name in cluster.index:
        raise InputError(f"there is a device '{name}' already; give the new one another name, as in {like}=NAME")
    if like in cluster.index:
        model = cluster.devices[cluster.index[like]]
        device = replace(model, name=name, cores=(), cuda=None)
    elif like in catalogue("device"):
        model = cluster.devices[0]
        document = {"version": VERSION, "device": [{"name": name, "like": like}]}
        (device,) = cluster_of(document).devices
    else:
        raise InputError(
            f"there is no device '{like}' to add another one of; "
            f"the cluster has {', '.join(cluster.index)}, the catalogue {', '.join(catalogue('device'))}"
        )
    cluster = cluster.listed()
    own = [link for link in cluster.links if model.name in (link.src, link.dst)]
    copies = [replace(link, src=name) if link.src == model.name else replace(link, dst=name) for link in own]
    pair = [replace(own[0], src=src, dst=dst) for src, dst in ((model.name, name), (name, model.name))] if own else []
    return replace(cluster, devices=(*cluster.devices, device), links=(*cluster.links, *copies, *pair))


def _set_replicas(replicas: Replicas | None, field: str, value: str, where: str) -> Replicas | None:
    """Replicas with the new value; None for a count of 1."""
    if replicas is None:
        raise InputError(f"{where} cannot be set: the cluster has no replicas; add [replicas] to cluster.toml")
    if field != "count":
        return replace(replicas, **_read(LINK_FIELDS, field, value, where))
    if not value.isdecimal() or value == "0":
        raise InputError(f"{where} is '{value}'; it must be a whole number of 1 or more")
    return None if value == "1" else replace(replicas, count=int(value))


def _read(known: Mapping[str, tuple[str, Parser]], field: str, value: str, where: str) -> dict[str, Any]:
    """Return the attribute of a field and its new value."""
    attribute, parse = known[field]
    return {attribute: parse(value, where)}


def _chosen(pattern: str, names: Sequence[str], kind: str) -> frozenset[int]:
    """Return the indices of the names that a pattern matches; the pattern "link" matches all links."""
    every = pattern == kind == "link"
    chosen = frozenset(i for i, name in enumerate(names) if every or fnmatchcase(name, pattern))
    if not chosen:
        known = f"{', '.join(names) or 'none'}{nearest(pattern, names)}"
        raise InputError(f"there is no {kind} '{pattern}'; known: {known}")
    return chosen
