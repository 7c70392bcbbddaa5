"""Measures the numbers of the roofline: FLOP/s of a large matrix product, bytes/s of a large copy, launches."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import torch

from costmodels.calibrate.clock import clock_of, times_s
from costmodels.host.affinity import Processor, run_on, torch_device_of

DTYPES = ("float32", "bfloat16", "float16", "float64")
COPY_BYTES = 2**27  # far beyond the second-level cache; all cores of a processor share the third level
CALLS = 500  # calls of the empty operator between two readings of the clock


@dataclass(frozen=True)
class Peaks:
    """The peaks of a device; fields as in `Device`."""

    flops_per_s: dict[str, float]
    memory_bytes_per_s: float
    launch_s: float
    spread: dict[str, float] = field(default_factory=dict)  # relative distance of medians from best times


def measure_peaks(device: Processor, limit_s: float = 0.25) -> Peaks:
    """Measure a device of this host on its own thread, in six measurements of ``limit_s`` seconds each.

    Raise InputError if this host does not have the device.
    """
    return run_on(device, lambda: _peaks(device, limit_s))


def _peaks(device: Processor, limit_s: float) -> Peaks:
    rates = {dtype: _flops_per_s(device, dtype, limit_s) for dtype in DTYPES}
    copy, launch = _copy_s(device, limit_s), _launch_s(device, limit_s)
    spread = {f"{dtype} peak": rate.spread for dtype, rate in rates.items()}
    return Peaks(
        {dtype: rate.best for dtype, rate in rates.items()},
        2 * COPY_BYTES / copy.best,  # every byte is read and written
        launch.best / CALLS,
        spread | {"memory bandwidth": copy.spread, "launch": launch.spread},
    )


@dataclass(frozen=True, slots=True)
class _Peak:
    """A best time or rate, and the relative distance of the median time from the best time."""

    best: float
    spread: float


def _best(times: Sequence[float]) -> _Peak:
    return _Peak(min(times), median(times) / min(times) - 1)


def _flops_per_s(device: Processor, dtype: str, limit_s: float) -> _Peak:
    """The best rate of square products, whose size doubles until one takes a hundredth of the time limit."""
    n, best = 128, _Peak(0.0, 0.0)
    while True:
        product = _product_s(device, dtype, n, limit_s / 8)
        best = max(best, _Peak(2 * n**3 / product.best, product.spread), key=lambda peak: peak.best)
        if product.best > limit_s / 100:
            return best
        n *= 2


def _product_s(device: Processor, dtype: str, n: int, limit_s: float) -> _Peak:
    a = torch.ones(n, n, dtype=getattr(torch, dtype), device=torch_device_of(device))
    out = torch.empty_like(a)
    return _best(times_s(clock_of(device), lambda: torch.mm(a, a, out=out), limit_s))


def _copy_s(device: Processor, limit_s: float) -> _Peak:
    """The time of a copy, for which the warm-up call has allocated the pages."""
    source = torch.ones(COPY_BYTES // 4, device=torch_device_of(device))
    target = torch.empty_like(source)
    return _best(times_s(clock_of(device), lambda: target.copy_(source), limit_s))


def _launch_s(device: Processor, limit_s: float) -> _Peak:
    """The time of additions of two numbers, which is dispatch and one allocation."""
    one = torch.ones(1, device=torch_device_of(device))

    def calls() -> None:
        for _ in range(CALLS):
            torch.ops.aten.add.Tensor(one, one)

    return _best(times_s(clock_of(device), calls, limit_s))
