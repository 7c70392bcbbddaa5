"""Hybrid DP: the pipeline of data- and tensor-parallel stages with the shortest time per sample.

For a time limit of a stage, a dynamic program over downsets and over the sum of copies finds the fewest devices; the
least limit for which there are enough is found by bisection. The state is the same as in Piper's dynamic program, but
for the number of devices, which is minimised here instead of being one more coordinate. Variants within a stage are
chosen greedily at first. As long as lower bounds of stages allow a better pipeline, those of its stages are solved
exactly; when they allow none, the best pipeline is proved.

Source: Tarnawski, Narayanan and Phanishayee, NeurIPS 2021.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import NamedTuple

import numpy as np

from graphs.common.brief import Brief
from planner.literature.hybrid_pipeline.kernel import StageSweep, StageTable, sweep_stages
from planner.literature.hybrid_pipeline.network import HybridNetwork
from planner.literature.hybrid_pipeline.stages import HybridStage, loads_of
from planner.literature.hybrid_pipeline.tables import (
    MOST_DOWNSETS,
    TooManyStages,
    least_work_s,
    stage_cuts,
    stage_tables,
)
from planner.literature.hybrid_pipeline.variants import exact_choice, variant_steps
from planner.problem.result import PROOF_TOLERANCE, Interrupted, Status
from planner.solvers.base import Budget

LIMITS = (2.0, 8.0)  # of a first pipeline, in units of the least time; tables for larger ones are larger
ANY_S = 1e30  # a limit that every stage keeps which has the memory
ROUNDING = 1e-12  # relative; sums of one stage and of many stages are added up in another order
CLOSE = 1e-9  # relative; where the bisection for a plan ends
ROUGH = 0.02  # relative; where it ends if there is no time
BOUND_CLOSE = 1e-4  # relative; where the bisection for a bound without proof ends


@dataclass(frozen=True)
class HybridResult(Brief):
    """An answer with its proof."""

    status: Status  # how the search ended
    stages: tuple[HybridStage, ...] | None  # of the best pipeline, or None
    time_s: float  # per sample; infinite without a pipeline
    bound_s: float  # no pipeline is faster
    wall_s: float  # seconds that the search took
    complete: bool = True  # whether all ways to cut the network in two were tried


def solve_hybrid(network: HybridNetwork, time_limit_s: float = 60.0) -> HybridResult:
    """Find the fastest pipeline.

    Of a network that can be cut in too many ways, the pipeline is the fastest of some of them, and the bound is that
    all devices are busy all the time.

    Raises:
        Interrupted: on Ctrl-C, with the best result until then.
    """
    budget = Budget(time_limit_s)
    search, stages = _begun(network)
    if stages is None and search.complete:
        return HybridResult(Status.INFEASIBLE, None, inf, inf, budget.wall_s)
    if stages is None:
        return HybridResult(Status.UNKNOWN, None, inf, search.least_s, budget.wall_s, complete=False)
    try:
        for better in _better(search, stages, budget):
            stages = better
        best_s = search.time(stages)
        bound_s = search.least_s
        if search.complete:
            bound_s = best_s * (1 - CLOSE) if search.proved else _bound_s(search, best_s, budget)
    except KeyboardInterrupt as stopped:
        raise Interrupted(_result(search, stages, search.least_s, budget)) from stopped
    return _result(search, stages, bound_s, budget)


def _begun(network: HybridNetwork) -> "tuple[_PipelineSearch, tuple[HybridStage, ...] | None]":
    """Return the search among as many stages as memory allows, and a first pipeline."""
    most = MOST_DOWNSETS
    while True:
        search = _PipelineSearch(network, most)
        try:
            return search, search.first()
        except TooManyStages:
            most = search.n_downsets // 2


def _result(search: "_PipelineSearch", stages: tuple[HybridStage, ...], bound_s: float, budget: Budget) -> HybridResult:
    best_s = search.time(stages)
    status = Status.OPTIMAL if best_s * (1 - PROOF_TOLERANCE) <= bound_s else Status.FEASIBLE
    return HybridResult(status, stages, best_s, bound_s, budget.wall_s, search.complete)


def _better(
    search: "_PipelineSearch", stages: tuple[HybridStage, ...], budget: Budget
) -> Iterator[tuple[HybridStage, ...]]:
    """Better and better pipelines; `_PipelineSearch.proved` says whether the last one is the best."""
    stages = _bisected(search, stages, search.least_s, budget)
    yield stages
    while not search.proved and budget.left_s > 0:
        limit_s = search.time(stages) * (1 - CLOSE)
        promising = search.promising(limit_s)
        search.proved = promising is None
        if promising is not None and not search.refine(promising):
            break
        better = search.stages(search.found, limit_s)
        if better is not None and search.time(better) < search.time(stages):
            stages = better
            yield stages


def _bisected(
    search: "_PipelineSearch", stages: tuple[HybridStage, ...], low_s: float, budget: Budget
) -> tuple[HybridStage, ...]:
    """Return the best stages with the variants that were found."""
    best_s = search.time(stages)
    while low_s < best_s * (1 - (CLOSE if budget.left_s > 0 else ROUGH)):
        limit_s = sqrt(low_s * best_s) if low_s > 0 else best_s / 2
        better = search.stages(search.found, limit_s)
        if better is None:
            low_s = limit_s
        elif (time_s := search.time(better)) < best_s:
            stages, best_s = better, time_s
        else:
            break  # rounding
    return stages


def _bound_s(search: "_PipelineSearch", best_s: float, budget: Budget) -> float:
    """Return a time limit that no pipeline meets, by bisection."""
    low_s, high_s = search.least_s, best_s
    while low_s < high_s * (1 - BOUND_CLOSE) and budget.left_s > 0:
        limit_s = sqrt(low_s * high_s) if low_s > 0 else high_s / 2
        if search.reaches(search.bound, limit_s):
            high_s = limit_s
        else:
            low_s = limit_s
    return low_s


class _Part(NamedTuple):
    """A stage by the numbers of the tables."""

    stage: int
    degree: int
    data: int
    in_flight: int


class _PipelineSearch:
    """The stages of a network, with the times of what was found and with lower bounds.

    Attributes:
        found: with the variants that were found.
        bound: with lower bounds of the compute times.
        proved: whether no pipeline of these stages is better than the best one.
        complete: whether they are all stages that there are.
    """

    proved = False

    def __init__(self, network: HybridNetwork, most_downsets: int) -> None:
        self._network, self._cuts = network, stage_cuts(network, most_downsets)
        self.complete, self.n_downsets = self._cuts.complete, self._cuts.n_downsets
        self._exact: dict[tuple[int, int, int], tuple[float, dict[int, int]]] = {}  # by degree, stage, in flight
        sizes = (self._cuts.n_downsets, self._cuts.most_copies + 1)
        self._sweep = StageSweep(*(np.zeros(sizes, np.int64) for _ in StageSweep._fields))

    def first(self) -> tuple[HybridStage, ...] | None:
        """Return a first pipeline; None if there is none. Tables are built for a limit that it meets."""
        for limit_s in (*(factor * self.least_s for factor in LIMITS if self.least_s > 0), ANY_S):
            self.found, self.bound = stage_tables(self._cuts, limit_s)
            stages = self.stages(self.found, limit_s)
            if stages is not None:
                return stages
        return None

    @property
    def least_s(self) -> float:
        """Every node on its cheapest degree, with all devices busy all the time."""
        return sum(least_work_s(self._network)) / self._network.devices

    def reaches(self, table: StageTable, limit_s: float) -> bool:
        """Return whether the devices suffice for stages within a limit."""
        sweep_stages(table, limit_s, self._network.devices, self._sweep)
        return bool(self._sweep.devices[0].min() <= self._network.devices)

    def promising(self, limit_s: float) -> list[_Part] | None:
        """Return a pipeline that lower bounds allow within a limit, or None."""
        return self._path(self.bound) if self.reaches(self.bound, limit_s) else None

    def stages(self, table: StageTable, limit_s: float) -> tuple[HybridStage, ...] | None:
        """Return stages within a limit that need the fewest devices, or None."""
        return tuple(map(self._stage, self._path(table))) if self.reaches(table, limit_s) else None

    def refine(self, parts: Sequence[_Part]) -> bool:
        """Solve exactly those stages whose bound is below what was found; False if there is nothing to gain."""
        gained = False
        for part in parts:
            y = part.in_flight - 1
            found, bound = (table.times(part.degree, part.stage) for table in (self.found, self.bound))
            if bound[y] >= found[y] * (1 - ROUNDING):
                continue
            nodes = np.flatnonzero(self._cuts.rows[part.stage]).tolist()
            exact = exact_choice(self._network, nodes, self._cuts.degrees[part.degree], part.in_flight)
            if exact is None:
                continue
            self._exact[part.degree, part.stage, part.in_flight] = exact
            found[: y + 1] = np.minimum(found[: y + 1], exact[0])
            bound[y:] = np.maximum(bound[y:], exact[0])
            gained = True
        return gained

    def time(self, stages: Sequence[HybridStage]) -> float:
        """Return the time of the slowest stage."""
        return max(load.time_s for load in loads_of(self._network, stages))

    def _path(self, table: StageTable) -> list[_Part]:
        """Return the stages that the last sweep found."""
        downset, copies = 0, int(np.argmin(self._sweep.devices[0]))
        found = []
        while downset < len(self._sweep.devices) - 1:
            stage, data = (int(column[downset, copies]) for column in (self._sweep.stage, self._sweep.data))
            found.append(_Part(stage, int(self._sweep.degree[downset, copies]), data, -(-copies // data)))
            downset, copies = int(table.end[stage]), copies - data
        return found

    def _stage(self, part: _Part) -> HybridStage:
        """Return a stage with its variants; those for more micro-batches in flight may be faster, see `let_rise`."""
        tensor, memory = self._cuts.degrees[part.degree], self._network.memory_bytes
        times = self.found.times(part.degree, part.stage)
        most_s = times[part.in_flight - 1] * (1 + ROUNDING)
        for y in range(part.in_flight, len(times) + 1):
            exact_s, choice = self._exact.get((part.degree, part.stage, y), (inf, {}))
            if exact_s <= most_s:
                return HybridStage(choice, part.data, tensor)
            steps = variant_steps(self._network, tensor, y)
            if steps.times(self._cuts.rows, np.asarray([part.stage]), memory).found_s[0] <= most_s:
                break
        return HybridStage(steps.choice(self._cuts.rows[part.stage], memory), part.data, tensor)
