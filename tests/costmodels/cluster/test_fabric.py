"""Fabric: which devices share a host, what joins hosts, and what collectives over both take."""

import pytest

from costmodels.cluster.cluster import Cluster, Device, Link, Replicas
from costmodels.cluster.collectives import Port, hierarchical_all_reduce, ring_all_reduce
from costmodels.cluster.fabric import FabricGroup, fabric_of
from costmodels.cluster.one_line import catalogue_cluster
from graphs.common.errors import InputError

TWO_HOSTS = catalogue_cluster("A100-SXM-80GB", 4, "NVLink3", 2, "InfiniBand-100")


def gpu(name: str, host: str = "", tflops: float = 1.0) -> Device:
    return Device(name, f"{tflops}", 1e9, {"bfloat16": tflops * 1e12}, 1e11, host=host)


def both_ways(a: str, b: str, bytes_per_s: float) -> tuple[Link, Link]:
    return Link(a, b, bytes_per_s), Link(b, a, bytes_per_s)


def test_hosts_are_what_the_fastest_links_join_and_share_their_network_card() -> None:
    fabric = fabric_of(TWO_HOSTS)
    assert fabric.host_devices == 4
    assert fabric.inside == Port(2e-6, 300e9)
    assert fabric.between == Port(2e-6, 12.5e9 / 4)


def test_hosts_go_by_their_names_and_the_fastest_comes_first() -> None:
    devices = gpu("a", "slow"), gpu("b", "fast", 2.0), gpu("c", "slow"), gpu("d", "fast", 2.0)
    links = tuple(link for i, a in enumerate("abcd") for b in "abcd"[i + 1 :] for link in both_ways(a, b, 1e9))
    fabric = fabric_of(Cluster("four", devices, links))
    assert [device.name for device in fabric.devices] == ["b", "d", "a", "c"]
    assert fabric.host_devices == 2


def test_replicas_are_more_hosts() -> None:
    cluster = Cluster("two", (gpu("a"), gpu("b")), both_ways("a", "b", 9e9), replicas=Replicas(3, 1e9, 1e-5))
    fabric = fabric_of(cluster)
    assert len(fabric.devices) == 6
    assert (fabric.inside.bytes_per_s, fabric.between) == (9e9, Port(1e-5, 1e9))


@pytest.mark.parametrize(
    ("size", "stride", "group"),
    [(4, 1, (1, 4)), (8, 1, (2, 4)), (4, 2, (2, 2)), (2, 4, (2, 1)), (2, 1, (1, 2)), (6, 1, (6, 1))],
)
def test_a_group_is_on_as_many_hosts_as_its_stride_asks_for(size: int, stride: int, group: tuple[int, int]) -> None:
    assert fabric_of(TWO_HOSTS).group(size, stride) == group


def test_an_all_reduce_takes_the_faster_way_over_hosts() -> None:
    fabric = fabric_of(TWO_HOSTS)
    whole = Port(fabric.between.latency_s, 12.5e9)
    parts = hierarchical_all_reduce(1e9, 2, 4, whole, fabric.inside).time_s
    assert fabric.all_reduce(1e9, FabricGroup(2, 4)) == parts < ring_all_reduce(1e9, 8, fabric.between).time_s
    assert fabric.all_reduce(1e9, FabricGroup(1, 4)) == ring_all_reduce(1e9, 4, fabric.inside).time_s
    assert 2 * fabric.all_gather(1e9, FabricGroup(2, 4)) == pytest.approx(parts)


def test_devices_that_do_not_reach_each_other_are_refused() -> None:
    cluster = Cluster("three", (gpu("a"), gpu("b"), gpu("c")), both_ways("b", "c", 1e9))
    told = r"no link leads from 'a' to 'b'; add a \[\[link\]\], or keep the 2 devices from 'b' to 'c', which reach"
    with pytest.raises(InputError, match=told):
        fabric_of(cluster)
    one_way = Cluster("two", (gpu("a"), gpu("b")), (Link("a", "b", 1e9),))
    with pytest.raises(InputError, match=r"no link leads from 'b' to 'a'; add a \[\[link\]\], or keep a single device"):
        fabric_of(one_way)
