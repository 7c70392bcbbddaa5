"""Time of an operator from two peaks of the device (Williams et al. 2009): it computes or it moves bytes."""

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


def peak_flops_per_s(known: Mapping[str, float], dtype: str) -> float:
    """The peak of a dtype, from those that a device names.

    A dtype that is not named runs as the narrowest wider one (what a processor without its instructions does, by
    converting). Past the widest, the rate falls with the width: float64 runs at half the rate of float32. Integers
    and truth values count as float32.

    Args:
        known: FLOP/s by dtype, at least one.
        dtype: any that a tensor may have.
    """
    if not ("float" in dtype or "complex" in dtype):
        dtype = "float32"
    if dtype in known:
        return known[dtype]
    width = ITEM_BYTES[dtype]
    wider = [name for name in known if ITEM_BYTES.get(name, 0) > width]
    if wider:
        return known[min(wider, key=lambda name: (ITEM_BYTES[name], name))]
    widest = max(known, key=lambda name: (ITEM_BYTES.get(name, 0), name))
    return known[widest] * ITEM_BYTES.get(widest, width) / width
