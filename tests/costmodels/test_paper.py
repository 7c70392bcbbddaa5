"""Clusters from names of the catalogue."""

from pathlib import Path
from typing import Any

import pytest

from costmodels.cluster import Link
from costmodels.clusterfile import read_cluster
from costmodels.clusterwriter import write_cluster
from costmodels.paper import catalogue_cluster
from graphs.errors import InputError


def test_eight_gpus_on_a_switch(tmp_path: Path) -> None:
    cluster = catalogue_cluster("H100-SXM-80GB", 8, "NVLink4")
    assert cluster.name == "8 × H100-SXM-80GB, NVLink4"
    assert [device.name for device in cluster.devices] == [f"gpu{i}" for i in range(8)]
    assert cluster.kinds == ("H100-SXM-80GB",)
    assert len(cluster.links) == 8 * 7
    assert cluster.link[3, 5] == Link("gpu3", "gpu5", 450e9, 2e-6, "from gpu3", via="NVLink4")
    write_cluster(cluster, tmp_path / "cluster.toml")
    assert read_cluster(tmp_path / "cluster.toml") == cluster


def test_two_hosts_on_a_network() -> None:
    cluster = catalogue_cluster("A100-SXM-80GB", 2, "NVLink3", hosts=2, network="InfiniBand-100")
    assert cluster.name == "2 × (2 × A100-SXM-80GB, NVLink3), InfiniBand-100"
    assert list(cluster.index) == ["host0-gpu0", "host0-gpu1", "host1-gpu0", "host1-gpu1"]
    assert cluster.link[0, 1].via == "NVLink3"
    assert cluster.link[1, 2] == Link("host0-gpu1", "host1-gpu0", 12.5e9, 2e-6, "from host0", via="InfiniBand-100")
    assert {link.channel for link in cluster.links if link.via != "NVLink3"} == {"from host0", "from host1"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 0}, "count is 0; give a whole number of 1 or more"),
        ({"hosts": -1}, "hosts is -1; give a whole number of 1 or more"),
        ({"hosts": 2}, "2 hosts need a network between them; give its name, for example 'InfiniBand-100'"),
        (
            {"device": "H100-SXM"},
            "device 'gpu0': the catalogue has no device 'H100-SXM'; did you mean 'H100-SXM-",
        ),
        ({"link": "NVLink"}, "[[link]] number 1: the catalogue has no link 'NVLink'; did you mean 'NVLink"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        catalogue_cluster(**{"device": "H100-SXM-80GB", "count": 2, "link": "NVLink4", **arguments})
    assert str(error.value).startswith(message)


def test_one_device_has_no_links() -> None:
    assert catalogue_cluster("V100-SXM2-16GB", 1, "NVLink2").links == ()
