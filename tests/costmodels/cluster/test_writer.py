"""cluster.toml out, and in again."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from costmodels.cluster.cluster import Cluster, Link
from costmodels.cluster.dictionary import cluster_from_dict, cluster_to_dict
from costmodels.cluster.file import read_cluster
from costmodels.cluster.writer import write_cluster
from tests.costmodels.desks import CPU0, DOWN, GPU, UP, clusters


def test_a_written_cluster_reads_well(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    write_cluster(Cluster("desk", (replace(CPU0, flops_per_s={"float32": 1.2e11}), GPU), (UP, DOWN)), path)
    assert (
        path.read_text(encoding="utf-8")
        == """\
version = 1

[cluster]
name = "desk"
overlap = true

[[device]]
name = "cpu0"
kind = "cpu"
memory = "12 GiB"
flops = { float32 = "120 GFLOP/s" }
memory_bandwidth = "20 GB/s"
launch = "2 us"
cores = [0]
profile = "abc123"

[[device]]
name = "gpu"
kind = "gpu"
memory = "8 GB"
flops = { float32 = "10 TFLOP/s" }
memory_bandwidth = "500 GB/s"
launch = "0 s"
cuda = 0

[[link]]
between = ["cpu0", "gpu"]
bandwidth = "12.5 GB/s"
latency = "10 us"
channel = "pcie"
"""
    )


def test_measured_times_of_a_link_are_read_and_written(tmp_path: Path) -> None:
    points = ((0.0, 1e-5), (65536.0, 3e-5), (2.0**22, 2.5e-4))
    links = tuple(replace(link, points=points, via="gloo") for link in (UP, DOWN))
    cluster = Cluster("desk", (CPU0, GPU), links)
    path = tmp_path / "cluster.toml"
    write_cluster(cluster, str(path))
    assert path.read_text(encoding="utf-8").endswith(
        """\
channel = "pcie"
via = "gloo"
points = [
    ["0 B", "10 us"],
    ["64 KiB", "30 us"],
    ["4 MiB", "250 us"],
]
"""
    )
    assert read_cluster(path) == cluster
    assert cluster_from_dict(json.loads(json.dumps(cluster_to_dict(cluster)))) == cluster


def test_equal_links_between_all_devices_are_written_once(tmp_path: Path) -> None:
    devices = tuple(replace(GPU, name=name, cuda=None) for name in "abcd")
    names = [(a.name, b.name) for a in devices for b in devices if a is not b]
    path = tmp_path / "cluster.toml"
    write_cluster(Cluster("ring", devices, tuple(Link(a, b, 1e9) for a, b in names)), path)
    assert path.read_text(encoding="utf-8").count("[[link]]") == 1
    write_cluster(Cluster("ring", devices, tuple(Link(a, b, 1e9) for a, b in names if (a, b) != ("a", "b"))), path)
    text = path.read_text(encoding="utf-8")
    assert (text.count("between"), text.count("from")) == (5, 1)  # ac, ad, bc, bd, cd and b to a
    assert 'from = "b"\nto = "a"' in text


@given(cluster=clusters())
def test_what_is_written_is_read_as_the_same_cluster(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("clusters") / "cluster.toml"
    write_cluster(cluster, path)
    assert read_cluster(path) == cluster
