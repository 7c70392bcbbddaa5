"""Hybrid DP: the pipeline of data- and tensor-parallel stages with the shortest time per sample.

For a time limit of a stage, a dynamic program over downsets and over the sum of copies finds the fewest devices; the
least limit for which there are enough is found by bisection. The state is the same as in Piper's dynamic program, but
for the number of devices, which is minimised here instead of being one more coordinate. Variants within a stage are
chosen greedily at first. As long as lower bounds of stages allow a better pipeline, those of its stages are solved
exactly; when they allow none, the best pipeline is proved.

Source: Tarnawski, Narayanan and Phanishayee, NeurIPS 2021.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod, sqrt
from typing import NamedTuple

import numpy as np

from costmodels.table import Floats, Ints
from graphs.brief import Brief
from graphs.errors import InputError
from planner.problem.hybrid_pipeline.network import HybridNetwork
from planner.problem.hybrid_pipeline.stages import BOTH_WAYS, REDUCED, HybridStage, loads_of
from planner.problem.result import PROOF_TOLERANCE, Status
from planner.solvers.base import Budget
from planner.solvers.dp.hybrid.kernel import StageSweep, StageTable, sweep
from planner.solvers.dp.hybrid.variants import Rows, VariantSteps, exact_choice, variant_steps

MOST_DOWNSETS = 2_000
MOST_TIMES = 100_000_000  # of stages, by tensor-parallel degree and micro-batches in flight: 800 MB
ANY_S = 1e30  # a limit that every stage keeps which has the memory
ROUNDING = 1e-12  # relative; sums of one stage and of many stages are added up in another order
CLOSE = 1e-9  # relative; where the bisection for a plan ends
BOUND_CLOSE = 1e-4  # relative; where the bisection for a bound without proof ends


@dataclass(frozen=True)
class HybridResult(Brief):
    """An answer with its proof."""

    status: Status  # how the search ended
    stages: tuple[HybridStage, ...] | None  # of the best pipeline, or None
    time_s: float  # per sample; infinite without a pipeline
    bound_s: float  # no pipeline is faster
    wall_s: float  # seconds that the search took


def solve_hybrid(network: HybridNetwork, time_limit_s: float = 60.0) -> HybridResult:
    """Find the fastest pipeline.

    Raises:
        InputError: if the network has too many downsets.
    """
    budget = Budget(time_limit_s)
    search = _PipelineSearch(network)
    stages = search.stages(search.found, ANY_S)
    if stages is None:
        return HybridResult(Status.INFEASIBLE, None, inf, inf, budget.wall_s)
    stages = _bisected(search, stages, search.least_s, budget)
    proved = False
    while not proved and budget.left_s > 0:
        limit_s = search.time(stages) * (1 - CLOSE)
        promising = search.promising(limit_s)
        proved = promising is None
        if promising is not None and not search.refine(promising):
            break
        better = search.stages(search.found, limit_s)
        if better is not None and search.time(better) < search.time(stages):
            stages = better
    best_s = search.time(stages)
    bound_s = best_s * (1 - CLOSE) if proved else _bound_s(search, best_s, budget)
    status = Status.OPTIMAL if best_s * (1 - PROOF_TOLERANCE) <= bound_s else Status.FEASIBLE
    return HybridResult(status, stages, best_s, bound_s, budget.wall_s)


def _bisected(
    search: "_PipelineSearch", stages: tuple[HybridStage, ...], low_s: float, budget: Budget
) -> tuple[HybridStage, ...]:
    """The best stages with the variants that were found."""
    best_s = search.time(stages)
    while low_s < best_s * (1 - CLOSE) and budget.left_s > 0:
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
    """A limit that no pipeline keeps, by bisection."""
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
    """

    def __init__(self, network: HybridNetwork) -> None:
        self._network = network
        downsets = _downsets(network)
        start, end, self._rows = _between(downsets)
        most = min(network.devices, network.micro_batches)
        self._steps: dict[tuple[int, int], VariantSteps] = {}
        self._exact: dict[tuple[int, int, int], tuple[float, dict[int, int]]] = {}  # by degree, stage, in flight
        n_stages, degrees = len(end), [t for t in network.degrees if t <= network.devices] or [network.degrees[0]]
        shape = (len(degrees), n_stages, most)
        if prod(shape) > MOST_TIMES:
            raise InputError(
                f"{n_stages:,} possible stages with up to {most:,} copies are too many; join nodes that need not be "
                "apart, or take fewer devices or micro-batches"
            )
        found, bound = np.full(shape, inf), np.full(shape, inf)
        for number, degree in enumerate(degrees):
            alive = np.arange(n_stages)
            for y in range(most):
                times = self.steps(degree, y + 1).times(self._rows[alive], network.memory_bytes)
                found[number, alive, y], bound[number, alive, y] = times
                alive = alive[np.isfinite(times.found_s)]
                if not len(alive):
                    break
        data = [d for d in range(1, most + 1) if network.micro_batches % d == 0]
        self._data = np.asarray(data)
        table = StageTable(
            start, end, _rising(found), *_traffic(network, self._rows, degrees), self._data, np.asarray(degrees)
        )
        self.found, self.bound = table, table._replace(compute_s=_rising(bound))
        sizes = (len(downsets), most + 1)
        self._sweep = StageSweep(*(np.zeros(sizes, np.int64) for _ in StageSweep._fields))

    def steps(self, degree: int, in_flight: int) -> VariantSteps:
        """The variants under a degree and a number of micro-batches in flight."""
        if (degree, in_flight) not in self._steps:
            self._steps[degree, in_flight] = variant_steps(self._network, degree, in_flight)
        return self._steps[degree, in_flight]

    @property
    def least_s(self) -> float:
        """Every node on its cheapest degree, with all devices busy all the time."""
        work = (
            min(degree * variant.compute_s for degree, own in by_degree.items() for variant in own.variants)
            for by_degree in self._network.sharing
        )
        return sum(work) / self._network.devices

    def reaches(self, table: StageTable, limit_s: float) -> bool:
        """Whether the devices suffice for stages within a limit."""
        sweep(table, limit_s, self._network.devices, self._sweep)
        return bool(self._sweep.devices[0].min() <= self._network.devices)

    def promising(self, limit_s: float) -> list[_Part] | None:
        """A pipeline that lower bounds allow within a limit, or None."""
        return self._path(self.bound) if self.reaches(self.bound, limit_s) else None

    def stages(self, table: StageTable, limit_s: float) -> tuple[HybridStage, ...] | None:
        """Stages within a limit that need the fewest devices, or None."""
        return tuple(map(self._stage, self._path(table))) if self.reaches(table, limit_s) else None

    def refine(self, parts: Sequence[_Part]) -> bool:
        """Solve exactly those stages whose bound is below what was found; False if there is nothing to gain."""
        gained = False
        for part in parts:
            at = part.degree, part.stage
            y = part.in_flight - 1
            if self.bound.compute_s[*at, y] >= self.found.compute_s[*at, y] * (1 - ROUNDING):
                continue
            nodes = np.flatnonzero(self._rows[part.stage]).tolist()
            exact = exact_choice(self._network, nodes, int(self.found.tensor[part.degree]), part.in_flight)
            if exact is None:
                continue
            self._exact[part.degree, part.stage, part.in_flight] = exact
            found, bound = self.found.compute_s[at], self.bound.compute_s[at]
            found[: y + 1] = np.minimum(found[: y + 1], exact[0])
            bound[y:] = np.maximum(bound[y:], exact[0])
            gained = True
        return gained

    def time(self, stages: Sequence[HybridStage]) -> float:
        """The time of the slowest stage."""
        return max(load.time_s for load in loads_of(self._network, stages))

    def _path(self, table: StageTable) -> list[_Part]:
        """The stages that the last sweep found."""
        downset, copies = 0, int(np.argmin(self._sweep.devices[0]))
        found = []
        while downset < len(self._sweep.devices) - 1:
            stage, data = (int(column[downset, copies]) for column in (self._sweep.stage, self._sweep.data))
            found.append(_Part(stage, int(self._sweep.degree[downset, copies]), data, -(-copies // data)))
            downset, copies = int(table.end[stage]), copies - data
        return found

    def _stage(self, part: _Part) -> HybridStage:
        """A stage with its variants; what was found for more micro-batches in flight may be faster, see `_rising`."""
        tensor, row, memory = int(self.found.tensor[part.degree]), self._rows[part.stage], self._network.memory_bytes
        times = self.found.compute_s[part.degree, part.stage]
        most_s = times[part.in_flight - 1] * (1 + ROUNDING)
        for y in range(part.in_flight, len(times) + 1):
            exact_s, choice = self._exact.get((part.degree, part.stage, y), (inf, {}))
            if exact_s <= most_s:
                return HybridStage(choice, part.data, tensor)
            steps = self.steps(tensor, y)
            if steps.times(row[None, :], memory).found_s[0] <= most_s:
                break
        return HybridStage(steps.choice(row, memory), part.data, tensor)


def _rising(times: Floats) -> Floats:
    """What fits with more micro-batches in flight fits with fewer."""
    rising: Floats = np.ascontiguousarray(np.minimum.accumulate(times[:, :, ::-1], axis=2)[:, :, ::-1])
    return rising


def _downsets(network: HybridNetwork) -> list[int]:
    """All downsets, as sets of bits, by rising size."""
    before = [0] * len(network.node_ids)
    for source, reader, _ in network.edges:
        before[reader] |= 1 << source
    found = [0]
    seen = {0}
    for downset in found:
        for node, needed in enumerate(before):
            more = downset | 1 << node
            if more not in seen and needed & ~downset == 0:
                seen.add(more)
                found.append(more)
        if len(found) > MOST_DOWNSETS:
            raise InputError(
                f"the network has more than {MOST_DOWNSETS:,} ways to cut it in two; join nodes that need not be apart"
            )
    return found


def _between(downsets: Sequence[int]) -> tuple[Ints, Ints, Rows]:
    """The stages from each downset to those that contain it: where each one's start, where they end, their nodes."""
    n = max(downsets).bit_length()
    bits = np.asarray([[downset >> node & 1 for node in range(n)] for downset in downsets], bool)
    ends, rows, start = [], [], [0]
    for i in range(len(downsets)):
        above = i + 1 + np.flatnonzero(~(bits[i] & ~bits[i + 1 :]).any(axis=1))
        ends.append(above)
        rows.append(bits[above] & ~bits[i])
        start.append(start[-1] + len(above))
    return np.asarray(start), np.concatenate(ends), np.concatenate(rows)


def _traffic(network: HybridNetwork, rows: Rows, degrees: Sequence[int]) -> tuple[Floats, Floats]:
    """[n_degrees, n_stages] seconds to send what crosses the border, and to add up gradients for one more copy."""
    crossing, reduced = np.zeros((len(degrees), len(rows))), np.zeros((len(degrees), len(rows)))
    for number, degree in enumerate(degrees):
        own = [by_degree.get(degree) for by_degree in network.sharing]
        weight = np.asarray([sharing.parameter_bytes if sharing else 0.0 for sharing in own])
        reduced[number] = rows @ weight * REDUCED / network.micro_batches
        for source, reader, n_bytes in network.edges:
            reads, writes = own[reader], own[source]
            came = n_bytes + (reads.from_bytes[source] if reads else 0.0)
            went = n_bytes + (writes.to_bytes[reader] if writes else 0.0)
            crossing[number] += (rows[:, reader] & ~rows[:, source]) * came + (
                rows[:, source] & ~rows[:, reader]
            ) * went
    return BOTH_WAYS * crossing / network.bytes_per_s, reduced / network.bytes_per_s
