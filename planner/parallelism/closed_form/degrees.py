"""StageSearch: the best devices, degrees, ZeRO, layers and recomputation of stages that differ.

With m micro-batches of all replicas, a_i the passes of stage i, and s_i its gradients and optimizer:

::

    step = (m - 1) max a + sum a + max s
    rest[i][device][layers]                         the least sum of a, the least longest a and the least longest s of
                                                    stages i, i + 1, .. p - 1, each for itself: dynamic programming
    (m - 1) max(longest, rest) + sum + rest + max(after, rest)       no step with this beginning is shorter: A*

Source of A*: Hart, Nilsson and Raphael, IEEE Transactions on Systems Science and Cybernetics 1968.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

import numpy as np

from graphs.common.arrays import Floats, Ints
from graphs.common.brief import brief
from planner.parallelism.closed_form.config import ParallelConfig, data_degrees
from planner.parallelism.closed_form.layer_book import LayerBook
from planner.parallelism.closed_form.stage_ways import NEARLY, OptionTables, PipelineOptions, StageOption, StageOptions
from planner.problem.deadline import Deadline

MOST_STAGES = 8
MOST_STEPS = 5000  # of a search, each for the beginning of a pipeline


class Prefix(NamedTuple):
    """The first stages of a pipeline, ordered as the search takes them from its heap."""

    bound_s: float  # no step that begins so is shorter
    to_come: int  # stages
    at: int  # the next device
    left: int  # layers
    sum_s: float
    longest_s: float
    after_s: float
    ways: tuple[StageOption, ...]


class _Rest(NamedTuple):
    """The least seconds of the later stages, [n_devices + 1, n_layers + 1] each, by first device and layers."""

    sum_s: Floats
    longest_s: Floats
    after_s: Floats


def stage_searches(book: LayerBook) -> list["StageSearch"]:
    """Return a search for each number of stages and size of micro-batches, by a lower bound of the step, ascending.

    The list is empty if data or tensor, a size of micro-batches, or another schedule than 1F1B is asked for.
    """
    setting, ways = book.setting, StageOptions(book)
    asked = setting.demands
    if {asked.data, asked.tensor, asked.samples} != {None} or asked.schedule not in (None, "1f1b"):
        return []
    found = [
        StageSearch(PipelineOptions(ways, samples, number))
        for samples in data_degrees(setting.batch, setting.batch)
        for number in range(2, min(MOST_STAGES, setting.network.layers, setting.n_devices) + 1)
        if asked.pipeline in (None, number)
    ]
    return sorted(found, key=lambda search: search.ways.quick_bound_s)


@dataclass(frozen=True)
class StageSearch:
    """A best-first search over the ways to run the stages, one stage after another.

    Attributes:
        ways: to run the stages of a pipeline.
    """

    ways: PipelineOptions

    __repr__ = brief

    def best(self, most_s: float, deadline: Deadline) -> tuple[ParallelConfig | None, float]:
        """Return the fastest stages whose step takes less than ``most_s``, if any, and a lower bound of all steps."""
        tables = list(self.ways.tables(most_s))
        rests, layers, none = self._rests(tables), self.ways.setting.network.layers, np.zeros(1)
        root_s = float(self._bounds(none, none, none, rests[0], 0, np.array([layers]))[0])
        heap = [Prefix(root_s, self.ways.n_stages, 0, layers, 0.0, 0.0, 0.0, ())]
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

    def _rests(self, tables: Sequence[OptionTables]) -> list[_Rest]:
        """Return [n_stages + 1], the least seconds of the stages from each stage on."""
        setting = self.ways.setting
        layers, fabric = setting.network.layers, setting.fabric
        end = np.full((self.ways.n_devices + 1, layers + 1), inf)
        first = fabric.host_devices + 1 if len(fabric.devices) > fabric.host_devices else 0
        end[first:, 0] = 0.0  # of pipelines within one of several hosts, messages take less
        rests = [_Rest(end, end, end)]
        for table in reversed(tables):
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

    def _longer(self, begun: Prefix, tables: Sequence[OptionTables], rests: Sequence[_Rest]) -> Iterator[Prefix]:
        """Yield the beginning with one more stage, for each way to run that stage."""
        number = self.ways.n_stages - begun.to_come
        for (size, mask), table in tables[number].items():
            if begun.at not in self.ways.places(size)[mask]:
                continue
            at, left = begun.at + size, begun.left - table.n_layers
            sum_s, longest_s = begun.sum_s + table.pass_s, np.maximum(begun.longest_s, table.pass_s)
            after_s = np.maximum(begun.after_s, table.after_s)
            bounds = self._bounds(sum_s, longest_s, after_s, rests[number + 1], at, np.maximum(left, 0))
            for way in np.flatnonzero((left >= 0) & (bounds < inf)).tolist():
                bound, own, longest, after = (float(each[way]) for each in (bounds, sum_s, longest_s, after_s))
                ways = (*begun.ways, table.ways[way])
                yield Prefix(bound, begun.to_come - 1, at, int(left[way]), own, longest, after, ways)

    def _config(self, found: Prefix) -> ParallelConfig:
        shape, asked = self.ways.shape, self.ways.setting.demands
        degrees = tuple(way.degrees for way in found.ways)
        if len(set(degrees)) == 1:
            shape, degrees = shape.with_degrees(degrees[0]), ()
        layers = tuple(way.layers for way in found.ways)
        return ParallelConfig(shape, layers, asked.precision, asked.gradients, degrees)
