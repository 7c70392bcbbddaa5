"""ParallelConfig: degrees of parallelism, micro-batches, schedule, ZeRO and recomputation of a training step.

::

    devices = data × tensor × pipeline        global batch = data × micro-batches × samples
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Literal, NamedTuple, TypeAlias, get_args

from costmodels.cluster.cluster import Cluster
from costmodels.cluster.fabric import Fabric, fabric_of
from costmodels.memory.optimizers import OPTIMIZERS
from costmodels.workload import RECOMPUTE_MODES, ZERO_STAGES, RecomputeMode
from graphs.common.brief import brief
from graphs.common.checks import integer, one_of
from graphs.common.errors import InputError
from planner.parallelism.closed_form.layer_times import MEGATRON, Efficiency
from planner.parallelism.closed_form.memory import FLOAT32, FLOAT32_GRADIENT
from planner.parallelism.closed_form.mixture import expert_degrees
from planner.parallelism.closed_form.transformer import Transformer

StepSchedule: TypeAlias = Literal["1f1b", "interleaved", "zb-h1"]
STEP_SCHEDULES: tuple[StepSchedule, ...] = get_args(StepSchedule)

EVEN_SCHEDULES: tuple[StepSchedule, ...] = ("interleaved", "zb-h1")
"""Schedules that need the same number of layers on every stage."""

MOST_BATCH = 10**9  # of a step; the largest published steps have some ten thousand

Precision: TypeAlias = Literal["float32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

RankOrder: TypeAlias = Literal["data", "pipeline"]
"""The ranks next to a tensor-parallel group: those of its replicas, or of the neighbouring stages."""


class StageLayers(NamedTuple):
    """Numbers of layers of a stage, by how much of a layer is recomputed in the backward pass."""

    none: int
    selective: int
    full: int

    @classmethod
    def of(cls, count: int, mode: RecomputeMode) -> "StageLayers":
        """Return ``count`` layers that are all recomputed in one mode."""
        return cls(*(count if name == mode else 0 for name in RECOMPUTE_MODES))

    @property
    def total(self) -> int:
        """The number of layers."""
        return sum(self)

    @property
    def modes(self) -> str:
        """The mode of all layers, or the number of layers of each mode: ``2 selective + 4 full``."""
        used = [(name, count) for name, count in zip(RECOMPUTE_MODES, self, strict=True) if count]
        return used[0][0] if len(used) == 1 else " + ".join(f"{count} {name}" for name, count in used)


class StageDegrees(NamedTuple):
    """How the devices of a stage divide its work.

    Attributes:
        data: replicas, each with a part of the samples of every micro-batch.
        tensor: devices that share every product of a replica.
        zero: stage of ZeRO, 0 to 3, by which replicas divide states.
    """

    data: int
    tensor: int
    zero: int = 0

    @property
    def devices(self) -> int:
        """The number of devices of the stage."""
        return self.data * self.tensor


class ParallelShape(NamedTuple):
    """How devices and batch are divided; which layers a stage has is left open.

    Attributes:
        data: replicas of the pipeline.
        tensor: devices that share every product of a layer, with sequence parallelism if more than one.
        pipeline: stages.
        samples: of a micro-batch.
        micro_batches: of each replica in a step.
        zero: stage of ZeRO, 0 to 3.
        schedule: of the pipeline.
        chunks: parts of a stage that interleaved scheduling runs in turns; 1 for other schedules.
        order: of the ranks.
        expert: replicas that divide the experts of a layer among them.
    """

    data: int
    tensor: int
    pipeline: int
    samples: int
    micro_batches: int
    zero: int = 0
    schedule: StepSchedule = "1f1b"
    chunks: int = 1
    order: RankOrder = "data"
    expert: int = 1

    @property
    def stride(self) -> int:
        """Devices between a replica of a stage and the next one."""
        return self.tensor * (1 if self.order == "data" else self.pipeline)

    @property
    def devices(self) -> int:
        """The number of devices."""
        return self.data * self.tensor * self.pipeline

    def with_degrees(self, degrees: StageDegrees) -> "ParallelShape":
        """Return this one-replica shape with its samples divided by the given degrees."""
        data, tensor, zero = degrees
        return self._replace(data=data, tensor=tensor, zero=zero, samples=self.samples // data)


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """One way to train.

    Attributes:
        shape: how devices and batch are divided.
        stages: the layers of each.
        precision: of products and messages; parameters, gradients and the optimizer's states are float32 all the same.
        gradients: in which replicas add up gradients, if products are in bfloat16.
        degrees: of each stage, where stages differ; the shape then has one replica, one tensor-parallel device and no
            ZeRO.
    """

    shape: ParallelShape
    stages: tuple[StageLayers, ...]
    precision: Precision = "float32"
    gradients: Precision = "float32"
    degrees: tuple[StageDegrees, ...] = ()

    __repr__ = brief

    def of_stage(self, number: int) -> StageDegrees:
        """Return the degrees of a stage."""
        shape = self.shape
        return self.degrees[number] if self.degrees else StageDegrees(shape.data, shape.tensor, shape.zero)

    @property
    def devices(self) -> int:
        """The number of devices."""
        return sum(each.devices for each in self.degrees) or self.shape.devices

    @property
    def named(self) -> str:
        """The degrees: ``data × tensor × pipeline``, or ``data×tensor`` of each stage."""
        if self.degrees:
            return "+".join(f"{each.data}×{each.tensor}" for each in self.degrees)
        return f"{self.shape.data} × {self.shape.tensor} × {self.shape.pipeline}"

    @property
    def title(self) -> str:
        """`named` after the names of its numbers."""
        return f"{'stages of data × tensor' if self.degrees else 'data × tensor × pipeline'} {self.named}"

    @property
    def zero(self) -> str:
        """The stage of ZeRO, or one for each stage of the pipeline where these differ."""
        stages = [str(self.of_stage(number).zero) for number in range(self.shape.pipeline)]
        return "+".join(stages if len(set(stages)) > 1 else stages[:1])

    @property
    def recompute(self) -> str:
        """`StageLayers.modes` of the layers of all stages, or of each stage if stages have degrees of their own."""
        if self.degrees and not self.even_modes:
            return "+".join(stage.modes for stage in self.stages)
        return StageLayers(*map(sum, zip(*self.stages, strict=True))).modes

    @property
    def even_modes(self) -> bool:
        """Whether all layers of all stages are recomputed in the same mode."""
        return sum(any(own) for own in zip(*self.stages, strict=True)) == 1


class Limits(NamedTuple):
    """The configurations that a training tool can express.

    Attributes:
        zero: stages of ZeRO among several replicas.
        schedules: of a pipeline.
        data_alone: whether the tool knows replicas of one device each, without other parallelism.
        accepts: whether the tool can express a configuration's layers and recomputation of each stage.
    """

    zero: tuple[int, ...]
    schedules: tuple[StepSchedule, ...]
    data_alone: bool
    accepts: Callable[[ParallelConfig], bool]


@dataclass(frozen=True)
class Demands:
    """The user's demands on the configuration; None leaves a value open.

    Attributes:
        devices: the largest number of devices to use.
        tensor, pipeline, data, samples, zero, schedule, expert: as in `ParallelShape`.
        recompute: the recomputation mode of every layer.
        precision, gradients: as in `ParallelConfig`.
        limits: of the tool that a configuration is for; its stages then have the same degrees, and its layers the same
            recomputation mode.
    """

    devices: int | None = None
    tensor: int | None = None
    pipeline: int | None = None
    data: int | None = None
    samples: int | None = None
    zero: int | None = None
    schedule: StepSchedule | None = None
    recompute: RecomputeMode | None = None
    precision: Precision = "float32"
    gradients: Precision = "float32"
    limits: Limits | None = None
    expert: int | None = None


@dataclass(frozen=True)
class TrainingSetting:
    """A training problem: the network, the devices and the demands on the configuration.

    Attributes:
        network: the transformer.
        fabric: devices and ports.
        batch: samples of a step.
        gradient_bytes: of a parameter.
        efficiency: shares of the devices' peaks.
        demands: of the configuration.
        optimizer: a name of `OPTIMIZERS`; its states are float32, and so is a copy of the parameters.
    """

    network: Transformer
    fabric: Fabric
    batch: int
    gradient_bytes: int = FLOAT32_GRADIENT
    efficiency: Efficiency = MEGATRON
    demands: Demands = Demands()
    optimizer: str = "adam"

    __repr__ = brief

    @property
    def n_devices(self) -> int:
        """The largest number of devices that a configuration may use."""
        return self.demands.devices or len(self.fabric.devices)

    @property
    def state_bytes(self) -> int:
        """Bytes of a parameter's float32 copy and of the optimizer's states."""
        return FLOAT32 * (1 + OPTIMIZERS[self.optimizer].copies)


def training_setting(
    network: Transformer,
    cluster: Cluster,
    batch: int,
    demands: Demands = Demands(),
    gradient_bytes: int = FLOAT32_GRADIENT,
    optimizer: str = "adam",
) -> TrainingSetting:
    """Return a checked setting.

    Raises:
        InputError: for devices that do not reach each other, an unknown optimizer, or demands that do not divide
            devices, heads, layers or the batch; the message names the nearest that do.
    """
    one_of(optimizer, "the optimizer", OPTIMIZERS)
    fabric, batch = fabric_of(cluster), checked_batch(batch)
    setting = TrainingSetting(network, fabric, batch, gradient_bytes, demands=demands, optimizer=optimizer)
    _check_demands(setting)
    return setting


def checked_batch(batch: int) -> int:
    """Return the samples of a step, which are at most `MOST_BATCH`, so that their divisors are found quickly.

    Raises:
        InputError: for any other number.
    """
    if integer(batch, "the global batch", 1) > MOST_BATCH:
        raise InputError(f"the global batch is {batch:,}; it may have up to {MOST_BATCH:,} samples")
    return batch


def tensor_degrees(network: Transformer, most: int) -> list[int]:
    """Return the degrees up to ``most`` that divide heads, key heads, hidden and feed-forward sizes and tokens."""
    ffn = network.ffn if network.mixture is None else network.mixture.width
    sizes = (network.heads, network.kv_heads, ffn, network.hidden, network.sequence)
    return [degree for degree in range(1, most + 1) if not any(size % degree for size in sizes)]


def data_degrees(batch: int, most: int) -> list[int]:
    """Return the numbers of replicas up to ``most`` that divide the samples of a batch, ascending."""
    small = [degree for degree in range(1, min(isqrt(batch), most) + 1) if batch % degree == 0]
    large = (batch // degree for degree in reversed(small))
    return small + [degree for degree in large if small[-1] < degree <= most]


def zero_degrees(data: int, asked: int | None) -> tuple[int, ...]:
    """Return the stages of ZeRO to try for ``data`` replicas; a single replica divides no states."""
    if data == 1:
        return (0,)
    return ZERO_STAGES if asked is None else (asked,)


def _check_demands(setting: TrainingSetting) -> None:
    """Check that each demand can be met alone, and all together."""
    network, asked, available = setting.network, setting.demands, len(setting.fabric.devices)
    if asked.devices is not None and asked.devices > available:
        raise InputError(f"{asked.devices} devices asked for; the cluster has {available}")
    total, batch = setting.n_devices, setting.batch
    heads = f"{network.heads} heads and {network.kv_heads} of keys on {total} devices"
    _check_among(asked.tensor, tensor_degrees(network, total), "tensor", heads)
    stages = range(1, min(network.layers, total) + 1)
    _check_among(asked.pipeline, stages, "pipeline", f"{network.layers} layers on {total} devices")
    if asked.schedule in EVEN_SCHEDULES:
        alike = [number for number in stages if network.layers % number == 0]
        _check_among(
            asked.pipeline, alike, "pipeline", f"{asked.schedule}, whose stages of {network.layers} layers are alike"
        )
    _check_among(asked.data, data_degrees(batch, total), "data", f"the global batch of {batch} on {total} devices")
    replicas = data_degrees(batch, total) if asked.data is None else [asked.data]
    known = sorted({degree for data in replicas for degree in expert_degrees(network.mixture, data)})
    experts = f"{network.mixture.count} experts" if network.mixture else "a network without experts"
    _check_among(asked.expert, known, "expert", f"{experts} on {max(replicas)} replicas")
    _check_among(asked.zero, ZERO_STAGES[: None if max(replicas) > 1 else 1], "zero", "a single replica")
    _check_together(setting)
    share = batch // (asked.data or 1)
    _check_among(asked.samples, data_degrees(share, share), "micro-batch", f"{share} samples of a replica")


def _check_together(setting: TrainingSetting) -> None:
    """Check that the degrees that are asked for divide the devices."""
    asked, total, available = setting.demands, setting.n_devices, len(setting.fabric.devices)
    tensor, pipeline, data = asked.tensor or 1, asked.pipeline or 1, asked.data or 1
    degrees = tensor * pipeline * data
    named = f"tensor {tensor} × pipeline {pipeline} × data {data} = {degrees}"
    if degrees > total:
        raise InputError(f"{named} devices, and there are {total}; ask for fewer of one")
    if asked.devices is not None and asked.devices % degrees:
        near = max(degrees, round(asked.devices / degrees) * degrees)
        near -= degrees if near > available else 0
        raise InputError(f"{named} does not divide {asked.devices} devices; the nearest that works is {near} devices")


def _check_among(asked: int | None, known: Sequence[int], name: str, of: str) -> None:
    """Check that a number that is asked for is one of those that work."""
    if asked is not None and asked not in known:
        near = min(known, key=lambda number: (abs(number - asked), number))
        raise InputError(f"{name} = {asked} does not fit {of}; the nearest that works is {near}")
