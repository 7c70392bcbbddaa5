"""Collectives: bytes through a node's port and seconds, for n nodes that share S bytes.

A port has latency a and bandwidth w, each way at once. All schemes start together and do not overlap with computing.

::

    scheme                       sent by each                seconds
    ring all-reduce              2 (n - 1) / n S             2 (n - 1) (a + S / (n w))
    tree all-reduce              ceil(log2 n) S by the root  2 ceil(log2 n) (a + S / w)
    halving and doubling         2 (n - 1) / n S             2 ceil(log2 n) a + 2 (n - 1) S / (n w)
    all-gather, reduce-scatter   (n - 1) / n S               (n - 1) (a + S / (n w))
    all-to-all                   (n - 1) / n S               (n - 1) (a + S / (n w))
    broadcast                    ceil(log2 n) S by the root  ceil(log2 n) (a + S / w)
    parameter server             n S, in as well             2 (a + n S / w)
    sharded over the workers     2 (n - 1) / n S             2 (a + (n - 1) S / (n w))
    hierarchical, g devices      2 (n - 1) / n S a host      2 (g - 1) (a' + S / (g w')) + 2 (n - 1) (a + S / (n w))
    through a leader             2 (n - 1) / n S a leader    2 (g - 1) (a' + S / w') + 2 (n - 1) (a + S / (n w))

S is what every node has before an all-reduce or a reduce-scatter, after an all-gather, and in all-to-all what it sends
and keeps. The hierarchical schemes are for n hosts with g devices each; a device has a' and w' within its host.

Sources: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 2009 (ring);
Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, IJHPCA 2005 (trees,
halving and doubling, all-to-all by pairs); Li et al., Scaling distributed machine learning with the parameter server,
OSDI 2014; Jia et al., Highly scalable deep learning training system, arXiv 1807.11205 (hierarchical).
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple


class Port(NamedTuple):
    """Port of a node to the network: n bytes take ``latency_s + n / bytes_per_s``, in both directions at once."""

    latency_s: float
    bytes_per_s: float

    def time_s(self, n_bytes: float) -> float:
        """Return the seconds of one message."""
        return self.latency_s + n_bytes / self.bytes_per_s


class CollectiveCost(NamedTuple):
    """Cost of a collective; the bytes are those of the busiest port."""

    sent_bytes: float
    received_bytes: float
    time_s: float

    @property
    def carried_bytes(self) -> float:
        """Bytes in both directions."""
        return self.sent_bytes + self.received_bytes


Collective = Callable[[float, int, Port], CollectiveCost]


def ring_all_reduce(n_bytes: float, nodes: int, port: Port) -> CollectiveCost:
    """A reduce-scatter and an all-gather, both around a ring."""
    half = all_gather(n_bytes, nodes, port)
    return CollectiveCost(2 * half.sent_bytes, 2 * half.received_bytes, 2 * half.time_s)


def tree_all_reduce(n_bytes: float, nodes: int, port: Port) -> CollectiveCost:
    """A sum up a binomial tree and a broadcast down."""
    down = broadcast(n_bytes, nodes, port)
    return CollectiveCost(down.sent_bytes, down.sent_bytes, 2 * down.time_s)


def halving_doubling_all_reduce(n_bytes: float, nodes: int, port: Port) -> CollectiveCost:
    """A reduce-scatter by halves and an all-gather by doubles: the ring's bytes in the tree's rounds."""
    sent_bytes = 2 * _others(nodes) * n_bytes
    time_s = 2 * _rounds(nodes) * port.latency_s + sent_bytes / port.bytes_per_s
    return CollectiveCost(sent_bytes, sent_bytes, time_s)


def all_gather(n_bytes: float, nodes: int, port: Port) -> CollectiveCost:
    """Everyone gets the parts of all, around a ring; a reduce-scatter is this run backwards."""
    sent_bytes = _others(nodes) * n_bytes
    return CollectiveCost(sent_bytes, sent_bytes, (nodes - 1) * port.time_s(n_bytes / nodes))


def all_to_all(n_bytes: float, nodes: int, port: Port) -> CollectiveCost:
    """Everyone sends another part to each, pair by pair: as many bytes and rounds as the all-gather's ring."""
    return all_gather(n_bytes, nodes, port)


def broadcast(n_bytes: float, nodes: int, port: Port) -> CollectiveCost:
    """Return the cost of a broadcast to all nodes along a binomial tree; the root sends in every round."""
    rounds = _rounds(nodes)
    return CollectiveCost(rounds * n_bytes, n_bytes if rounds else 0.0, rounds * port.time_s(n_bytes))


def parameter_server(n_bytes: float, nodes: int, port: Port) -> CollectiveCost:
    """Every worker sends its gradients to a server, a node of its own, and gets the parameters; the server's port."""
    passed_bytes = nodes * n_bytes
    return CollectiveCost(passed_bytes, passed_bytes, 2 * port.time_s(passed_bytes))


def sharded_parameter_server(n_bytes: float, nodes: int, port: Port) -> CollectiveCost:
    """The same with a part of the server on every worker; what stays on a node is not sent."""
    each_bytes = _others(nodes) * n_bytes
    return CollectiveCost(2 * each_bytes, 2 * each_bytes, 2 * port.time_s(each_bytes))


def flat_ring_all_reduce(n_bytes: float, hosts: int, devices: int, port: Port) -> CollectiveCost:
    """One ring through all devices, host by host, as slow as the hosts' ports that it passes."""
    return ring_all_reduce(n_bytes, hosts * devices, port)


def hierarchical_all_reduce(
    n_bytes: float, hosts: int, devices: int, port: Port, inside: Port, leader: bool = False
) -> CollectiveCost:
    """Sum within hosts, then between them, then share within; the bytes are those of a host's port.

    Args:
        n_bytes: of each device.
        hosts: how many there are.
        devices: in each host.
        port: of a host.
        inside: of a device within its host.
        leader: whether one device of a host gets everything from the others, one by one, and gives it back. If not,
            each has a part (a reduce-scatter and an all-gather), and the parts go around rings of their own.
    """
    message_bytes = n_bytes if leader else n_bytes / devices
    inside_s = 2 * (devices - 1) * inside.time_s(message_bytes)
    between = ring_all_reduce(n_bytes, hosts, port)
    return between._replace(time_s=inside_s + between.time_s)


ALL_REDUCES: Mapping[str, Collective] = MappingProxyType(
    {"ring": ring_all_reduce, "tree": tree_all_reduce, "halving-doubling": halving_doubling_all_reduce}
)
"""All-reduces of equal nodes by name; which is fastest depends on bytes, nodes and latency."""


def overlapped_s(computing_s: float, communicating_s: float, slowdown: float = 1.0) -> float:
    """Return the seconds of both at once: computing takes ``slowdown`` times as long meanwhile, communicating does not.

    Source: the search of Galvatron (Miao et al., VLDB 2023), for parameters that are gathered during computing.
    """
    return communicating_s + max(0.0, computing_s - communicating_s / slowdown)


def _others(nodes: int) -> float:
    """The share of the nodes that are not one of them."""
    return (nodes - 1) / nodes


def _rounds(nodes: int) -> int:
    """Return the rounds until all nodes have the message of one, if all that have it pass it on: log2, rounded up."""
    return (nodes - 1).bit_length()
