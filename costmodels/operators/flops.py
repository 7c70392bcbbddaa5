"""FLOP and bytes of every operator of a graph; one multiply-add is 2 FLOP.

The formulas are in `costmodels.operators.formulas`. An operator reads each input and writes each output once, unless
`READS` has another formula.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from costmodels.cluster.cluster import Device
from costmodels.operators.formulas import FORMULAS, READS, UNKNOWN, Operands
from costmodels.operators.views import bases, operation
from graphs.common.arrays import Floats
from graphs.common.errors import InputError
from graphs.ir import ITEM_BYTES, Graph, Op

PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
"""The dtype of the real and imaginary parts."""
COMPLEX = 4  # real multiply-adds of a complex one


@dataclass(frozen=True)
class Work:
    """The work of each operator of a graph."""

    flop: Floats  # [n_ops], FLOP
    n_bytes: Floats  # [n_ops], bytes read and written
    dtype: tuple[str, ...]  # [n_ops], the widest floating-point dtype of the inputs, else of the outputs
    guessed: tuple[str, ...]  # kinds without a formula, in order of appearance; 1 FLOP for each element written


def work_of(graph: Graph) -> Work:
    """FLOP and bytes of every operator; views are free.

    Raises:
        InputError: for an operator whose inputs or shapes do not fit its kind, in a graph made by hand.
    """
    base, tensor = bases(graph), graph.tensor
    flop, n_bytes = np.zeros(len(graph.ops)), np.zeros(len(graph.ops))
    dtypes: list[str] = []
    guessed: dict[str, None] = {}
    for i, op in enumerate(graph.ops):
        once = sum(min(tensor[n].n_bytes, tensor[base.get(n, n)].n_bytes) for n in dict.fromkeys(op.inputs))
        if op.members:  # what is written inside never leaves the cache
            inner = work_of(graph.inside(op))
            flop[i], n_bytes[i] = inner.flop.sum(), once + sum(tensor[n].n_bytes for n in op.outputs)
            dtypes.append(inner.dtype[0])
            guessed |= dict.fromkeys(inner.guessed)
            continue
        operands = Operands(tuple(tensor[n] for n in op.inputs), tuple(tensor[n] for n in op.outputs), op.attrs)
        dtypes.append(_dtype(operands))
        if op.outputs and all(name in base for name in op.outputs):
            continue
        name = operation(op.kind)
        formula = FORMULAS.get(name)
        if formula is None:
            guessed[op.kind] = None
            formula = UNKNOWN
        reads = READS.get(name)
        try:
            flop[i] = formula(operands)
            n_read = reads(operands) if reads else once  # an expanded input counts with the bytes of its base
        except (IndexError, ValueError, TypeError) as error:
            raise _unfit(op, operands) from error
        n_bytes[i] = n_read + sum(t.n_bytes for t in operands.outputs)
    return Work(flop, n_bytes, tuple(dtypes), tuple(guessed))


def _unfit(op: Op, operands: Operands) -> InputError:
    """The error for an operator that reads what its kind cannot compute with."""
    shapes = ", ".join(str(list(tensor.shape)) for tensor in operands.inputs) or "nothing"
    return InputError(
        f"operator '{op.name}' ({op.kind}) reads {shapes}, which is not what its kind computes with; "
        "import the model again"
    )


def _dtype(operands: Operands) -> str:
    for tensors in (operands.inputs, operands.outputs):
        floating = [t.dtype for t in tensors if "float" in t.dtype or "complex" in t.dtype]
        if floating:
            return max(floating, key=ITEM_BYTES.__getitem__)
    return operands.outputs[0].dtype if operands.outputs else "float32"


def roofline_s(work: Work, device: Device) -> Floats:
    """[n_ops], max(FLOP / peak of its dtype, bytes / bandwidth) + launch."""
    peak = {dtype: peak_flops_per_s(device.flops_per_s, dtype) for dtype in set(work.dtype)}
    compute_s = work.flop / np.array([peak[dtype] for dtype in work.dtype])
    move_s = work.n_bytes / device.memory_bytes_per_s
    return np.asarray(np.maximum(compute_s, move_s) + device.launch_s)


def peak_flops_per_s(peaks: Mapping[str, float], dtype: str) -> float:
    """The peak of a dtype from the peaks of a device.

    A dtype without a peak runs at the peak of the narrowest wider dtype, as on a processor that converts it; a kind of
    float8 at that of another kind, since units for one take all. Beyond the widest dtype, the rate falls with the
    width: float64 runs at half the rate of float32. Integers and booleans count as float32. A complex multiply-add is
    four of real numbers.
    """
    if dtype in peaks:
        return peaks[dtype]
    if dtype in PARTS:
        return peak_flops_per_s(peaks, PARTS[dtype]) / COMPLEX
    if "float" not in dtype:
        return peak_flops_per_s(peaks, "float32")
    if dtype.startswith("float8") and (alike := sorted(name for name in peaks if name.startswith("float8"))):
        return peaks[alike[0]]
    width = ITEM_BYTES[dtype]
    wider = [name for name in peaks if "float" in name and ITEM_BYTES[name] > width]
    if wider:
        return peaks[min(wider, key=lambda name: (ITEM_BYTES[name], name))]
    widest = max(peaks, key=lambda name: (ITEM_BYTES.get(name, 0), name))
    return peaks[widest] * ITEM_BYTES.get(widest, width) / width
