"""Clusters from names of the catalogue."""

from pathlib import Path
from typing import Any

import pytest

from costmodels.cluster.cluster import Link
from costmodels.cluster.dictionary import cluster_from_dict, cluster_to_dict
from costmodels.cluster.file import read_cluster
from costmodels.cluster.one_line import catalogue_cluster
from costmodels.cluster.prices import HourlyPrice
from costmodels.cluster.writer import write_cluster
from graphs.common.errors import InputError


def test_eight_gpus_on_a_switch(tmp_path: Path) -> None:
    cluster = catalogue_cluster("H100-SXM-80GB", 8, "NVLink4")
    assert cluster.name == "8 × H100-SXM-80GB, NVLink4"
    assert [device.name for device in cluster.devices] == [f"gpu{i}" for i in range(8)]
    assert cluster.kinds == ("H100-SXM-80GB",)
    assert len(cluster.link) == 8 * 7
    assert cluster.link[3, 5] == Link("gpu3", "gpu5", 450e9, 2e-6, "from gpu3", via="NVLink4")
    write_cluster(cluster, tmp_path / "cluster.toml")
    assert read_cluster(tmp_path / "cluster.toml") == cluster


def test_two_hosts_on_a_network() -> None:
    cluster = catalogue_cluster("A100-SXM-80GB", 2, "NVLink3", hosts=2, network="InfiniBand-100")
    assert cluster.name == "2 × (2 × A100-SXM-80GB, NVLink3), InfiniBand-100"
    assert list(cluster.index) == ["host0-gpu0", "host0-gpu1", "host1-gpu0", "host1-gpu1"]
    assert cluster.link[0, 1].via == "NVLink3"
    assert cluster.link[1, 2] == Link(
        "host0-gpu1", "host1-gpu0", 12.5e9, 2e-6, "from host0-gpu0 (4)", via="InfiniBand-100"
    )
    channels = {link.channel for link in cluster.link.values() if link.via != "NVLink3"}
    assert channels == {"from host0-gpu0 (4)", "from host1-gpu0 (4)"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 0}, "count is 0; give a whole number of 1 or more"),
        ({"hosts": -1}, "hosts is -1; give a whole number of 1 or more"),
        ({"hosts": 2}, "2 hosts need a network between them; give its name, for example 'InfiniBand-100'"),
        (
            {"device": "H100-SXN"},
            "the catalogue has no device 'H100-SXN'; did you mean 'H100-SXM-",
        ),
        ({"link": "NVLink"}, "the catalogue has no link 'NVLink'; did you mean 'NVLink"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        catalogue_cluster(**{"device": "H100-SXM-80GB", "count": 2, "link": "NVLink4", **arguments})
    assert str(error.value).startswith(message)


def test_one_device_has_no_links() -> None:
    assert not catalogue_cluster("V100-SXM2-16GB", 1, "NVLink2").link


@pytest.mark.parametrize(
    ("line", "devices", "levels"),
    [
        ("RTX-4090", ["gpu0"], []),
        ("2xRTX-4090:PCIe4", ["gpu0", "gpu1"], [(2, "PCIe4-x16", 1)]),
        ("Xeon-Platinum-8380+2×L40S : PCIe4", ["cpu0", "gpu0", "gpu1"], [(3, "PCIe4-x16", 1)]),
        (
            "2x(2xH100-SXM:NVLink4):2xInfiniBand-400",
            ["host0-gpu0", "host0-gpu1", "host1-gpu0", "host1-gpu1"],
            [(2, "NVLink4", 1), (4, "InfiniBand-400", 2)],
        ),
        ("1x(2xT4:PCIe3):Ethernet-10", ["gpu0", "gpu1"], [(2, "PCIe3-x16", 1)]),
        ("3x(RTX-5090):Ethernet-25", ["gpu0", "gpu1", "gpu2"], [(3, "Ethernet-25", 1)]),
    ],
)
def test_a_cluster_in_one_line(
    line: str, devices: list[str], levels: list[tuple[int, str, int]], tmp_path: Path
) -> None:
    cluster = read_cluster(line)
    assert list(cluster.index) == devices
    assert [(level.size, level.via, level.cards) for level in cluster.levels] == levels
    write_cluster(cluster, tmp_path / "cluster.toml")
    assert read_cluster(tmp_path / "cluster.toml") == cluster == cluster_from_dict(cluster_to_dict(cluster))


def test_unlike_hosts_in_one_line(tmp_path: Path) -> None:
    cluster = read_cluster("1x(2xH100-SXM:NVLink4)+2x(A100-SXM-80GB):InfiniBand-400")
    assert list(cluster.index) == ["host0-gpu0", "host0-gpu1", "host1-gpu0", "host2-gpu0"]
    assert [device.host for device in cluster.devices] == ["host0", "host0", "host1", "host2"]
    assert {pair: link.via for pair, link in cluster.link.items() if pair[0] == 1} == {
        (1, 0): "NVLink4",
        (1, 2): "InfiniBand-400",
        (1, 3): "InfiniBand-400",
    }
    assert cluster.link[0, 2].channel == cluster.link[1, 3].channel != cluster.link[2, 0].channel
    write_cluster(cluster, tmp_path / "cluster.toml")
    assert read_cluster(tmp_path / "cluster.toml") == cluster


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("(2xT4:PCIe4)+(L4)", "'(2xT4:PCIe4)+(L4)' is no cluster in one line: at its end ':' is m"),
        ("(2xT4:PCIe4)+2xT4:PCIe4", "'(2xT4:PCIe4)+2xT4:PCIe4' is no cluster in one line: at 'T4:PCIe4' "),
        ("(2xT4:PCIe4)+(T4):2xEthernet-10", "'(2xT4:PCIe4)+(T4):2xEthernet-10' gives 2 Ethernet-10 to each host, wh"),
        ("2x((T4)+(T4):PCIe4):PCIe4", "'2x((T4)+(T4):PCIe4):PCIe4' has unlike hosts in brackets; join them in the"),
        ("2xRTX-4099:PCIe4", "the catalogue has no device 'RTX-4099'; did you mean 'RTX-4090'? `planner"),
        ("2xRTX-4090:PCIe6", "the catalogue has no link 'PCIe6'; did you mean 'PCIe5-x16'? `planner"),
        ("2xH100:NVLink4", "the catalogue has several H100; say which: H100-PCIe-80GB, H100-SXM-80GB"),
        ("2xRTX-4090", "'2xRTX-4090' is no cluster in one line: at its end ':' is missing; write 2xRTX-4090:PCIe4 or "),
        ("8x(8xH100-SXM:NVLink4:PCIe4", "'8x(8xH100-SXM:NVLink4:PCIe4' is no cluster in one line: at ':PCIe4' "),
        (
            "2xRTX-4090:PCIe4)",
            "'2xRTX-4090:PCIe4)' is no cluster in one line: at ')' (character 17) the end is m",
        ),
        ("2xRTX-4090:", "'2xRTX-4090:' is no cluster in one line: at its end a link of the catalogue (`planner dev"),
        ("2x?:PCIe4", "'2x?:PCIe4' is no cluster in one line: at '2x?:PCIe4' (character 1) a name, "),
        ("0xRTX-4090:PCIe4", "'0xRTX-4090:PCIe4' has 0 of something; a number from 1 to 16,384 is needed"),
        ("9999x(9999xT4:PCIe4):PCIe4", "'9999x(9999xT4:PCIe4):PCIe4' has 99,980,001 devices; 16,384 are the most"),
        ("2xT4@3:PCIe4", "the price is '3'; write a number and a currency an hour, for example '2.49 USD/h'"),
        ("T4@1EUR/h+T4@1USD/h:PCIe4", "devices of cluster 'T4@1EUR/h+T4@1USD/h:PCIe4' have prices in EUR and USD; us"),
        ("2x(8xT4:PCIe4):3xPCIe4", "level of size 16 has cards = 3, which 8 devices cannot share equally; keep "),
    ],
)
def test_a_line_that_cannot_be_read_is_refused_where_it_goes_wrong(line: str, told: str) -> None:
    with pytest.raises(InputError) as error:
        read_cluster(line)
    assert str(error.value).startswith(told)


def test_prices_of_devices_add_up() -> None:
    price = read_cluster("2x(4xH100-SXM@2.5USD/h:NVLink4):InfiniBand-400").price
    assert price == HourlyPrice(20.0, "USD")
    assert price.of(3600) == "20.00 USD"
    assert read_cluster("T4+T4@1USD/h:PCIe4").price is None
