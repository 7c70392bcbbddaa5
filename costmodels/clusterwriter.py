"""cluster.toml out, as people would write it: what is as usual is left out, equal links stand there once."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from costmodels.cluster import Cluster, Device, Link
from costmodels.clusterdict import VERSION
from costmodels.replicas import Replicas
from costmodels.units import write_bytes, write_bytes_per_s, write_flops_per_s, write_seconds
from graphs.checks import instance
from graphs.checks import path as checked_path
from graphs.files import write_text


def write_cluster(cluster: Cluster, path: str | Path) -> None:
    """Write cluster.toml, from which `read_cluster` makes an equal cluster, to the last digit."""
    instance(cluster, Cluster, "the cluster", "a Cluster")
    target = checked_path(path, "the path", "a path to write to")
    blocks = [
        f"version = {VERSION}\n",
        _block("[cluster]", _cluster_keys(cluster)),
        *(_block("[[device]]", _device_keys(device)) for device in cluster.devices),
        *(_block("[[link]]", keys) for keys in _link_keys(cluster)),
        *([_block("[replicas]", _replicas_keys(cluster.replicas))] if cluster.replicas else []),
    ]
    write_text("\n".join(blocks), target)


def _cluster_keys(cluster: Cluster) -> dict[str, Any]:
    keys: dict[str, Any] = {"name": cluster.name, "overlap": cluster.overlap}
    if cluster.sharing != "fifo":
        keys["sharing"] = cluster.sharing
    return keys


def _device_keys(device: Device) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "name": device.name,
        "kind": device.kind,
        "memory": write_bytes(device.memory_bytes),
        "flops": {dtype: write_flops_per_s(rate) for dtype, rate in device.flops_per_s.items()},
        "memory_bandwidth": write_bytes_per_s(device.memory_bytes_per_s),
        "launch": write_seconds(device.launch_s),
    }
    if device.overhead_s:
        keys["overhead"] = write_seconds(device.overhead_s)
    if device.cores:
        keys["cores"] = list(device.cores)
    if device.cuda is not None:
        keys["cuda"] = device.cuda
    if device.profile:
        keys["profile"] = device.profile
    if device.kernels != "exact":
        keys["kernels"] = device.kernels
    if device.host:
        keys["host"] = device.host
    return keys


def _link_keys(cluster: Cluster) -> Iterator[dict[str, Any]]:
    """One entry for all pairs of several devices if they are equal, else one for both directions, else one for each."""
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
    keys: dict[str, Any] = {"bandwidth": write_bytes_per_s(link.bytes_per_s), "latency": write_seconds(link.latency_s)}
    if link.channel:
        keys["channel"] = link.channel
    if link.via:
        keys["via"] = link.via
    if link.points:
        keys["points"] = [[write_bytes(n_bytes), write_seconds(seconds)] for n_bytes, seconds in link.points]
    return keys


def _replicas_keys(replicas: Replicas) -> dict[str, Any]:
    rate, latency = write_bytes_per_s(replicas.bytes_per_s), write_seconds(replicas.latency_s)
    return {"count": replicas.count, "bandwidth": rate, "latency": latency}


def _block(head: str, keys: Mapping[str, Any]) -> str:
    return "\n".join([head, *(f"{key} = {_toml(value)}" for key, value in keys.items())]) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml_key(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list) and value and isinstance(value[0], list):
        return "\n".join(["[", *(f"    {_toml(item)}," for item in value), "]"])
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # but for DEL, JSON's values are TOML's


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(key)
