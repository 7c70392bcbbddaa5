"""A cluster with plain numbers, as plan.json holds it."""

import math
from collections.abc import Mapping
from typing import Any

from costmodels.cluster import Cluster, Device, Link
from costmodels.replicas import Replicas
from graphs.documents import DAMAGED
from graphs.errors import InputError

VERSION = 1
"""Of this, and of cluster.toml."""


def cluster_to_dict(cluster: Cluster) -> dict[str, Any]:
    """A cluster as what JSON can hold: SI numbers, None for an infinite bandwidth."""
    return {
        "version": VERSION,
        "name": cluster.name,
        "overlap": cluster.overlap,
        **({"sharing": cluster.sharing} if cluster.sharing != "turns" else {}),
        "devices": [
            {
                "name": device.name,
                "kind": device.kind,
                "memory_bytes": device.memory_bytes,
                "flops_per_s": dict(device.flops_per_s),
                "memory_bytes_per_s": device.memory_bytes_per_s,
                "launch_s": device.launch_s,
                "handover_s": device.handover_s,
                "cores": list(device.cores),
                "cuda": device.cuda,
                "profile": device.profile,
                **({"kernels": device.kernels} if device.kernels != "exact" else {}),
                **({"host": device.host} if device.host else {}),
            }
            for device in cluster.devices
        ],
        "links": [_link_to_list(link) for link in cluster.links],
        **({"replicas": _replicas_to_list(cluster.replicas)} if cluster.replicas else {}),
    }


def cluster_from_dict(document: Mapping[str, Any]) -> Cluster:
    """The inverse of `cluster_to_dict`.

    Raises:
        InputError: if the version is another, a field is missing or of the wrong type, or it describes no cluster.
    """
    check_version(document)
    try:
        return Cluster(
            name=document["name"],
            devices=tuple(Device(**(device | {"cores": tuple(device["cores"])})) for device in document["devices"]),
            links=tuple(_link_from_list(link) for link in document["links"]),
            overlap=document["overlap"],
            sharing=document.get("sharing", "turns"),
            replicas=_replicas_from_list(document["replicas"]) if "replicas" in document else None,
        )
    except InputError:
        raise
    except DAMAGED as error:
        raise InputError(f"the cluster is damaged: {error!r}; make the plan again") from error


def check_version(document: Mapping[str, Any]) -> None:
    """Whether it is what this planner reads.

    Raises:
        InputError: if it is another one, or there is none.
    """
    version: Any = document.get("version")
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        way_out = "update the planner" if newer else "start the file with that line"
        raise InputError(
            f"the cluster has version = {version!r}, this planner reads version = {VERSION}; "
            f"{way_out} or calibrate again"
        )


def _link_to_list(link: Link) -> list[Any]:
    rate = None if link.bytes_per_s == math.inf else link.bytes_per_s
    measured = [[list(point) for point in link.points], link.via] if link.points or link.via else []
    return [link.src, link.dst, rate, link.latency_s, link.channel, *measured]


def _link_from_list(fields: list[Any]) -> Link:
    src, dst, rate, latency_s, channel, *measured = fields
    points, via = measured or ([], "")
    pairs = tuple((float(n_bytes), float(seconds)) for n_bytes, seconds in points)
    return Link(src, dst, math.inf if rate is None else rate, latency_s, channel, pairs, via)


def _replicas_to_list(replicas: Replicas) -> list[Any]:
    rate = None if replicas.bytes_per_s == math.inf else replicas.bytes_per_s
    return [replicas.count, rate, replicas.latency_s]


def _replicas_from_list(fields: list[Any]) -> Replicas:
    count, rate, latency_s = fields
    return Replicas(count, math.inf if rate is None else rate, latency_s)
