"""The roofline's numbers, measured: FLOP/s of a large matrix product, bytes/s of a large copy, an empty operator."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import torch

from costmodels.calibrate.clock import clock_of, times_s
from costmodels.host.affinity import Processor, run_on, torch_device_of

DTYPES = ("float32", "bfloat16", "float16", "float64")
COPY_BYTES = 2**27  # well past the second-level cache; the third level is shared by all cores of a processor
CALLS = 500  # of the empty operator between two looks at the clock


@dataclass(frozen=True)
class Peaks:
    """What a device can do at best; fields as in `Device`.

    Attributes:
        spread: by what was measured, how much longer than the best the median took, as a share of the best.
    """

    flops_per_s: dict[str, float]
    memory_bytes_per_s: float
    launch_s: float
    spread: dict[str, float] = field(default_factory=dict)


def measure_peaks(device: Processor, limit_s: float = 0.25) -> Peaks:
    """Measure a device of this host on a thread of its own.

    Args:
        device: its peaks are not looked at.
        limit_s: for each of the six measurements.

    Raises:
        InputError: if this host does not have the device.
    """
    return run_on(device, lambda: _peaks(device, limit_s))


def _peaks(device: Processor, limit_s: float) -> Peaks:
    rates = {dtype: _flops_per_s(device, dtype, limit_s) for dtype in DTYPES}
    copy, launch = _copy_s(device, limit_s), _launch_s(device, limit_s)
    spread = {f"{dtype} peak": found.spread for dtype, found in rates.items()}
    return Peaks(
        {dtype: found.best for dtype, found in rates.items()},
        2 * COPY_BYTES / copy.best,  # read and written
        launch.best / CALLS,
        spread | {"memory bandwidth": copy.spread, "launch": launch.spread},
    )


@dataclass(frozen=True, slots=True)
class _Peak:
    """A best time or rate, and how far the median is from it as a share of the time."""

    best: float
    spread: float


def _best(times: Sequence[float]) -> _Peak:
    return _Peak(min(times), median(times) / min(times) - 1)


def _flops_per_s(device: Processor, dtype: str, limit_s: float) -> _Peak:
    """The square product doubles until one takes a hundredth of the time there is, so that slow dtypes stay quick."""
    n, best = 128, _Peak(0.0, 0.0)
    while True:
        product = _product_s(device, dtype, n, limit_s / 8)
        best = max(best, _Peak(2 * n**3 / product.best, product.spread), key=lambda found: found.best)
        if product.best > limit_s / 100:
            return best
        n *= 2


def _product_s(device: Processor, dtype: str, n: int, limit_s: float) -> _Peak:
    a = torch.ones(n, n, dtype=getattr(torch, dtype), device=torch_device_of(device))
    out = torch.empty_like(a)
    return _best(times_s(clock_of(device), lambda: torch.mm(a, a, out=out), limit_s))


def _copy_s(device: Processor, limit_s: float) -> _Peak:
    """The pages of both ends are there after the first copy."""
    source = torch.ones(COPY_BYTES // 4, device=torch_device_of(device))
    target = torch.empty_like(source)
    return _best(times_s(clock_of(device), lambda: target.copy_(source), limit_s))


def _launch_s(device: Processor, limit_s: float) -> _Peak:
    """An addition of two numbers: dispatch, one allocation and next to no work."""
    one = torch.ones(1, device=torch_device_of(device))

    def calls() -> None:
        for _ in range(CALLS):
            torch.ops.aten.add.Tensor(one, one)

    return _best(times_s(clock_of(device), calls, limit_s))
