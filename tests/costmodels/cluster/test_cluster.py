"""Devices, links and clusters: what they refuse, and what follows from them."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from costmodels.cluster.cluster import Cluster, Device, Link
from graphs.common.errors import InputError

CPU = Device("cpu0", "cpu", memory_bytes=8e9, flops_per_s={"float32": 1e11}, memory_bytes_per_s=2e10, cores=(0, 1))
CPU1 = replace(CPU, name="cpu1", cores=(2, 3))
GPU = Device("gpu", "h200", 1.4e11, {"float32": 6e13, "bfloat16": 9e14}, 4.8e12, launch_s=5e-6, cuda=0)
UP = Link("cpu0", "gpu", bytes_per_s=5e10, latency_s=1e-5, channel="pcie")
DOWN = Link("gpu", "cpu0", bytes_per_s=5e10, latency_s=1e-5, channel="pcie")
SIDE = Link("cpu0", "cpu1", bytes_per_s=inf)
CLUSTER = Cluster("box", (CPU, GPU, CPU1), (UP, DOWN, SIDE), overlap=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory_bytes": 0}, "device 'cpu0' has memory = 0; it must be a finite number above 0"),
        ({"memory_bytes": inf}, "device 'cpu0' has memory = inf; it must be a finite number above 0"),
        ({"memory_bytes_per_s": -1}, "device 'cpu0' has memory_bandwidth = -1; it must be a finite number above 0"),
        ({"memory_bytes_per_s": nan}, "device 'cpu0' has memory_bandwidth = nan; it must be a finite number above 0"),
        ({"flops_per_s": {"int8": 0}}, "device 'cpu0' has flops.int8 = 0; it must be a finite number above 0"),
        ({"flops_per_s": {}}, "device 'cpu0' has no flops; give at least flops.float32, for example '100 GFLOP/s'"),
        ({"launch_s": -1e-6}, "device 'cpu0' has launch = -1e-06; it must be a finite number, 0 or more"),
        ({"launch_s": nan}, "device 'cpu0' has launch = nan; it must be a finite number, 0 or more"),
        ({"cuda": 0}, "device 'cpu0' has both cores and cuda; a device is either processors or one GPU"),
    ],
)
def test_a_device_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        replace(CPU, **changes)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dst": "cpu0"}, "link 'cpu0' to 'cpu0' joins a device to itself; that costs nothing and needs no link"),
        ({"bytes_per_s": 0}, "link 'cpu0' to 'gpu' has the bandwidth 0; it must be more than 0"),
        ({"bytes_per_s": nan}, "link 'cpu0' to 'gpu' has the bandwidth nan; it must be more than 0"),
        ({"latency_s": -1}, "link 'cpu0' to 'gpu' has latency = -1; it must be a finite number, 0 or more"),
        ({"latency_s": inf}, "link 'cpu0' to 'gpu' has latency = inf; it must be a finite number, 0 or more"),
        ({"bytes_per_s": -5e9}, "link 'cpu0' to 'gpu' has the bandwidth -5000000000.0; it must be more than 0"),
        ({"points": ((-1.0, 1.0),)}, "link 'cpu0' to 'gpu' has a point's size = -1.0; it must be a finite number, 0 "),
        ({"points": ((1.0, nan),)}, "link 'cpu0' to 'gpu' has a point's time = nan; it must be a finite number, 0 or"),
        (
            {"points": ((2.0, 1.0), (2.0, 3.0))},
            "link 'cpu0' to 'gpu' has points whose sizes do not ascend; sort them, one for each size",
        ),
    ],
)
def test_a_link_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        replace(UP, **changes)
    assert str(error.value).startswith(message)


def test_tensors_may_be_handed_over_without_a_copy() -> None:
    assert SIDE.bytes_per_s == inf
    assert SIDE.latency_s == 0


def test_a_message_takes_the_latency_and_its_share_of_the_bandwidth() -> None:
    assert UP.seconds(np.array([0.0, 5e5])).tolist() == [1e-5, 2e-5]  # 5e5 / 5e10 = 1e-5
    assert SIDE.seconds(np.array([0.0, 1e9])).tolist() == [0, 0]


def test_a_message_takes_what_was_measured_where_it_was() -> None:
    link = replace(UP, points=((100.0, 2.0), (200.0, 3.0), (400.0, 7.0)))
    sizes = np.array([0.0, 100.0, 150.0, 200.0, 300.0, 400.0, 600.0])
    # 150 lies half way between 100 and 200, 300 between 200 and 400; behind 400, 2 seconds for each 100
    assert link.seconds(sizes).tolist() == [2, 2, 2.5, 3, 5, 7, 11]
    falling = replace(UP, points=((100.0, 3.0), (200.0, 2.0)))
    assert falling.seconds(np.array([100.0, 900.0])).tolist() == [3, 2]
    assert replace(UP, points=((100.0, 3.0),)).seconds(np.array([0.0, 900.0])).tolist() == [3, 3]


@pytest.mark.parametrize(
    ("devices", "links", "message"),
    [
        ((), (), "cluster 'box' has no device; add a [[device]]"),
        ((CPU, GPU, CPU), (), "two devices are named 'cpu0'; names must be unique"),
        ((CPU, GPU), (SIDE,), "a link names the device 'cpu1', which does not exist; known: cpu0, gpu"),
        ((CPU1, GPU), (DOWN,), "a link names the device 'cpu0', which does not exist; known: cpu1, gpu"),
        ((CPU, GPU), (UP, DOWN, replace(UP, channel="x")), "two links go from 'cpu0' to 'gpu'; keep one"),
    ],
)
def test_a_cluster_that_does_not_hold_together_is_refused(
    devices: tuple[Device, ...], links: tuple[Link, ...], message: str
) -> None:
    with pytest.raises(InputError) as error:
        Cluster("box", devices, links)
    assert str(error.value) == message


def test_devices_and_links_are_found_by_name_and_by_number() -> None:
    assert CLUSTER.index == {"cpu0": 0, "gpu": 1, "cpu1": 2}
    assert CLUSTER.link == {(0, 1): UP, (1, 0): DOWN, (0, 2): SIDE}


def test_kinds_come_once_in_order_of_appearance() -> None:
    assert CLUSTER.kinds == ("cpu", "h200")


def test_the_first_devices_keep_the_links_between_them() -> None:
    assert CLUSTER.first(2) == Cluster("box", (CPU, GPU), (UP, DOWN), overlap=False)
    assert CLUSTER.first(1) == Cluster("box", (CPU,), (), overlap=False)
    assert CLUSTER.first(3) == CLUSTER


@pytest.mark.parametrize("n_devices", [0, 4, -1])
def test_more_devices_than_there_are_cannot_be_had(n_devices: int) -> None:
    with pytest.raises(InputError) as error:
        CLUSTER.first(n_devices)
    assert str(error.value) == f"{n_devices} devices asked for; cluster 'box' has 3"
