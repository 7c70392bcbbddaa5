"""Every way to divide devices and batch: the space that a search for a parallel configuration covers."""

from collections.abc import Iterator
from dataclasses import replace
from math import gcd

from costmodels.workload import RECOMPUTE_MODES, ZERO_STAGES
from planner.parallelism.closed_form.config import (
    ParallelShape,
    RankOrder,
    StepSchedule,
    TrainingSetting,
    data_degrees,
    tensor_degrees,
)
from planner.parallelism.closed_form.memory import LayerSplit, layer_activations
from planner.parallelism.closed_form.mixture import expert_degrees

MOST_CHUNKS = 8


def shapes_of(setting: TrainingSetting) -> Iterator[ParallelShape]:
    """Yield all shapes that meet the demands, in a fixed order."""
    for data, tensor, pipeline in _degrees(setting):
        for samples in _micro_batch_sizes(setting, data, tensor, pipeline):
            micro_batches = setting.batch // data // samples
            for schedule, chunks in _schedules(setting, pipeline, micro_batches):
                for zero in _zero_stages(setting, data):
                    for order in _orders(setting, data, tensor, pipeline):
                        shape = ParallelShape(
                            data, tensor, pipeline, samples, micro_batches, zero, schedule, chunks, order
                        )
                        for expert in expert_degrees(setting.network.mixture, data):
                            if setting.demands.expert in (None, expert):
                                yield shape._replace(expert=expert)


def _degrees(setting: TrainingSetting) -> Iterator[tuple[int, int, int]]:
    """Yield data-, tensor- and pipeline-parallel degrees."""
    asked, total = setting.demands, setting.n_devices
    if asked.limits is not None and asked.limits.data_alone:
        asked = replace(asked, tensor=1, pipeline=1)
    for tensor in tensor_degrees(setting.network, total) if asked.tensor is None else [asked.tensor]:
        most = min(setting.network.layers, total // tensor)
        for pipeline in range(1, most + 1) if asked.pipeline is None else [asked.pipeline]:
            known = data_degrees(setting.batch, total // (tensor * pipeline))
            for data in known if asked.data is None else [asked.data]:
                if data * tensor * pipeline <= total:
                    yield data, tensor, pipeline


def _micro_batch_sizes(setting: TrainingSetting, data: int, tensor: int, pipeline: int) -> list[int]:
    """Return the numbers of samples that divide a replica's part of the batch, up to one micro-batch that may fit."""
    share, asked = setting.batch // data, setting.demands.samples
    if asked is not None:
        return [asked] if share % asked == 0 else []
    splits = (LayerSplit(tensor, tensor > 1, mode) for mode in RECOMPUTE_MODES)
    layer_bytes = min(layer_activations(setting.network, 1, split) for split in splits)
    room = max(device.usable_bytes for device in setting.fabric.devices)
    most = int(room * pipeline / (layer_bytes * setting.network.layers))
    return data_degrees(share, max(1, most))


def _schedules(setting: TrainingSetting, pipeline: int, micro_batches: int) -> Iterator[tuple[StepSchedule, int]]:
    """Yield schedules with their chunks; interleaving needs micro-batches in multiples of the stages.

    Zero-bubble scheduling and interleaving need stages of equally many layers.
    """
    asked, limits = setting.demands.schedule, setting.demands.limits
    even, each = setting.network.layers % pipeline == 0, setting.network.layers // pipeline
    if asked in (None, "1f1b") or pipeline == 1:
        yield "1f1b", 1
    if pipeline == 1 or not even:
        return
    if asked in (None, "zb-h1") and (limits is None or "zb-h1" in limits.schedules) and micro_batches >= pipeline:
        yield "zb-h1", 1
    if asked in (None, "interleaved") and micro_batches % pipeline == 0:
        for chunks in range(2, min(each, MOST_CHUNKS) + 1):
            if each % chunks == 0:
                yield "interleaved", chunks


def _zero_stages(setting: TrainingSetting, data: int) -> tuple[int, ...]:
    """Return the stages of ZeRO to try; a single replica divides nothing."""
    stages, asked = ZERO_STAGES[: None if data > 1 else 1], setting.demands.zero
    limits = setting.demands.limits
    known = ZERO_STAGES if data == 1 or limits is None else limits.zero
    return tuple(stage for stage in stages if asked in (None, stage) and stage in known)


def _orders(setting: TrainingSetting, data: int, tensor: int, pipeline: int) -> tuple[RankOrder, ...]:
    """Return the orders of the ranks that differ: both, or one."""
    hosts = setting.fabric.host_devices
    if data == 1 or pipeline == 1 or (gcd(tensor, hosts) == hosts and tensor >= hosts):
        return ("data",)
    return ("data", "pipeline")
