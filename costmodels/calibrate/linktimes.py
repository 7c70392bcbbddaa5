"""Turns measured times of messages into the record of a link, and checks the tensors that arrive."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import isotonic_regression, nnls

from costmodels.host.affinity import Processor
from costmodels.units import format_bytes
from graphs.common.arrays import Floats
from graphs.common.errors import InputError

EMPTY = 4  # bytes of a message that counts as empty
SIZES = tuple(n * 2**10 for n in (64, 256, 1024, 2048, 4096, 8192, 16384, 65536))
LARGE = 2**23  # bytes from which on a few rounds are enough, since the relative error is small
ROUNDING = 1e-9  # relative


@dataclass(frozen=True)
class LinkTimes:
    """The measured times of one direction of a link."""

    latency_s: float  # seconds of an empty message
    bytes_per_s: float  # slope of the line through the points; infinite if the size does not matter
    points: tuple[tuple[float, float], ...]  # (bytes, seconds), as in `costmodels.cluster.cluster.Link`
    spread: Mapping[int, float]  # distance of the quartiles as a share of the median, by size in bytes


def link_times(seconds: Mapping[int, Sequence[float]]) -> LinkTimes:
    """The times of a link from the one-way seconds of several messages of each size, including `EMPTY`.

    A larger message takes at least as long: medians that contradict this are replaced by the mean of their neighbours.
    """
    sizes = sorted(seconds)
    low, middle, high = (np.array([np.quantile(seconds[n], q) for n in sizes]) for q in (0.25, 0.5, 0.75))
    times = isotonic_regression(np.maximum(middle, 1e-9)).x
    _, s_per_byte = fit_line(sizes, times)
    return LinkTimes(
        latency_s=float(times[0]),
        bytes_per_s=1 / s_per_byte if s_per_byte > 0 else float("inf"),
        points=tuple((0.0 if n == EMPTY else float(n), float(t)) for n, t in zip(sizes, times, strict=True)),
        spread={n: float(s) for n, s in zip(sizes, (high - low) / times, strict=True)},
    )


def fit_line(n_bytes: Sequence[float], seconds: Sequence[float] | Floats) -> tuple[float, float]:
    """The line ``latency_s + n_bytes * s_per_byte`` of least squared relative error, neither number below 0.

    Sizes and times, which are above 0, are [n].
    """
    x, y = np.asarray(n_bytes, dtype=float), np.asarray(seconds, dtype=float)
    latency_s, s_per_byte = nnls(np.column_stack([1 / y, x / y]), np.ones(len(y)))[0].tolist()
    return latency_s, s_per_byte if s_per_byte * x.max() > ROUNDING * latency_s else 0.0  # else it is only rounding


def pattern(n_bytes: int, number: int, torch_device: torch.device | None = None) -> torch.Tensor:
    """Exact float32 numbers that are all different, and differ from message to message."""
    n = max(1, n_bytes // 4)
    return torch.arange(number - n, number, dtype=torch.float32, device=torch_device)


def check_arrived(src: Processor, dst: Processor, sent: torch.Tensor, arrived: torch.Tensor) -> None:
    """Check that a tensor arrived bit for bit.

    Raise InputError if not; the error names the link and the first element that differs.
    """
    arrived = arrived.cpu()
    if sent.shape == arrived.shape and sent.dtype == arrived.dtype and torch.equal(sent, arrived):
        return
    link = f"the link from '{src.name}' to '{dst.name}' corrupts data: of {format_bytes(sent.nbytes)}"
    if sent.shape != arrived.shape or sent.dtype != arrived.dtype:
        raise InputError(f"{link}, {format_bytes(arrived.nbytes)} arrived; mend it, or leave out one of the devices")
    wrong = int((sent != arrived).nonzero()[0])
    raise InputError(
        f"{link}, element {wrong} arrived as {arrived[wrong].item():g} instead of {sent[wrong].item():g}; "
        "mend it, or leave out one of the devices"
    )
