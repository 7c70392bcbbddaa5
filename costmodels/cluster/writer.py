"""Writes cluster.toml in a readable form, without defaults, and with one entry for equal links."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from costmodels.cluster.cluster import Cluster, Device, Link
from costmodels.cluster.dictionary import VERSION
from costmodels.cluster.links import Level
from costmodels.cluster.sheet import DataSheet
from costmodels.cluster.tables import several_devices
from costmodels.units import write_bytes, write_bytes_per_s, write_flops_per_s, write_hertz, write_seconds
from graphs.common.checks import instance
from graphs.common.checks import path as checked_path
from graphs.files import write_text


def write_cluster(cluster: Cluster, path: str | Path) -> None:
    """Write cluster.toml, from which `read_cluster` makes an equal cluster, to the last digit."""
    instance(cluster, Cluster, "the cluster", "a Cluster")
    target = checked_path(path, "the path", "a path to write to")
    sharing, ring = cluster.sharing if cluster.sharing != "fifo" else None, cluster.replicas
    blocks = [
        f"version = {VERSION}\n",
        _block("[cluster]", {"name": cluster.name, "overlap": cluster.overlap, "sharing": sharing}),
        *(_block("[[device]]", keys) for keys in _devices_keys(cluster.devices)),
        *(_block("[[link]]", keys) for keys in _link_keys(cluster)),
        *(_block("[[level]]", _level_keys(level)) for level in cluster.levels),
    ]
    if ring:
        rate, latency = write_bytes_per_s(ring.bytes_per_s), write_seconds(ring.latency_s)
        rings = ring.rings if ring.rings > 1 else None
        blocks.append(
            _block("[replicas]", {"count": ring.count, "bandwidth": rate, "latency": latency, "rings": rings})
        )
    write_text("\n".join(blocks), target)


def _devices_keys(devices: Sequence[Device]) -> Iterator[dict[str, Any]]:
    """The entries of devices: one for neighbours that differ in their numbers only."""
    for _, alike in groupby(devices, lambda device: replace(device, name="-", host="")):
        equal = tuple(alike)
        match = re.fullmatch(r"(?:host0-)?(.*\D)0", equal[0].name)
        count = sum(device.host == equal[0].host for device in equal)
        hosts = len(equal) // count
        on_paper = not equal[0].cores and equal[0].cuda is None
        model = replace(equal[0], name=match[1], host="") if match and on_paper and len(equal) > 1 else None
        if model and several_devices(model, count, hosts) == equal:
            yield _device_keys(model, count, hosts)
        else:
            yield from map(_device_keys, equal)


def _level_keys(level: Level) -> dict[str, Any]:
    return {
        "size": level.size,
        "bandwidth": write_bytes_per_s(level.bytes_per_s),
        "latency": write_seconds(level.latency_s),
        "cards": level.cards if level.cards > 1 else None,
        "via": level.via or None,
    }


def _device_keys(device: Device, count: int = 1, hosts: int = 1) -> dict[str, Any]:
    return {
        "name": device.name,
        "count": count if count * hosts > 1 else None,
        "hosts": hosts if hosts > 1 else None,
        "kind": device.kind,
        "memory": write_bytes(device.memory_bytes),
        "reserve": write_bytes(device.reserve_bytes) if device.reserve_bytes else None,
        "flops": {dtype: write_flops_per_s(rate) for dtype, rate in device.flops_per_s.items()},
        "memory_bandwidth": write_bytes_per_s(device.memory_bytes_per_s),
        **_sheet_keys(device.sheet),
        "launch": write_seconds(device.launch_s),
        "overhead": write_seconds(device.overhead_s) if device.overhead_s else None,
        "request": write_seconds(device.request_s) if device.request_s else None,
        "cores": list(device.cores) or None,
        "cuda": device.cuda,
        "profile": device.profile or None,
        "kernels": device.kernels if device.quick else None,
        "host": device.host or None,
        "price": str(device.price) if device.price else None,
    }


def _sheet_keys(sheet: DataSheet | None) -> dict[str, Any]:
    if sheet is None:
        return {}
    return {
        "family": sheet.family,
        "units": sheet.units,
        "clock": write_hertz(sheet.clock_hz),
        "cache": write_bytes(sheet.cache_bytes),
    }


def _link_keys(cluster: Cluster) -> Iterator[dict[str, Any]]:
    """The entries of links: one for all pairs of several devices, for both directions, or for one direction."""
    alike: dict[Link, list[tuple[str, str]]] = {}
    for link in cluster.links:
        pattern = replace(link, src="", dst=" ")
        alike.setdefault(pattern, []).append((link.src, link.dst))
    for pattern, pairs in alike.items():
        for ends in _ends(pairs):
            yield ends | _rate_keys(pattern)


def _ends(pairs: list[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    names = list(dict.fromkeys(end for pair in pairs for end in pair))
    if len(pairs) == len(names) * (len(names) - 1):
        yield {"between": names}
        return
    position = {pair: i for i, pair in enumerate(pairs)}
    for i, (src, dst) in enumerate(pairs):
        back = position.get((dst, src))
        if back is None:
            yield {"from": src, "to": dst}
        elif i < back:
            yield {"between": [src, dst]}


def _rate_keys(link: Link) -> dict[str, Any]:
    return {
        "bandwidth": write_bytes_per_s(link.bytes_per_s),
        "latency": write_seconds(link.latency_s),
        "channel": link.channel or None,
        "via": link.via or None,
        "points": [[write_bytes(n_bytes), write_seconds(seconds)] for n_bytes, seconds in link.points] or None,
    }


def _block(head: str, keys: Mapping[str, Any]) -> str:
    """A table of the file, without the keys whose value is None."""
    return "\n".join([head, *(f"{key} = {_toml(value)}" for key, value in keys.items() if value is not None)]) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml_key(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list) and value and isinstance(value[0], list):
        return "\n".join(["[", *(f"    {_toml(item)}," for item in value), "]"])
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON's values are TOML's, except for DEL


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(key)
