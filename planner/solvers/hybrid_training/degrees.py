"""The best stages of pipelines whose stages differ: devices, degrees, ZeRO, layers and what of them runs again.

With m micro-batches of all replicas, a_i the passes of stage i, and s_i its gradients and optimizer:

::

    step = (m - 1) max a + sum a + max s            stages have consecutive devices, none begins on one host and ends
                                                    on another unless it begins with a host
    rest[i][device][layers]                         the least sum of a, the least longest a and the least longest s of
                                                    stages i, i + 1, .. p - 1, each for itself: dynamic programming
    (m - 1) max(longest, rest) + sum + rest + max(after, rest)       no step with this beginning is shorter: A*

Source of A*: Hart, Nilsson and Raphael, IEEE Transactions on Systems Science and Cybernetics 1968.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from math import floor, inf
from typing import NamedTuple, TypeAlias

import numpy as np

from costmodels.arrays import Floats, Ints
from costmodels.memory.transformers import RECOMPUTE_MODES, ZERO_STAGES
from graphs.brief import brief
from planner.problem.deadline import Deadline
from planner.problem.hybrid_training.config import (
    ParallelConfig,
    ParallelShape,
    StageDegrees,
    StageLayers,
    TrainingSetting,
    data_degrees,
    tensor_degrees,
)
from planner.problem.hybrid_training.layer_book import LayerBook
from planner.problem.hybrid_training.stage_prices import StagePrices, message_s

MOST_STAGES = 8
MOST_STEPS = 5000  # of a search, each for the beginning of a pipeline
NEARLY = 1e-9  # relative; what is faster by less is as fast


class StageWay(NamedTuple):
    """A way to run some layers on the devices of a stage."""

    pass_s: float
    after_s: float  # gradients and optimizer
    degrees: StageDegrees
    layers: StageLayers


class WayTable(NamedTuple):
    """Ways to run a stage, [n_ways] each."""

    pass_s: Floats
    after_s: Floats
    n_layers: Ints
    ways: Sequence[StageWay]


_Tables: TypeAlias = dict[tuple[int, int], WayTable]  # by devices of a stage, and a mask of their kinds


class Beginning(NamedTuple):
    """The first stages of a pipeline, in the order of the search."""

    bound_s: float  # no step that begins so is shorter
    to_come: int  # stages
    at: int  # the next device
    left: int  # layers
    sum_s: float
    longest_s: float
    after_s: float
    ways: tuple[StageWay, ...]


class _Rest(NamedTuple):
    """[n_devices + 1, n_layers + 1], the least that stages on the devices from one on take with so many layers."""

    sum_s: Floats
    longest_s: Floats
    after_s: Floats


class DegreeSearch:
    """Pipelines of a setting whose stages differ, by the number of stages and the size of micro-batches."""

    def __init__(self, book: LayerBook) -> None:
        self._book, self._setting = book, book.setting
        self._ways: dict[tuple[int, int, StageDegrees, int, bool, int], dict[int, StageWay | None]] = {}

    def problems(self) -> list["DegreeProblem"]:
        """All of them, those first that could be fast; none if the same degrees are asked of all stages."""
        asked, network, total = self._setting.demands, self._setting.network, self._setting.n_devices
        if {asked.data, asked.tensor, asked.samples} != {None} or asked.schedule not in (None, "1f1b"):
            return []
        stages = range(2, min(MOST_STAGES, network.layers, total) + 1)
        found = [
            DegreeProblem(self, self._book, samples, number)
            for samples in data_degrees(self._setting.batch, self._setting.batch)
            for number in stages
            if asked.pipeline in (None, number)
        ]
        return sorted(found, key=lambda problem: problem.quick_bound_s)

    def way(self, stage: StagePrices, mask: int, layers: int, most_s: float) -> StageWay | None:
        """The fastest way to run so many layers on a stage; None if none in less than ``most_s`` fits.

        The limit of a size of micro-batches never grows during a search.
        """
        shape = stage.shape
        degrees = StageDegrees(shape.data, shape.tensor, shape.zero)
        later = shape.pipeline - stage.number
        known = self._ways.setdefault((shape.samples, mask, degrees, later, not stage.number, shape.micro_batches), {})
        if layers not in known:
            found = stage.cheapest(layers, most_s)
            known[layers] = found and StageWay(stage.pass_s(found), stage.sync_s(layers), degrees, found)
        return known[layers]


@dataclass(frozen=True)
class DegreeProblem:
    """The problem of so many stages and samples of a micro-batch.

    Attributes:
        search: which knows ways to run stages.
        book: prices of layers.
        samples: of a micro-batch, of all replicas.
        n_stages: of the pipeline.
    """

    search: DegreeSearch
    book: LayerBook
    samples: int
    n_stages: int

    __repr__ = brief

    @property
    def setting(self) -> TrainingSetting:
        """What is trained."""
        return self.book.setting

    @property
    def micro_batches(self) -> int:
        """Of a step."""
        return self.setting.batch // self.samples

    @property
    def n_devices(self) -> int:
        """How many may be used."""
        return self.setting.n_devices

    @cached_property
    def quick_bound_s(self) -> float:
        """No step is shorter: layers divided by what each device could do, and all of them once, the fastest way."""
        layers = self.setting.network.layers
        per_s = sum(
            int(count) / min(degrees.devices * self._layer_s(degrees, device) for degrees in self._degrees)
            for device, count in zip(self._examples, self._counts[:, -1], strict=True)
        )
        return (self.micro_batches - 1) * layers / per_s + layers * self._fastest_layer_s

    def best(self, most_s: float, deadline: Deadline) -> tuple[ParallelConfig | None, float]:
        """The fastest stages of those whose step takes less than ``most_s``, and seconds that no stages undercut."""
        tables = list(self._tables(most_s))
        rests, layers, none = self._rests(tables), self.setting.network.layers, np.zeros(1)
        root_s = float(self._bounds(none, none, none, rests[0], 0, np.array([layers]))[0])
        heap = [Beginning(root_s, self.n_stages, 0, layers, 0.0, 0.0, 0.0, ())]
        seen: dict[tuple[int, int, int], list[tuple[float, float, float]]] = {}
        for _ in range(MOST_STEPS):
            if not heap or heap[0].bound_s >= most_s * (1 - NEARLY):
                return None, inf
            begun = heappop(heap)
            if not begun.to_come:
                return self._config(begun), begun.bound_s
            if deadline.over:
                return None, begun.bound_s
            own = begun.sum_s, begun.longest_s, begun.after_s
            others = seen.setdefault((begun.to_come, begun.at, begun.left), [])
            if not any(all(x <= y for x, y in zip(other, own, strict=True)) for other in others):
                others.append(own)
                for longer in self._longer(begun, tables, rests):
                    if longer.bound_s < most_s * (1 - NEARLY):
                        heappush(heap, longer)
        return None, heap[0].bound_s if heap else inf

    # --- degrees and devices -----------------------------------------------------------------------------------------

    @cached_property
    def _degrees(self) -> list[StageDegrees]:
        """All that a stage may have."""
        return [degrees for degrees in self._known_degrees if degrees.devices <= self.n_devices - self.n_stages + 1]

    @cached_property
    def _known_degrees(self) -> list[StageDegrees]:
        """Those of a stage on all devices, too."""
        asked = self.setting.demands.zero
        return [
            StageDegrees(data, tensor, zero)
            for tensor in tensor_degrees(self.setting.network, self.n_devices)
            for data in data_degrees(self.samples, self.n_devices // tensor)
            for zero in ((0,) if data == 1 else ZERO_STAGES if asked is None else (asked,))
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
        devices = self.book.fabric.devices[: self.n_devices]
        kinds = {(device.kind, device.memory_bytes): number for number, device in reversed(list(enumerate(devices)))}
        return sorted(kinds.values())

    @cached_property
    def _counts(self) -> Ints:
        """[n_kinds, n_devices + 1], how many devices of each kind stand before one."""
        devices = self.book.fabric.devices[: self.n_devices]
        counts = np.zeros((len(self._examples), self.n_devices + 1), dtype=np.int64)
        for own, example in zip(counts, self._examples, strict=True):
            kind = devices[example].kind, devices[example].memory_bytes
            own[1:] = np.cumsum([(device.kind, device.memory_bytes) == kind for device in devices])
        return counts

    @cached_property
    def _known_places(self) -> dict[int, dict[int, Ints]]:
        return {}

    def _places(self, size: int) -> dict[int, Ints]:
        """The first devices of groups of a size, by a mask of the kinds of their devices."""
        if size not in self._known_places:
            self._known_places[size] = self._places_of(size)
        return self._known_places[size]

    def _places_of(self, size: int) -> dict[int, Ints]:
        each, at = self.book.fabric.host_devices, np.arange(self.n_devices - size + 1)
        at = at[(at % each == 0) | (at % each + size <= each)]
        there = self._counts[:, at + size] > self._counts[:, at]
        masks = (there * (1 << np.arange(len(there)))[:, None]).sum(axis=0)
        return {int(mask): at[masks == mask] for mask in np.unique(masks)}

    def _layer_s(self, degrees: StageDegrees, device: int) -> float:
        """A layer on devices like one, as nothing more than what is asked runs again."""
        mode = RECOMPUTE_MODES.index(self.setting.demands.recompute or RECOMPUTE_MODES[0])
        return self.book.price(device, degrees.tensor, self.samples // degrees.data).total_s[mode]

    @cached_property
    def _fastest_layer_s(self) -> float:
        each = ((degrees, device) for degrees in self._known_degrees for device in self._examples)
        return min(self._layer_s(*one) for one in each)

    # --- ways to run a stage -----------------------------------------------------------------------------------------

    def _tables(self, most_s: float) -> Iterator[_Tables]:
        """For each stage, the ways of a size and a mask of kinds that may be a part of a step below ``most_s``."""
        layers = self.setting.network.layers
        longest_s = most_s - layers * self._fastest_layer_s
        longest_s = longest_s / (self.micro_batches - 1) if self.micro_batches > 1 else most_s
        longest_s *= 1 + NEARLY
        most = {size: self._most_layers(size, longest_s) for size in self._by_size}
        share = max(count / size for size, count in most.items())
        places = [
            (size, mask, range(max(1, layers - floor(share * (self.n_devices - size) + NEARLY)), most[size] + 1))
            for size in self._by_size
            for mask in self._places(size)
        ]
        for number in range(self.n_stages):
            found = ((size, mask, self._table(number, size, mask, counts, longest_s)) for size, mask, counts in places)
            yield {(size, mask): table for size, mask, table in found if table.ways}

    def _most_layers(self, size: int, longest_s: float) -> int:
        """The most layers that so many devices could run within a time."""
        most = self.setting.network.layers - self.n_stages + 1
        layer_s = min(self._layer_s(degrees, device) for degrees in self._by_size[size] for device in self._examples)
        return min(most, floor(longest_s / layer_s)) if longest_s < inf else most

    def _table(self, number: int, size: int, mask: int, counts: range, longest_s: float) -> WayTable:
        """The ways to run a stage with so many layers of which no other one is better for passes and gradients."""
        stages = [self._stage(number, degrees, mask) for degrees in self._by_size[size]]
        kept: list[StageWay] = []
        for count in counts:
            ways = [way for stage in stages if (way := self.search.way(stage, mask, count, longest_s))]
            least_s = inf
            for way in sorted(ways):
                if way.after_s < least_s:
                    kept.append(way)
                    least_s = way.after_s
        pass_s, after_s = (np.array([way[field] for way in kept]) for field in (0, 1))
        return WayTable(pass_s, after_s, np.array([way.layers.total for way in kept], dtype=np.int64), kept)

    def _stage(self, number: int, degrees: StageDegrees, mask: int) -> StagePrices:
        """The prices of a stage on devices of the kinds of a mask."""
        devices = self.book.fabric.devices
        members = [example for bit, example in enumerate(self._examples) if mask >> bit & 1]
        shape = ParallelShape(
            degrees.data,
            degrees.tensor,
            self.n_stages,
            self.samples // degrees.data,
            self.micro_batches,
            degrees.zero,
        )
        return StagePrices(
            self.book,
            shape,
            number,
            slowest=min(members, key=lambda member: max(devices[member].flops_per_s.values())),
            limit=min(devices[member].memory_bytes for member in members),
            message_s=message_s(self.book, shape, 1, self.n_devices),
        )

    # --- search ------------------------------------------------------------------------------------------------------

    def _rests(self, tables: Sequence[_Tables]) -> list[_Rest]:
        """[n_stages + 1], from each stage on."""
        layers, host = self.setting.network.layers, self.book.fabric.host_devices
        end = np.full((self.n_devices + 1, layers + 1), inf)
        end[host + 1 if len(self.book.fabric.devices) > host else 0 :, 0] = 0.0  # within a host, messages take less
        rests = [_Rest(end, end, end)]
        for table in reversed(tables):
            own, behind = _Rest(*(np.full_like(end, inf) for _ in _Rest._fields)), rests[-1]
            for (size, mask), ways in table.items():
                at = self._places(size)[mask]
                for pass_s, after_s, count in zip(ways.pass_s, ways.after_s, ways.n_layers.tolist(), strict=True):
                    after = _Rest(*(each[at + size, : layers + 1 - count] for each in behind))
                    more = (
                        after.sum_s + pass_s,
                        np.maximum(after.longest_s, pass_s),
                        np.maximum(after.after_s, after_s),
                    )
                    for least, found in zip(own, more, strict=True):
                        least[at, count:] = np.minimum(least[at, count:], found)
            rests.append(own)
        return rests[::-1]

    def _bounds(self, sum_s: Floats, longest_s: Floats, after_s: Floats, rest: _Rest, at: int, left: Ints) -> Floats:
        """No step is shorter that goes on from a device with so many layers left."""
        others = self.micro_batches - 1
        others_s = others * np.maximum(longest_s, rest.longest_s[at, left]) if others else 0.0
        after_s = np.maximum(after_s, rest.after_s[at, left])
        return np.asarray(others_s + sum_s + rest.sum_s[at, left] + after_s)

    def _longer(self, begun: Beginning, tables: Sequence[_Tables], rests: Sequence[_Rest]) -> Iterator[Beginning]:
        """A beginning with one stage more, in all ways."""
        number = self.n_stages - begun.to_come
        for (size, mask), table in tables[number].items():
            if begun.at not in self._places(size)[mask]:
                continue
            at, left = begun.at + size, begun.left - table.n_layers
            sum_s, longest_s = begun.sum_s + table.pass_s, np.maximum(begun.longest_s, table.pass_s)
            after_s = np.maximum(begun.after_s, table.after_s)
            bounds = self._bounds(sum_s, longest_s, after_s, rests[number + 1], at, np.maximum(left, 0))
            for way in np.flatnonzero((left >= 0) & (bounds < inf)).tolist():
                bound, own, longest, after = (float(each[way]) for each in (bounds, sum_s, longest_s, after_s))
                ways = (*begun.ways, table.ways[way])
                yield Beginning(bound, begun.to_come - 1, at, int(left[way]), own, longest, after, ways)

    def _config(self, found: Beginning) -> ParallelConfig:
        shape, asked = ParallelShape(1, 1, self.n_stages, self.samples, self.micro_batches), self.setting.demands
        degrees = tuple(way.degrees for way in found.ways)
        if len(set(degrees)) == 1:
            data, tensor, zero = degrees[0]
            shape = shape._replace(data=data, tensor=tensor, samples=self.samples // data, zero=zero)
            degrees = ()
        layers = tuple(way.layers for way in found.ways)
        return ParallelConfig(shape, layers, asked.precision, asked.gradients, degrees)
