"""Discovers the devices of this host: the cores that this process may use, and the GPUs."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch

from costmodels.host.affinity import DiscoveredDevice, usable_cores
from graphs.common.errors import InputError

ROOT = Path("/")
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
FOR_TENSORS = 0.9  # share of the memory for tensors; the rest is for the system and for Python
SLOW = 0.8  # a core below this share of the fastest core's speed is of another kind


def discover(cores_per_device: int = 1) -> tuple[DiscoveredDevice, ...]:
    """The GPUs, then the devices on cores, which have equal shares of the host's memory.

    Raises:
        InputError: if there are fewer cores than one device needs, or threads cannot be bound to them.
    """
    return (*_gpus(), *cpu_devices(ROOT, usable_cores(), cores_per_device))


def cpu_devices(root: Path, allowed: Iterable[int], cores_per_device: int) -> tuple[DiscoveredDevice, ...]:
    """Devices of the host whose /proc and /sys are under ``root``.

    Each physical core counts as one processor, since its second hardware thread adds little. A limit on processor time,
    as containers have, reduces the number of cores. The cores of a device have one kind and one memory node, unless the
    device has all cores.

    Raises:
        InputError: if there are fewer cores than one device needs.
    """
    cores = _physical(root, allowed)
    if not 1 <= cores_per_device <= len(cores):
        raise InputError(f"{cores_per_device} cores for each device asked for; this process may use {len(cores)}")
    groups = _alike(root, cores, cores_per_device)
    if not groups:
        raise InputError(f"no {cores_per_device} cores of one kind are near each other; ask for fewer in each device")
    share_bytes = float(int(_memory_bytes(root) * FOR_TENSORS / len(groups)) // 2**20 * 2**20)
    return tuple(
        DiscoveredDevice(f"cpu{i}", kind, share_bytes, cores=group, node=node)
        for i, (kind, node, group) in enumerate(groups)
    )


def cpu_divisions(root: Path, allowed: Iterable[int]) -> Mapping[int, int]:
    """The possible numbers of devices that use all cores, with the cores of each device; fewest devices first.

    ::

        4 equal cores: {1: 4, 2: 2, 4: 1}        3 cores of one memory node, 1 of another: {1: 4, 4: 1}
    """
    cores = _physical(root, allowed)
    counts = {width: len(_alike(root, cores, width)) for width in range(len(cores), 0, -1) if len(cores) % width == 0}
    return {count: width for width, count in counts.items() if count * width == len(cores)}


def last_cache_bytes(root: Path) -> int:
    """Return the bytes of the largest cache of the first core; 0 if the system does not report it."""
    found = root.glob("sys/devices/system/cpu/cpu0/cache/index*/size")
    sizes = [re.fullmatch(r"(\d+)([KMG])", path.read_text().strip()) for path in found]
    return max((int(size[1]) * UNITS[size[2]] for size in sizes if size), default=0)


def _physical(root: Path, allowed: Iterable[int]) -> list[int]:
    """Return one processor for each physical core, within the limit on processor time."""
    allowed = set(allowed)
    cores = [core for core in sorted(allowed) if core == min(_siblings(root, core) & allowed)]
    return cores[: _quota(root, len(cores))]


def _alike(root: Path, cores: list[int], size: int) -> list[tuple[str, str, tuple[int, ...]]]:
    """Groups of ``size`` cores of one kind and one node: (kind, node, cores). A group of all cores may be mixed."""
    speed = {core: _speed(root, core) for core in cores}
    slow = {core for core in cores if speed[core] < SLOW * max(speed.values())}
    groups = [
        (kind, node, tuple(group))
        for kind, of_kind in (("cpu", [c for c in cores if c not in slow]), ("cpu-slow", sorted(slow)))
        for node in sorted({_node(root, core) for core in of_kind})
        for near in [[core for core in of_kind if _node(root, core) == node]]
        for group in (near[i : i + size] for i in range(0, len(near) - size + 1, size))
    ]
    return groups or ([("cpu-mixed", "", tuple(cores))] if size == len(cores) else [])


def _gpus() -> Iterator[DiscoveredDevice]:
    for i in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(i)
        kind = re.sub(r"[^a-z0-9]+", "-", properties.name.lower()).strip("-")
        yield DiscoveredDevice(
            f"gpu{i}", kind, float(int(properties.total_memory * FOR_TENSORS)), cuda=i, node=f"gpu{i}"
        )


def _siblings(root: Path, core: int) -> set[int]:
    return parse_cores(_read(_cpu(root, core) / "topology/thread_siblings_list")) | {core}


def _speed(root: Path, core: int) -> int:
    """Relative speed of a core in the host's unit; 0 if it is unknown."""
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        text = _read(_cpu(root, core) / name)
        if text:
            return int(text)
    return 0


def _node(root: Path, core: int) -> str:
    return min((path.name for path in _cpu(root, core).glob("node[0-9]*")), default="")


def _cpu(root: Path, core: int) -> Path:
    return root / f"sys/devices/system/cpu/cpu{core}"


def _quota(root: Path, n_cores: int) -> int:
    """The processor time that this process may use, in cores, at least 1."""
    words = _read(root / "sys/fs/cgroup/cpu.max").split()
    if len(words) == 2 and words[0] != "max":
        return max(1, min(n_cores, int(words[0]) // int(words[1])))
    return n_cores


def _memory_bytes(root: Path) -> int:
    """Memory of the host, or of the container of this process."""
    limit = _read(root / "sys/fs/cgroup/memory.max")
    return min(_meminfo_bytes(root, "MemTotal"), int(limit) if limit.isdecimal() else 2**63)


def free_bytes(root: Path) -> int:
    """Return the bytes of memory that are available now.

    Raises:
        InputError: if /proc/meminfo does not have the number.
    """
    return min(_meminfo_bytes(root, "MemAvailable"), _memory_bytes(root))


def _meminfo_bytes(root: Path, field: str) -> int:
    match = re.search(rf"^{field}:\s*(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    if match is None:
        raise InputError(f"this host does not report {field} in /proc/meminfo; write cluster.toml by hand")
    return int(match[1]) * 1024


def parse_cores(text: str) -> set[int]:
    """The numbers in Linux's form of a list: "0-2,8" is {0, 1, 2, 8}."""
    cores: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return cores


def _read(path: Path) -> str:
    """The text of a small file of the kernel; empty if the file does not exist."""
    return path.read_text(encoding="ascii").strip() if path.exists() else ""
