"""This host as a cluster, with measurements on paper and once for real."""

from pathlib import Path

import pytest

from costmodels import calibrate
from costmodels.calibrate import calibrate_host, links, peaks
from costmodels.calibrate import cluster as module
from costmodels.calibrate.host import Found
from costmodels.calibrate.peaks import Peaks
from costmodels.clusterfile import read_cluster, write_cluster

HOST = (
    Found("gpu0", "gpu", 4e9, cuda=0, node="gpu0"),
    Found("cpu0", "cpu", 1e9, cores=(0,), node="node0"),
    Found("cpu1", "cpu", 1e9, cores=(1,), node="node0"),
    Found("cpu2", "cpu", 1e9, cores=(2,), node="node1"),
)


class Paper:
    """Counts what is measured and answers with made-up numbers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.measured: list[str] = []
        monkeypatch.setattr(module, "discover", lambda _: HOST)
        monkeypatch.setattr(module, "machine_of", lambda found: {"kind": found.kind})
        monkeypatch.setattr(module, "measure_peaks", self.measure_peaks)
        monkeypatch.setattr(module, "measure_link", self.measure_link)

    def measure_peaks(self, device: Found) -> Peaks:
        self.measured.append(device.name)
        return Peaks({"float32": 123456.0 if device.cuda is None else 1e9}, 2e6, 1.23456e-6)

    def measure_link(self, src: Found, dst: Found) -> tuple[float, float]:
        self.measured.append(f"{src.name} {dst.name}")
        return (1e-5, float("inf")) if src.node == dst.node else (2e-5, 1e9)


def test_one_of_each_kind_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    paper = Paper(monkeypatch)
    cluster = calibrate_host("paper")
    assert sorted(paper.measured) == ["cpu0", "cpu0 cpu1", "cpu0 cpu2", "cpu0 gpu0", "gpu0", "gpu0 cpu0"]
    assert [device.name for device in cluster.devices] == ["gpu0", "cpu0", "cpu1", "cpu2"]
    assert len(cluster.links) == 4 * 3
    assert cluster.overlap
    assert {link.latency_s for link in cluster.links if "cpu2" in (link.src, link.dst)} == {2e-5}


def test_numbers_have_four_digits_and_come_back_from_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Paper(monkeypatch)
    cluster = calibrate_host("paper")
    cpu = cluster.devices[1]
    assert (cpu.flops_per_s, cpu.launch_s, cpu.cores) == ({"float32": 123500.0}, 1.235e-6, (0,))
    assert len(cpu.profile) == 12
    assert cpu.profile == cluster.devices[2].profile != cluster.devices[0].profile
    write_cluster(cluster, tmp_path / "cluster.toml")
    assert read_cluster(tmp_path / "cluster.toml") == cluster


def test_what_enters_and_leaves_a_gpu_shares_its_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    Paper(monkeypatch)
    channel = {(link.src, link.dst): link.channel for link in calibrate_host("paper").links}
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
    monkeypatch.setattr(peaks, "COPY_BYTES", 2**16)
    monkeypatch.setattr(module, "measure_peaks", lambda device: peaks.measure_peaks(device, limit_s=0.01))
    cluster = calibrate_host()
    n = len(cluster.devices)
    assert n >= 1
    assert len(cluster.links) == n * (n - 1)
    assert all(len(device.profile) == 12 and (device.cores or device.cuda is not None) for device in cluster.devices)


def test_the_door_has_three_names() -> None:
    assert sorted(calibrate.__all__) == ["Effort", "calibrate_host", "profile_program"]
