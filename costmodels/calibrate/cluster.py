"""This host as a cluster: every device and every link, measured."""

from collections.abc import Sequence

from costmodels.calibrate.fingerprint import fingerprint_of, machine_of
from costmodels.calibrate.host import Found, discover
from costmodels.calibrate.links import measure_link
from costmodels.calibrate.ops import OnStep
from costmodels.calibrate.peaks import Peaks, measure_peaks
from costmodels.cluster import Cluster, Device, Link

DIGITS = 4  # no measurement here is good to more


def calibrate_host(name: str = "this host", cores_per_device: int = 1, on_step: OnStep = lambda *_: None) -> Cluster:
    """Measure this host, in about two seconds for each kind of device and a quarter for each kind of link.

    Devices of one kind are equal, so one of each is measured; so are links between the same kinds and parts of the
    host. Devices are threads of one process and compute while they send.

    Args:
        name: of the cluster.
        cores_per_device: of the devices that are not GPUs.
        on_step: hears about every measurement.

    Raises:
        InputError: if there are fewer cores than one device needs.
    """
    found = discover(cores_per_device)
    examples = {device.kind: device for device in reversed(found)}
    wires = _examples(found)
    total = len(examples) + len(wires)
    peaks: dict[str, Peaks] = {}
    for kind, device in sorted(examples.items()):
        on_step(f"measuring {device.name} ({kind})", len(peaks), total)
        peaks[kind] = measure_peaks(device)
    rates: dict[tuple[str, ...], tuple[float, float]] = {}
    for pattern, (src, dst) in wires.items():
        on_step(f"measuring the link from {src.name} to {dst.name}", len(peaks) + len(rates), total)
        rates[pattern] = measure_link(src, dst)
    on_step(f"measured {name}", total, total)
    links = tuple(_link(src, dst, *rates[_pattern(src, dst)]) for src in found for dst in found if src is not dst)
    return Cluster(name, tuple(_device(device, peaks[device.kind]) for device in found), links, overlap=True)


def _examples(found: Sequence[Found]) -> dict[tuple[str, ...], tuple[Found, Found]]:
    """One pair of devices for each pattern."""
    pairs = [(src, dst) for src in found for dst in found if src is not dst]
    return {_pattern(src, dst): (src, dst) for src, dst in reversed(pairs)}


def _pattern(src: Found, dst: Found) -> tuple[str, ...]:
    """Links of the same pattern are equal."""
    return src.kind, dst.kind, "near" if src.node == dst.node else "far"


def _device(found: Found, peaks: Peaks) -> Device:
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


def _link(src: Found, dst: Found, latency_s: float, bytes_per_s: float) -> Link:
    """All that enters or leaves a GPU shares its bus, each direction for itself; threads hand over without one."""
    if src.cuda is None and dst.cuda is None:
        channel = ""
    elif dst.cuda is None:
        channel = f"from {src.name}"
    else:
        channel = f"to {dst.name}"
    return Link(src.name, dst.name, _rounded(bytes_per_s), _rounded(latency_s), channel)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
