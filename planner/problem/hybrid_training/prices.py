"""ShapePrices: seconds and bytes of the stages of a shape, and the time of a step.

With m micro-batches, p stages and v chunks of a stage:

::

    a_i     stage i for a micro-batch, forward and backward: layers, their tensor-parallel all-reduces, what is
            recomputed, the head, messages to neighbours; ZeRO 2 and 3 beside it, overlapped
    1f1b            m max a + (sum a - max a)                the others fill and drain once
    interleaved     m max a + (sum a - max a) / v            Narayanan et al., SC 2021
    zb-h1           1f1b less 2 (p - 1) w                    w: weight gradients of a stage; Qi et al., ICLR 2024
    step            that, then gradients (ZeRO 0: all-reduce; 1: reduce-scatter, and all-gather of parameters; 2: the
                    latter) and the optimizer, of the slowest stage; neither overlaps with computing

    held by stage i     min(m, p - i) micro-batches; interleaved min(m, (2 (p - i - 1) + (v - 1) p + 1) / v)
    bytes               states under ZeRO, activations held, one recomputed layer, 10 bytes a logit on the last stage

Sources of memory are those of `costmodels.memory.transformers`, of collectives those of `costmodels.collectives`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf
from typing import NamedTuple

from costmodels.collectives import overlapped_s
from costmodels.fabric import Fabric, FabricGroup
from costmodels.layer_times import LayerTimes
from costmodels.memory.transformers import (
    PARAMETER,
    RECOMPUTE_MODES,
    LayerSplit,
    layer_activations,
    zero_states,
)
from graphs.brief import brief
from planner.problem.hybrid_training.config import ParallelConfig, ParallelShape, StageLayers, TrainingSetting

ALL_REDUCES = 2  # of a layer, one way: after attention and after the feed-forward part
ACTIVATION = 2  # bytes of a value between layers
LOGIT = 10  # bytes kept of a logit: 16 bits, 32 bits, and its gradient's 32 bits
TOKEN = 8  # bytes of a token's number
GATHERED = 2  # products whose parameters ZeRO-3 has gathered at a time: one in use, one on its way (DeepSpeed)


class LayerPrice(NamedTuple):
    """A layer for a micro-batch on one device of its stage, forward and backward, by what is recomputed."""

    total_s: tuple[float, float, float]  # by recomputation
    computing_s: tuple[float, float, float]  # of it
    products_s: float  # weight gradients
    head_s: float
    held_bytes: tuple[float, float, float]


class StepPrice(NamedTuple):
    """What a step takes.

    Attributes:
        step_s: all of it.
        computing_s: of the slowest stage.
        communicating_s: of that stage: tensor parallelism, messages, and what ZeRO 2 and 3 cannot hide.
        bubble_s: waiting for the pipeline to fill and drain.
        sync_s: gradients and optimizer.
        memory_bytes: of a device of each stage.
    """

    step_s: float
    computing_s: float
    communicating_s: float
    bubble_s: float
    sync_s: float
    memory_bytes: tuple[float, ...]

    @property
    def peak_bytes(self) -> float:
        """Of the fullest device."""
        return max(self.memory_bytes)


class LayerBook:
    """Prices of layers, each worked out once."""

    def __init__(self, setting: TrainingSetting) -> None:
        self.setting = setting
        efficiency = setting.efficiency
        self.fabric: Fabric = setting.fabric.slowed(efficiency.inside, efficiency.between)
        self.sharded_fabric: Fabric = setting.fabric.slowed(efficiency.inside, efficiency.sharded)
        self._kinds = tuple({device.kind: number for number, device in enumerate(setting.fabric.devices)}.values())
        self.alike = len(self._kinds) == 1
        self._prices: dict[tuple[str, int, int], LayerPrice] = {}

    def price(self, device: int, tensor: int, samples: int) -> LayerPrice:
        """Of a layer that ``tensor`` devices like this one share."""
        key = (self.fabric.devices[device].kind, tensor, samples)
        if key not in self._prices:
            self._prices[key] = self._price(device, tensor, samples)
        return self._prices[key]

    def fastest(self, tensor: int, samples: int) -> LayerPrice:
        """Of a layer on the device that is fastest with it."""
        prices = (self.price(device, tensor, samples) for device in self._kinds)
        return min(prices, key=lambda price: price.total_s[0])

    def _price(self, device: int, tensor: int, samples: int) -> LayerPrice:
        network = self.setting.network
        times = LayerTimes(network, self.fabric.devices[device], self.setting.efficiency)
        splits = [LayerSplit(tensor, tensor > 1, mode) for mode in RECOMPUTE_MODES]
        n_bytes = ACTIVATION * samples * network.sequence * network.hidden
        reduce_s = ALL_REDUCES * self.fabric.all_reduce(n_bytes, self.fabric.group(tensor, 1)) if tensor > 1 else 0.0
        forward_s, attention_s = times.forward_s(samples, splits[0]), times.attention_s(samples, tensor)
        computing_s = (3 * forward_s, 3 * forward_s + attention_s, 4 * forward_s)
        return LayerPrice(
            (computing_s[0] + 2 * reduce_s, computing_s[1] + 2 * reduce_s, computing_s[2] + 3 * reduce_s),
            computing_s,
            network.product_flops(samples) / tensor / times.flops_per_s / self.setting.efficiency.products,
            times.head_s(samples, tensor),
            tuple(layer_activations(network, samples, split) for split in splits),  # type: ignore[arg-type]
        )


@dataclass(frozen=True)
class ShapePrices:
    """What the stages of a shape take.

    Attributes:
        book: prices of layers.
        shape: how devices and batch are divided.
    """

    book: LayerBook
    shape: ParallelShape

    __repr__ = brief

    @cached_property
    def layers(self) -> tuple[LayerPrice, ...]:
        """The prices of a layer, by stage."""
        return tuple(self.book.price(device, self.shape.tensor, self.shape.samples) for device in self._slowest_devices)

    @cached_property
    def limits(self) -> tuple[float, ...]:
        """Bytes of a device, by stage."""
        devices = self.book.fabric.devices
        if self.book.alike:
            return (devices[0].memory_bytes,) * self.shape.pipeline
        return tuple(min(devices[number].memory_bytes for number in members) for members in self._members)

    @cached_property
    def fill(self) -> float:
        """The share of the other stages' times that filling and draining takes."""
        return 1 / self.shape.chunks

    @cached_property
    def shift_s(self) -> float:
        """What zero-bubble scheduling saves."""
        if self.shape.schedule != "zb-h1":
            return 0.0
        layers = self.book.setting.network.layers // self.shape.pipeline
        return 2 * (self.shape.pipeline - 1) * layers * min(price.products_s for price in self.layers)

    def stage_s(self, stage: int, layers: StageLayers) -> float:
        """Seconds of a micro-batch on a stage."""
        price = self.layers[stage]
        own_s = sum(count * s for count, s in zip(layers, price.total_s, strict=True)) + self.end_s(stage)
        if self.shape.zero < 2 or self.shape.data == 1:
            return own_s
        return overlapped_s(own_s, self._zero_s(stage, layers.total), self.book.setting.efficiency.overlap)

    def end_s(self, stage: int) -> float:
        """What a stage takes besides its layers: messages to its neighbours, and the head on the last one."""
        return self._message_s + (self.layers[stage].head_s if stage == self.shape.pipeline - 1 else 0.0)

    def step_s(self, stage_s: Sequence[float]) -> float:
        """The micro-batches of a step, without gradients and optimizer, from the times of the stages."""
        longest_s = max(stage_s)
        return (self.shape.micro_batches - self.fill) * longest_s + self.fill * sum(stage_s) - self.shift_s

    def sync_s(self, stage: int, layers: int) -> float:
        """Seconds of gradients and optimizer of a stage."""
        shape, setting, fabric = self.shape, self.book.setting, self.book.fabric
        parameters = self._parameters(stage, layers)
        gradient_bytes, parameter_bytes = setting.gradient_bytes * parameters, PARAMETER * parameters
        times = LayerTimes(setting.network, fabric.devices[self._slowest_devices[stage]], setting.efficiency)
        divided = parameters / (shape.data if shape.zero else 1)
        step_s = times.optimizer_s(divided, setting.gradient_bytes, setting.state_bytes)
        if shape.data == 1 or shape.zero == 3:
            return step_s
        gather_s = fabric.all_gather(parameter_bytes, self._replicas) if shape.zero else 0.0
        if shape.zero == 0:
            return step_s + fabric.all_reduce(gradient_bytes, self._replicas)
        return step_s + gather_s + (fabric.all_gather(gradient_bytes, self._replicas) if shape.zero == 1 else 0.0)

    def bytes_of(self, stage: int, layers: StageLayers) -> float:
        """Bytes of a device of a stage."""
        return self._fixed_bytes(stage, layers.total) + self._activation_bytes(stage, layers)

    def cheapest(self, stage: int, layers: int) -> StageLayers | None:
        """So many layers of a stage in the least time that its memory allows; None if they do not fit."""
        asked = self.book.setting.demands.recompute
        if asked is not None:
            alike = StageLayers(*(layers if mode == asked else 0 for mode in RECOMPUTE_MODES))
            return alike if self.bytes_of(stage, alike) <= self.limits[stage] else None
        none_s, _, full_s = self.layers[stage].total_s
        best: StageLayers | None = None
        best_s = inf
        for full in range(layers + 1):
            if layers * none_s + full * (full_s - none_s) + self.end_s(stage) >= best_s:
                break
            found = self._with_full(stage, layers, full)
            if found is not None and (found_s := self.stage_s(stage, found)) < best_s:
                best, best_s = found, found_s
        return best

    @cached_property
    def distinct(self) -> tuple[tuple[int, int], ...]:
        """Stages that differ in more than the micro-batches that they hold, with the number of each.

        Of equal devices in the middle, the first holds the most.
        """
        pipeline = self.shape.pipeline
        if pipeline <= 3 or not self.book.alike:
            return tuple((stage, 1) for stage in range(pipeline))
        return (0, 1), (1, pipeline - 2), (pipeline - 1, 1)

    def even_price(self, layers: StageLayers) -> StepPrice:
        """What a step takes with the same layers on every stage; the memory is that of `distinct` stages."""
        return self._price({stage: layers for stage, _ in self.distinct}, dict(self.distinct))

    def price(self, stages: Sequence[StageLayers]) -> StepPrice:
        """What a step takes with these layers."""
        return self._price(dict(enumerate(stages)), dict.fromkeys(range(len(stages)), 1))

    def _price(self, stages: Mapping[int, StageLayers], numbers: Mapping[int, int]) -> StepPrice:
        """What a step takes with these layers on so many stages each."""
        own_s = {stage: self.stage_s(stage, layers) for stage, layers in stages.items()}
        busiest = max(own_s, key=lambda stage: own_s[stage])
        stage_s = [s for stage, s in own_s.items() for _ in range(numbers[stage])]
        price, micro_batches = self.layers[busiest], self.shape.micro_batches
        computing_s = sum(count * s for count, s in zip(stages[busiest], price.computing_s, strict=True))
        computing_s += price.head_s if busiest == self.shape.pipeline - 1 else 0.0
        streaming_s = self.step_s(stage_s)
        sync_s = max(self.sync_s(stage, layers.total) for stage, layers in stages.items())
        return StepPrice(
            step_s=streaming_s + sync_s,
            computing_s=micro_batches * computing_s,
            communicating_s=micro_batches * (own_s[busiest] - computing_s),
            bubble_s=streaming_s - micro_batches * own_s[busiest],
            sync_s=sync_s,
            memory_bytes=tuple(self.bytes_of(stage, layers) for stage, layers in stages.items()),
        )

    def held(self, stage: int) -> float:
        """Micro-batches whose activations a stage holds."""
        pipeline, chunks = self.shape.pipeline, self.shape.chunks
        later = pipeline - stage - 1
        held = later + 1 if chunks == 1 else (2 * later + (chunks - 1) * pipeline + 1) / chunks
        return min(self.shape.micro_batches, held)

    def _with_full(self, stage: int, layers: int, full: int) -> StageLayers | None:
        """The fewest selective layers beside so many full ones."""
        plain = StageLayers(layers - full, 0, full)
        limit = self.limits[stage]
        if self.bytes_of(stage, plain) <= limit:
            return plain
        if full == layers:
            return None
        none, selective, _ = self.layers[stage].held_bytes
        saved = self.held(stage) * (none - selective)
        one = StageLayers(layers - full - 1, 1, full)
        over = self.bytes_of(stage, one) - limit
        more = max(0, ceil(over / saved)) if saved > 0 else (inf if over > 0 else 0)
        return StageLayers(layers - full - 1 - int(more), 1 + int(more), full) if more <= layers - full - 1 else None

    def _activation_bytes(self, stage: int, layers: StageLayers) -> float:
        """What a stage holds for its backward passes, and what is recomputed of one layer."""
        price, network = self.layers[stage], self.book.setting.network
        kept = sum(count * n_bytes for count, n_bytes in zip(layers, price.held_bytes, strict=True))
        none, selective, full = price.held_bytes
        again = none - full if layers.full else none - selective if layers.selective else 0.0
        tokens = self.shape.samples * network.sequence
        if stage == 0:
            kept += tokens * (TOKEN + network.hidden * network.dropout) / self.shape.tensor
        logits = LOGIT * tokens * network.vocabulary / self.shape.tensor if stage == self.shape.pipeline - 1 else 0.0
        return self.held(stage) * kept + again + logits

    def _fixed_bytes(self, stage: int, layers: int) -> float:
        """States, and what ZeRO-3 has gathered."""
        shape, setting = self.shape, self.book.setting
        states = zero_states(
            self._parameters(stage, layers), shape.data, shape.zero, setting.state_bytes, setting.gradient_bytes
        )
        if shape.zero < 3 or shape.data == 1:
            return states
        network = self.book.setting.network
        return states + GATHERED * PARAMETER * network.hidden * max(network.hidden, network.ffn) / shape.tensor

    @cached_property
    def _layer_parameters(self) -> float:
        """Of a layer on one device; norms and biases are not divided."""
        network = self.book.setting.network
        return network.product_parameters / self.shape.tensor + network.vector_parameters

    def _parameters(self, stage: int, layers: int) -> float:
        """Of a stage on one device; a tied head on another stage than the embedding is a copy of it."""
        network, last = self.book.setting.network, self.shape.pipeline - 1
        ends = network.embedding_parameters if stage == 0 else 0
        if stage == last:
            ends += network.vocabulary * network.hidden if last else network.head_parameters
        return layers * self._layer_parameters + ends / self.shape.tensor

    def _zero_s(self, stage: int, layers: int) -> float:
        """What ZeRO 2 and 3 send for each micro-batch: gradients, and parameters for both passes."""
        parameters = self._parameters(stage, layers)
        fabric = self.book.sharded_fabric
        gradients_s = fabric.all_gather(self.book.setting.gradient_bytes * parameters, self._replicas)
        if self.shape.zero == 2:
            return gradients_s
        return gradients_s + 2 * fabric.all_gather(PARAMETER * parameters, self._replicas)

    @cached_property
    def _message_s(self) -> float:
        """A micro-batch to and from a neighbouring stage, for every chunk; each rank sends a part."""
        shape, network = self.shape, self.book.setting.network
        if shape.pipeline == 1:
            return 0.0
        n_bytes = ACTIVATION * shape.samples * network.sequence * network.hidden / shape.tensor
        stride = shape.tensor * (shape.data if shape.order == "data" else 1)
        return 2 * shape.chunks * self.book.fabric.message(n_bytes, stride, shape.pipeline)

    @cached_property
    def _replicas(self) -> FabricGroup:
        stride = self.shape.tensor * (1 if self.shape.order == "data" else self.shape.pipeline)
        return self.book.fabric.group(self.shape.data, stride)

    @cached_property
    def _members(self) -> tuple[Sequence[int], ...]:
        """The devices of each stage."""
        data, tensor, pipeline = self.shape[:3]
        if self.shape.order == "data":
            size = data * tensor
            return tuple(range(stage * size, (stage + 1) * size) for stage in range(pipeline))
        return tuple(
            [(replica * pipeline + stage) * tensor + rank for replica in range(data) for rank in range(tensor)]
            for stage in range(pipeline)
        )

    @cached_property
    def _slowest_devices(self) -> tuple[int, ...]:
        """The slowest device of each stage, which sets its pace."""
        if self.book.alike:
            return (0,) * self.shape.pipeline
        devices = self.book.fabric.devices
        return tuple(
            min(members, key=lambda number: max(devices[number].flops_per_s.values())) for members in self._members
        )


def config_price(setting: TrainingSetting, config: ParallelConfig) -> StepPrice:
    """What a step takes under a configuration."""
    return ShapePrices(LayerBook(setting), config.shape).price(config.stages)
