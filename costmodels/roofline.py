"""The roofline model: an operator's time from the device's peaks of computing and of moving (Williams et al. 2009)."""

from collections.abc import Mapping

import numpy as np

from costmodels.cluster import Device
from costmodels.flops import Work
from costmodels.table import Floats
from graphs.ir import ITEM_BYTES


def roofline_s(work: Work, device: Device) -> Floats:
    """[n_ops], max(FLOP / peak of its dtype, bytes / bandwidth) + launch."""
    peak = {dtype: peak_flops_per_s(device.flops_per_s, dtype) for dtype in set(work.dtype)}
    compute_s = work.flop / np.array([peak[dtype] for dtype in work.dtype])
    move_s = work.n_bytes / device.memory_bytes_per_s
    return np.asarray(np.maximum(compute_s, move_s) + device.launch_s)


def peak_flops_per_s(peaks: Mapping[str, float], dtype: str) -> float:
    """The peak of a dtype from the peaks of a device.

    A dtype without a peak runs at the peak of the narrowest wider dtype, as on a processor that converts it. Beyond the
    widest dtype, the rate falls with the width: float64 runs at half the rate of float32. Integers and booleans count
    as float32.

    Args:
        peaks: FLOP/s by dtype, at least one.
        dtype: dtype of a tensor.
    """
    if not ("float" in dtype or "complex" in dtype):
        dtype = "float32"
    if dtype in peaks:
        return peaks[dtype]
    width = ITEM_BYTES[dtype]
    wider = [name for name in peaks if ITEM_BYTES.get(name, 0) > width]
    if wider:
        return peaks[min(wider, key=lambda name: (ITEM_BYTES[name], name))]
    widest = max(peaks, key=lambda name: (ITEM_BYTES.get(name, 0), name))
    return peaks[widest] * ITEM_BYTES.get(widest, width) / width
