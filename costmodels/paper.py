"""Makes hypothetical clusters: equal devices of the catalogue in one or several equal hosts."""

from collections.abc import Iterator, Mapping
from itertools import permutations
from typing import Any

from costmodels.cluster import Cluster
from costmodels.clusterdict import VERSION
from costmodels.clusterfile import cluster_of
from graphs.checks import whole
from graphs.errors import InputError


def catalogue_cluster(device: str, count: int, link: str, hosts: int = 1, network: str = "") -> Cluster:
    """Equal devices of the catalogue, for example 8 × H100-SXM-80GB with NVLink4 in each of 2 hosts.

    The messages of a device within its host share one channel. The messages of a host to other hosts share another one,
    the host's network card.

    Args:
        device: name of the device in the catalogue; `costmodels.catalogue` lists the names.
        count: devices in each host.
        link: name of the link between devices of one host in the catalogue.
        hosts: number of hosts.
        network: name of the link between devices of different hosts in the catalogue; not needed for one host.

    Raises:
        InputError: for a count below 1, an unknown name, or several hosts without a network.
    """
    whole(count, "count", 1)
    whole(hosts, "hosts", 1)
    if hosts > 1 and not network:
        raise InputError(f"{hosts} hosts need a network between them; give its name, for example 'InfiniBand-100'")
    host_of = {_name(host, i, hosts): f"host{host}" for host in range(hosts) for i in range(count)}
    name = f"{count} × {device}, {link}"
    document = {
        "version": VERSION,
        "cluster": {"name": f"{hosts} × ({name}), {network}" if hosts > 1 else name},
        "device": [{"name": name, "like": device} for name in host_of],
        "link": list(_links(host_of, link, network)),
    }
    return cluster_of(document)


def _name(host: int, i: int, hosts: int) -> str:
    return f"host{host}-gpu{i}" if hosts > 1 else f"gpu{i}"


def _links(host_of: Mapping[str, str], link: str, network: str) -> Iterator[dict[str, Any]]:
    for src, dst in permutations(host_of, 2):
        near = host_of[src] == host_of[dst]
        sender = src if near else host_of[src]
        yield {"from": src, "to": dst, "like": link if near else network, "channel": f"from {sender}"}
