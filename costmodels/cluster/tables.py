"""Tables of cluster.toml and the records that they describe; `costmodels.cluster.file` shows the whole file."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import permutations
from typing import Any

from costmodels.cluster.catalogue import Section, entry
from costmodels.cluster.cluster import Device, Link, Replicas
from costmodels.cluster.links import Level
from costmodels.cluster.prices import HourlyPrice
from costmodels.cluster.sheet import DataSheet
from costmodels.units import parse_bytes, parse_bytes_per_s, parse_flops_per_s, parse_hertz, parse_seconds
from graphs.common import checks
from graphs.common.errors import InputError, nearest

KEYS = {
    "device": (
        *("name", "count", "hosts", "like", "kind", "memory", "reserve", "flops", "memory_bandwidth"),
        *("family", "units", "clock", "cache"),
        *("launch", "overhead", "request", "cores", "cuda", "profile", "kernels", "host", "price"),
    ),
    "link": ("between", "from", "to", "like", "bandwidth", "latency", "channel", "points", "via"),
    "level": ("size", "like", "bandwidth", "latency", "cards", "via"),
}

_TYPES = {str: "a text", bool: "true or false", int: "a whole number", list: "a list", dict: "a table"}


def tables_of(top: "Table", key: str) -> Iterator[Mapping[str, Any]]:
    """The entries of a list of tables."""
    for table in top.get(key, list, []):
        if not isinstance(table, dict):
            raise InputError(f"{key} is a list of {table!r}; write each as a section [[{key}]]")
        yield table


class Table:
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


def _like(table: "Table", section: Section, keys: str = "") -> "Table":
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
    return Table(table.where, {**words, **taken, **own}, KEYS[keys or section])


def devices_of(content: Mapping[str, Any], i: int) -> tuple[Device, ...]:
    """The equal devices of an entry, one unless it has a count."""
    device = device_of({key: value for key, value in content.items() if key not in ("count", "hosts")}, i)
    if not {"count", "hosts"} & content.keys():
        return (device,)
    table = Table(f"device '{device.name}'", content, KEYS["device"])
    count, hosts = (checks.integer(table.get(key, int, 1), f"{table.where}: {key}", 1) for key in ("count", "hosts"))
    return several_devices(device, count, hosts)


MOST_DEVICES = 2**14
"""Devices of a cluster; plans for more are searched for too long."""


def several_devices(device: Device, count: int, hosts: int = 1) -> tuple[Device, ...]:
    """Make ``count`` devices like one that is on paper, on each of ``hosts`` hosts.

    Raises:
        InputError: for more than `MOST_DEVICES`, a device of this host, or one whose host has a name already.
    """
    if count * hosts > MOST_DEVICES:
        raise InputError(f"device '{device.name}' stands for more than {MOST_DEVICES:,} devices; lower its count")
    if device.cores or device.cuda is not None or device.host:
        raise InputError(f"device '{device.name}' has a count, and cores, cuda or host, which only one device can have")
    if hosts == 1:
        return tuple(replace(device, name=f"{device.name}{i}") for i in range(count))
    return tuple(
        replace(device, name=f"host{host}-{device.name}{i}", host=f"host{host}")
        for host in range(hosts)
        for i in range(count)
    )


def device_of(content: Mapping[str, Any], i: int = 0) -> Device:
    """The device of an entry without a count, the ``i``-th of the file."""
    where = f"device '{content['name']}'" if isinstance(content.get("name"), str) else f"[[device]] number {i + 1}"
    table = _like(Table(where, content, KEYS["device"]), "device")
    name = table.need("name", str, '"cpu0"')
    flops = table.need("flops", dict, '{ float32 = "100 GFLOP/s" }')
    cores = table.get("cores", list, [])
    if any(isinstance(core, bool) or not isinstance(core, int) for core in cores):
        raise InputError(f"{where} has cores = {cores!r}; it must be a list of processor numbers, for example [0, 1]")
    memory_bytes = parse_bytes(*table.text("memory", "16 GiB"))
    return Device(
        name=name,
        kind=table.get("kind", str, name),
        memory_bytes=memory_bytes,
        reserve_bytes=_reserve_bytes(table, memory_bytes),
        flops_per_s={dtype: parse_flops_per_s(text, f"{where}: flops.{dtype}") for dtype, text in flops.items()},
        memory_bytes_per_s=parse_bytes_per_s(*table.text("memory_bandwidth", "25 GB/s")),
        launch_s=table.seconds("launch", "5 us"),
        overhead_s=table.seconds("overhead", "20 us"),
        request_s=table.seconds("request", "100 us"),
        cores=tuple(cores),
        cuda=table.get("cuda", int, None),
        profile=table.get("profile", str, ""),
        kernels=table.get("kernels", str, "exact"),
        host=table.get("host", str, ""),
        price=HourlyPrice.parse(table.content["price"], f"{where}: price") if "price" in table.content else None,
        sheet=_sheet(table),
    )


def _sheet(table: "Table") -> DataSheet | None:
    """Return the figures of a data sheet; None without any of them."""
    if not table.content.keys() & {"family", "units", "clock", "cache"}:
        return None
    return DataSheet(
        family=table.need("family", str, '"Ampere"'),
        units=table.need("units", int, "82"),
        clock_hz=parse_hertz(*table.text("clock", "1695 MHz")),
        cache_bytes=parse_bytes(*table.text("cache", "6 MiB")),
    )


def _reserve_bytes(table: "Table", memory_bytes: float) -> float:
    """Return the bytes of memory that no plan uses, given as a size or a share such as "10%"; 0 by default."""
    if "reserve" not in table.content:
        return 0.0
    text, where = table.text("reserve", "10%")
    share = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*%\s*", text) if isinstance(text, str) else None
    return memory_bytes * float(share[1]) / 100 if share else parse_bytes(text, where)


def links_of(content: Mapping[str, Any], i: int) -> Iterator[Link]:
    """The links of an entry."""
    table = _like(Table(f"[[link]] number {i + 1}", content, KEYS["link"]), "link")
    bytes_per_s = parse_bytes_per_s(*table.text("bandwidth", "25 GB/s"))
    latency_s = table.seconds("latency", "20 us")
    channel, points, via = table.get("channel", str, ""), _points(table), table.get("via", str, "")
    for src, dst in _pairs(table):
        yield Link(src, dst, bytes_per_s, latency_s, channel, points, via)


def level_of(content: Mapping[str, Any], i: int) -> Level:
    """The level of an entry."""
    table = _like(Table(f"[[level]] number {i + 1}", content, KEYS["level"]), "link", "level")
    size, bytes_per_s = table.need("size", int, "8"), parse_bytes_per_s(*table.text("bandwidth", "25 GB/s"))
    cards, via = table.get("cards", int, 1), table.get("via", str, "")
    return Level(size, bytes_per_s, table.seconds("latency", "20 us"), cards, via)


def read_replicas(content: Mapping[str, Any]) -> Replicas:
    """The replicas of their section."""
    table = Table("[replicas]", content, ("count", "like", "bandwidth", "latency", "rings"))
    count = table.need("count", int, "4")
    joined = {key: content[key] for key in content if key not in ("count", "rings")}
    link = _like(Table(table.where, joined, KEYS["link"]), "link")
    bytes_per_s = parse_bytes_per_s(*link.text("bandwidth", "25 GB/s"))
    return Replicas(count, bytes_per_s, link.seconds("latency", "20 us"), table.get("rings", int, 1))


def _pairs(table: "Table") -> Iterable[tuple[str, str]]:
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


def _points(table: "Table") -> tuple[tuple[float, float], ...]:
    points = table.get("points", list, [])
    if any(not isinstance(point, list) or len(point) != 2 for point in points):
        raise InputError(
            f"{table.where} has points = {points!r}; write pairs of a size and a time, "
            'for example [["64 KiB", "30 us"]]'
        )
    where = f"{table.where}: points"
    return tuple((parse_bytes(n_bytes, where), parse_seconds(seconds, where)) for n_bytes, seconds in points)
