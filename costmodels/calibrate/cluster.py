"""This host as a cluster: every device and every link, measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from costmodels.calibrate.links import measure_link
from costmodels.calibrate.linktimes import EMPTY, LinkTimes
from costmodels.calibrate.ops import OnStep
from costmodels.calibrate.peaks import Peaks, measure_peaks
from costmodels.calibrate.processes import measure_distributed_link
from costmodels.cluster import Cluster, Device, Kernels, Link
from costmodels.host.affinity import Processor, usable_cores
from costmodels.host.discovery import ROOT, DiscoveredDevice, cpu_divisions, discover
from costmodels.host.fingerprint import fingerprint_of, machine_of
from costmodels.host.onednn import check_quick
from costmodels.units import format_bytes
from graphs.errors import InputError

DIGITS = 4  # no measurement here is good to more
SPREAD_DIGITS = 2
THREADS = "threads"

MeasureLink: TypeAlias = Callable[[Processor, Processor], LinkTimes]

CHANNELS: Mapping[str, MeasureLink] = {
    THREADS: lambda src, dst: measure_link(src, dst),
    "gloo": lambda src, dst: measure_distributed_link(src, dst, "gloo"),
}
"""What may carry tensors between devices of a host: threads of one process hand them over, processes send them."""


@dataclass(frozen=True)
class Host:
    """What calibration found.

    Attributes:
        cluster: with the medians, or the best where a peak is asked for.
        spread: by what was measured, how far apart single measurements were, as a share: "cpu launch",
            "cpu0 → cpu1 at 4 MiB".
    """

    cluster: Cluster
    spread: Mapping[str, float]


def calibrate_host(
    name: str = "this host", cores_per_device: int = 1, channel: str = THREADS, on_step: OnStep = lambda *_: None
) -> Host:
    """Measure this host, in some seconds for each kind of device and each kind of link.

    Devices of one kind are equal, so one of each is measured; so are links between the same kinds and parts of the
    host. Devices compute while they send.

    Args:
        name: of the cluster.
        cores_per_device: of the devices that are not GPUs.
        channel: one of `CHANNELS`.
        on_step: hears about every measurement.

    Raises:
        InputError: if there are fewer cores than one device needs, no such channel, or a link that corrupts data.
    """
    measure = channel_named(channel)
    found = discover(cores_per_device)
    examples = {device.kind: device for device in reversed(found)}
    link_classes = _examples(found)
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
    links = tuple(
        _link(src, dst, times[_pattern(src, dst)], channel) for src in found for dst in found if src is not dst
    )
    cluster = Cluster(name, tuple(_device(device, peaks[device.kind]) for device in found), links, overlap=True)
    return Host(cluster, _spread(peaks, {link_classes[pattern]: measured for pattern, measured in times.items()}))


def with_kernels(cluster: Cluster, kernels: Kernels) -> Cluster:
    """The same devices with other kernels on their cores, which are measured anew: they have another profile.

    Raises:
        InputError: if PyTorch has no such kernels here.
    """
    if kernels == "quick":
        check_quick()
    return replace(cluster, devices=tuple(_with_kernels(device, kernels) for device in cluster.devices))


def _with_kernels(device: Device, kernels: Kernels) -> Device:
    if not device.cores or device.kernels == kernels:
        return device
    other = replace(device, kernels=kernels)
    return replace(other, profile=fingerprint_of(machine_of(other)))


def channel_named(name: str) -> MeasureLink:
    """How to measure links of a channel.

    Raises:
        InputError: if there is none of that name.
    """
    if name not in CHANNELS:
        raise InputError(f"unknown channel '{name}'; known: {', '.join(CHANNELS)}")
    return CHANNELS[name]


def host_divisions() -> Mapping[int, int]:
    """Into how many devices the cores of this host can be divided, and how many cores each has then.

    Raises:
        InputError: if threads cannot be bound to cores.
    """
    return cpu_divisions(ROOT, usable_cores())


def host_fingerprint(cores_per_device: int = 1, channel: str = THREADS) -> str:
    """Of everything that `calibrate_host` depends on: the devices that there are, and what they are.

    Raises:
        InputError: as `calibrate_host`.
    """
    channel_named(channel)
    words = {"channel": channel}
    for device in discover(cores_per_device):
        about = f"{device.kind} {device.memory_bytes:.0f} {device.cores} {device.cuda} {device.node}"
        words[device.name] = f"{about} {fingerprint_of(machine_of(device))}"
    return fingerprint_of(words)


def _examples(found: Sequence[DiscoveredDevice]) -> dict[tuple[str, ...], tuple[DiscoveredDevice, DiscoveredDevice]]:
    """One pair of devices for each pattern."""
    pairs = [(src, dst) for src in found for dst in found if src is not dst]
    return {_pattern(src, dst): (src, dst) for src, dst in reversed(pairs)}


def _pattern(src: DiscoveredDevice, dst: DiscoveredDevice) -> tuple[str, ...]:
    """Links of the same pattern are equal."""
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
    """All that enters or leaves a GPU shares its bus, each direction for itself; threads hand over without one."""
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
    spread = {f"{kind} {what}": share for kind, found in peaks.items() for what, share in found.spread.items()}
    for (src, dst), found in times.items():
        for n_bytes, share in found.spread.items():
            size = "latency" if n_bytes == EMPTY else f"at {format_bytes(n_bytes)}"
            spread[f"{src.name} → {dst.name} {size}"] = share
    return {what: _rounded(share, SPREAD_DIGITS) for what, share in spread.items()}


def _rounded(value: float, digits: int = DIGITS) -> float:
    return float(f"{value:.{digits}g}")
