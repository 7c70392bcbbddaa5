"""Operators that PyTorch has for processors alone, or for GPUs alone.

Most operators exist for both, or are composed of such. Only a PyTorch that was built for GPUs has those of GPUs, and a
plan for GPUs may be made where there is none, so they are known by their names, which PyTorch keeps for one kind.
"""

import re
from collections.abc import Iterable

import numpy as np

from costmodels.cluster.cluster import Device
from graphs.common.arrays import Bools
from graphs.ir import Op

PROCESSORS = re.compile(
    r"(mkldnn|mkldnn_prepacked|onednn|mkl|quantized)\."  # oneDNN, MKL; FBGEMM and XNNPACK
    r"|aten\.(_?mkldnn_|to_mkldnn|fbgemm_|\w+_for_cpu)"
    r"|torchao\.\w+_cpu\b"
)
GPUS = re.compile(
    r"aten\.(_?cudnn_|_?miopen_|_use_(cudnn|miopen)_|_cslt_|_triton_|_philox_|\w*(_sparse|_to_sparse)_semi_structured)"
    r"|aten\.(_scaled_dot_product_(flash|efficient|cudnn)_attention|_(flash|efficient)_attention_)(?!\w*_for_cpu)"
    r"|aten\.(_weight_int4pack_mm|_convert_weight_to_int4pack)(?!_for_cpu)|aten\.(_mixed_dtypes_linear|_scaled_grouped_mm)"
    r"|aten\.(_thnn_fused_(lstm|gru)_cell|_?conv_depthwise[23]d|batch_norm_(stats|gather_stats|\w*elemt|backward_reduce))"
    r"|aten\.(_fused_dropout|_masked_scale|_fill_mem_eff_dropout_mask_|_fused_rms_norm_backward)"
    r"|aten\.(mm|bmm|addmm|baddbmm)\.dtype"
    r"|aten\.(\w+_for_mps|_?mps_\w+|_?lstm_mps\w*)"
)


def runs_on(ops: Iterable[Op], device: Device) -> Bools:
    """[n_ops], whether PyTorch has operators, with all of their members, for the kind of a device."""
    other = {True: GPUS, False: PROCESSORS, None: None}[device.is_processor]
    return np.array([other is None or not _any(other, op) for op in ops], dtype=bool)


def only_on(op: Op) -> str:
    """Return the kind of device that an operator needs, or a member of it: "processors", "GPUs" or nothing."""
    return "processors" if _any(PROCESSORS, op) else "GPUs" if _any(GPUS, op) else ""


def _any(names: re.Pattern[str], op: Op) -> bool:
    return bool(names.match(op.kind)) or any(_any(names, member) for member in op.members)
