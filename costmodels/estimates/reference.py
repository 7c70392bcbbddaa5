"""Corrects estimates for one device by what the same network's operators took on another one, by kind of kernel.

::

    measured on A   convolutions 1.2 times as long as estimated for A, products as estimated
    wanted on B     convolutions 1.2 times as long as estimated for B, products as estimated

Errors of estimates are mostly the network's and not the device's: those for an RTX 3090 and an RTX 4090 have a
correlation of 0.9 (``tests.benchmarks.paper``). The idea is that of Habitat (Yu et al., USENIX ATC 2021,
https://arxiv.org/abs/2102.00527).
"""

import numpy as np

from costmodels.cluster.sheet import DataSheet
from costmodels.estimates.kernels import KERNEL_KINDS
from graphs.common.arrays import Floats, Ints

LIMIT = 3.0  # ratios are between its inverse and it: beyond, it is another way to compute, not another speed
LEFT = 0.6  # of the deviation of an estimate, what a measurement of the whole network on another device leaves


def compares(reference: DataSheet | None, sheet: DataSheet) -> bool:
    """Return whether measurements on one device say something of another: both are GPUs, or both processors."""
    return reference is not None and reference.is_processor == sheet.is_processor


def kind_ratios(kinds: Ints, measured_s: Floats, estimated_s: Floats) -> Floats:
    """Return [n_kinds], how many times as long operators of each kind took as was estimated; 1 for kinds without any.

    Args:
        kinds: [n_ops], indices in `KERNEL_KINDS`.
        measured_s: [n_ops], NaN for operators that were not measured.
        estimated_s: [n_ops], for the device of the measurements.
    """
    known = ~np.isnan(measured_s) & (estimated_s > 0)
    sums = [
        np.bincount(kinds[known], weights=seconds[known], minlength=len(KERNEL_KINDS))
        for seconds in (measured_s, estimated_s)
    ]
    ratios = np.divide(sums[0], sums[1], out=np.ones(len(KERNEL_KINDS)), where=sums[1] > 0)
    return np.clip(ratios, 1 / LIMIT, LIMIT)
