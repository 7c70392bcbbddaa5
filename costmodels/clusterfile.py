"""Reads cluster.toml, which `costmodels.clusterwriter` writes.

::

    version = 2                          # version 1, with other words such as "handover" for overhead, is read as well

    [cluster]
    name = "desk"                        # the file's name if left out
    overlap = true                       # devices compute while they send; true if left out
    sharing = "fifo"                     # how tensors share a channel: one by one; "fair", equally; or "unlimited"

    [[device]]
    name = "cpu0"
    kind = "cpu"                         # equal devices share a kind; the device's name if left out
    memory = "12 GiB"
    flops = { float32 = "120 GFLOP/s" }
    memory_bandwidth = "20 GB/s"
    launch = "2 us"                      # 0 if left out
    overhead = "20 us"                   # for each tensor sent or received; 0 if left out
    cores = [0]                          # or cuda = 0; neither for a hypothetical device
    profile = "a1b2c3d4e5f6"             # written by calibration
    kernels = "exact"                    # the reference model's bits; or "quick" with other rounding
    host = "node0"                       # the host of these cores or this GPU, in a cluster of several hosts

    [[device]]
    name = "gpu0"
    like = "A100-SXM-80GB"               # a name of catalogue.toml; other keys override its keys

    [[link]]
    between = ["cpu0", "cpu1"]           # every pair of these, both ways; or from = "cpu0" and to = "cpu1", one way
    bandwidth = "10 GB/s"                # or "unlimited"
    latency = "20 us"                    # 0 if left out
    channel = "bus"                      # links with the same channel share its bandwidth
    points = [["64 KiB", "30 us"], ...]  # measured times by size, sizes ascending; they override the bandwidth
    via = "threads"                      # a description of the carrier
    like = "PCIe4-x16"                   # a name of catalogue.toml

    [replicas]                           # in training, copies of the whole cluster; left out without copies
    count = 4                            # each trains on its own micro-batches, then they add up their gradients
    bandwidth = "50 GB/s"                # between a device and its counterpart, all at once; or like, as for links
    latency = "5 us"                     # 0 if left out
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

from costmodels.catalogue import Section, entry
from costmodels.cluster import Cluster, Device, Link, Replicas
from costmodels.clusterdict import renamed, version_of
from costmodels.units import parse_bytes, parse_bytes_per_s, parse_flops_per_s, parse_seconds
from graphs import checks
from graphs.documents import read_toml
from graphs.errors import InputError, nearest

KEYS = {
    "device": (
        *("name", "like", "kind", "memory", "flops", "memory_bandwidth"),
        *("launch", "overhead", "cores", "cuda", "profile", "kernels", "host"),
    ),
    "link": ("between", "from", "to", "like", "bandwidth", "latency", "channel", "points", "via"),
}

_TYPES = {str: "a text", bool: "true or false", int: "a whole number", list: "a list", dict: "a table"}


def read_cluster(path: str | Path) -> Cluster:
    """Read cluster.toml, and sort the links in the order of their devices.

    Raises:
        InputError: if the file is missing or no TOML, has an unknown, missing or malformed key, or describes no
            cluster. The message names the file and the device or link.
    """
    path = checks.path(path, "the cluster", "the path of a cluster.toml")
    document = read_toml(path, "cluster")
    try:
        return cluster_of(document, path.stem)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def cluster_of(document: Mapping[str, Any], stem: str = "cluster") -> Cluster:
    """The cluster of the content of a cluster.toml.

    Args:
        document: tables of the file.
        stem: the cluster's name if the document has none.

    Raises:
        InputError: for an unknown, missing or malformed key, or if it describes no cluster.
    """
    document = _upgraded(document)
    top = _Table("the file", document, ("version", "cluster", "device", "link", "replicas"))
    about = _Table("[cluster]", top.get("cluster", dict, {}), ("name", "overlap", "sharing"))
    devices = tuple(_device(table, i) for i, table in enumerate(_tables(top, "device")))
    _check_apart(devices)
    index = {device.name: i for i, device in enumerate(devices)}
    links = [link for i, table in enumerate(_tables(top, "link")) for link in _links(table, i)]
    links.sort(key=lambda link: (index.get(link.src, -1), index.get(link.dst, -1)))
    overlap, sharing = about.get("overlap", bool, True), about.get("sharing", str, "fifo")
    replicas = _replicas(top.get("replicas", dict, {})) if "replicas" in top.content else None
    return Cluster(about.get("name", str, stem), devices, tuple(links), overlap, sharing, replicas)


def _upgraded(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The document with the names of this version."""
    if version_of(document) > 1:
        return document
    about, devices = document.get("cluster"), document.get("device")
    return {
        **document,
        **({"cluster": renamed(about)} if isinstance(about, dict) else {}),
        **({"device": [renamed(device) for device in devices]} if isinstance(devices, list) else {}),
    }


def _tables(top: "_Table", key: str) -> Iterator[Mapping[str, Any]]:
    for table in top.get(key, list, []):
        if not isinstance(table, dict):
            raise InputError(f"{key} is a list of {table!r}; write each as a section [[{key}]]")
        yield table


class _Table:
    """A TOML table with checks: errors for unknown and missing keys and wrong types name ``where``."""

    def __init__(self, where: str, content: Mapping[str, Any], known: tuple[str, ...]) -> None:
        self.where = where
        self.content = content
        for key in content:
            if key not in known:
                way_out = nearest(key, known) or f"; known: {', '.join(known)}"
                raise InputError(f"{where} has the unknown key '{key}'{way_out}")

    def get(self, key: str, kind: type, default: Any) -> Any:
        """The value of an optional key."""
        value = self.content.get(key, default)
        right = value is default or (isinstance(value, kind) and not (kind is int and isinstance(value, bool)))
        if not right:
            raise InputError(f"{self.where} has {key} = {value!r}; it must be {_TYPES[kind]}")
        return value

    def need(self, key: str, kind: type, example: str) -> Any:
        """The value of a required key."""
        if key not in self.content:
            raise InputError(f"{self.where} has no {key}; add {key} = {example}")
        return self.get(key, kind, None)

    def text(self, key: str, example: str) -> tuple[str, str]:
        """A required quantity as text, and its name in messages; both are arguments of a parser of units."""
        if key not in self.content:
            raise InputError(f'{self.where} has no {key}; add {key} = "{example}"')
        return self.content[key], f"{self.where}: {key}"

    def seconds(self, key: str, example: str) -> float:
        """An optional time, 0 by default."""
        return parse_seconds(*self.text(key, example)) if key in self.content else 0.0


def _like(table: "_Table", section: Section) -> "_Table":
    """The table with the keys from the catalogue."""
    if "like" not in table.content:
        return table
    name = table.get("like", str, "")
    try:
        taken = entry(section, name).keys
    except InputError as error:
        raise InputError(f"{table.where}: {error}") from error
    own = {key: value for key, value in table.content.items() if key != "like"}
    words = {"kind": name} if section == "device" else {"via": name}
    return _Table(table.where, {**words, **taken, **own}, KEYS[section])


def _device(content: Mapping[str, Any], i: int) -> Device:
    where = f"device '{content['name']}'" if isinstance(content.get("name"), str) else f"[[device]] number {i + 1}"
    table = _like(_Table(where, content, KEYS["device"]), "device")
    name = table.need("name", str, '"cpu0"')
    flops = table.need("flops", dict, '{ float32 = "100 GFLOP/s" }')
    cores = table.get("cores", list, [])
    if any(isinstance(core, bool) or not isinstance(core, int) for core in cores):
        raise InputError(f"{where} has cores = {cores!r}; it must be a list of processor numbers, for example [0, 1]")
    return Device(
        name=name,
        kind=table.get("kind", str, name),
        memory_bytes=parse_bytes(*table.text("memory", "16 GiB")),
        flops_per_s={dtype: parse_flops_per_s(text, f"{where}: flops.{dtype}") for dtype, text in flops.items()},
        memory_bytes_per_s=parse_bytes_per_s(*table.text("memory_bandwidth", "25 GB/s")),
        launch_s=table.seconds("launch", "5 us"),
        overhead_s=table.seconds("overhead", "20 us"),
        cores=tuple(cores),
        cuda=table.get("cuda", int, None),
        profile=table.get("profile", str, ""),
        kernels=table.get("kernels", str, "exact"),
        host=table.get("host", str, ""),
    )


def _check_apart(devices: Iterable[Device]) -> None:
    """Check that no two devices share a processor or GPU, on which they could not work at once."""
    owner: dict[tuple[str, str], str] = {}
    for device in devices:
        gpu = [] if device.cuda is None else [f"GPU {device.cuda}"]
        for part in (*(f"core {core}" for core in device.cores), *gpu):
            other = owner.setdefault((device.host, part), device.name)
            if other != device.name:
                raise InputError(
                    f"devices '{other}' and '{device.name}' both are {part}; give each its own, or, if they are of "
                    f'different hosts, say which: host = "node0"'
                )


def _links(content: Mapping[str, Any], i: int) -> Iterator[Link]:
    table = _like(_Table(f"[[link]] number {i + 1}", content, KEYS["link"]), "link")
    bytes_per_s = parse_bytes_per_s(*table.text("bandwidth", "25 GB/s"))
    latency_s = table.seconds("latency", "20 us")
    channel, points, via = table.get("channel", str, ""), _points(table), table.get("via", str, "")
    for src, dst in _pairs(table):
        yield Link(src, dst, bytes_per_s, latency_s, channel, points, via)


def _replicas(content: Mapping[str, Any]) -> Replicas:
    table = _Table("[replicas]", content, ("count", "like", "bandwidth", "latency"))
    count = table.need("count", int, "4")
    link = _like(_Table(table.where, {key: content[key] for key in content if key != "count"}, KEYS["link"]), "link")
    bytes_per_s = parse_bytes_per_s(*link.text("bandwidth", "25 GB/s"))
    return Replicas(count, bytes_per_s, link.seconds("latency", "20 us"))


def _pairs(table: "_Table") -> Iterable[tuple[str, str]]:
    """The ordered pairs of devices of a link entry."""
    if "between" not in table.content:
        return [(table.need("from", str, '"cpu0"'), table.need("to", str, '"cpu1"'))]
    if "from" in table.content or "to" in table.content:
        raise InputError(
            f"{table.where} has both between and from or to; keep between for both directions, or the others"
        )
    ends = table.need("between", list, '["cpu0", "cpu1"]')
    if len(ends) < 2 or not all(isinstance(end, str) for end in ends):
        raise InputError(
            f'{table.where} has between = {ends!r}; name two or more devices, for example ["cpu0", "cpu1"]'
        )
    return permutations(ends, 2)


def _points(table: "_Table") -> tuple[tuple[float, float], ...]:
    points = table.get("points", list, [])
    if any(not isinstance(point, list) or len(point) != 2 for point in points):
        raise InputError(
            f"{table.where} has points = {points!r}; write pairs of a size and a time, "
            'for example [["64 KiB", "30 us"]]'
        )
    where = f"{table.where}: points"
    return tuple((parse_bytes(n_bytes, where), parse_seconds(seconds, where)) for n_bytes, seconds in points)
