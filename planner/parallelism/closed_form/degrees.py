"""ClosedFormStages: the best devices, degrees, ZeRO, layers and recomputation of stages that differ.

With m micro-batches of all replicas, a_i the passes of stage i, and s_i its gradients and optimizer:

::

    step = (m - 1) max a + sum a + max s
    rest[i][device][layers]                         the least sum of a, the least longest a and the least longest s of
                                                    stages i, i + 1, .. p - 1, each for itself: dynamic programming
    (m - 1) max(longest, rest) + sum + rest + max(after, rest)       no step with this beginning is shorter
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np

from graphs.common.arrays import Floats, Ints
from graphs.common.brief import brief
from planner.parallelism.best_first import MOST_STAGES, Prefix
from planner.parallelism.closed_form.config import ParallelConfig, data_degrees
from planner.parallelism.closed_form.layer_book import LayerBook
from planner.parallelism.closed_form.stage_ways import OptionTables, PipelineOptions, StageOption, StageOptions

MOST_STEPS = 5000  # of a search, each for the beginning of a pipeline


class _Rest(NamedTuple):
    """The least seconds of the later stages, [n_devices + 1, n_layers + 1] each, by first device and layers."""

    sum_s: Floats
    longest_s: Floats
    after_s: Floats


def pipelines(book: LayerBook) -> list[PipelineOptions]:
    """Return a pipeline for each number of stages and size of micro-batches, by a lower bound of the step, ascending.

    The list is empty if data or tensor, a size of micro-batches, or another schedule than 1F1B is asked for, and for a
    mixture of experts, whose replicas divide the experts of a stage as they do on all stages.
    """
    setting, ways = book.setting, StageOptions(book)
    if setting.network.mixture is not None:
        return []
    asked = setting.demands
    if {asked.data, asked.tensor, asked.samples} != {None} or asked.schedule not in (None, "1f1b"):
        return []
    found = [
        PipelineOptions(ways, samples, number)
        for samples in data_degrees(setting.batch, setting.batch)
        for number in range(2, min(MOST_STAGES, setting.network.layers, setting.n_devices) + 1)
        if asked.pipeline in (None, number)
    ]
    return sorted(found, key=lambda pipeline: pipeline.quick_bound_s)


@dataclass(frozen=True)
class ClosedFormStages:
    """The stages of a pipeline whose step takes less than ``most_s``, priced in closed form, for `best_first`."""

    ways: PipelineOptions
    most_s: float

    __repr__ = brief
    exact = True

    def beginnings(self) -> list[Prefix[StageOption]]:
        """Return the beginning without stages."""
        layers, none = self.ways.setting.network.layers, np.zeros(1)
        root_s = float(self._bounds(none, none, none, self._rests[0], 0, np.array([layers]))[0])
        return [Prefix(root_s, self.ways.n_stages, 0, layers, (0.0, 0.0, 0.0), ())]

    @cached_property
    def _tables(self) -> Sequence[OptionTables]:
        return list(self.ways.tables(self.most_s))

    @cached_property
    def _rests(self) -> list[_Rest]:
        """Return [n_stages + 1], the least seconds of the stages from each stage on."""
        setting = self.ways.setting
        layers, fabric = setting.network.layers, setting.fabric
        end = np.full((self.ways.n_devices + 1, layers + 1), inf)
        first = fabric.host_devices + 1 if len(fabric.devices) > fabric.host_devices else 0
        end[first:, 0] = 0.0  # of pipelines within one of several hosts, messages take less
        rests = [_Rest(end, end, end)]
        for table in reversed(self._tables):
            own, behind = _Rest(*(np.full_like(end, inf) for _ in _Rest._fields)), rests[-1]
            for (size, mask), ways in table.items():
                at = self.ways.places(size)[mask]
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
        """Return [n_ways], lower bounds of steps whose later stages begin at device ``at`` with ``left`` layers."""
        others = self.ways.micro_batches - 1
        others_s = others * np.maximum(longest_s, rest.longest_s[at, left]) if others else 0.0
        after_s = np.maximum(after_s, rest.after_s[at, left])
        return np.asarray(others_s + sum_s + rest.sum_s[at, left] + after_s)

    def longer(self, begun: Prefix[StageOption]) -> Iterator[Prefix[StageOption]]:
        """Yield the beginning with one more stage, for each way to run that stage."""
        number, (sum_before_s, longest_before_s, after_before_s) = self.ways.n_stages - begun.to_come, begun.costs_s
        for (size, mask), table in self._tables[number].items():
            if begun.at not in self.ways.places(size)[mask]:
                continue
            at, left = begun.at + size, begun.left - table.n_layers
            sum_s, longest_s = sum_before_s + table.pass_s, np.maximum(longest_before_s, table.pass_s)
            after_s = np.maximum(after_before_s, table.after_s)
            bounds = self._bounds(sum_s, longest_s, after_s, self._rests[number + 1], at, np.maximum(left, 0))
            for way in np.flatnonzero((left >= 0) & (bounds < inf)).tolist():
                bound, *costs_s = (float(each[way]) for each in (bounds, sum_s, longest_s, after_s))
                ways = (*begun.stages, table.ways[way])
                yield Prefix(bound, begun.to_come - 1, at, int(left[way]), tuple(costs_s), ways)

    def solution(self, begun: Prefix[StageOption]) -> tuple[ParallelConfig, float]:
        """Return the configuration of all stages; its step is the bound."""
        shape, asked = self.ways.shape, self.ways.setting.demands
        degrees = tuple(way.degrees for way in begun.stages)
        if len(set(degrees)) == 1:
            shape, degrees = shape.with_degrees(degrees[0]), ()
        layers = tuple(way.layers for way in begun.stages)
        return ParallelConfig(shape, layers, asked.precision, asked.gradients, degrees), begun.bound_s
