"""Measures the pace of a device: a reference computation for each kind of operator, as networks have them."""

from collections.abc import Callable, Mapping
from functools import cached_property
from statistics import median

import torch
from torch.nn import functional as F  # noqa: N812  # its usual name

from costmodels.calibrate.clock import clock_of
from costmodels.host.affinity import Processor, run_on, torch_device_of
from costmodels.pace import PACE_KINDS, PaceKind

CALLS = 300  # of the small operator
DIGITS = 4
GPU_BATCH = 32  # a GPU takes as long for so much as a core for a single image

Work = Callable[[], object]


class PaceMeter:
    """The reference computations of a device of this host, to be measured from time to time."""

    def __init__(self, device: Processor) -> None:
        """Prepare for a device; the first sample allocates 70 MB."""
        self._device = device
        self._samples: list[dict[PaceKind, float]] = []

    def sample(self) -> None:
        """Measure each computation once, in about 20 ms, on a thread of the device.

        Raises:
            InputError: if this host does not have the device.
        """
        run_on(self._device, self.sample_here)

    def sample_here(self) -> None:
        """Measure each computation once; the calling thread is the device's."""
        self._samples.append(self._times())

    @cached_property
    def _works(self) -> Mapping[PaceKind, Work]:
        return _works(torch_device_of(self._device), self._device.cuda is not None)

    @property
    def seconds(self) -> dict[str, float]:
        """The median seconds of each computation over all samples so far; empty without a sample."""
        if not self._samples:
            return {}
        return {kind: float(f"{median(sample[kind] for sample in self._samples):.{DIGITS}g}") for kind in PACE_KINDS}

    @torch.no_grad()
    def _times(self) -> dict[PaceKind, float]:
        clock, times = clock_of(self._device), {}
        for kind, work in self._works.items():
            work()  # brings its data into the caches
            clock.settle()
            start = clock.mark()
            work()
            end = clock.mark()
            clock.settle()
            times[kind] = clock.seconds(start, end)
        return times


def _works(torch_device: torch.device, gpu: bool) -> Mapping[PaceKind, Work]:
    batch = GPU_BATCH if gpu else 1
    with torch_device:
        image, filters = torch.ones(batch, 64, 56, 56), torch.ones(64, 64, 3, 3)
        rows, square = torch.ones(256 * batch, 768), torch.ones(768, 768)
        vector, large = torch.ones(1, 4096), torch.ones(4096, 4096)
        one = torch.ones(1, 64)

    def small() -> None:
        for _ in range(CALLS):
            torch.ops.aten.relu.default(torch.ops.aten.add.Tensor(one, one))

    return {
        "convolution": lambda: F.conv2d(image, filters, padding=1),
        "product": lambda: rows @ square,
        "streaming": lambda: F.linear(vector, large),
        "small": small,
    }
