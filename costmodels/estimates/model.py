"""Seconds of a network's operators on a device, from its data sheet and a few parameters of its kind.

::

    arithmetic     FLOP of whole tiles / (share of the peak); tiles run in waves of one for each multiprocessor
    memory         bytes / (share of the bandwidth), more of it for what the last cache holds
    an operator    (arithmetic^p + memory^p)^(1/p) + its start, and a pass for each input that is converted or copied
    a chain        a host launches ahead, so that a kernel begins when the one before ends and it was launched

Waves and tiles are as in NeuSight (Lee et al., ASPLOS 2025, https://arxiv.org/abs/2407.13853); parameters are fitted
by ``python -m tests.benchmarks.paper --fit``.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from costmodels.cluster.cluster import Device
from costmodels.estimates.kernels import ALIGNED, COMPUTING, DTYPES, KERNEL_KINDS, Kernels
from costmodels.estimates.parameters import Parameters
from costmodels.operators.flops import peak_flops_per_s
from graphs.common.arrays import Floats

TILE_ROWS, TILE_COLUMNS = 128, (128, 64, 32)
"""Rows and columns of the tiles that a product is cut into."""

JOIN = 3.0  # p: arithmetic and memory overlap but for their beginnings and ends
VECTOR_KINDS = ("depthwise convolution", "large depthwise convolution")
GROUP_COLUMNS = 64  # channels of a group, below which a convolution is slower
SERVED_GROUPS, SERVED_WINDOW = (4, 8, 16, 32), 9
"""Channels of a group, with a window of 3 x 3, for which libraries have grouped convolutions of their own.

cuDNN 8 has them for tensor cores (its release notes, grouped convolutions with NHWC); it computes others without.
"""
TILED_KINDS = ("product", "small product", "convolution")  # cut into tiles


def kernel_seconds(kernels: Kernels, device: Device, parameters: Parameters) -> Floats:
    """Return [n_ops], seconds of each operator's kernels alone, one after the other; 0 for views."""
    arithmetic_s = _arithmetic_s(kernels, device, parameters)
    memory_s = _memory_s(kernels, device, parameters)
    joined = (arithmetic_s**JOIN + memory_s**JOIN) ** (1 / JOIN)
    shares = parameters.memory[[KERNEL_KINDS.index(kind) for kind in ("element-wise", "copy")]]
    copied_bytes = kernels.cast_bytes / shares[0] + kernels.padded_bytes * parameters.padding / shares[1]
    cast_s = copied_bytes / device.memory_bytes_per_s
    steps = np.where(kernels.kind == KERNEL_KINDS.index("recurrence"), kernels.count, 1.0)
    return np.where(kernels.n_launches > 0, joined + cast_s + parameters.start_s * kernels.n_launches * steps, 0.0)


def chain_seconds(seconds: Floats, n_launches: Floats, launch_s: float) -> Floats:
    """Return [n_ops], by how much later each operator of a chain ends than the one before it.

    A host launches kernels ahead of the device, ``launch_s`` each; the device waits for it only where it has caught up.

    ::

        host     a b c d e f
        device    aaaaaa bb c d  e f      a is long, so b waits for the device, and e for the host

    Args:
        seconds: [n_ops], of the kernels alone.
        n_launches: [n_ops].
        launch_s: seconds of the host for each launch.
    """
    launched_s = np.cumsum(n_launches * launch_s)
    busy_s = np.cumsum(seconds)
    idle_s = np.maximum.accumulate(np.maximum(0.0, launched_s - (busy_s - seconds)))
    return np.asarray(np.diff(busy_s + idle_s, prepend=0.0))


def _arithmetic_s(kernels: Kernels, device: Device, parameters: Parameters) -> Floats:
    peak = _peaks(kernels, device)
    shares = parameters.arithmetic[kernels.kind]
    units = float(device.sheet.units) if device.sheet else 1.0
    k = np.ceil(kernels.k / ALIGNED) * ALIGNED + parameters.fill
    best = np.full(len(peak), np.inf)
    for number, columns in enumerate(TILE_COLUMNS):
        tiles = np.ceil(kernels.m / TILE_ROWS) * np.ceil(kernels.n / columns) * kernels.count
        tile_flop = 2.0 * TILE_ROWS * columns * k
        best = np.minimum(best, np.ceil(tiles / units) * units * tile_flop * parameters.narrow**number)
    flop = np.where(_among(kernels, TILED_KINDS), best, kernels.flop)
    grouped = kernels.kind == KERNEL_KINDS.index("grouped convolution")
    width = np.minimum(1.0, kernels.n / GROUP_COLUMNS)
    served = np.isin(kernels.n, SERVED_GROUPS) & (kernels.k == SERVED_WINDOW * kernels.n)
    slower = np.where(served, 1.0, parameters.other_groups) / width**parameters.group_width
    flop = np.where(grouped, kernels.flop * slower, flop)
    return np.where(_among(kernels, COMPUTING), flop / (peak * shares), 0.0)


def _among(kernels: Kernels, kinds: Sequence[str]) -> NDArray[np.bool_]:
    """Return [n_ops], whether an operator is of one of these kinds."""
    return np.array([kind in kinds for kind in KERNEL_KINDS])[kernels.kind]


def _peaks(kernels: Kernels, device: Device) -> Floats:
    """Return [n_ops], the peak of each operator's dtype; depthwise convolutions do not run on tensor cores."""
    peak = np.array([peak_flops_per_s(device.flops_per_s, name) for name in DTYPES])[kernels.dtype]
    vector = peak_flops_per_s(device.flops_per_s, "float32")
    return np.where(_among(kernels, VECTOR_KINDS), np.minimum(peak, vector), peak)


def _memory_s(kernels: Kernels, device: Device, parameters: Parameters) -> Floats:
    cache = device.sheet.cache_bytes if device.sheet else 0.0
    cached = 1.0 + parameters.cache_gain * cache / (cache + kernels.n_bytes)
    return np.asarray(kernels.n_bytes / (device.memory_bytes_per_s * parameters.memory[kernels.kind] * cached))
