"""Collectives: published figures, closed forms beside transfers one by one, and how schemes rank."""

import pytest

from costmodels.cluster.collectives import (
    ALL_REDUCES,
    Port,
    all_gather,
    all_to_all,
    broadcast,
    flat_ring_all_reduce,
    hierarchical_all_reduce,
    overlapped_s,
    parameter_server,
    ring_all_reduce,
    sharded_parameter_server,
)

ALEXNET = 243_860_896  # bytes of float32 parameters
MIB = 1 << 20
SLOW, FAST = Port(5e-6, 7e9), Port(2e-6, 5e10)


def test_the_server_of_three_nodes_takes_what_was_published() -> None:
    # printed as 232 MB a node, 696 MB in, 1392 MB in and out, in MiB and after rounding 232.56 down
    cost = parameter_server(ALEXNET, 3, Port(5e-6, 5e9))
    assert (ALEXNET // MIB, cost.received_bytes // (3 * MIB), cost.carried_bytes // (6 * MIB)) == (232, 232, 232)
    assert cost.time_s == pytest.approx(2 * (5e-6 + 3 * ALEXNET / 5e9))


@pytest.mark.parametrize(("nodes", "time_s"), [(1, 0), (2, 10), (4, 15), (100, 19.8)])
def test_a_ring_sends_almost_everything_twice(nodes: int, time_s: float) -> None:
    # 2 (n - 1) / n · 100 bytes at 10 bytes/s
    assert ring_all_reduce(100, nodes, Port(0.0, 10.0)).time_s == pytest.approx(time_s)


def ring_one_by_one(n_bytes: float, nodes: int, port: Port) -> tuple[float, float]:
    """Bytes that each sends, and seconds, message by message: each is sent on when it has come and the port is free."""
    ready = [0.0] * nodes
    sent_bytes = 0.0
    for _ in range(2 * (nodes - 1)):
        ends = [at_s + port.time_s(n_bytes / nodes) for at_s in ready]
        ready = [max(ends[i], ends[i - 1]) for i in range(nodes)]
        sent_bytes += n_bytes / nodes
    return sent_bytes, max(ready)


@pytest.mark.parametrize("nodes", [1, 2, 3, 8])
def test_a_ring_takes_what_its_messages_take(nodes: int) -> None:
    cost = ring_all_reduce(1e9, nodes, SLOW)
    assert (cost.sent_bytes, cost.time_s) == pytest.approx(ring_one_by_one(1e9, nodes, SLOW))


def test_an_all_gather_is_half_of_an_all_reduce() -> None:
    assert 2 * all_gather(1e9, 8, SLOW).time_s == pytest.approx(ring_all_reduce(1e9, 8, SLOW).time_s)
    assert all_to_all(1e9, 8, SLOW).sent_bytes == 7e9 / 8


def test_the_root_of_a_broadcast_sends_in_every_round() -> None:
    assert broadcast(100, 5, Port(1.0, 10.0)) == (300, 100, 33)
    assert broadcast(100, 1, Port(1.0, 10.0)) == (0, 0, 0)


def test_trees_win_with_little_to_send_and_rings_with_much() -> None:
    def fastest(n_bytes: float) -> str:
        return min(ALL_REDUCES, key=lambda name: ALL_REDUCES[name](n_bytes, 64, SLOW).time_s)

    assert ALL_REDUCES["tree"](8, 64, SLOW).time_s < ALL_REDUCES["ring"](8, 64, SLOW).time_s
    assert ALL_REDUCES["ring"](1e9, 64, SLOW).time_s < ALL_REDUCES["tree"](1e9, 64, SLOW).time_s
    assert fastest(1e9) == "halving-doubling"  # the ring's bytes in the tree's rounds, if all pairs are equally near


@pytest.mark.parametrize(
    ("hosts", "flat_ms", "parts_ms", "leader_ms"), [(2, 61.035, 42.175, 64.123), (8, 67.807, 68.363, 90.311)]
)
def test_what_is_saved_between_hosts_may_be_lost_within(
    hosts: int, flat_ms: float, parts_ms: float, leader_ms: float
) -> None:
    flat = flat_ring_all_reduce(ALEXNET, hosts, 4, SLOW)
    parts = hierarchical_all_reduce(ALEXNET, hosts, 4, SLOW, FAST)
    leader = hierarchical_all_reduce(ALEXNET, hosts, 4, SLOW, FAST, leader=True)
    assert [round(cost.time_s * 1e3, 3) for cost in (flat, parts, leader)] == [flat_ms, parts_ms, leader_ms]
    assert parts.sent_bytes == leader.sent_bytes < flat.sent_bytes


def test_a_server_on_the_workers_is_a_ring_with_two_messages() -> None:
    server, ring = sharded_parameter_server(ALEXNET, 8, SLOW), ring_all_reduce(ALEXNET, 8, SLOW)
    assert server.sent_bytes == ring.sent_bytes
    assert ring.time_s - server.time_s == pytest.approx(12 * SLOW.latency_s)


def test_what_overlaps_takes_the_longer_time_and_slows_computing_down() -> None:
    assert overlapped_s(3.0, 2.0) == 3.0
    assert overlapped_s(3.0, 2.0, slowdown=2.0) == 4.0  # in 2 s, 1 s of computing is done
    assert overlapped_s(1.0, 2.0, slowdown=2.0) == 2.0
