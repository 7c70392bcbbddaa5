"""Hosts on paper: what /proc and /sys say, and the devices that follow."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from costmodels.host.affinity import DiscoveredDevice
from costmodels.host.discovery import cpu_devices, cpu_divisions, discover, free_bytes, last_cache_bytes, parse_cores
from graphs.common.errors import InputError

MEMORY = "MemTotal:       20971520 kB\nMemFree: 1 kB\nMemAvailable:   10485760 kB\n"  # 20 GiB, 10 GiB
SHARE = 18 * 2**30  # nine tenths


def host(root: Path, files: Mapping[str, str] | None = None) -> Path:
    """A directory with /proc/meminfo and the given files."""
    for name, text in {"proc/meminfo": MEMORY, **(files or {})}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n", encoding="ascii")
    return root


def cores(name: str, *texts: str) -> dict[str, str]:
    """One file for each core."""
    return {f"sys/devices/system/cpu/cpu{core}/{name}": text for core, text in enumerate(texts)}


@pytest.mark.parametrize(("text", "numbers"), [("", set()), ("3", {3}), ("0-2,8", {0, 1, 2, 8}), ("0,4-5", {0, 4, 5})])
def test_lists_of_cores(text: str, numbers: set[int]) -> None:
    assert parse_cores(text) == numbers


def test_each_core_is_a_device_with_its_share(tmp_path: Path) -> None:
    assert cpu_devices(host(tmp_path), {0, 3}, 1) == (
        DiscoveredDevice("cpu0", "cpu", SHARE / 2, cores=(0,)),
        DiscoveredDevice("cpu1", "cpu", SHARE / 2, cores=(3,)),
    )


def test_a_second_thread_of_a_core_is_no_device(tmp_path: Path) -> None:
    host(tmp_path, cores("topology/thread_siblings_list", "0,2", "1,3", "0,2", "1,3"))
    assert [device.cores for device in cpu_devices(tmp_path, range(4), 1)] == [(0,), (1,)]
    # where the first thread of a core may not be used, the second stands for it
    assert [device.cores for device in cpu_devices(tmp_path, {1, 2, 3}, 1)] == [(1,), (2,)]


@pytest.mark.parametrize(
    ("quota", "n_devices"), [("max 100000", 4), ("250000 100000", 2), ("50000 100000", 1), ("900000 100000", 4)]
)
def test_a_limit_on_processor_time_counts_as_cores(tmp_path: Path, quota: str, n_devices: int) -> None:
    assert len(cpu_devices(host(tmp_path, {"sys/fs/cgroup/cpu.max": quota}), range(4), 1)) == n_devices


def test_a_limit_on_memory_counts(tmp_path: Path) -> None:
    host(tmp_path, {"sys/fs/cgroup/memory.max": str(10 * 2**30)})
    assert cpu_devices(tmp_path, {0}, 1)[0].memory_bytes == 9 * 2**30
    host(tmp_path, {"sys/fs/cgroup/memory.max": "max"})
    assert cpu_devices(tmp_path, {0}, 1)[0].memory_bytes == SHARE


def test_free_memory_is_what_the_host_and_the_container_leave(tmp_path: Path) -> None:
    assert free_bytes(host(tmp_path)) == 10 * 2**30
    assert free_bytes(host(tmp_path, {"sys/fs/cgroup/memory.max": str(2**30)})) == 2**30


def test_several_cores_make_one_device_of_their_kind_and_node(tmp_path: Path) -> None:
    host(tmp_path)
    for core in range(7):
        node = tmp_path / f"sys/devices/system/cpu/cpu{core}/node{core % 2}"
        node.mkdir(parents=True)
    found = cpu_devices(tmp_path, range(7), 2)
    # node 0 has the cores 0, 2, 4, 6 and node 1 has 1, 3, 5, of which one is left over
    assert [(device.cores, device.node) for device in found] == [
        ((0, 2), "node0"),
        ((4, 6), "node0"),
        ((1, 3), "node1"),
    ]


def test_slow_cores_are_another_kind(tmp_path: Path) -> None:
    host(tmp_path, cores("cpufreq/cpuinfo_max_freq", "4000000", "3900000", "2400000"))
    found = cpu_devices(tmp_path, range(3), 1)
    assert [(device.name, device.kind) for device in found] == [("cpu0", "cpu"), ("cpu1", "cpu"), ("cpu2", "cpu-slow")]


@pytest.mark.parametrize("wanted", [0, 3, -1])
def test_more_cores_than_there_are_cannot_be_had(tmp_path: Path, wanted: int) -> None:
    with pytest.raises(InputError) as error:
        cpu_devices(host(tmp_path), {0, 1}, wanted)
    assert str(error.value) == f"{wanted} cores for each device asked for; this process may use 2"


def test_cores_of_one_device_are_alike(tmp_path: Path) -> None:
    host(tmp_path, cores("cpu_capacity", "1024", "300"))
    (tmp_path / "sys/devices/system/cpu/cpu2/node1").mkdir(parents=True)
    with pytest.raises(InputError, match="no 2 cores of one kind are near each other; ask for fewer in each device"):
        cpu_devices(tmp_path, {0, 1, 2}, 2)
    # all of them can be had as PyTorch uses them
    assert [(found.kind, found.cores) for found in cpu_devices(tmp_path, {0, 1, 2}, 3)] == [("cpu-mixed", (0, 1, 2))]


@pytest.mark.parametrize(
    ("n_cores", "divisions"),
    [
        (1, {1: 1}),
        (2, {1: 2, 2: 1}),
        (4, {1: 4, 2: 2, 4: 1}),
        (5, {1: 5, 5: 1}),
        (6, {1: 6, 2: 3, 3: 2, 6: 1}),
    ],
)
def test_cores_are_divided_into_equal_devices(tmp_path: Path, n_cores: int, divisions: dict[int, int]) -> None:
    found = cpu_divisions(host(tmp_path), range(n_cores))
    assert found == divisions
    assert [*found] == sorted(divisions)
    for count, width in found.items():
        devices = cpu_devices(tmp_path, range(n_cores), width)
        assert len(devices) == count
        assert sorted(core for device in devices for core in device.cores) == [*range(n_cores)]


def test_the_last_cache_is_the_largest(tmp_path: Path) -> None:
    assert last_cache_bytes(tmp_path) == 0
    for i, size in enumerate(("32K", "1024K", "32M", "unknown")):
        index = tmp_path / f"sys/devices/system/cpu/cpu0/cache/index{i}"
        index.mkdir(parents=True)
        (index / "size").write_text(f"{size}\n", encoding="ascii")
    assert last_cache_bytes(tmp_path) == 32 * 2**20


def test_a_division_leaves_no_core_over_and_no_device_across_nodes(tmp_path: Path) -> None:
    host(tmp_path)
    for core in range(4):
        (tmp_path / f"sys/devices/system/cpu/cpu{core}/node{int(core == 3)}").mkdir(parents=True)
    assert cpu_divisions(tmp_path, range(4)) == {1: 4, 4: 1}
    host(tmp_path, cores("cpu_capacity", "1024", "1024", "300", "300"))
    assert cpu_divisions(tmp_path, {0, 1, 2}) == {1: 3, 3: 1}


def test_a_host_without_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="this host does not report MemTotal in /proc/meminfo; write "):
        cpu_devices(tmp_path, {0}, 1)


def test_gpus_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    properties = SimpleNamespace(name="NVIDIA H200 (PCIe)", total_memory=1000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    found = discover()
    assert found[:2] == (
        DiscoveredDevice("gpu0", "nvidia-h200-pcie", 900.0, cuda=0, node="gpu0"),
        DiscoveredDevice("gpu1", "nvidia-h200-pcie", 900.0, cuda=1, node="gpu1"),
    )
    assert all(device.cores and device.cuda is None for device in found[2:])
    assert len(found) > 2
