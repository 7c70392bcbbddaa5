"""Measures this host as a cluster: every device and every link."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from typing import TypeAlias

from costmodels.calibrate.links import measure_link
from costmodels.calibrate.linktimes import EMPTY, LinkTimes
from costmodels.calibrate.ops import OnStep
from costmodels.calibrate.peaks import Peaks, measure_peaks
from costmodels.calibrate.processes import measure_distributed_link
from costmodels.cluster.cluster import Cluster, Device, Link
from costmodels.host.affinity import DiscoveredDevice, Processor, usable_cores
from costmodels.host.discovery import ROOT, cpu_divisions, discover
from costmodels.host.fingerprint import fingerprint_of, machine_of
from costmodels.units import format_bytes
from graphs.kernels.choice import Kernels
from graphs.kernels.onednn import check_quick, onednn

DIGITS = 4  # significant digits of a measurement
SPREAD_DIGITS = 2
THREADS = "threads"

MeasureLink: TypeAlias = Callable[[Processor, Processor], LinkTimes]

CHANNELS: Mapping[str, MeasureLink] = {
    THREADS: lambda src, dst: measure_link(src, dst),
    "gloo": lambda src, dst: measure_distributed_link(src, dst),
}
"""The channels between devices of a host: between threads of one process, or between processes."""


@dataclass(frozen=True)
class Host:
    """The result of a calibration."""

    cluster: Cluster  # the cluster with medians, or best values for peaks
    spread: Mapping[str, float]  # relative spread of single measurements by name: "cpu launch", "cpu0 → cpu1 at 4 MiB"


def calibrate_host(
    name: str = "this host", cores_per_device: int = 1, channel: str = THREADS, on_step: OnStep = lambda *_: None
) -> Host:
    """Measure this host, in some seconds for each kind of device and each kind of link.

    One device of each kind is measured, with ``cores_per_device`` cores unless it is a GPU, and one link for each pair
    of kinds and memory nodes. Devices compute while they send. Raise InputError if there are fewer cores than one
    device needs, or a link corrupts data.
    """
    measure = CHANNELS[channel]
    devices = discover(cores_per_device)
    examples = {device.kind: device for device in reversed(devices)}
    link_classes = {_pattern(src, dst): (src, dst) for src, dst in reversed(list(permutations(devices, 2)))}
    total = len(examples) + len(link_classes)
    peaks: dict[str, Peaks] = {}
    for kind, device in sorted(examples.items()):
        on_step(f"measuring {device.name} ({kind})", len(peaks), total)
        peaks[kind] = measure_peaks(device)
    times: dict[tuple[str, ...], LinkTimes] = {}
    for pattern, (src, dst) in link_classes.items():
        on_step(f"measuring the link from {src.name} to {dst.name}", len(peaks) + len(times), total)
        times[pattern] = measure(src, dst)
    on_step(f"measured {name}", total, total)
    links = tuple(_link(src, dst, times[_pattern(src, dst)], channel) for src, dst in permutations(devices, 2))
    cluster = Cluster(name, tuple(_device(device, peaks[device.kind]) for device in devices), links, overlap=True)
    return Host(cluster, _spread(peaks, {link_classes[pattern]: measured for pattern, measured in times.items()}))


def with_kernels(cluster: Cluster, kernels: Kernels | None) -> Cluster:
    """The cluster with other kernels on its cores, and so with profiles of their own; by default the quickest here.

    Raise InputError if PyTorch does not have these kernels here.
    """
    if kernels is None:
        kernels = "quick" if onednn() else "exact"
    elif kernels == "quick":
        check_quick()
    return replace(cluster, devices=tuple(_with_kernels(device, kernels) for device in cluster.devices))


def _with_kernels(device: Device, kernels: Kernels) -> Device:
    if not device.cores or device.kernels == kernels:
        return device
    other = replace(device, kernels=kernels)
    return replace(other, profile=fingerprint_of(machine_of(other)))


def host_divisions() -> Mapping[int, int]:
    """The possible numbers of devices on the cores of this host, with the cores of each device.

    Raise InputError if threads cannot be bound to cores.
    """
    return cpu_divisions(ROOT, usable_cores())


def host_fingerprint(cores_per_device: int = 1, channel: str = THREADS) -> str:
    """The fingerprint of all devices and their properties, on which the result of `calibrate_host` depends.

    Raise InputError as `calibrate_host`.
    """
    words = {"channel": channel}
    for device in discover(cores_per_device):
        about = f"{device.kind} {device.memory_bytes:.0f} {device.cores} {device.cuda} {device.node}"
        words[device.name] = f"{about} {fingerprint_of(machine_of(device))}"
    return fingerprint_of(words)


def _pattern(src: DiscoveredDevice, dst: DiscoveredDevice) -> tuple[str, ...]:
    """A key that is equal for links with the same times."""
    return src.kind, dst.kind, "near" if src.node == dst.node else "far"


def _device(found: DiscoveredDevice, peaks: Peaks) -> Device:
    return Device(
        name=found.name,
        kind=found.kind,
        memory_bytes=found.memory_bytes,
        flops_per_s={dtype: _rounded(rate) for dtype, rate in peaks.flops_per_s.items()},
        memory_bytes_per_s=_rounded(peaks.memory_bytes_per_s),
        launch_s=_rounded(peaks.launch_s),
        cores=found.cores,
        cuda=found.cuda,
        profile=fingerprint_of(machine_of(found)),
    )


def _link(src: DiscoveredDevice, dst: DiscoveredDevice, times: LinkTimes, via: str) -> Link:
    """A link; a GPU's bus is a channel for each direction, and links between threads have no channel."""
    if src.cuda is None and dst.cuda is None:
        channel = ""
    elif dst.cuda is None:
        channel = f"from {src.name}"
    else:
        channel = f"to {dst.name}"
    points = tuple((n_bytes, _rounded(seconds)) for n_bytes, seconds in times.points)
    return Link(src.name, dst.name, _rounded(times.bytes_per_s), _rounded(times.latency_s), channel, points, via)


def _spread(
    peaks: Mapping[str, Peaks], times: Mapping[tuple[DiscoveredDevice, DiscoveredDevice], LinkTimes]
) -> dict[str, float]:
    spread = {f"{kind} {peak}": share for kind, best in peaks.items() for peak, share in best.spread.items()}
    for (src, dst), link_times in times.items():
        for n_bytes, share in link_times.spread.items():
            size = "latency" if n_bytes == EMPTY else f"at {format_bytes(n_bytes)}"
            spread[f"{src.name} → {dst.name} {size}"] = share
    return {name: _rounded(share, SPREAD_DIGITS) for name, share in spread.items()}


def _rounded(value: float, digits: int = DIGITS) -> float:
    return float(f"{value:.{digits}g}")
