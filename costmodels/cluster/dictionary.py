"""A cluster as a JSON document with plain numbers, as in plan.json."""

import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from costmodels.cluster.cluster import Cluster, Device, Link, Replicas
from costmodels.cluster.links import Level
from costmodels.cluster.prices import HourlyPrice
from costmodels.cluster.sheet import DataSheet
from graphs.common.documents import DAMAGED, check_version
from graphs.common.errors import InputError

VERSION = 1
"""The version of this document, and of cluster.toml."""


def cluster_to_dict(cluster: Cluster) -> dict[str, Any]:
    """A cluster as a JSON document: SI numbers, and None for an infinite bandwidth."""
    ring = cluster.replicas
    return {
        "version": VERSION,
        "name": cluster.name,
        "overlap": cluster.overlap,
        **({"sharing": cluster.sharing} if cluster.sharing != "fifo" else {}),
        "devices": [_device_to_dict(device) for device in cluster.devices],
        "links": [_link_to_list(link) for link in cluster.links],
        **({"levels": [_level_to_list(level) for level in cluster.levels]} if cluster.levels else {}),
        **({"replicas": _replicas_to_list(ring)} if ring else {}),
    }


def cluster_from_dict(document: Mapping[str, Any]) -> Cluster:
    """The inverse of `cluster_to_dict`.

    Raises:
        InputError: if the version is another, a field is missing or of the wrong type, or it describes no cluster.
    """
    check_version(document, "cluster", VERSION, "make the plan again")
    try:
        replicas = None
        if "replicas" in document:
            count, rate, *others = document["replicas"]
            replicas = Replicas(count, _read(rate), *others)
        return Cluster(
            name=document["name"],
            devices=tuple(map(_device_from_dict, document["devices"])),
            links=tuple(_link_from_list(link) for link in document["links"]),
            overlap=document["overlap"],
            sharing=document.get("sharing", "fifo"),
            replicas=replicas,
            levels=tuple(_level_from_list(level) for level in document.get("levels", ())),
        )
    except InputError:
        raise
    except DAMAGED as error:
        raise InputError(f"the cluster is damaged: {error!r}; make the plan again") from error


def _device_to_dict(device: Device) -> dict[str, Any]:
    document = {field.name: getattr(device, field.name) for field in fields(device)}
    document |= {"flops_per_s": dict(device.flops_per_s), "cores": list(device.cores)}
    document["price"] = list(device.price) if device.price else None
    document["sheet"] = asdict(device.sheet) if device.sheet else None
    left_out = {"request_s": 0.0, "kernels": "exact", "host": "", "price": None, "reserve_bytes": 0.0, "sheet": None}
    return {key: value for key, value in document.items() if key not in left_out or value != left_out[key]}


def _device_from_dict(document: dict[str, Any]) -> Device:
    price = {"price": HourlyPrice(*document["price"])} if "price" in document else {}
    sheet = {"sheet": DataSheet(**document["sheet"])} if document.get("sheet") else {}
    return Device(**(document | {"cores": tuple(document["cores"])} | price | sheet))


def _written(bytes_per_s: float) -> float | None:
    return None if bytes_per_s == math.inf else bytes_per_s


def _read(bytes_per_s: float | None) -> float:
    return math.inf if bytes_per_s is None else bytes_per_s


def _link_to_list(link: Link) -> list[Any]:
    measured = [[list(point) for point in link.points], link.via] if link.points or link.via else []
    return [link.src, link.dst, _written(link.bytes_per_s), link.latency_s, link.channel, *measured]


def _link_from_list(values: list[Any]) -> Link:
    src, dst, rate, latency_s, channel, *measured = values
    points, via = measured or ([], "")
    pairs = tuple((float(n_bytes), float(seconds)) for n_bytes, seconds in points)
    return Link(src, dst, _read(rate), latency_s, channel, pairs, via)


def _replicas_to_list(ring: Replicas) -> list[Any]:
    return [ring.count, _written(ring.bytes_per_s), ring.latency_s, *([ring.rings] if ring.rings > 1 else [])]


def _level_to_list(level: Level) -> list[Any]:
    return [level.size, _written(level.bytes_per_s), level.latency_s, level.cards, level.via]


def _level_from_list(values: list[Any]) -> Level:
    size, rate, *others = values
    return Level(size, _read(rate), *others)
