"""ShapePrices: the stages of a shape, and the time of a step.

With m micro-batches, p stages, v chunks of a stage, and a_i of `priced_stage`:

::

    1f1b            m max a + (sum a - max a)                the others fill and drain once
    interleaved     m max a + (sum a - max a) / v            Narayanan et al., SC 2021
    zb-h1           1f1b less 2 (p - 1) w                    w: weight gradients of a stage; Qi et al., ICLR 2024
    step            that, then gradients and the optimizer of the slowest stage

Stages may have degrees of their own. Then each rank of a stage sends and receives its part of a micro-batch, which is
smaller on a stage of more devices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from graphs.common.brief import brief
from planner.parallelism.closed_form.config import (
    ParallelConfig,
    ParallelShape,
    StageDegrees,
    StageLayers,
    TrainingSetting,
)
from planner.parallelism.closed_form.layer_book import LayerBook
from planner.parallelism.closed_form.priced_stage import PricedStage


class StepPrice(NamedTuple):
    """The price of a training step.

    Attributes:
        step_s: seconds of the whole step.
        computing_s: seconds in which the slowest stage computes.
        communicating_s: seconds of that stage for tensor parallelism, messages, and unhidden traffic of ZeRO 2 and 3.
        bubble_s: seconds in which the pipeline fills and drains.
        sync_s: seconds of gradients and optimizer.
        memory_bytes: bytes of a device of each stage.
    """

    step_s: float
    computing_s: float
    communicating_s: float
    bubble_s: float
    sync_s: float
    memory_bytes: tuple[float, ...]

    @property
    def peak_bytes(self) -> float:
        """Bytes of the fullest device."""
        return max(self.memory_bytes)


@dataclass(frozen=True)
class ShapePrices:
    """The prices of the stages of a shape.

    Attributes:
        book: prices of layers.
        shape: how devices and batch are divided.
        degrees: of each stage, where stages differ, as in `ParallelConfig`.
    """

    book: LayerBook
    shape: ParallelShape
    degrees: tuple[StageDegrees, ...] = ()

    __repr__ = brief

    def of(self, stage: int) -> PricedStage:
        """Return the price of a stage."""
        if stage not in self._known:
            self._known[stage] = self._priced_stage(stage)
        return self._known[stage]

    @cached_property
    def _known(self) -> dict[int, PricedStage]:
        return {}

    @property
    def each(self) -> list[PricedStage]:
        """All stages."""
        return [self.of(stage) for stage in range(self.shape.pipeline)]

    @cached_property
    def fill(self) -> float:
        """The share of the other stages' times that filling and draining the pipeline takes."""
        return 1 / self.shape.chunks

    @cached_property
    def shift_s(self) -> float:
        """Seconds of a step that zero-bubble scheduling saves."""
        if self.shape.schedule != "zb-h1":
            return 0.0
        layers = self.book.setting.network.layers // self.shape.pipeline
        stages = [self.of(0)] if self.book.alike else self.each
        return 2 * (self.shape.pipeline - 1) * layers * min(stage.layer.products_s for stage in stages)

    def step_s(self, stage_s: Sequence[float]) -> float:
        """Return the seconds of a step's micro-batches, without gradients and optimizer, from [n_stages] seconds."""
        longest_s = max(stage_s)
        return (self.shape.micro_batches - self.fill) * longest_s + self.fill * sum(stage_s) - self.shift_s

    @cached_property
    def distinct(self) -> tuple[tuple[int, int], ...]:
        """Stages that differ in more than the number of micro-batches held, each with the number of stages like it.

        The first of the equal stages in the middle stands for the others, because it holds the most micro-batches.
        """
        pipeline = self.shape.pipeline
        if pipeline <= 3 or not self.book.alike or self.degrees:
            return tuple((stage, 1) for stage in range(pipeline))
        return (0, 1), (1, pipeline - 2), (pipeline - 1, 1)

    def even_price(self, layers: StageLayers) -> StepPrice:
        """Return the price of a step with the same layers on every stage; the memory is that of `distinct` stages."""
        return self._price({stage: layers for stage, _ in self.distinct}, dict(self.distinct))

    def price(self, stages: Sequence[StageLayers]) -> StepPrice:
        """Return the price of a step with the given layers of each stage."""
        return self._price(dict(enumerate(stages)), dict.fromkeys(range(len(stages)), 1))

    def _price(self, stages: Mapping[int, StageLayers], numbers: Mapping[int, int]) -> StepPrice:
        """Return the price of a step, from the layers of some stages and the number of stages like each."""
        own_s = {stage: self.of(stage).pass_s(layers) for stage, layers in stages.items()}
        busiest = max(own_s, key=lambda stage: own_s[stage])
        stage_s = [s for stage, s in own_s.items() for _ in range(numbers[stage])]
        micro_batches, computing_s = self.shape.micro_batches, self.of(busiest).computing_s(stages[busiest])
        streaming_s = self.step_s(stage_s)
        sync_s = max(self.of(stage).sync_s(layers.total) for stage, layers in stages.items())
        return StepPrice(
            step_s=streaming_s + sync_s,
            computing_s=micro_batches * computing_s,
            communicating_s=micro_batches * (own_s[busiest] - computing_s),
            bubble_s=streaming_s - micro_batches * own_s[busiest],
            sync_s=sync_s,
            memory_bytes=tuple(self.of(stage).bytes_of(layers) for stage, layers in stages.items()),
        )

    def _priced_stage(self, stage: int) -> PricedStage:
        shape = self.shape.with_degrees(self.degrees[stage]) if self.degrees else self.shape
        apart = shape.tensor * (shape.data if shape.order == "data" else 1), shape.pipeline
        if self.degrees:
            apart = 1, sum(own.devices for own in self.degrees)
        members = (0,) if self.book.alike else self._members(stage)
        return PricedStage.on(self.book, shape, stage, members, apart)

    def _members(self, stage: int) -> Sequence[int]:
        """Return the numbers of the devices of a stage."""
        data, tensor, pipeline = self.shape[:3]
        if self.degrees:
            first = sum(own.devices for own in self.degrees[:stage])
            return range(first, first + self.degrees[stage].devices)
        if self.shape.order == "data":
            size = data * tensor
            return range(stage * size, (stage + 1) * size)
        return [(replica * pipeline + stage) * tensor + rank for replica in range(data) for rank in range(tensor)]


def config_price(setting: TrainingSetting, config: ParallelConfig) -> StepPrice:
    """Return the price of a step under a configuration."""
    return ShapePrices(LayerBook(setting), config.shape, config.degrees).price(config.stages)
