"""Figures of a cluster that are to be other ones: what is set, and what is refused."""

import pytest

from costmodels.cluster.cluster import Cluster, Device, Link
from graphs.common.errors import InputError
from planner.explanations.settings import KNOWN, Setting, add_device, apply_setting


def desk(memory_bytes: float = 1e9) -> Cluster:
    """Two devices of 1 GFLOP/s whose memory takes no time, and a link of 1 MB/s each way."""
    devices = tuple(Device(f"dev{i}", "cpu", memory_bytes, {"float32": 1e9}, 1e18, cores=(i,)) for i in range(2))
    links = (Link("dev0", "dev1", 1e6, 1e-3, points=((1.0, 5.0),)), Link("dev1", "dev0", 1e6, 1e-3))
    return Cluster("desk", devices, links)


def test_links_are_set_by_both_their_ends_and_forget_what_was_measured() -> None:
    cluster = apply_setting(desk(), Setting.parse("dev0->*.bandwidth=8Mb/s"))
    assert [(link.bytes_per_s, link.points) for link in cluster.links] == [(1e6, ()), (1e6, ())]
    cluster = apply_setting(desk(), Setting.parse("link.latency=5us"))
    assert [link.latency_s for link in cluster.links] == [5e-6, 5e-6]
    assert not apply_setting(desk(), Setting.parse("cluster.overlap=false")).overlap


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("gpu.memory=1GiB", "there is no device 'gpu'; known: dev0, dev1"),
        ("gpu->*.latency=1us", "there is no link 'gpu->*'; known: dev0->dev1, dev1->dev0"),
        ("dev0.memory=1", "dev0.memory is '1'; write a number and a unit, for example '16 GiB'"),
        ("cluster.overlap=no", "cluster.overlap is 'no'; it must be true or false"),
        (
            "replicas.count=2",
            "replicas.count cannot be set: the cluster has no replicas; add [replicas] to cluster.toml",
        ),
        ("dev0.count=2", f"dev0.count cannot be set; known: {KNOWN}"),
        (
            "dev0.size=1GiB",
            f"'dev0.size=1GiB' sets nothing; write for example gpu0.memory=40GiB. Known: {KNOWN}",
        ),
        (
            "dev0.overlap=true",
            f"dev0.overlap cannot be set; known: {KNOWN}",
        ),
    ],
)
def test_what_cannot_be_set_is_named(setting: str, text: str) -> None:
    with pytest.raises(InputError) as error:
        apply_setting(desk(), Setting.parse(setting))
    assert str(error.value) == text


def test_a_device_that_nothing_is_like_is_refused() -> None:
    with pytest.raises(
        InputError, match="there is no device 'x' to add another one of; the cluster has dev0, dev1, the"
    ):
        add_device(desk(), "x")
    with pytest.raises(
        InputError, match="there is a device 'dev1' already; give the new one another name, as in dev0=NAME"
    ):
        add_device(desk(), "dev0", "dev1")


@pytest.mark.parametrize(
    ("text", "told"),
    [("cpu0.memroy=1GiB", "; did you mean 'memory'?"), ("link.bandwith=1GB/s", "; did you mean 'bandwidth'?")],
)
def test_a_field_with_a_typo_is_told_the_nearest(text: str, told: str) -> None:
    with pytest.raises(InputError, match=r"sets nothing; write for example gpu0\.memory=40GiB") as refused:
        Setting.parse(text)
    assert str(refused.value).endswith(told)
