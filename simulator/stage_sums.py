"""StageSums: what the operators of a stage take together; each stage of a table is added up once."""

from typing import NamedTuple

import numpy as np

from costmodels.table import CostTable
from costmodels.workload import RecomputeMode

MOST_KEPT = 1 << 20  # operators of all stages that are kept, 8 bytes each


class StageSums(NamedTuple):
    """Seconds and bytes of a stage on its device for one micro-batch, without messages, and at the end of a step."""

    forward_s: float
    backward_s: float
    saved_bytes: float
    waiting_bytes: float  # kept while a micro-batch waits for its backward pass
    inputs_bytes: float  # also kept: results that recomputed layers read of each other
    again_s: float  # of operators that run again
    again_bytes: float  # of the layer that saves the most when it runs again
    sync_s: float
    optimizer_s: float


def stage_sums(table: CostTable, ops: tuple[int, ...], device: int, recompute: RecomputeMode) -> StageSums:
    """Return the sums of a stage on a device; a search asks for the same ones again and again."""
    key, known = (ops, device, recompute), table.worked_out
    if key not in known:
        if len(known) * table.n_ops > MOST_KEPT:
            known.clear()
        known[key] = _added_up(table, ops, device, recompute)
    sums: StageSums = known[key]
    return sums


def _added_up(table: CostTable, ops: tuple[int, ...], device: int, recompute: RecomputeMode) -> StageSums:
    own = np.array(ops)
    training = table.trained
    layer, again_bytes = training.layer[own], training.again_bytes(recompute)[own]
    return StageSums(
        forward_s=float(table.forward_s[own, device].sum()),
        backward_s=float(training.backward_s[own, device].sum()),
        saved_bytes=float(training.saved_bytes[own].sum()),
        waiting_bytes=float(training.waiting_bytes(recompute)[own].sum()),
        inputs_bytes=table.inputs_bytes(ops, recompute) if recompute != "none" else 0.0,
        again_s=float(table.again_s(recompute)[own, device].sum()),
        again_bytes=float(np.bincount(layer[layer >= 0], again_bytes[layer >= 0]).max(initial=0.0)),
        sync_s=training.update.sync_s(ops, device) if training.update else 0.0,
        optimizer_s=training.update.optimizer_s(ops, device) if training.update else 0.0,
    )
