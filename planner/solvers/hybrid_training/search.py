"""Search: every shape with the same layers on every stage, then the best layers of the shapes that could be faster.

::

    1  each shape × recomputation, stages alike    one price each; what no other row dominates is kept
    2  shapes by their bound, ascending            until a bound is no less than the fastest step that was found;
                                                   layers of the stages by dynamic programming

When the second part ends by itself, no configuration of the space takes a shorter step.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from costmodels.memory.transformers import RECOMPUTE_MODES
from graphs.brief import brief
from planner.problem.deadline import Deadline
from planner.problem.hybrid_training.config import ParallelConfig, ParallelShape, StageLayers, TrainingSetting
from planner.problem.hybrid_training.prices import LayerBook, ShapePrices, StepPrice
from planner.problem.reporter import SILENT, Reporter
from planner.problem.result import PROOF_TOLERANCE, Status
from planner.solvers.hybrid_training.shapes import shapes_of
from planner.solvers.hybrid_training.stage_fill import best_fill, least_sync_s, streaming_bound_s

TOLD = 1000  # shapes between two reports of progress


class ConfigRow(NamedTuple):
    """A configuration with its price."""

    config: ParallelConfig
    price: StepPrice


@dataclass(frozen=True)
class ConfigTable:
    """What a search found.

    Attributes:
        rows: configurations of which none is as fast as another with no more memory and devices, the fastest first.
        status: optimal if the first row is proved to be the fastest; infeasible if nothing fits.
        bound_s: no configuration takes a shorter step.
        shapes: how many there are.
        least_bytes: of a device, what the configuration that needs the least takes.
        wall_s: seconds of the search.
    """

    rows: tuple[ConfigRow, ...]
    status: Status
    bound_s: float
    shapes: int
    least_bytes: float
    wall_s: float

    __repr__ = brief


def choose_config(setting: TrainingSetting, time_limit_s: float = 60.0, reporter: Reporter = SILENT) -> ConfigTable:
    """Find the configurations that no other one dominates, and prove how good the fastest is."""
    deadline = Deadline(time_limit_s)
    search = _ConfigSearch(setting, deadline, reporter)
    search.even_stages()
    bound_s = search.best_stages()
    rows = tuple(search.front.undominated())
    if not rows:
        status = Status.UNKNOWN if search.left_out else Status.INFEASIBLE
    else:
        status = Status.OPTIMAL if rows[0].price.step_s * (1 - PROOF_TOLERANCE) <= bound_s else Status.FEASIBLE
    wall_s = time_limit_s - deadline.left_s
    return ConfigTable(rows, status, bound_s, len(search.shapes), search.least_bytes, wall_s)


@dataclass
class _Front:
    """For each number of devices, the rows that no other one dominates in time and memory."""

    by_devices: dict[int, list[tuple[float, float, int, ConfigRow]]] = field(default_factory=dict)
    offered: int = 0

    @property
    def best_s(self) -> float:
        """The fastest step."""
        return min((rows[0][0] for rows in self.by_devices.values()), default=inf)

    def offer(self, row: ConfigRow) -> None:
        """Take a row unless another one with as many devices dominates it, and drop those that it dominates."""
        rows = self.by_devices.setdefault(row.config.shape.devices, [])
        step_s, peak = row.price.step_s, row.price.peak_bytes
        position = bisect_left(rows, (step_s, peak))
        if position and rows[position - 1][1] <= peak:
            return
        while position < len(rows) and rows[position][1] >= peak:
            del rows[position]
        self.offered += 1
        insort(rows, (step_s, peak, self.offered, row))

    def undominated(self) -> Iterator[ConfigRow]:
        """The rows that none with fewer devices dominates either, the fastest first."""
        rows = [row for devices in self.by_devices.values() for *_, row in devices]
        rows.sort(key=lambda row: (row.price.step_s, row.config.shape.devices, row.price.peak_bytes))
        kept: list[tuple[int, float]] = []  # devices and memory of faster rows
        for row in rows:
            devices, peak = row.config.shape.devices, row.price.peak_bytes
            if not any(n <= devices and n_bytes <= peak for n, n_bytes in kept):
                kept = [(n, n_bytes) for n, n_bytes in kept if n < devices or n_bytes < peak]
                kept.append((devices, peak))
                yield row


class _ConfigSearch:
    """Shapes, their bounds, and the rows so far."""

    def __init__(self, setting: TrainingSetting, deadline: Deadline, reporter: Reporter) -> None:
        self.setting, self._deadline, self._reporter = setting, deadline, reporter
        self._book = LayerBook(setting)
        self.front = _Front()
        self.shapes = list(shapes_of(setting))
        self.bounds: list[tuple[float, int]] = []  # seconds, number of the shape
        self.left_out = 0
        self.least_bytes = inf

    def even_stages(self) -> None:
        """Price every shape with stages alike."""
        for number, shape in enumerate(self.shapes):
            if number % TOLD == 0:
                self._reporter.on_step("pricing shapes", number, len(self.shapes))
            if self._deadline.over and self.front.offered:
                self.left_out = len(self.shapes) - number
                self.bounds += [(0.0, later) for later in range(number, len(self.shapes))]
                return
            prices = ShapePrices(self._book, shape)
            if self._possible(prices):
                self.bounds.append((streaming_bound_s(prices) + _sync_bound_s(prices), number))
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

    def _possible(self, prices: ShapePrices) -> bool:
        """Whether the parameters of the mean stage fit, with everything recomputed."""
        layers = -(-self.setting.network.layers // prices.shape.pipeline)
        middle = StageLayers(0, 0, layers)
        least = min(prices.bytes_of(stage, middle) for stage in _different(prices.shape.pipeline))
        self.least_bytes = min(self.least_bytes, least)
        return least <= max(prices.limits)

    def _even_layers(self, shape: ParallelShape) -> Iterable[StageLayers]:
        """All layers of a stage under each kind of recomputation."""
        layers, rest = divmod(self.setting.network.layers, shape.pipeline)
        asked = self.setting.demands.recompute
        for position, mode in enumerate(RECOMPUTE_MODES):
            if not rest and asked in (None, mode) and not (mode == "selective" and self.setting.network.flash):
                yield StageLayers(*(layers if position == own else 0 for own in range(len(RECOMPUTE_MODES))))

    def _offer_even(self, prices: ShapePrices, layers: StageLayers) -> None:
        price = prices.even_price(layers)
        limits = (prices.limits[stage] for stage, _ in prices.distinct)
        if all(n_bytes <= limit for n_bytes, limit in zip(price.memory_bytes, limits, strict=True)):
            self.front.offer(ConfigRow(ParallelConfig(prices.shape, (layers,) * prices.shape.pipeline), price))

    def _offer_best(self, prices: ShapePrices) -> float:
        """Offer the best layers of a shape if they may be the fastest; returns what no step of the shape undercuts."""
        sync_s = least_sync_s(prices)
        found = best_fill(prices, self.front.best_s - sync_s)
        if found is None:
            return inf
        self.front.offer(ConfigRow(ParallelConfig(prices.shape, found.stages), prices.price(found.stages)))
        return found.streaming_s + sync_s


def _sync_bound_s(prices: ShapePrices) -> float:
    """Gradients and optimizer of a stage that has the mean of the layers or more, whichever it is."""
    layers = -(-prices.book.setting.network.layers // prices.shape.pipeline)
    stages = _different(prices.shape.pipeline) if prices.book.alike else range(prices.shape.pipeline)
    return min(prices.sync_s(stage, layers) for stage in stages)


def _different(pipeline: int) -> set[int]:
    """The first stage, the last one, and of those between the one that holds the least."""
    return {0, max(0, pipeline - 2), pipeline - 1}
