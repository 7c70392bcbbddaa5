"""Levels of a hierarchy are the links that they stand for."""

import time
from dataclasses import replace

import numpy as np
import pytest

from costmodels.cluster.cluster import Cluster, Device, Replicas
from costmodels.cluster.fabric import fabric_of
from costmodels.cluster.file import read_cluster
from costmodels.cluster.links import Level
from graphs.common.errors import InputError

THREE_LEVELS = read_cluster("2x(3x(2xA100-SXM-40GB:NVLink3):InfiniBand-100):2xEthernet-10")


def test_the_arrays_of_levels_are_those_of_the_listed_links() -> None:
    cluster = THREE_LEVELS
    for levels in (cluster.levels, (replace(cluster.levels[0]), replace(cluster.levels[0], size=12))):
        by_level = replace(cluster, levels=levels)
        listed = by_level.listed()
        assert dict(listed.link) == dict(by_level.link)
        assert len(by_level.link) == 12 * 11
        for one, other in zip(by_level.wired_pairs[:2], listed.wired_pairs[:2], strict=True):
            np.testing.assert_array_equal(one, other)
        assert by_level.wired_pairs.examples == listed.wired_pairs.examples
        assert fabric_of(by_level) == fabric_of(listed)


@pytest.mark.parametrize("n_devices", [1, 2, 5, 6, 11])
def test_the_first_devices_keep_their_links(n_devices: int) -> None:
    def rates(cluster: Cluster) -> dict[tuple[int, int], float]:
        return {pair: link.bytes_per_s for pair, link in cluster.link.items()}

    assert rates(THREE_LEVELS.first(n_devices)) == rates(THREE_LEVELS.listed().first(n_devices))


def test_a_hierarchy_is_divided_into_replicas_that_share_its_cards() -> None:
    assert THREE_LEVELS.divided(2).replicas == Replicas(2, 1.25e9, 3e-5, 3)  # three devices to a card
    assert THREE_LEVELS.divided(6).replicas == THREE_LEVELS.listed().divided(6).replicas
    with pytest.raises(InputError, match="is not like that of the devices whose replicas they would be"):
        THREE_LEVELS.divided(4)


def test_a_thousand_devices_take_no_time() -> None:
    start = time.process_time()
    fabric = fabric_of(read_cluster("128x(8xH100-SXM:NVLink4):8xInfiniBand-400"))
    assert (len(fabric.devices), fabric.host_devices, fabric.between.bytes_per_s) == (1024, 8, 50e9)
    assert time.process_time() - start < 2  # 0.2 s, where 1,047,552 links take 23 s


@pytest.mark.parametrize(
    ("levels", "told"),
    [
        ([Level(2, 1.0), Level(3, 1.0)], "a level of size 3 is not several times the level of size 2 below it"),
        ([Level(2, 1.0)], "the levels join 2 devices of 4; add a [[level]] of size 4"),
        ([Level(4, 1.0, cards=2)], "level of size 4 has cards = 2, which 1 devices cannot share equally; keep a num"),
    ],
)
def test_levels_that_do_not_fit_together_are_refused(levels: list[Level], told: str) -> None:
    devices = tuple(Device(f"gpu{i}", "gpu", 1e9, {"float32": 1e12}, 1e10) for i in range(4))
    with pytest.raises(InputError) as error:
        Cluster("four", devices, levels=tuple(levels))
    assert str(error.value).startswith(told)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ((1, 1.0), "level of size 1 joins nothing; its size must be 2 or more devices"),
        ((2, 0.0), "level of size 2 has the bandwidth 0.0; it must be more than 0"),
        ((2, 1.0, -1.0), "level of size 2 has latency = -1.0; it must be a finite number, 0 or more"),
        ((2, 1.0, 0.0, 0), "level of size 2 has cards = 0; it must be 1 or more"),
    ],
)
def test_a_level_that_cannot_be_is_refused(fields: tuple[int, float, float, int], told: str) -> None:
    with pytest.raises(InputError) as error:
        Level(*fields)
    assert str(error.value) == told
