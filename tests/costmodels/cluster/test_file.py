"""cluster.toml in."""

import json
import re
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from costmodels.cluster.cluster import Cluster, Device, Link
from costmodels.cluster.dictionary import cluster_from_dict, cluster_to_dict
from costmodels.cluster.file import cluster_of, read_cluster
from costmodels.cluster.sheet import DataSheet
from costmodels.cluster.writer import write_cluster
from graphs.common.errors import InputError
from tests.costmodels.desks import CPU0, DESK, DOWN, GPU, UP


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "desk.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_becomes_a_cluster_with_defaults(tmp_path: Path) -> None:
    path = written(tmp_path, DESK)
    assert read_cluster(path) == Cluster("desk", (CPU0, GPU), (UP, DOWN), overlap=True) == read_cluster(str(path))


def test_name_and_overlap_may_be_given(tmp_path: Path) -> None:
    cluster = read_cluster(written(tmp_path, DESK + '\n[cluster]\nname = "under the desk"\noverlap = false\n'))
    assert (cluster.name, cluster.overlap) == ("under the desk", False)


def test_one_direction_has_a_from_and_a_to(tmp_path: Path) -> None:
    one_way = DESK.replace('between = ["cpu0", "gpu"]', 'from = "gpu"\nto = "cpu0"')
    assert read_cluster(written(tmp_path, one_way)).links == (DOWN,)


@pytest.mark.parametrize(("count", "hosts"), [(10**8, 1), (2**14 + 1, 1), (2, 10**8), (10**299, 1)])
def test_a_cluster_has_at_most_16384_devices(tmp_path: Path, count: int, hosts: int) -> None:
    path = tmp_path / "cluster.toml"
    device = (
        '[[device]]\nname = "gpu"\nmemory = "16 GiB"\nflops = { float32 = "1 TFLOP/s" }\nmemory_bandwidth = "1 GB/s"\n'
    )
    path.write_text(f"version = 1\n{device}count = {count}\nhosts = {hosts}\n", encoding="utf-8")
    with pytest.raises(InputError, match="device 'gpu' stands for more than 16,384 devices; lower its count"):
        read_cluster(path)


def test_between_joins_each_pair_of_several_devices(tmp_path: Path) -> None:
    text = 'version = 1\n[[link]]\nbetween = ["a", "b", "c"]\nbandwidth = "unlimited"\n'
    for name in "abc":
        text += f'[[device]]\nname = "{name}"\nmemory = "1 GB"\nflops = {{ float32 = "1 GFLOP/s" }}\n'
        text += 'memory_bandwidth = "1 GB/s"\n'
    cluster = read_cluster(written(tmp_path, text))
    assert [(link.src + link.dst, link.bytes_per_s) for link in cluster.links] == [
        (pair, inf) for pair in ("ab", "ac", "ba", "bc", "ca", "cb")
    ]


def test_version_2_is_the_same_format(tmp_path: Path) -> None:
    assert read_cluster(written(tmp_path, DESK.replace("version = 1", "version = 2"))) == Cluster(
        "desk", (CPU0, GPU), (UP, DOWN)
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "version = 1",
            "",
            "the cluster has the version None, this planner reads 1; start the file with version = 1 or",
        ),
        ("version = 1", "version = 3", "the cluster has the version 3, this planner reads 1; start the file with"),
        ("version = 1", "version = true", "the cluster has the version True, this planner reads 1; start the file"),
        ("version = 1", 'version = "1"', "the cluster has the version '1', this planner reads 1; start the file"),
        ('kind = "cpu"', 'handover = "1 us"', "device 'cpu0' has the unknown key 'handover'; known: "),
        ('kind = "cpu"', 'overhed = "1 us"', "device 'cpu0' has the unknown key 'overhed'; did you mean 'overhead'?"),
        ("version = 1", "version = 1\nnodes = 3", "the file has the unknown key 'nodes'; known: version, cluster, dev"),
        ("version = 1", "version = 1\ndevices = 3", "the file has the unknown key 'devices'; did you mean 'device'?"),
        ('kind = "cpu"', 'kin = "cpu"', "device 'cpu0' has the unknown key 'kin'; did you mean 'kind'?"),
        ('memory = "12 GiB"', "", "device 'cpu0' has no memory; add memory = \"16 GiB\""),
        ('memory = "12 GiB"', "memory = 12", "device 'cpu0': memory is 12; write a number and a unit, for example '16"),
        ('name = "gpu"', "", '[[device]] number 2 has no name; add name = "cpu0"'),
        ('name = "gpu"', "name = 3", "[[device]] number 2 has name = 3; it must be a text"),
        (
            'flops = { float32 = "10 TFLOP/s" }',
            "",
            "device 'gpu' has no flops; add flops = { float32 = \"100 GFLOP/s\" ",
        ),
        (
            "10 TFLOP/s",
            "10 T",
            "device 'gpu': flops.float32 is '10 T', and 'T' is no unit for it; write for example '1",
        ),
        ('{ float32 = "10 TFLOP/s" }', "7", "device 'gpu' has flops = 7; it must be a table"),
        (
            "{ float32 =",
            "{ fp32 =",
            "device 'cpu0' has flops for the unknown dtype 'fp32'; known: bool, uint8, int8, fl",
        ),
        ('name = "cpu0"', 'name = ""', "a device has an empty name; name it, for example 'cpu0'"),
        (
            "cores = [0]",
            "cores = [-1]",
            "device 'cpu0' has cores = [-1]; name each processor once, by its number from 0",
        ),
        ("cores = [0]", "cores = [1, 1]", "device 'cpu0' has cores = [1, 1]; name each processor once, by its number"),
        ("cuda = 0", "cuda = -1", "device 'gpu' has cuda = -1; GPUs are numbered from 0"),
        ("cores = [0]", "cores = 0", "device 'cpu0' has cores = 0; it must be a list"),
        (
            "cores = [0]",
            'cores = ["0"]',
            "device 'cpu0' has cores = ['0']; it must be a list of processor numbers, for",
        ),
        ("cores = [0]", "cores = [true]", "device 'cpu0' has cores = [True]; it must be a list of processor numbers"),
        ("cuda = 0", "cuda = true", "device 'gpu' has cuda = True; it must be a whole number"),
        ("cuda = 0", "cuda = 0\ncores = [1]", "device 'gpu' has both cores and cuda; a device is either processors or"),
        ('launch = "2 us"', 'launch = "2"', "device 'cpu0': launch is '2'; write a number and a unit, for example '20"),
        ('bandwidth = "100 Gb/s"', "", '[[link]] number 1 has no bandwidth; add bandwidth = "25 GB/s"'),
        ('between = ["cpu0", "gpu"]', 'to = "gpu"', '[[link]] number 1 has no from; add from = "cpu0"'),
        ('between = ["cpu0", "gpu"]', 'between = "gpu"', "[[link]] number 1 has between = 'gpu'; it must be a list"),
        ('between = ["cpu0", "gpu"]', 'between = ["gpu"]', "[[link]] number 1 has between = ['gpu']; name two or more"),
        ('["cpu0", "gpu"]', '["cpu0", "gpu"]\nto = "gpu"', "[[link]] number 1 has both between and from or to; keep"),
        ('["cpu0", "gpu"]', '["cpu0", "gpu1"]', "a link names the device 'gpu1', which does not exist; known: cpu0, "),
        ("latency", "latancy", "[[link]] number 1 has the unknown key 'latancy'; did you mean 'latency'?"),
        ("[[link]]", "[link]", "the file has link = {'between': ['cpu0', 'gpu'], "),
        (
            'channel = "pcie"',
            'points = [["1 KiB", "1 us", 3]]',
            "[[link]] number 1 has points = [['1 KiB', '1 us', 3]]; write pairs of a size and a time, for example [[",
        ),
        ('channel = "pcie"', "points = 3", "[[link]] number 1 has points = 3; it must be a list"),
        (
            'channel = "pcie"',
            'points = [["1 us", "1 KiB"]]',
            "[[link]] number 1: points is '1 us', and 'us' is no unit for it; write for example '16 GiB'",
        ),
        (
            'channel = "pcie"',
            'points = [["2 KiB", "1 us"], ["1 KiB", "1 us"]]',
            "link 'cpu0' to 'gpu' has points whose sizes do not ascend; sort them, one for each size",
        ),
        ('name = "gpu"', 'name = "gpu"\nlike = "A101"', "device 'gpu': the catalogue has no device 'A101'; did you "),
        ('name = "gpu"', 'name = "gpu"\nlike = 3', "device 'gpu' has like = 3; it must be a text"),
        ('channel = "pcie"', 'like = "NVLink"', "[[link]] number 1: the catalogue has no link 'NVLink'; did you mean"),
        (
            '"20 GB/s"',
            '"-20 GB/s"',
            "device 'cpu0': memory_bandwidth is '-20 GB/s'; it must be 0 or more, for ",
        ),
        ('"20 GB/s"', '"0 GB/s"', "device 'cpu0' has memory_bandwidth = 0.0; it must be a finite number above 0"),
        (
            '"20 GB/s"',
            '"20 GFLOP/s"',
            "device 'cpu0': memory_bandwidth is '20 GFLOP/s', and 'GFLOP/s' is no unit for it",
        ),
        ('"100 Gb/s"', '"0 Gb/s"', "link 'cpu0' to 'gpu' has the bandwidth 0.0; it must be more than 0"),
        ("[[link]]", "[cluster]\noverlap = 1\n[[link]]", "[cluster] has overlap = 1; it must be true or false"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in DESK
    path = written(tmp_path, DESK.replace(old, new, 1))
    with pytest.raises(InputError) as error:
        read_cluster(path)
    assert str(error.value).startswith(f"{path}: {message}")
    assert "\n" not in str(error.value)


def test_a_list_of_something_else_than_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"device is a list of 3; write each as a section \[\[device\]\]"):
        read_cluster(written(tmp_path, "version = 1\ndevice = [3]\n"))


def test_a_missing_file_and_no_toml(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read the cluster '.*none.toml': No such file.*; check the path"):
        read_cluster(tmp_path / "none.toml")
    with pytest.raises(InputError, match=r"the cluster '.*desk.toml' is not TOML: .* \(at line 2, .*; mend that line"):
        read_cluster(written(tmp_path, "version = 1\nmemory = \n"))


def test_the_catalogue_fills_in_what_is_not_given(tmp_path: Path) -> None:
    text = """
version = 1
[[device]]
name = "a"
like = "A100-SXM-80GB"
[[device]]
name = "b"
like = "A100-SXM-80GB"
kind = "cut down"
memory = "40 GB"
[[link]]
between = ["a", "b"]
like = "NVLink3"
latency = "9 us"
"""
    a, b = read_cluster(written(tmp_path, text)).devices
    flops = {"float32": 19.5e12, "float64": 19.5e12, "bfloat16": 312e12, "float16": 312e12}
    sheet = DataSheet("Ampere", units=108, clock_hz=1.41e9, cache_bytes=40 * 2**20)
    assert a == Device("a", "A100-SXM-80GB", 80e9, flops, 2039e9, launch_s=5e-6, reserve_bytes=8e9, sheet=sheet)
    assert b == replace(a, name="b", kind="cut down", memory_bytes=40e9, reserve_bytes=4e9)
    assert read_cluster(written(tmp_path, text)).links[0] == Link("a", "b", 300e9, 9e-6, via="NVLink3")


def test_a_cpu_may_have_quick_kernels(tmp_path: Path) -> None:
    assert "kernels" not in json.dumps(cluster_to_dict(read_cluster(written(tmp_path, DESK))))
    cluster = read_cluster(written(tmp_path, DESK.replace("cores = [0]", 'cores = [0]\nkernels = "quick"')))
    assert [(device.kernels, device.quick) for device in cluster.devices] == [("quick", True), ("exact", False)]
    write_cluster(cluster, tmp_path / "again.toml")
    assert read_cluster(tmp_path / "again.toml") == cluster
    assert cluster_from_dict(json.loads(json.dumps(cluster_to_dict(cluster)))) == cluster
    for old, new, message in (
        ("cores = [0]", 'kernels = "fast"', "device 'cpu0' has kernels = 'fast'; it must be one of exact, quick"),
        ("cuda = 0", 'cuda = 0\nkernels = "quick"', "device 'gpu' is a GPU with quick kernels; those are for CPUs"),
        ("cores = [0]", "kernels = 1", "device 'cpu0' has kernels = 1; it must be a text"),
    ):
        with pytest.raises(InputError, match=message):
            read_cluster(written(tmp_path, DESK.replace(old, new)))


def test_channels_may_be_shared_fairly(tmp_path: Path) -> None:
    cluster = read_cluster(written(tmp_path, DESK + '\n[cluster]\nsharing = "fair"\n'))
    assert cluster.sharing == cluster.first(1).sharing == "fair"
    write_cluster(cluster, tmp_path / "again.toml")
    assert read_cluster(tmp_path / "again.toml").sharing == "fair"
    assert cluster_from_dict(cluster_to_dict(cluster)) == cluster
    with pytest.raises(InputError, match=r"has sharing = 'half'; it must be one of fifo, fair"):
        read_cluster(written(tmp_path, DESK + '\n[cluster]\nsharing = "half"\n'))


@pytest.mark.attack("first-try")
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_mark_of_the_encoding_is_understood(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "desk.toml"
    path.write_text(DESK.replace("\n", "\r\n"), encoding=encoding)
    assert read_cluster(path) == read_cluster(written(tmp_path, DESK))


SAME_CORE = DESK.replace("cuda = 0", "cores = [1, 0]")


@pytest.mark.attack("first-try")
def test_two_devices_are_not_the_same_processor(tmp_path: Path) -> None:
    same_gpu = SAME_CORE.replace("cores = [0]", "cuda = 3").replace("cores = [1, 0]", "cuda = 3")
    for text, part in ((SAME_CORE, "core 0"), (same_gpu, "GPU 3")):
        with pytest.raises(InputError) as error:
            read_cluster(written(tmp_path, text))
        assert str(error.value).endswith(
            f"desk.toml: devices 'cpu0' and 'gpu' both are {part}; give each its own, or, if they are of different "
            'hosts, say which: host = "node0"'
        )


def test_cores_of_several_hosts_have_the_same_numbers(tmp_path: Path) -> None:
    cluster = read_cluster(written(tmp_path, SAME_CORE.replace('name = "gpu"', 'name = "gpu"\nhost = "node1"')))
    assert [device.host for device in cluster.devices] == ["", "node1"]
    assert cluster_from_dict(json.loads(json.dumps(cluster_to_dict(cluster)))) == cluster
    write_cluster(cluster, tmp_path / "written.toml")
    assert read_cluster(tmp_path / "written.toml") == cluster


@pytest.mark.parametrize(("reserve", "usable"), [('"2 GiB"', 14), ('"25%"', 12), ('" 12.5 % "', 14), (None, 16)])
def test_a_reserve_is_a_size_or_a_share_and_is_written(reserve: str | None, usable: int, tmp_path: Path) -> None:
    key = f"reserve = {reserve}\n" if reserve else ""
    text = f"""version = 1
[[device]]
name = "a"
memory = "16 GiB"
{key}flops = {{ float32 = "1 TFLOP/s" }}
memory_bandwidth = "10 GB/s"
"""
    cluster = read_cluster(written(tmp_path, text))
    assert cluster.devices[0].usable_bytes == usable * 2**30
    write_cluster(cluster, tmp_path / "again.toml")
    assert read_cluster(tmp_path / "again.toml").devices == cluster.devices


@pytest.mark.parametrize(
    ("reserve", "told"),
    [
        ("100%", "device 'gpu0' keeps a reserve of 80 GB, which is all of its 80 GB of memory; make it smaller"),
        ("a tenth", "device 'gpu0': reserve is 'a tenth'"),
        ("-1 GiB", "device 'gpu0': reserve is '-1 GiB'"),
        (4, "device 'gpu0': reserve is 4"),
    ],
)
def test_a_reserve_leaves_something(reserve: object, told: str) -> None:
    device = {"name": "gpu0", "like": "A100-SXM-80GB", "reserve": reserve}
    with pytest.raises(InputError, match=told):
        cluster_of({"version": 1, "device": [device]})


def test_a_data_sheet_is_whole_or_left_out(tmp_path: Path) -> None:
    sheet = 'family = "Ada"\nunits = 76\nclock = "2505 MHz"\ncache = "64 MiB"\n'
    cluster = read_cluster(written(tmp_path, DESK.replace("cuda = 0\n", f"cuda = 0\n{sheet}")))
    assert cluster.devices[1].sheet == DataSheet("Ada", 76, 2.505e9, 64 * 2**20)
    write_cluster(cluster, tmp_path / "again.toml")
    assert read_cluster(tmp_path / "again.toml") == cluster
    assert cluster_from_dict(json.loads(json.dumps(cluster_to_dict(cluster)))) == cluster
    for old, new, message in (
        ("units = 76\n", "", "device 'gpu' has no units; add units = 82"),
        ("2505 MHz", "2505", "device 'gpu': clock is '2505'; write a number and a unit, for example '1695 MHz'"),
        ('"Ada"', '"Lovelace"', "a data sheet has the unknown family 'Lovelace'; known: Volta, Turing, Ampere, Ada"),
        ("units = 76", "units = 0", "a data sheet has units = 0; it must be a finite number above 0"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            read_cluster(written(tmp_path, DESK.replace("cuda = 0\n", f"cuda = 0\n{sheet.replace(old, new)}")))
