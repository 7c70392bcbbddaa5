"""The best layers of the stages of one shape: their number and their recomputation, within the memory of each stage.

With a_i(n) the least time of n layers on stage i that fits, and f the share of `ShapePrices.fill`:

::

    minimise (m - f) max a + f sum a       so for every value M that max a may have, ascending:
    least[i][l] = min over n of least[i - 1][l - n] + a_i(n),  where a_i(n) <= M          sum of i stages with l layers

The search ends when (m - f) M and f times the least sum of all are no better than what was found.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from planner.parallelism.closed_form.bounds import must_be_even
from planner.parallelism.closed_form.config import StageLayers
from planner.parallelism.closed_form.prices import ShapePrices


@dataclass(frozen=True)
class StageFill:
    """Layers of the stages, and the time of a step without gradients and optimizer."""

    stages: tuple[StageLayers, ...]
    streaming_s: float


class LayerTable:
    """The least seconds of a number of layers on a stage, computed on demand."""

    def __init__(self, prices: ShapePrices) -> None:
        self._prices = prices
        self._known: dict[tuple[int, int], tuple[float, StageLayers | None]] = {}

    def at(self, stage: int, layers: int) -> tuple[float, StageLayers | None]:
        """Return the least seconds of ``layers`` on a stage and their recomputation; infinite and None if none fits."""
        if (stage, layers) not in self._known:
            own = self._prices.of(stage)
            found = own.cheapest(layers)
            self._known[stage, layers] = inf if found is None else own.pass_s(found), found
        return self._known[stage, layers]


def best_fill(prices: ShapePrices, most_s: float = inf) -> StageFill | None:
    """Return the layers of the stages that stream fastest; None if none stream in less than ``most_s`` seconds.

    Interleaved and zero-bubble schedules need the same number of layers on each stage; recomputation may differ.
    """
    table, shape = LayerTable(prices), prices.shape
    layers = prices.book.setting.network.layers
    if must_be_even(shape):
        found = [table.at(stage, layers // shape.pipeline) for stage in range(shape.pipeline)]
        return _filled(prices, [stage for _, stage in found], most_s)
    counts = range(1, _most_layers(prices, most_s) + 1)
    if not counts:
        return None
    times = [[table.at(stage, count)[0] for count in counts] for stage in range(shape.pipeline)]
    best: StageFill | None = None
    least_sum_s = sum(map(min, times))
    for longest_s in sorted({s for stage in times for s in stage if s < inf}):
        limit_s = best.streaming_s if best else most_s
        if (shape.micro_batches - prices.fill) * longest_s + prices.fill * least_sum_s >= limit_s:
            break
        chosen = _least_sum(times, counts, layers, longest_s)
        if chosen is not None:
            filled = [table.at(stage, count)[1] for stage, count in enumerate(chosen)]
            best = _filled(prices, filled, limit_s) or best
    return best


def _most_layers(prices: ShapePrices, most_s: float) -> int:
    """Return the most layers of a stage that does not alone make the step too slow."""
    layers = prices.book.setting.network.layers - prices.shape.pipeline + 1
    longest_s = most_s / max(prices.shape.micro_batches - prices.fill, 1e-9)
    return int(min(layers, longest_s / min(min(stage.layer.total_s) for stage in prices.each)))


def _filled(prices: ShapePrices, stages: Sequence[StageLayers | None], most_s: float) -> StageFill | None:
    fitting = [stage for stage in stages if stage is not None]
    if len(fitting) < len(stages):
        return None
    streaming_s = prices.step_s([own.pass_s(stage) for own, stage in zip(prices.each, fitting, strict=True)])
    return StageFill(tuple(fitting), streaming_s) if streaming_s < most_s else None


def _least_sum(times: Sequence[Sequence[float]], counts: range, layers: int, longest_s: float) -> list[int] | None:
    """Return the layers of each stage with the least sum of times, each within a limit; None if there are none."""
    most = [max((n for n, s in zip(counts, stage, strict=True) if s <= longest_s), default=0) for stage in times]
    if sum(most) < layers or not all(most):
        return None
    least: dict[int, float] = {0: 0.0}
    taken: list[dict[int, int]] = []
    for number, stage in enumerate(times):
        rest = sum(most[number + 1 :])
        sums: dict[int, float] = {}
        how: dict[int, int] = {}
        for done, so_far_s in least.items():
            for count, s in zip(counts, stage, strict=True):
                reachable = s <= longest_s and layers - rest <= done + count <= layers
                if reachable and so_far_s + s < sums.get(done + count, inf):
                    sums[done + count], how[done + count] = so_far_s + s, count
        least = sums
        taken.append(how)
    if layers not in least:
        return None
    chosen: list[int] = []
    left = layers
    for how in reversed(taken):
        chosen.append(how[left])
        left -= how[left]
    return chosen[::-1]
