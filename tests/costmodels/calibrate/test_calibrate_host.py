"""This host as a cluster, with measurements on paper and once for real."""

from pathlib import Path

import pytest

from costmodels import calibrate
from costmodels.calibrate import calibrate_host, host_fingerprint, links, peaks
from costmodels.calibrate import cluster as module
from costmodels.calibrate.linktimes import LinkTimes
from costmodels.calibrate.peaks import Peaks
from costmodels.cluster.file import read_cluster
from costmodels.cluster.writer import write_cluster
from costmodels.host.affinity import DiscoveredDevice

HOST = (
    DiscoveredDevice("gpu0", "gpu", 4e9, cuda=0, node="gpu0"),
    DiscoveredDevice("cpu0", "cpu", 1e9, cores=(0,), node="node0"),
    DiscoveredDevice("cpu1", "cpu", 1e9, cores=(1,), node="node0"),
    DiscoveredDevice("cpu2", "cpu", 1e9, cores=(2,), node="node1"),
)


class Paper:
    """Counts what is measured and answers with made-up numbers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.measured: list[str] = []
        monkeypatch.setattr(module, "discover", lambda _: HOST)
        monkeypatch.setattr(module, "machine_of", lambda found: {"kind": found.kind})
        monkeypatch.setattr(module, "measure_peaks", self.measure_peaks)
        monkeypatch.setattr(module, "measure_link", self.measure_link)

    def measure_peaks(self, device: DiscoveredDevice) -> Peaks:
        self.measured.append(device.name)
        return Peaks({"float32": 123456.0 if device.cuda is None else 1e9}, 2e6, 1.23456e-6, {"launch": 0.123456})

    def measure_link(self, src: DiscoveredDevice, dst: DiscoveredDevice) -> LinkTimes:
        self.measured.append(f"{src.name} {dst.name}")
        if src.node == dst.node:
            return LinkTimes(1e-5, float("inf"), ((0.0, 1e-5),), {4: 0.5})
        return LinkTimes(2e-5, 1e9, ((0.0, 2e-5), (65536.0, 1.234567e-4)), {4: 0.25, 65536: 0.125})


def test_one_of_each_kind_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    paper = Paper(monkeypatch)
    cluster = calibrate_host("paper").cluster
    assert sorted(paper.measured) == ["cpu0", "cpu0 cpu1", "cpu0 cpu2", "cpu0 gpu0", "gpu0", "gpu0 cpu0"]
    assert [device.name for device in cluster.devices] == ["gpu0", "cpu0", "cpu1", "cpu2"]
    assert len(cluster.links) == 4 * 3
    assert cluster.overlap
    assert {link.latency_s for link in cluster.links if "cpu2" in (link.src, link.dst)} == {2e-5}


def test_numbers_have_four_digits_and_come_back_from_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Paper(monkeypatch)
    cluster = calibrate_host("paper").cluster
    cpu = cluster.devices[1]
    assert (cpu.flops_per_s, cpu.launch_s, cpu.cores) == ({"float32": 123500.0}, 1.235e-6, (0,))
    assert len(cpu.profile) == 12
    assert cpu.profile == cluster.devices[2].profile != cluster.devices[0].profile
    far = cluster.link[1, 3]
    assert (far.points, far.via) == (((0.0, 2e-5), (65536.0, 1.235e-4)), "threads")
    write_cluster(cluster, tmp_path / "cluster.toml")
    assert read_cluster(tmp_path / "cluster.toml") == cluster


def test_what_enters_and_leaves_a_gpu_shares_its_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    Paper(monkeypatch)
    channel = {(link.src, link.dst): link.channel for link in calibrate_host("paper").cluster.links}
    assert channel["cpu0", "gpu0"] == channel["cpu2", "gpu0"] == "to gpu0"
    assert channel["gpu0", "cpu0"] == channel["gpu0", "cpu1"] == "from gpu0"
    assert channel["cpu0", "cpu1"] == ""


def test_progress_counts_up_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    Paper(monkeypatch)
    steps: list[tuple[str, int, int]] = []
    calibrate_host("paper", on_step=lambda *step: steps.append(step))
    assert [done for _, done, _ in steps] == [*range(7)]
    assert {total for _, _, total in steps} == {6}
    assert steps[0][0] == "measuring cpu0 (cpu)"
    assert steps[-1][0] == "measured paper"


def test_this_host_is_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "ROUNDS", 3)
    monkeypatch.setattr(links, "SIZES", (2**12, 2**16))
    monkeypatch.setattr(peaks, "COPY_BYTES", 2**16)
    monkeypatch.setattr(module, "measure_peaks", lambda device: peaks.measure_peaks(device, limit_s=0.01))
    host = calibrate_host()
    cluster = host.cluster
    n = len(cluster.devices)
    assert n >= 1
    assert len(cluster.links) == n * (n - 1)
    assert all(len(device.profile) == 12 and (device.cores or device.cuda is not None) for device in cluster.devices)


def test_the_spread_of_every_measurement_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    Paper(monkeypatch)
    spread = calibrate_host("paper").spread
    assert spread["cpu launch"] == spread["gpu launch"] == 0.12
    assert spread["cpu0 → cpu1 latency"] == 0.5
    assert spread["cpu0 → cpu2 at 64 KiB"] == 0.12
    assert len(spread) == 2 + 1 + 3 * 2  # kinds, the near link, and the far ones with two sizes each


def test_another_channel_measures_links_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    paper = Paper(monkeypatch)
    times = LinkTimes(1.0, 2.0, ((0.0, 1.0),), {4: 0.0})
    monkeypatch.setattr(module, "measure_distributed_link", lambda *_: times)
    cluster = calibrate_host("paper", channel="gloo").cluster
    assert {(link.via, link.latency_s, link.bytes_per_s) for link in cluster.links} == {("gloo", 1.0, 2.0)}
    assert sorted(paper.measured) == ["cpu0", "gpu0"]


def test_a_host_has_a_fingerprint_that_changes_with_its_devices_and_the_channel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Paper(monkeypatch)
    first = host_fingerprint()
    assert first == host_fingerprint()
    assert first.isalnum()
    others = {first, host_fingerprint(channel="gloo")}
    monkeypatch.setattr(module, "discover", lambda _: HOST[1:])
    others.add(host_fingerprint())
    monkeypatch.setattr(module, "machine_of", lambda found: {"kind": found.kind, "torch": "newer"})
    others.add(host_fingerprint())
    assert len(others) == 4


def test_the_door() -> None:
    assert calibrate.__all__ == [
        *(
            "Host",
            "MeasurementEffort",
            "calibrate_host",
            "host_divisions",
            "host_fingerprint",
            "profile_contended",
            "profile_program",
            "with_kernels",
        )
    ]
