"""PipelineOptions: every way to run a stage of a pipeline whose stages differ, on devices that follow each other.

::

    host 0          host 1
    d0 d1 d2 d3     d4 d5 d6 d7        a stage has devices of one host, or begins with one: d2 d3, or d4 .. d9

Among the ways to run the same number of layers on the same number and kinds of devices, a way is left out if another
takes no longer for its passes and no longer for its gradients and optimizer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import floor, inf
from typing import NamedTuple, TypeAlias

import numpy as np

from graphs.common.arrays import Floats, Ints
from graphs.common.brief import brief
from planner.parallelism.best_first import NEARLY
from planner.parallelism.closed_form.config import (
    ParallelShape,
    StageDegrees,
    StageLayers,
    TrainingSetting,
    data_degrees,
    tensor_degrees,
    zero_degrees,
)
from planner.parallelism.closed_form.layer_book import LayerBook
from planner.parallelism.closed_form.priced_stage import PricedStage


class StageOption(NamedTuple):
    """A way to run some layers on the devices of a stage."""

    pass_s: float
    after_s: float  # gradients and optimizer
    degrees: StageDegrees
    layers: StageLayers


class OptionTable(NamedTuple):
    """Ways to run a stage, [n_ways] each."""

    pass_s: Floats
    after_s: Floats
    n_layers: Ints
    ways: Sequence[StageOption]


OptionTables: TypeAlias = dict[tuple[int, int], OptionTable]
"""By the number of devices of a stage, and a mask of their kinds."""


class StageOptions:
    """The fastest ways to run layers on stages, each computed once."""

    def __init__(self, book: LayerBook) -> None:
        self.layers = book
        self._ways: dict[tuple[int, int, StageDegrees, int, bool, int], dict[int, StageOption | None]] = {}

    def way(self, stage: PricedStage, mask: int, layers: int, most_s: float) -> StageOption | None:
        """Return the fastest way to run ``layers`` layers on a stage; None if no way below ``most_s`` seconds fits.

        A way that was missed once stays missed: ``most_s`` of a size of micro-batches never grows during a search.
        """
        shape = stage.shape
        degrees = StageDegrees(shape.data, shape.tensor, shape.zero)
        later = shape.pipeline - stage.number
        known = self._ways.setdefault((shape.samples, mask, degrees, later, not stage.number, shape.micro_batches), {})
        if layers not in known:
            found = stage.cheapest(layers, most_s)
            known[layers] = found and StageOption(stage.pass_s(found), stage.sync_s(layers), degrees, found)
        return known[layers]


@dataclass(frozen=True)
class PipelineOptions:
    """The ways to run the stages of a pipeline.

    Attributes:
        book: of the ways to run stages.
        samples: of a micro-batch, over all replicas.
        n_stages: of the pipeline.
    """

    book: StageOptions
    samples: int
    n_stages: int

    __repr__ = brief

    @property
    def setting(self) -> TrainingSetting:
        """The training problem."""
        return self.book.layers.setting

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step."""
        return self.setting.batch // self.samples

    @property
    def shape(self) -> ParallelShape:
        """The shape without degrees."""
        return ParallelShape(1, 1, self.n_stages, self.samples, self.micro_batches)

    @property
    def n_devices(self) -> int:
        """The largest number of devices that the pipeline may use."""
        return self.setting.n_devices

    @cached_property
    def quick_bound_s(self) -> float:
        """A lower bound of a step: layers divided by the devices' speeds, and one pass through all of them at best."""
        book, layers = self.book.layers, self.setting.network.layers

        def device_s(device: int, degrees: StageDegrees) -> float:
            price = book.price(device, degrees.tensor, self.samples // degrees.data)
            return degrees.devices * price.total_s[book.mode]

        per_s = sum(
            int(count) / min(device_s(device, degrees) for degrees in self._degrees)
            for device, count in zip(self._examples, self._counts[:, -1], strict=True)
        )
        return (self.micro_batches - 1) * layers / per_s + layers * self._fastest_layer_s

    # --- degrees and devices -----------------------------------------------------------------------------------------

    @cached_property
    def _degrees(self) -> list[StageDegrees]:
        """The degrees that a stage may have, with a device left for each other stage."""
        return [degrees for degrees in self._known_degrees if degrees.devices <= self.n_devices - self.n_stages + 1]

    @cached_property
    def _known_degrees(self) -> list[StageDegrees]:
        """The degrees of a stage, up to all devices."""
        asked = self.setting.demands.zero
        return [
            StageDegrees(data, tensor, zero)
            for tensor in tensor_degrees(self.setting.network, self.n_devices)
            for data in data_degrees(self.samples, self.n_devices // tensor)
            for zero in zero_degrees(data, asked)
        ]

    @cached_property
    def _by_size(self) -> dict[int, list[StageDegrees]]:
        found: dict[int, list[StageDegrees]] = {}
        for degrees in self._degrees:
            found.setdefault(degrees.devices, []).append(degrees)
        return found

    @cached_property
    def _examples(self) -> list[int]:
        """A device of each kind and memory, the fastest kinds first."""
        devices = self.book.layers.fabric.devices[: self.n_devices]
        kinds = {(device.kind, device.usable_bytes): number for number, device in reversed(list(enumerate(devices)))}
        return sorted(kinds.values())

    @cached_property
    def _counts(self) -> Ints:
        """[n_kinds, n_devices + 1], how many devices of each kind come before a device."""
        devices = self.book.layers.fabric.devices[: self.n_devices]
        counts = np.zeros((len(self._examples), self.n_devices + 1), dtype=np.int64)
        for own, example in zip(counts, self._examples, strict=True):
            kind = devices[example].kind, devices[example].usable_bytes
            own[1:] = np.cumsum([(device.kind, device.usable_bytes) == kind for device in devices])
        return counts

    @cached_property
    def _known_places(self) -> dict[int, dict[int, Ints]]:
        return {}

    def places(self, size: int) -> dict[int, Ints]:
        """Return the first devices of groups of a size, by a mask of the kinds of their devices."""
        if size not in self._known_places:
            self._known_places[size] = self._places_of(size)
        return self._known_places[size]

    def _places_of(self, size: int) -> dict[int, Ints]:
        at = self.setting.fabric.places(size)
        at = at[at + size <= self.n_devices]
        there = self._counts[:, at + size] > self._counts[:, at]
        masks = (there * (1 << np.arange(len(there)))[:, None]).sum(axis=0)
        return {int(mask): at[masks == mask] for mask in np.unique(masks)}

    def _layer_s(self, degrees: StageDegrees) -> float:
        """Return the seconds of a layer on the fastest devices, with no more recomputation than is asked for."""
        book = self.book.layers
        return book.fastest(degrees.tensor, self.samples // degrees.data).total_s[book.mode]

    @cached_property
    def _fastest_layer_s(self) -> float:
        return min(map(self._layer_s, self._known_degrees))

    # --- ways to run a stage -----------------------------------------------------------------------------------------

    def tables(self, most_s: float) -> Iterator[OptionTables]:
        """Yield for each stage the ways of each size and mask of kinds that may be part of a step below ``most_s``."""
        layers = self.setting.network.layers
        longest_s = most_s - layers * self._fastest_layer_s
        longest_s = longest_s / (self.micro_batches - 1) if self.micro_batches > 1 else most_s
        longest_s *= 1 + NEARLY
        most = {size: self._most_layers(size, longest_s) for size in self._by_size}
        share = max(count / size for size, count in most.items())
        places = [
            (size, mask, range(max(1, layers - floor(share * (self.n_devices - size) + NEARLY)), most[size] + 1))
            for size in self._by_size
            for mask in self.places(size)
        ]
        for number in range(self.n_stages):
            found = ((size, mask, self._table(number, size, mask, counts, longest_s)) for size, mask, counts in places)
            yield {(size, mask): table for size, mask, table in found if table.ways}

    def _most_layers(self, size: int, longest_s: float) -> int:
        """Return the most layers that ``size`` devices could run within ``longest_s`` seconds."""
        most = self.setting.network.layers - self.n_stages + 1
        layer_s = min(map(self._layer_s, self._by_size[size]))
        return min(most, floor(longest_s / layer_s)) if longest_s < inf else most

    def _table(self, number: int, size: int, mask: int, counts: range, longest_s: float) -> OptionTable:
        """Return the ways to run a stage, by layers, that no other way dominates in passes and in gradients."""
        stages = [self._stage(number, degrees, mask) for degrees in self._by_size[size]]
        kept: list[StageOption] = []
        for count in counts:
            ways = [way for stage in stages if (way := self.book.way(stage, mask, count, longest_s))]
            least_s = inf
            for way in sorted(ways):
                if way.after_s < least_s:
                    kept.append(way)
                    least_s = way.after_s
        pass_s, after_s = (np.array([way[field] for way in kept]) for field in (0, 1))
        return OptionTable(pass_s, after_s, np.array([way.layers.total for way in kept], dtype=np.int64), kept)

    def _stage(self, number: int, degrees: StageDegrees, mask: int) -> PricedStage:
        """Return the price of a stage on devices of the kinds of a mask."""
        members = [example for bit, example in enumerate(self._examples) if mask >> bit & 1]
        shape = self.shape.with_degrees(degrees)
        return PricedStage.on(self.book.layers, shape, number, members, (1, self.n_devices))
