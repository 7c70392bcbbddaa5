"""Reads cluster.toml, which `costmodels.cluster.writer` writes.

::

    version = 1

    [cluster]
    name = "desk"                        # the file's name if left out
    overlap = true                       # devices compute while they send; true if left out
    sharing = "fifo"                     # how tensors share a channel: one by one; "fair", equally; or "unlimited"

    [[device]]
    name = "cpu0"
    kind = "cpu"                         # equal devices share a kind; the device's name if left out
    memory = "12 GiB"
    reserve = "1 GiB"                    # what no plan uses of it, or a share such as "10%"; nothing if left out
    flops = { float32 = "120 GFLOP/s" }
    memory_bandwidth = "20 GB/s"
    launch = "2 us"                      # 0 if left out
    overhead = "20 us"                   # for each tensor sent or received; 0 if left out
    request = "100 us"                   # for each micro-batch, to take it from the caller and answer; 0 if left out
    cores = [0]                          # or cuda = 0; neither for a hypothetical device
    profile = "a1b2c3d4e5f6"             # written by calibration
    price = "2.49 USD/h"                 # unknown if left out
    kernels = "exact"                    # the reference model's bits; or "quick" with other rounding
    host = "node0"                       # the host of these cores or this GPU, in a cluster of several hosts

    [[device]]
    name = "gpu0"
    like = "A100-SXM-80GB"               # a name of catalogue.toml; other keys override its keys

    [[device]]
    name = "gpu"                         # with count = 8: gpu0 to gpu7, and with hosts = 2 as well
    count = 8                            # host0-gpu0 to host1-gpu7, eight on each host
    hosts = 2
    like = "A100-SXM-80GB"

    [[link]]
    between = ["cpu0", "cpu1"]           # every pair of these, both ways; or from = "cpu0" and to = "cpu1", one way
    bandwidth = "10 GB/s"                # or "unlimited"
    latency = "20 us"                    # 0 if left out
    channel = "bus"                      # links with the same channel share its bandwidth
    points = [["64 KiB", "30 us"], ...]  # measured times by size, sizes ascending; they override the bandwidth
    via = "threads"                      # a description of the carrier
    like = "PCIe4-x16"                   # a name of catalogue.toml

    [[level]]                            # instead of links: every 8 neighbours are joined
    size = 8
    like = "NVLink3"                     # or bandwidth, latency and via, as for links

    [[level]]
    size = 16                            # and groups of 8 by twos; each level divides the next, the last joins all
    like = "InfiniBand-200"
    cards = 8                            # of each group of 8, which its devices share; 1 if left out

    [replicas]                           # in training, copies of the whole cluster; left out without copies
    count = 4                            # each trains on its own micro-batches, then they add up their gradients
    bandwidth = "50 GB/s"                # of an uplink, between a device and its counterpart; or like, as for links
    latency = "5 us"                     # 0 if left out
    rings = 8                            # how many neighbouring devices share an uplink; 1 if left out
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from costmodels.cluster.cluster import Cluster, Device
from costmodels.cluster.dictionary import VERSION
from costmodels.cluster.one_line import cluster_in_one_line, is_one_line
from costmodels.cluster.tables import Table, devices_of, level_of, links_of, read_replicas, tables_of
from graphs.common import checks
from graphs.common.documents import check_version, read_toml
from graphs.common.errors import InputError

ALSO_READ = 2  # in files that were written by hand before the first release: the same format


def read_cluster(path: str | Path) -> Cluster:
    """Read cluster.toml, and sort the links in the order of their devices.

    Args:
        path: of the file, or a cluster in one line, such as ``2xRTX-4090:PCIe4``; see `costmodels.cluster.one_line`.

    Raises:
        InputError: if the file is missing or no TOML, has an unknown, missing or malformed key, or describes no
            cluster. The message names the file and the device or link.
    """
    path = checks.path(path, "the cluster", "the path of a cluster.toml")
    if is_one_line(path):
        return cluster_in_one_line(str(path))
    document = read_toml(path, "cluster")
    try:
        return cluster_of(document, path.stem)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def cluster_of(document: Mapping[str, Any], stem: str = "cluster") -> Cluster:
    """The cluster of the content of a cluster.toml.

    Args:
        document: tables of the file.
        stem: the cluster's name if the document has none.

    Raises:
        InputError: for an unknown, missing or malformed key, or if it describes no cluster.
    """
    version = ALSO_READ if document.get("version") == ALSO_READ else VERSION
    check_version(document, "cluster", version, f"start the file with version = {VERSION} or calibrate again")
    top = Table("the file", document, ("version", "cluster", "device", "link", "level", "replicas"))
    about = Table("[cluster]", top.get("cluster", dict, {}), ("name", "overlap", "sharing"))
    devices = tuple(device for i, table in enumerate(tables_of(top, "device")) for device in devices_of(table, i))
    _check_apart(devices)
    index = {device.name: i for i, device in enumerate(devices)}
    links = [link for i, table in enumerate(tables_of(top, "link")) for link in links_of(table, i)]
    links.sort(key=lambda link: (index.get(link.src, -1), index.get(link.dst, -1)))
    levels = tuple(level_of(table, i) for i, table in enumerate(tables_of(top, "level")))
    overlap, sharing = about.get("overlap", bool, True), about.get("sharing", str, "fifo")
    replicas = read_replicas(top.get("replicas", dict, {})) if "replicas" in top.content else None
    return Cluster(about.get("name", str, stem), devices, tuple(links), overlap, sharing, replicas, levels)


def _check_apart(devices: Iterable[Device]) -> None:
    """Check that no two devices share a processor or GPU, on which they could not work at once."""
    owner: dict[tuple[str, str], str] = {}
    for device in devices:
        gpu = [] if device.cuda is None else [f"GPU {device.cuda}"]
        for part in (*(f"core {core}" for core in device.cores), *gpu):
            other = owner.setdefault((device.host, part), device.name)
            if other != device.name:
                raise InputError(
                    f"devices '{other}' and '{device.name}' both are {part}; give each its own, or, if they are of "
                    f'different hosts, say which: host = "node0"'
                )
