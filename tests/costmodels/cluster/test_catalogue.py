"""The catalogue: every entry is whole, plausible and says where it is from."""

import tomllib
from pathlib import Path

import pytest

from costmodels.cluster import catalogue as module
from costmodels.cluster.catalogue import Section, catalogue, entry, entry_named
from costmodels.cluster.file import cluster_of
from costmodels.cluster.tables import device_of
from costmodels.units import parse_bytes_per_s
from graphs.common.errors import InputError
from graphs.ir import ITEM_BYTES


def test_everything_that_was_asked_for_is_there() -> None:
    devices, links = catalogue("device"), catalogue("link")
    families = "Xeon EPYC V100 A100 H100 H200 B200 RTX-3090 RTX-4090 RTX-5090 L4 L40S A10 T4 MI300X Apple-M1 Apple-M2"
    for family in families.split():
        assert any(f"{name}-".startswith(f"{family}-") for name in devices)
    assert list(links) == [
        *("PCIe3-x16", "PCIe4-x16", "PCIe5-x16", "NVLink2", "NVLink3", "NVLink4"),
        *("NVLink3-bridge", "NVLink5", "InfinityFabric-MI300X"),
        *("InfiniBand-56", "InfiniBand-100", "InfiniBand-200", "InfiniBand-400"),
        *("Ethernet-1", "Ethernet-10", "Ethernet-25", "Ethernet-40", "Ethernet-100"),
    ]


def test_devices_that_people_plan_for_are_there() -> None:
    known = catalogue("device")
    for name in (
        *("RTX-3060", "RTX-3070", "RTX-3080", "RTX-3090", "RTX-4060", "RTX-4070", "RTX-4080", "RTX-5070", "RTX-5080"),
        *(
            "RTX-PRO-6000",
            "RTX-A4000",
            "RTX-A5000",
            "RTX-A6000",
            "L40",
            "B300-SXM-288GB",
            "GB10",
            "MI210",
            "MI250X-die",
        ),
        *("MI325X", "MI350X", "MI355X", "Arc-A770", "Arc-B580", "Radeon-RX-7900-XTX", "Apple-M2-Max"),
        *("Core-i9-10940X", "Core-i9-13900K", "Core-i7-13700H", "Ryzen-9-7950X", "Ryzen-7-7840HS"),
    ):
        assert name in known


LANES = {
    "V100": 64,
    "T4": 64,
    "A100": 64,
    "A30": 64,
    "B": 128,
    "MI2": 64,
    "MI": 128,
    "GB10": 128,
    "RTX": 128,
    "RTX-2": 64,
    "H": 128,
}
"""Multiply-adds that a unit starts in float32 in each cycle, by the beginning of a name."""


@pytest.mark.parametrize("name", catalogue("device"))
def test_a_peak_is_what_units_and_clock_say(name: str) -> None:
    device = device_of({"name": name, "like": name})
    assert device.sheet is not None
    starts = sorted((start for start in LANES if name.startswith(start)), key=len)
    if not starts:
        return  # processors differ in their units and in clocks of large and small cores
    units, clock = device.sheet.units, device.sheet.clock_hz
    lanes = LANES[starts[-1]]
    assert device.flops_per_s["float32"] == pytest.approx(2 * lanes * units * clock, rel=0.08)


@pytest.mark.parametrize("name", catalogue("device"))
def test_a_device_is_whole_and_plausible(name: str) -> None:
    found = entry("device", name)
    assert found.keys.keys() == {
        *("memory", "reserve", "flops", "memory_bandwidth", "launch"),
        *("family", "units", "clock", "cache"),
    }
    assert len(found.source) > 20
    (device,) = cluster_of({"version": 1, "device": [{"name": "a", "like": name}]}).devices
    assert device.flops_per_s.keys() <= ITEM_BYTES.keys()
    assert device.flops_per_s.get("float64", 0.0) <= device.flops_per_s["float32"]
    assert 1e9 < device.memory_bytes < 1e12
    assert 0.05 * device.memory_bytes < device.reserve_bytes < 0.3 * device.memory_bytes
    # each byte of float32 is computed with some 5 to 100 times, and the memory is read in some seconds
    assert 2 < device.flops_per_s["float32"] / device.memory_bytes_per_s < 120
    assert 0.01 < device.memory_bytes / device.memory_bytes_per_s < 3


@pytest.mark.parametrize(
    ("name", "bits_per_s"),
    [
        ("PCIe3-x16", 8e9 * 16 * 128 / 130),  # transfers, lanes, encoding
        ("PCIe4-x16", 16e9 * 16 * 128 / 130),
        ("PCIe5-x16", 32e9 * 16 * 128 / 130),
        ("NVLink2", 6 * 25e9 * 8),
        ("NVLink3", 12 * 25e9 * 8),
        ("NVLink4", 18 * 25e9 * 8),
        ("NVLink5", 18 * 50e9 * 8),
        ("InfiniBand-56", 4 * 14.0625e9 * 64 / 66),
        ("InfiniBand-100", 4 * 25.78125e9 * 64 / 66),
        ("InfiniBand-400", 400e9),
        ("Ethernet-1", 1e9),
        ("Ethernet-100", 100e9),
    ],
)
def test_a_link_carries_what_its_standard_says(name: str, bits_per_s: float) -> None:
    assert parse_bytes_per_s(entry("link", name).keys["bandwidth"], name) == pytest.approx(bits_per_s / 8, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "cores", "hertz", "channels", "transfers_per_s"),
    [
        ("Xeon-Platinum-8180", 28, 2.5e9, 6, 2666.67e6),
        ("Xeon-Platinum-8380", 40, 2.3e9, 8, 3200e6),
        ("Xeon-Platinum-8480", 56, 2.0e9, 8, 4800e6),
        ("EPYC-9755", 128, 2.7e9, 12, 6000e6),
    ],
)
def test_a_processor_is_its_cores_and_channels(
    name: str, cores: int, hertz: float, channels: int, transfers_per_s: float
) -> None:
    (device,) = cluster_of({"version": 1, "device": [{"name": "a", "like": name}]}).devices
    assert device.flops_per_s["float32"] == pytest.approx(cores * hertz * 2 * 16 * 2)  # units, lanes, FLOP
    assert device.memory_bytes_per_s == pytest.approx(channels * transfers_per_s * 8, rel=1e-3)  # bytes at once


@pytest.mark.parametrize(
    ("section", "name", "start"),
    [
        ("device", "A100-80GB", "the catalogue has no device 'A100-80GB'; did you mean 'A100-SXM-80GB'? `planner d"),
        ("device", "h100-sxm", "the catalogue has no device 'h100-sxm'; did you mean 'H100-SXM-80GB'? `planner d"),
        ("link", "nvlink 3", "the catalogue has no link 'nvlink 3'; did you mean 'NVLink3'? `planner devices`"),
        ("link", "#", "the catalogue has no link '#'; known: PCIe3-x16, PCIe4-x16, "),
    ],
)
def test_an_unknown_name_lists_the_known_ones(section: Section, name: str, start: str) -> None:
    with pytest.raises(InputError) as error:
        entry(section, name)
    assert str(error.value).startswith(start)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h100-sxm", "H100-SXM-80GB"),
        ("A10", "A10"),
        ("apple-m1", "Apple-M1"),
        ("T4", "T4"),
        ("pro-6000", "RTX-PRO-6000"),
        ("a6000", "RTX-A6000"),
    ],
)
def test_a_name_may_be_cut_where_one_name_goes_on(text: str, name: str) -> None:
    assert entry_named("device", text).name == name


def test_a_name_that_several_have_is_refused() -> None:
    with pytest.raises(InputError, match=r"^the catalogue has several H100; say which: H100-PCIe-80GB, H100-SXM-80GB$"):
        entry_named("device", "H100")


def test_the_file_lies_beside_the_module() -> None:
    assert Path(module.__file__).with_name("catalogue.toml") == module.FILE
    assert tomllib.loads(module.FILE.read_text(encoding="utf-8")).keys() == {"device", "link"}
