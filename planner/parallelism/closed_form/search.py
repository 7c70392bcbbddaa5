"""Search: equal stages first, then the best layers of each stage, then the best degrees of each stage.

::

    1  each shape × recomputation, equal stages    by a quick bound, ascending; one price each, unless a row that is
                                                   faster than the bound has as few devices and less memory than the
                                                   shape's states; what no other row dominates is kept
    2  shapes by their bound, ascending            until a bound is no less than the fastest step that was found;
                                                   layers of the stages by dynamic programming
    3  stages that differ in degrees and ZeRO, by  as in 2; `degrees`
       their number and the size of micro-batches

If no part is cut short by the time limit, no configuration of the space takes a shorter step.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

import numpy as np

from costmodels.workload import RECOMPUTE_MODES
from graphs.common.brief import brief
from planner.parallelism.best_first import best_first
from planner.parallelism.closed_form.bounds import (
    different_stages,
    least_states,
    least_sync_s,
    quick_bound_s,
    streaming_bound_s,
    sync_bound_s,
)
from planner.parallelism.closed_form.config import ParallelConfig, ParallelShape, StageLayers, TrainingSetting
from planner.parallelism.closed_form.degrees import MOST_STEPS, ClosedFormStages, pipelines
from planner.parallelism.closed_form.layer_book import LayerBook
from planner.parallelism.closed_form.prices import ShapePrices, StepPrice, config_price
from planner.parallelism.closed_form.room import Need, need_of
from planner.parallelism.closed_form.shapes import shapes_of
from planner.parallelism.closed_form.stage_fill import best_fill
from planner.problem.deadline import Deadline
from planner.problem.reporter import SILENT, Reporter
from planner.problem.result import PROOF_TOLERANCE, Status

FIRST_SHARE = 0.7  # of the time, for stages alike
TOLD = 1000  # shapes between two reports of progress


class ConfigRow(NamedTuple):
    """A configuration with its price."""

    config: ParallelConfig
    price: StepPrice


@dataclass(frozen=True)
class ConfigTable:
    """The result of a search.

    Attributes:
        rows: configurations of which none is as fast as another with no more memory and devices, the fastest first.
        status: optimal if the first row is proved to be the fastest; infeasible if nothing fits.
        bound_s: no configuration takes a shorter step.
        shapes: the number of shapes whose stages have the same degrees.
        left_out: the number of these that were not priced for lack of time; rows with less memory may be missing.
        least_need: memory of the shape that lacks the least; None if no shape was priced.
        wall_s: seconds of the search.
    """

    rows: tuple[ConfigRow, ...]
    status: Status
    bound_s: float
    shapes: int
    left_out: int
    least_need: Need | None
    wall_s: float

    __repr__ = brief


def choose_config(setting: TrainingSetting, time_limit_s: float = 60.0, reporter: Reporter = SILENT) -> ConfigTable:
    """Find the configurations that no other one dominates, and prove how good the fastest is."""
    search = _ConfigSearch(setting, time_limit_s, reporter)
    search.even_stages()
    bound_s = search.best_stages()
    bound_s = min(bound_s, search.best_degrees())
    rows = tuple(search.front.undominated())
    if not rows:
        status = Status.UNKNOWN if search.left_out else Status.INFEASIBLE
    else:
        status = Status.OPTIMAL if rows[0].price.step_s * (1 - PROOF_TOLERANCE) <= bound_s else Status.FEASIBLE
    return ConfigTable(rows, status, bound_s, len(search.shapes), search.left_out, search.least_need, search.wall_s)


class _Front:
    """For each number of devices, the rows that no other one dominates in time and memory."""

    def __init__(self, most_devices: int) -> None:
        self._by_devices: dict[int, list[tuple[float, float, int, ConfigRow]]] = {}
        self._later: list[tuple[float, int, float]] = []  # a heap of rows: seconds, devices, bytes
        self._least_bytes = np.full(most_devices + 1, inf)  # by devices: of rows that are faster, with no more devices
        self.offered = 0
        self.best_s = inf

    def offer(self, row: ConfigRow) -> None:
        """Take a row unless another one with as many devices dominates it, and drop those that it dominates."""
        rows = self._by_devices.setdefault(row.config.devices, [])
        step_s, peak = row.price.step_s, row.price.peak_bytes
        position = bisect_left(rows, (step_s, peak))
        if position and rows[position - 1][1] <= peak:
            return
        while position < len(rows) and rows[position][1] >= peak:
            del rows[position]
        self.offered += 1
        self.best_s = min(self.best_s, step_s)
        insort(rows, (step_s, peak, self.offered, row))
        heappush(self._later, (step_s, row.config.devices, peak))

    def dominates(self, least_s: float, devices: int, least_bytes: float) -> bool:
        """Return whether a row dominates all rows with at least these seconds and bytes; ask in ascending time."""
        while self._later and self._later[0][0] <= least_s:
            _, enough, n_bytes = heappop(self._later)
            self._least_bytes[enough:] = np.minimum(self._least_bytes[enough:], n_bytes)
        return bool(self._least_bytes[devices] <= least_bytes)

    def undominated(self) -> Iterator[ConfigRow]:
        """Yield the rows that no row with fewer devices dominates either, the fastest first."""
        rows = [row for devices in self._by_devices.values() for *_, row in devices]
        rows.sort(key=lambda row: (row.price.step_s, row.config.devices, row.price.peak_bytes))
        kept: list[tuple[int, float]] = []  # devices and memory of faster rows
        for row in rows:
            devices, peak = row.config.devices, row.price.peak_bytes
            if not any(n <= devices and n_bytes <= peak for n, n_bytes in kept):
                kept = [(n, n_bytes) for n, n_bytes in kept if n < devices or n_bytes < peak]
                kept.append((devices, peak))
                yield row


class _ConfigSearch:
    """Shapes, their bounds, and the rows so far."""

    def __init__(self, setting: TrainingSetting, time_limit_s: float, reporter: Reporter) -> None:
        self.setting, self._reporter = setting, reporter
        self._first, self._deadline = Deadline(FIRST_SHARE * time_limit_s), Deadline(time_limit_s)
        self._book = LayerBook(setting)
        self._most_bytes = max(device.usable_bytes for device in setting.fabric.devices)
        self.front = _Front(setting.n_devices)
        self.shapes = list(shapes_of(setting))
        self.bounds: list[tuple[float, int]] = []  # seconds, number of the shape
        self.left_out = 0
        self.least_need: Need | None = None

    @property
    def wall_s(self) -> float:
        """Seconds so far."""
        return self._deadline.limit_s - self._deadline.left_s

    def even_stages(self) -> None:
        """Price every shape with stages alike, those first that could be fast."""
        quick = sorted((quick_bound_s(self._book, shape), number) for number, shape in enumerate(self.shapes))
        for done, (quick_s, number) in enumerate(quick):
            if done % TOLD == 0:
                self._reporter.on_step("pricing shapes", done, len(quick))
            if self._first.over and self.front.offered:
                self.left_out = len(quick) - done
                self.bounds += quick[done:]
                return
            shape = self.shapes[number]
            if self.front.dominates(quick_s, shape.devices, least_states(self._book, shape)):
                continue
            prices = ShapePrices(self._book, shape)
            if self._possible(prices):
                self.bounds.append((max(quick_s, streaming_bound_s(prices) + sync_bound_s(prices)), number))
                for layers in self._even_layers(shape):
                    self._offer_even(prices, layers)

    def best_stages(self) -> float:
        """Look for better layers where a shape's bound allows them; returns what no step is shorter than."""
        self.bounds.sort()
        proved_s = inf
        for done, (bound_s, number) in enumerate(self.bounds):
            if bound_s >= self.front.best_s:
                break
            if self._deadline.over:
                return min(bound_s, proved_s)
            if done % TOLD == 0:
                self._reporter.on_step("dividing layers among stages", done, len(self.bounds))
            proved_s = min(proved_s, self._offer_best(ShapePrices(self._book, self.shapes[number])))
        return min(self.front.best_s, proved_s)

    def best_degrees(self) -> float:
        """Look for stages that differ in degrees; returns what no step of such stages is shorter than."""
        proved_s = inf
        found = pipelines(self._book) if self.setting.demands.limits is None else ()
        for done, pipeline in enumerate(found):
            if pipeline.quick_bound_s >= self.front.best_s:
                break
            if self._deadline.over:
                return min(pipeline.quick_bound_s, proved_s)
            self._reporter.on_step("comparing degrees of each stage", done, len(found))
            source = ClosedFormStages(pipeline, self.front.best_s)
            config, least_s = best_first(source, self.front.best_s, MOST_STEPS, self._deadline)
            proved_s = min(proved_s, least_s)
            if config is not None:
                self.front.offer(ConfigRow(config, config_price(self.setting, config)))
        return proved_s

    def _possible(self, prices: ShapePrices) -> bool:
        """Return whether the mean stage fits with everything recomputed, and note what it needs."""
        layers = -(-self.setting.network.layers // prices.shape.pipeline)
        middle = StageLayers(0, 0, layers)
        stages = [prices.of(stage) for stage in different_stages(prices.shape.pipeline)]
        least = min(stage.bytes_of(middle) for stage in stages)
        need = need_of(prices)
        if self.least_need is None or need.lacking_bytes < self.least_need.lacking_bytes:
            self.least_need = need
        return least <= self._most_bytes

    def _even_layers(self, shape: ParallelShape) -> Iterable[StageLayers]:
        """Yield the layers of a stage under each mode of recomputation."""
        layers, rest = divmod(self.setting.network.layers, shape.pipeline)
        asked = self.setting.demands.recompute
        for position, mode in enumerate(RECOMPUTE_MODES):
            if not rest and asked in (None, mode) and not (mode == "selective" and self.setting.network.flash):
                yield StageLayers(*(layers if position == own else 0 for own in range(len(RECOMPUTE_MODES))))

    def _offer_even(self, prices: ShapePrices, layers: StageLayers) -> None:
        price = prices.even_price(layers)
        limits = (prices.of(stage).limit for stage, _ in prices.distinct)
        if all(n_bytes <= limit for n_bytes, limit in zip(price.memory_bytes, limits, strict=True)):
            self._offer(prices.shape, (layers,) * prices.shape.pipeline, price)

    def _offer_best(self, prices: ShapePrices) -> float:
        """Offer the best layers of a shape if they may be the fastest; returns what no step of the shape undercuts."""
        proved_s, sync_s = inf, least_sync_s(prices)
        for book in self._books:
            own = ShapePrices(book, prices.shape)
            found = best_fill(own, self.front.best_s - sync_s)
            if found is not None:
                self._offer(prices.shape, found.stages, own.price(found.stages))
                proved_s = min(proved_s, found.streaming_s + sync_s)
        return proved_s

    @cached_property
    def _books(self) -> Sequence[LayerBook]:
        """Prices of layers; one for each kind of recomputation if all layers have to run the same again."""
        demands = self.setting.demands
        if demands.limits is None or demands.recompute is not None:
            return [self._book]
        modes = (replace(self.setting, demands=replace(demands, recompute=mode)) for mode in RECOMPUTE_MODES)
        return [LayerBook(setting) for setting in modes]

    def _offer(self, shape: ParallelShape, stages: tuple[StageLayers, ...], price: StepPrice) -> None:
        asked = self._book.setting.demands
        config = ParallelConfig(shape, stages, asked.precision, asked.gradients)
        if asked.limits is None or asked.limits.accepts(config):
            self.front.offer(ConfigRow(config, price))
