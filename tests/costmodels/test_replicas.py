"""Copies of a cluster: what they are joined by, how a cluster is divided into them, and their section in the file."""

from dataclasses import replace
from itertools import permutations
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodels.cluster.cluster import Cluster, Device, Link, Replicas
from costmodels.cluster.collectives import Port, ring_all_reduce
from costmodels.cluster.dictionary import cluster_from_dict, cluster_to_dict
from costmodels.cluster.fabric import fabric_of
from costmodels.cluster.file import cluster_of, read_cluster
from costmodels.cluster.links import Level
from costmodels.cluster.writer import write_cluster
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs.common.errors import InputError
from tests.costmodels.sketches import sketch

DEVICES = tuple(Device(f"gpu{i}", "gpu", 1e9, {"float32": 1e12}, 1e10, cuda=i) for i in range(4))


def rate(src: int, dst: int) -> float:
    """Fast within the pairs 0, 1 and 2, 3, slow between them, slowest from 3 to 1."""
    return 8.0 if src // 2 == dst // 2 else 1.0 if (src, dst) == (3, 1) else 2.0


LINKS = tuple(Link(f"gpu{a}", f"gpu{b}", rate(a, b), 0.5) for a, b in permutations(range(4), 2))
FOUR = Cluster("four", DEVICES, LINKS)
CARDS = Level(8, 2.0, cards=2)


def test_what_replicas_take_adds_up_to_the_ring() -> None:
    ring = Replicas(5, 10.0, 0.5)
    assert ring.sync_latency_s + 70 * ring.sync_s_per_byte == pytest.approx(
        ring_all_reduce(70, 5, Port(0.5, 10.0)).time_s
    )
    assert Replicas(5, inf).sync_s_per_byte == 0


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ((1, 1.0), "1 replicas; it must be 2 or more, or leave them out"),
        ((2, 0.0), "replicas have the bandwidth 0.0; it must be more than 0"),
        ((2, 1.0, -1.0), "replicas have the latency -1.0; it must be a finite number, 0 or more"),
        ((2, 1.0, 0.0, 0), "the number of rings on an uplink is 0; give a whole number of 1 or more"),
        ((2, 1.0, inf), "replicas have the latency inf; it must be a finite number, 0 or more"),
    ],
)
def test_replicas_that_cannot_be_are_refused(fields: tuple[Any, ...], told: str) -> None:
    with pytest.raises(InputError) as error:
        Replicas(*fields)
    assert str(error.value) == told


def test_a_cluster_is_divided_into_neighbours() -> None:
    half = FOUR.divided(2)
    assert [device.name for device in half.devices] == ["gpu0", "gpu1"]
    assert [(link.src, link.dst) for link in half.links] == [("gpu0", "gpu1"), ("gpu1", "gpu0")]
    assert half.replicas == Replicas(2, 1.0, 0.5)  # 3 to 1 is the slowest link of the two rings
    isolated = FOUR.divided(4)
    assert (len(isolated.devices), isolated.links) == (1, ())
    assert isolated.replicas == Replicas(4, 2.0, 0.5)  # 0, 1, 2, 3 and back
    assert FOUR.divided(1) is FOUR


def test_groups_stand_for_one_device_each_and_send_at_once() -> None:
    hosts = Cluster("hosts", tuple(replace(DEVICES[0], name=f"d{n}") for n in range(8)), levels=(Level(4, 8.0), CARDS))
    pairs = hosts.grouped(2)
    assert [device.name for device in pairs.devices] == ["d0", "d2", "d4", "d6"]
    assert pairs.link[0, 1].bytes_per_s == 8.0  # every device has a port of its own
    assert pairs.link[0, 2].bytes_per_s == 2.0 / 2  # two devices to a card
    assert hosts.grouped(4).link[0, 1].bytes_per_s == 2.0 / 2
    assert hosts.grouped(1) is hosts
    unlike = replace(hosts, devices=(*hosts.devices[:7], replace(hosts.devices[7], memory_bytes=7.0)))
    with pytest.raises(InputError, match="device 'd7' is not like 'd6', with which it would share layers"):
        unlike.grouped(2)
    with pytest.raises(InputError, match="cluster 'hosts' cannot be made of equal groups of 3 neighbours"):
        hosts.grouped(3)


def test_rings_of_neighbours_share_what_their_links_share() -> None:
    hosts = Cluster("hosts", tuple(replace(DEVICES[0], name=f"d{n}") for n in range(8)), levels=(Level(4, 8.0), CARDS))
    half = hosts.divided(2)
    assert half.replicas == Replicas(2, 2.0, rings=2)  # two devices to a card, which goes round with two rings
    assert hosts.divided(4).replicas == Replicas(4, 2.0, rings=2)
    assert hosts.divided(8).replicas == Replicas(8, 2.0)  # one ring alone leaves the host
    assert half.grouped(2).replicas == Replicas(2, 1.0)  # both devices of a group at once
    assert fabric_of(half).between == fabric_of(hosts).between  # all at once
    odd = tuple(replace(link, channel="02" if link.src in ("gpu0", "gpu2") else "") for link in LINKS)
    wide = replace(FOUR, devices=tuple(replace(DEVICES[0], name=f"gpu{n}") for n in range(4)), links=odd)
    assert wide.divided(2).replicas == Replicas(2, 1.0, 0.5)  # 0 → 2 and 2 → 0 are of one ring


@pytest.mark.parametrize(
    ("cluster", "told"),
    [
        (FOUR.first(3), "cluster 'four' has 3 devices, which 2 equal parts cannot be made of"),
        (FOUR.divided(2), "cluster 'four' has replicas already, which 2 equal parts cannot be made of"),
        (
            replace(FOUR, devices=(*DEVICES[:2], replace(DEVICES[2], memory_bytes=2e9), DEVICES[3])),
            "device 'gpu2' is not like 'gpu0', whose replica it would be",
        ),
        (
            replace(FOUR, links=tuple(replace(k, latency_s=9) if k.src == "gpu3" else k for k in LINKS)),
            "the link from 'gpu3' to 'gpu2' is not like that of the devices whose replicas they would be",
        ),
        (
            replace(FOUR, links=tuple(link for link in LINKS if (link.src, link.dst) != ("gpu2", "gpu0"))),
            "replicas need a link from 'gpu2' to 'gpu0' to add up their gradients; add a [[link]]",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(cluster: Cluster, told: str) -> None:
    with pytest.raises(InputError) as error:
        cluster.divided(2)
    assert str(error.value) == told


def test_replicas_are_written_and_read(tmp_path: Path) -> None:
    cluster = FOUR.divided(2)
    path = tmp_path / "four.toml"
    write_cluster(cluster, path)
    assert '[replicas]\ncount = 2\nbandwidth = "1 B/s"\nlatency = "500 ms"\n' in path.read_text()
    assert read_cluster(path) == cluster
    assert cluster_from_dict(cluster_to_dict(cluster)) == cluster
    assert cluster_from_dict(cluster_to_dict(replace(cluster, replicas=Replicas(2, inf)))).replicas == Replicas(2, inf)
    shared = replace(cluster, replicas=Replicas(2, 1.0, rings=2))
    write_cluster(shared, path)
    assert read_cluster(path) == cluster_from_dict(cluster_to_dict(shared)) == shared
    assert "replicas" not in cluster_to_dict(FOUR)


def section(**keys: Any) -> Cluster:
    device = {"name": "a", "memory": "1 GB", "flops": {"float32": "1 TFLOP/s"}, "memory_bandwidth": "1 GB/s"}
    return cluster_of({"version": 1, "device": [device], "replicas": keys})


def test_replicas_may_be_joined_as_the_catalogue_says() -> None:
    replicas = section(count=64, like="InfiniBand-400").replicas
    assert replicas is not None
    assert (replicas.count, replicas.bytes_per_s) == (64, 50e9)
    assert 0 < replicas.latency_s < 1e-4
    assert section(count=2, bandwidth="1 GB/s").replicas == Replicas(2, 1e9)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"bandwidth": "1 GB/s"}, "[replicas] has no count; add count = 4"),
        ({"count": 4}, '[replicas] has no bandwidth; add bandwidth = "25 GB/s"'),
        ({"count": "4", "bandwidth": "1 GB/s"}, "[replicas] has count = '4'; it must be a whole number"),
        ({"count": 4, "bandwith": "1 GB/s"}, "[replicas] has the unknown key 'bandwith'; did you mean 'bandwidth'?"),
        ({"count": 4, "channel": "x"}, "[replicas] has the unknown key 'channel'; "),
    ],
)
def test_a_malformed_section_is_named(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as error:
        section(**keys)
    assert str(error.value).startswith(told)


def test_a_table_of_training_says_what_a_step_ends_with() -> None:
    # 5 · 4 bytes of w, whose gradient goes round 2 replicas at 1 byte/s: 2 rounds of half of it, 0.5 s each besides.
    # Adam moves 18 times as much at 10 GB/s
    graph = sketch({"x": (5,), "w": (5,), "a": (5,)}, [("aten.mul.Tensor", "x w", "a")], "a")
    update = tabulate(graph, FOUR.divided(2), Workload("training", optimizer="adam"), {}).update
    assert update is not None
    assert update.sync_s([0], 1) == pytest.approx(2 * 0.5 + 20)
    assert update.optimizer_s([0], 1) == pytest.approx(18 * 20 / 1e10)
    np.testing.assert_array_equal(update.gradient_bytes, [20])
    assert tabulate(graph, FOUR, Workload(), {}).update is None
