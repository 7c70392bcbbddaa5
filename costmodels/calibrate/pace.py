"""Measures the pace of devices: a reference computation for each kind of operator, as networks have them.

Processors of a shared host slow each other down by more or less from minute to minute, so the computations are measured
on one device alone and on all devices at once.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from math import isqrt
from statistics import fmean
from threading import Barrier, get_ident

import torch
from torch.nn import functional as F  # noqa: N812  # its usual name

from costmodels.calibrate.clock import clock_of, mean_s
from costmodels.host.affinity import Processor, run_on, start_on, torch_device_of
from costmodels.host.discovery import ROOT, last_cache_bytes
from costmodels.host.multiply import PackedConvolution
from costmodels.pace import PACE_KINDS, PaceKind, contended, mean_pace

REPEATS = 8  # of all computations in one sample, besides one of each; a single one is off by 7 %
WARM_UP = 3  # the first call takes a fifth longer, the third 2 %; without, what is measured less often would be slower
MEET_S = 60.0  # time limit of a device for the others
CALLS = 300  # of the small operator
LEAST_SIDE, MOST_SIDE = 2048, 4096
"""Of the matrix that is streamed, which is as large as the last cache. Other tenants of a host use that cache, too, and
networks stream partly from it. Over seconds, networks went along with such a matrix to 2.1 to 2.8 %, and with one of
twice that size to 2.8 to 3.4 %."""
IMAGE, FILTERS = (64, 56, 56), (64, 64, 3, 3)
"""Of the convolution. With packed filters, it takes 1.29 times as long while a tenant of the host computes on the other
thread of the core, as six of seven networks do (1.22 to 1.34); with PyTorch's own, 1.6 times."""
GPU_BATCH = 32  # a GPU takes as long for so much as a core for a single image

Work = Callable[[], object]


class PaceMeter:
    """The reference computations of devices of this host, to be measured from time to time."""

    def __init__(self, devices: Sequence[Processor], shares: Mapping[PaceKind, float] | None = None) -> None:
        """Prepare for devices of one kind, at least one; the first sample of a process allocates 20 to 70 MB.

        The first device computes alone. Several CPU devices then compute at once, as they share a host's processors.
        ``shares`` are those of each kind in the time of the network whose pace it is, see `kind_shares`: what takes
        most of the time is measured most often.
        """
        self._devices = devices
        self.shares = shares or dict.fromkeys(PACE_KINDS, 1 / len(PACE_KINDS))
        self.samples: list[dict[str, float]] = []  # seconds by computation, see `costmodels.pace.contended`

    def sample(self) -> None:
        """Measure the computations, each for 10 to 60 ms, on threads of the devices.

        Raise InputError if this host does not have one of the devices.
        """
        first, n_devices = self._devices[0], len(self._devices)
        run_on(first, self.sample_here)
        if n_devices > 1 and first.cuda is None:
            self.samples[-1] |= self._at_once()

    def sample_here(self) -> None:
        """Measure the computations alone; the calling thread is the first device's."""
        self.samples.append(self._times(PACE_KINDS))

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of each computation over all samples so far; empty without a sample."""
        return mean_pace(self.samples)

    @cached_property
    def _works(self) -> Mapping[PaceKind, Work]:
        return _works(torch_device_of(self._devices[0]), len(self._devices[0].cores))

    def _at_once(self) -> Mapping[str, float]:
        """The mean seconds of the devices while all of them compute, but for small operators.

        These share Python's interpreter, by chance in one way or another.
        """
        n_devices = len(self._devices)
        kinds = [kind for kind in PACE_KINDS if kind != "small"]
        start = Barrier(len(self._devices), timeout=MEET_S)
        try:
            running = [start_on(device, partial(self._times, kinds, start)) for device in self._devices]
        except BaseException:
            start.abort()
            raise
        times = [each.result() for each in running]
        return {contended(kind, n_devices): fmean(seconds[kind] for seconds in times) for kind in kinds}

    @torch.no_grad()
    def _times(self, kinds: Sequence[PaceKind], start: Barrier | None = None) -> dict[str, float]:
        """The mean seconds of each computation, which other devices begin at the same time if there is a barrier."""
        clock = clock_of(self._devices[0])
        times: dict[str, float] = {}
        for kind in kinds:
            work = self._works[kind]
            if start:
                start.wait()
            for _ in range(WARM_UP):  # brings its data into the caches; cores that compute otherwise get there slowly
                work()
            clock.settle()
            marks = []
            for _ in range(1 + round(self.shares[kind] * REPEATS)):
                begin = clock.mark()
                work()
                marks.append((begin, clock.mark()))
            clock.settle()
            times[kind] = mean_s([clock.seconds(begin, end) for begin, end in marks])
        return times


@cache
def _works(torch_device: torch.device, n_cores: int) -> Mapping[PaceKind, Work]:
    """The computations on a device, in the same memory as long as the process lasts; the calling thread is the device.

    Where memory lies makes streaming a tenth faster or slower, which is not the machine's pace. A GPU has no cores.
    """
    batch = 1 if n_cores else GPU_BATCH
    with torch_device:
        image, filters = torch.ones(batch, *IMAGE), torch.ones(*FILTERS)
        rows, square = torch.ones(256 * batch, 768), torch.ones(768, 768)
        side = isqrt(min(max(last_cache_bytes(ROOT) // 4, LEAST_SIDE**2), MOST_SIDE**2))
        vector, large = torch.ones(1, side), torch.ones(side, side)
        one = torch.ones(1, 64)

    def small() -> None:
        for _ in range(CALLS):
            torch.ops.aten.relu.default(torch.ops.aten.add.Tensor(one, one))

    return {
        "convolution": _packed(image, filters) if n_cores else lambda: F.conv2d(image, filters, padding=1),
        "product": lambda: rows @ square,
        "streaming": lambda: F.linear(vector, large),
        "small": small,
    }


def _packed(image: torch.Tensor, filters: torch.Tensor) -> Work:
    """A convolution as networks have it, with packed filters and a result in the same memory in every call."""
    convolve = PackedConvolution(image.shape, filters.shape, ((1, 1), (1, 1)), bias=False)
    packed = convolve.pack(filters)
    image = image.contiguous(memory_format=torch.channels_last)
    results: dict[int, torch.Tensor] = {}  # by thread

    def work() -> None:
        result = results.get(get_ident())
        results[get_ident()] = convolve(image, packed, result=result)

    return work
