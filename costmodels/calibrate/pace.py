"""Measures the pace of devices by two reference computations, as networks have them.

A core of a shared host may change its pace every second, so a device's thread computes the first one in the midst of
its other work, for a hundredth of the time. Of GoogLeNet's times in turns of a second on two devices, which spread by
9 %, its mean in the same second left 3 % unexplained; samples at both ends of each turn left 13 %. Processors of a
shared host slow each other's memory down by more or less, so the second one, which streams a large matrix, is measured
on one device alone and on all devices at once, right after the first one: a core that has become slower slows both.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import islice
from math import isqrt
from statistics import fmean
from threading import Barrier, get_ident

import torch
from torch.nn import functional as F  # noqa: N812  # its usual name

from costmodels.calibrate.clock import calls_s, clock_of, mean_s
from costmodels.host.affinity import Processor, run_on, start_on, torch_device_of
from costmodels.host.discovery import ROOT, last_cache_bytes
from costmodels.operators.pace import PACE_NAMES, PaceKind, contended, mean_pace
from graphs.common.errors import warn_once
from graphs.kernels.multiply import PackedConvolution

REPEATS = 4  # of each computation in one sample; a single one is off by 7 %
WARM_UP = 3  # the first call takes a fifth longer, the third 2 %
WATCHED = 0.01  # of a thread's time, for which it measures its pace
MEET_S = 60.0  # time limit of a device for the others
LEAST_SIDE, MOST_SIDE = 2048, 4096
"""Sides of the matrix that is streamed, which is as large as the last cache. Other tenants of a host use that cache,
too, and networks stream partly from it. Over seconds, the times of networks followed those of such a matrix to 2.1 to
2.8 %, and those of one of twice that size to 2.8 to 3.4 %."""
IMAGE, FILTERS = (64, 14, 14), (64, 64, 3, 3)
"""Shapes of the convolution, which takes 0.1 ms in a core's own cache. Where it took 10 % longer because tenants had
the other threads of cores, three networks took 8 to 12 % longer; where a product or calls of small operators took 10 %
longer, 5 to 10 %."""
GPU_BATCH = 32  # images, for which a GPU takes as long as a core for a single one

Work = Callable[[], object]


class PaceMeter:
    """The reference computations of devices of this host, to be measured from time to time."""

    def __init__(self, devices: Sequence[Processor]) -> None:
        """Prepare for devices of one kind, at least one; the first sample of a process allocates 20 to 70 MB.

        The first device computes alone. Several CPU devices then compute at once, as they share a host's processors.
        """
        self._devices = devices
        self._due_s: dict[int, float] = {}  # by thread
        self.samples: list[dict[str, float]] = []  # figures by name, see `costmodels.operators.pace`

    def sample(self) -> None:
        """Measure the computations, each for 0.5 to 20 ms, on threads of the devices.

        Raise InputError if this host does not have one of the devices.
        """
        first, n_devices = self._devices[0], len(self._devices)
        run_on(first, self.sample_here)
        if n_devices > 1 and first.cuda is None:
            self.samples[-1] |= self._at_once()

    def sample_here(self) -> None:
        """Measure the computations alone; the calling thread is the first device's."""
        self.samples.append(self._figures())

    def watch(self, n_devices: int = 1) -> None:
        """Measure a core's pace of computing now and then, on a device's thread in the midst of its work.

        Nothing is measured on a GPU, which computes asynchronously to its thread.

        Args:
            n_devices: how many devices compute at the same time.
        """
        due_s = self._due_s.get(get_ident(), 0.0)
        if self._devices[0].cuda is not None or time.perf_counter() < due_s:
            return
        clock, work = clock_of(self._devices[0]), self._works["computing"]
        work()  # brings its data into the caches
        begin = clock.mark()
        work()
        seconds = clock.seconds(begin, clock.mark())
        if seconds > 0:  # as in `calls_s`
            self.samples.append({contended("computing", n_devices): seconds})
        self._due_s[get_ident()] = time.perf_counter() + 2 * seconds / WATCHED

    @property
    def figures(self) -> dict[str, float]:
        """The mean figures of all samples so far, by name; empty without a sample."""
        return mean_pace(self.samples)

    @property
    def _works(self) -> Mapping[PaceKind, Work]:
        first = self._devices[0]  # on the thread of another device, only a GPU can be asked for
        return _works(torch.device("cpu") if first.cuda is None else torch_device_of(first), len(first.cores))

    def _at_once(self) -> Mapping[str, float]:
        """Return the mean figures of the devices while all of them compute."""
        n_devices = len(self._devices)
        start = Barrier(len(self._devices), timeout=MEET_S)
        try:
            running = [start_on(device, partial(self._figures, start)) for device in self._devices]
        except BaseException:
            start.abort()
            raise
        each = [one.result() for one in running]
        return {contended(name, n_devices): fmean(figures[name] for figures in each) for name in PACE_NAMES}

    @torch.no_grad()
    def _figures(self, start: Barrier | None = None) -> dict[str, float]:
        """Return the figures of the calling device's thread; the devices at a barrier begin at the same time."""
        clock = clock_of(self._devices[0])
        times: dict[PaceKind, float] = {}
        for kind, work in self._works.items():
            if start:
                start.wait()
            for _ in range(WARM_UP):  # brings its data into the caches; cores that did other work get there slowly
                work()
            clock.settle()
            times[kind] = mean_s(list(islice(calls_s(clock, work), REPEATS)))
        return {"computing": times["computing"], "memory": times["streaming"] / times["computing"]}


@cache
def _works(torch_device: torch.device, n_cores: int) -> Mapping[PaceKind, Work]:
    """The computations on a device, in the same memory as long as the process lasts; the calling thread is the device.

    Where memory lies makes streaming a tenth faster or slower, which is not the machine's pace. A GPU has no cores.
    """
    batch = 1 if n_cores else GPU_BATCH
    with torch_device:
        image, filters = torch.ones(batch, *IMAGE), torch.ones(*FILTERS)
        side = isqrt(min(max(last_cache_bytes(ROOT) // 4, LEAST_SIDE**2), MOST_SIDE**2))
        vector, large = torch.ones(1, side), torch.ones(side, side)
    return {
        "computing": (_packed(image, filters) if n_cores else None) or (lambda: F.conv2d(image, filters, padding=1)),
        "streaming": lambda: F.linear(vector, large),
    }


def _packed(image: torch.Tensor, filters: torch.Tensor) -> Work | None:
    """A convolution as networks have it, with packed filters and a result in the same memory in every call.

    It is None if the kernel fails here, where networks are computed by PyTorch, too.
    """
    convolve = PackedConvolution(image.shape, filters.shape, ((1, 1), (1, 1)), bias=False)
    try:
        packed = convolve.pack(filters)
        convolve(image, packed)
    except Exception as error:  # whatever its libraries raise
        warn_once("the kernel of conv2d", error, "PyTorch's operator computes it instead")
        return None
    image = image.contiguous(memory_format=torch.channels_last)
    results: dict[int, torch.Tensor] = {}  # by thread

    def work() -> None:
        result = results.get(get_ident())
        results[get_ident()] = convolve(image, packed, result=result)

    return work
