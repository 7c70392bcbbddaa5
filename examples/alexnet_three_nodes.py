"""AlexNet data-parallel on three nodes: a parameter server as published, and what other ways of adding up take.

Each node sends its gradients and gets the parameters, 232 MB each way. A server of its own passes three times that in,
and as much out: 696 MB and 1392 MB in all as published, from 232 by hand. Below, the same gradients on three hosts of
four GPUs, where a hierarchical way adds up within hosts first. MB are 2**20 bytes; links carry both ways at once.

    python -m examples.alexnet_three_nodes
"""

from costmodels.cluster.collectives import (
    ALL_REDUCES,
    Collective,
    CollectiveCost,
    flat_ring_all_reduce,
    hierarchical_all_reduce,
    parameter_server,
    sharded_parameter_server,
)
from costmodels.cluster.fabric import fabric_of
from costmodels.cluster.file import read_cluster
from costmodels.units import format_seconds
from examples.chains import MB, alexnet, layers_of, parameter_bytes
from planner.cli.console import Console

NODES, BATCH = 3, 128
FLAT, HOSTS = f"{NODES}xV100-PCIe-16GB:Ethernet-40", f"{NODES}x(4xV100-PCIe-16GB:PCIe3):Ethernet-40"
PUBLISHED_MB = {"a node": 232, "into the server": 696, "in and out": 1392}
SCHEMES: dict[str, Collective] = {
    "parameter server": parameter_server,
    "server sharded over the nodes": sharded_parameter_server,
    **ALL_REDUCES,
}
HEADS = ("scheme", "busiest port sends", "in and out", "seconds")


def gradient_bytes() -> float:
    """What every node has to add up."""
    return parameter_bytes(layers_of(alexnet(BATCH), BATCH))


def schemes(n_bytes: float) -> dict[str, CollectiveCost]:
    """What each way takes on three nodes with one GPU each."""
    port = fabric_of(read_cluster(FLAT)).inside
    return {name: scheme(n_bytes, NODES, port) for name, scheme in SCHEMES.items()}


def on_hosts(n_bytes: float) -> dict[str, CollectiveCost]:
    """What each way takes on three hosts with four GPUs each."""
    fabric = fabric_of(read_cluster(HOSTS))
    devices = fabric.host_devices
    port = fabric.between._replace(bytes_per_s=devices * fabric.between.bytes_per_s)

    def hierarchical(leader: bool) -> CollectiveCost:
        return hierarchical_all_reduce(n_bytes, NODES, devices, port, fabric.inside, leader)

    return {
        "one ring through all devices": flat_ring_all_reduce(n_bytes, NODES, devices, port),
        "hierarchical, rings of parts": hierarchical(leader=False),
        "hierarchical, through leaders": hierarchical(leader=True),
    }


def main() -> int:
    """Print the tables."""
    console, n_bytes = Console(), gradient_bytes()
    server = schemes(n_bytes)["parameter server"]
    ours = (n_bytes, server.received_bytes, server.carried_bytes)
    rows = [
        (name, f"{each / MB:.1f} MB", f"{published} MB")
        for (name, published), each in zip(PUBLISHED_MB.items(), ours, strict=True)
    ]
    console.show({}, "AlexNet, a parameter server and three nodes", ("what is sent", "ours", "published"), rows)
    for where, costs in ((FLAT, schemes(n_bytes)), (HOSTS, on_hosts(n_bytes))):
        lines = [
            (name, f"{cost.sent_bytes / MB:.1f} MB", f"{cost.carried_bytes / MB:.1f} MB", format_seconds(cost.time_s))
            for name, cost in costs.items()
        ]
        console.show({}, where, HEADS, lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
