"""Choices whose stages have degrees, ZeRO and recomputation of their own, for every size of micro-batches.

::

    memory of the fullest device
      │●                      the fastest that fits; then the fastest with 1 / 1.25 of its memory, and so on
      │     ●
      │              ●
      └────────────────── step time
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from math import inf

from costmodels.cluster.cluster import Cluster, Device
from costmodels.workload import RECOMPUTE_MODES
from graphs.common.errors import InputError
from graphs.ir import Graph
from planner.parallelism.best_first import best_first
from planner.parallelism.closed_form.config import Demands, StageDegrees, StageLayers, zero_degrees
from planner.parallelism.network.shape_tables import ShapeCosts, Tables
from planner.parallelism.network.training_rows import Choice, choice_of
from planner.parallelism.network.training_shapes import Shape, of_this_host, searched_shapes, uniform
from planner.parallelism.stages.own_stages import StageProblem, StageSolution
from planner.parallelism.stages.stage_degrees import MOST_STEPS, SimulatedStages
from planner.problem.deadline import Deadline
from planner.problem.problem import Goal, Problem
from planner.problem.reporter import Reporter
from simulator.training import TrainingStep

LESS_MEMORY = 1.25  # the memory of a choice over that of the next one, at least


class OwnDegrees:
    """The choices of a cluster and a batch; devices may differ, the fastest hosts come first."""

    def __init__(self, tables: Tables, cluster: Cluster, demands: Demands, reporter: Reporter) -> None:
        self._tables, self._cluster, self._demands, self._reporter = tables, cluster, demands, reporter

    def choices(self, shapes: Sequence[Shape], deadline: Deadline) -> Iterator[tuple[list[Choice], float]]:
        """Yield the best stages of each micro-batch size, then the best with less memory; each with a bound."""
        waiting = deque[tuple[StageProblem, float]]()

        def searches() -> Iterator[tuple[StageProblem, float]]:
            yield from ((problem, inf) for problem in self.problems(shapes, deadline))
            while waiting:
                yield waiting.popleft()

        for problem, most_bytes in searches():
            if deadline.over:
                return
            self._reporter.on_step("comparing degrees of each stage", 0, 0)
            best, least_s = best_first(SimulatedStages(problem, most_bytes), inf, MOST_STEPS, deadline)
            yield [] if best is None or self._elsewhere(best) else [self.choice(best, problem)], least_s
            if best is not None:
                waiting.append((problem, best.peak_bytes / LESS_MEMORY))

    def problems(self, shapes: Sequence[Shape], deadline: Deadline) -> Iterator[StageProblem]:
        """Yield the problem of each micro-batch size.

        A stage has the costs of a one-stage shape with its degrees, on devices of each kind.
        """
        asked = self._demands
        if {asked.data, asked.tensor, asked.samples} != {None} or of_this_host(self._cluster) or not shapes:
            return
        try:
            kinds = self._kinds()
        except InputError:  # some devices do not reach each other
            return
        each, batch = shapes, shapes[0].replicas * shapes[0].micro_batches * shapes[0].samples
        if len(kinds) > 1 or asked.zero is not None:
            each = searched_shapes(kinds[0][0], batch, Demands())
        ways: dict[int, dict[tuple[int, int], Shape]] = {}
        for one in each:
            if one.replicas * one.tensor == one.n_devices < len(self._cluster.devices):
                ways.setdefault(one.micro_batches, {})[one.replicas, one.tensor] = one
        for own in ways.values():
            problem = self._problem(own, kinds, deadline)
            if problem is not None:
                yield problem

    def choice(self, found: StageSolution, problem: StageProblem) -> Choice:
        """Return stages as a choice; their devices follow each other."""
        fabric, network = problem.fabric, problem.networks[1]
        shape = Shape(len(fabric.devices), 1, problem.micro_batches, problem.samples)
        step = TrainingStep("1f1b", problem.micro_batches)
        row = choice_of(Problem(found.costs.table, Goal.TRAINING, step=step), found.placement, shape, found.costs)
        counts = network.counts([found.placement.operators(device) for device in found.placement.used])
        firsts = accumulate((stage.degrees.devices for stage in found.stages[:-1]), initial=0)
        return replace(
            row,
            devices=tuple(fabric.devices[first].name for first in firsts),
            degrees=tuple(stage.degrees for stage in found.stages),
            layers=tuple(
                StageLayers.of(count, stage.recompute) for count, stage in zip(counts, found.stages, strict=True)
            ),
            precision=self._demands.precision,
            gradients=self._demands.gradients,
        )

    def _elsewhere(self, found: StageSolution) -> bool:
        """Return whether the search for equal degrees finds these stages, too."""
        return found.alike and (uniform(self._cluster) or found.stages[0].degrees.devices == 1)

    def _kinds(self) -> list[tuple[Cluster, Device]]:
        """Return for each kind of device a cluster of such devices, and one of them."""
        if uniform(self._cluster):
            return [(self._cluster, self._cluster.devices[0])]
        fabric = self._tables.fabric
        kinds = {_kind(device): device for device in reversed(fabric.devices)}
        return [(fabric.all_like(device), device) for device in reversed(kinds.values())]

    def _problem(
        self, ways: dict[tuple[int, int], Shape], kinds: Sequence[tuple[Cluster, Device]], deadline: Deadline
    ) -> StageProblem | None:
        """Return the problem of one micro-batch size; None if the network is not known for it in time."""
        tables, alone = self._tables, ways.get((1, 1))
        if alone is None or tables.import_s(alone) >= deadline.left_s or (graph := tables.graph(alone.samples)) is None:
            return None
        costs = self._priced([shape for shape in ways.values() if self._divides(graph, shape, deadline)], kinds)
        if StageDegrees(1, 1) not in costs:  # time ran out; all stages are compared with it
            return None
        networks = {tensor: tables.network(graph, alone.samples, tensor) for tensor in {key.tensor for key in costs}}
        known_kinds = [_kind(device) for _, device in kinds]
        return StageProblem(
            costs,
            {tensor: network for tensor, network in networks.items() if network is not None},
            tables.fabric,
            tuple(known_kinds.index(_kind(device)) if len(kinds) > 1 else 0 for device in tables.fabric.devices),
            alone.samples,
            alone.micro_batches,
            RECOMPUTE_MODES if self._demands.recompute is None else (self._demands.recompute,),
        )

    def _priced(
        self, shapes: Sequence[Shape], kinds: Sequence[tuple[Cluster, Device]]
    ) -> dict[StageDegrees, Sequence[ShapeCosts]]:
        """Return the costs of stages by their degrees, where they are known on devices of each kind."""
        priced = (pair for shape in shapes for pair in self._costs(shape, kinds))
        return {degrees: each for degrees, each in priced if len(each) == len(kinds)}

    def _costs(
        self, shape: Shape, kinds: Sequence[tuple[Cluster, Device]]
    ) -> Iterator[tuple[StageDegrees, Sequence[ShapeCosts]]]:
        """Yield the costs of a stage with a shape's degrees, under each stage of ZeRO, on devices of each kind."""
        for zero in zero_degrees(shape.replicas, self._demands.zero):
            each = (self._tables.of_stage(replace(shape, zero=zero), cluster) for cluster, _ in kinds)
            yield StageDegrees(shape.replicas, shape.tensor, zero), [cost for cost in each if cost is not None]

    def _divides(self, graph: Graph, shape: Shape, deadline: Deadline) -> bool:
        """Return whether a network can be divided as a shape, with the same operators for a part of the samples."""
        tables = self._tables
        part = tables.graph(shape.samples) if tables.import_s(shape) < deadline.left_s else None
        shared = None if part is None else tables.network(part, shape.samples, shape.tensor)
        return shared is not None and [op.name for op in shared.graph.ops] == [op.name for op in graph.ops]


def _kind(device: Device) -> tuple[str, float]:
    """Return the kind of a device and its usable bytes, which equal devices share."""
    return device.kind, device.usable_bytes
