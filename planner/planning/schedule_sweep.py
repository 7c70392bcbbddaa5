"""Trade-offs of training: step time and memory for schedules, numbers of devices, replicas and micro-batches.

::

    step time
      │ x             x is dominated: another choice is as fast and needs no more memory on its fullest device
      │●   x          ● is not dominated
      │  ●    x
      │     ●
      └──────────── memory
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from math import inf

import numpy as np

from costmodels.cluster import Cluster
from costmodels.fabric import Fabric, fabric_of
from costmodels.memory.transformers import RECOMPUTE_MODES, RecomputeMode
from costmodels.table import CostTable
from costmodels.tabulate import tabulate
from costmodels.workload import TRAINING_SCHEDULES, Workload
from graphs.errors import InputError
from graphs.ir import Graph
from planner.planning.cache import cached_profiles, learned_costs
from planner.planning.make_plan import Search
from planner.planning.stage_degrees import DegreeSearch, FoundStages, ShapeCosts
from planner.planning.training_shapes import Shape, searched_shapes, shares_all
from planner.problem.bounds import lower_bound
from planner.problem.deadline import Deadline
from planner.problem.hybrid_training.config import (
    Demands,
    ParallelConfig,
    ParallelShape,
    Precision,
    StageDegrees,
    StageLayers,
    StepSchedule,
)
from planner.problem.hybrid_training.half_precision import in_bfloat16
from planner.problem.hybrid_training.layers import mixes_samples
from planner.problem.hybrid_training.prices import StepPrice
from planner.problem.hybrid_training.shared_costs import SharedNetwork, ZeroStage
from planner.problem.hybrid_training.tensor_styles import tensor_styles
from planner.problem.problem import Goal, Problem
from planner.problem.reporter import Reporter
from planner.problem.result import Interrupted
from planner.solvers.base import objective_of
from planner.solvers.dp.chains.pipeline import Pipeline
from planner.solvers.solve import solve
from simulator.placement import Placement
from simulator.training import TrainingStep, simulate_training

SEARCHED = ("1f1b", "interleaved", "zbv")
"""The schedules that are searched: one for each kind of placement, with one stage on each device, with several stages
in turns, and with stages that go down the devices and up again."""

SCHEDULES = (*SEARCHED, *(name for name in TRAINING_SCHEDULES if name not in SEARCHED))
RUN_IN_LAYERS = ("1f1b", "zb-h1")
"""Schedules of stages of whole layers, which devices share."""

SAME_DEGREES = 0.8  # of the time, for stages that all have the same degrees
LEAST_S = 1e-3  # for one search, which always evaluates one placement
SEARCH = Pipeline(most_work=150)
AT_LENGTH = Search(time_limit_s=60.0)
ALL_OPEN = Demands()


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to run a training step."""

    schedule: str
    devices: tuple[str, ...]  # names of one replica's devices that have a stage, in the order of the stages
    n_stages: int
    replicas: int
    micro_batches: int  # of each replica in a step
    samples: int  # in a micro-batch
    recompute: RecomputeMode
    price: StepPrice  # predicted, with the memory in the order of ``devices``
    placement: Placement
    n_devices: int = 0  # of all replicas, with those that have no stage
    tensor: int = 1  # devices that share each stage, of which ``devices`` names the first
    zero: int = 0  # stage of ZeRO
    layers: tuple[int, ...] = ()  # of each stage, where `config` has them
    degrees: tuple[StageDegrees, ...] = ()  # of each stage, where they differ; ``replicas`` and ``tensor`` are 1 then
    precision: Precision = "float32"  # as in `ParallelConfig`
    gradients: Precision = "float32"

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.price.step_s

    @property
    def peak_bytes(self) -> float:
        """The memory of the device that needs the most."""
        return self.price.peak_bytes

    @property
    def samples_per_s(self) -> float:
        """Throughput of all replicas."""
        done = self.replicas * self.micro_batches * self.samples
        return done / self.step_s if self.step_s > 0 else inf

    @property
    def shape(self) -> tuple[object, ...]:
        """Everything that identifies a choice, except where its stages are cut."""
        many = len(self.devices), self.n_stages, self.replicas, self.micro_batches
        return self.schedule, self.recompute, *many, self.tensor, self.zero, self.degrees

    @property
    def used(self) -> int:
        """Devices of all replicas that have a stage."""
        return sum(each.devices for each in self.degrees) or self.replicas * self.tensor * len(self.devices)

    @property
    def config(self) -> ParallelConfig | None:
        """The choice as `HybridTrainer` runs it; None for one that is a plan."""
        if not self.layers:
            return None
        schedule: StepSchedule = "zb-h1" if self.schedule == "zb-h1" else "1f1b"
        degrees = ParallelShape(
            data=self.replicas,
            tensor=self.tensor,
            pipeline=len(self.layers),
            samples=self.samples,
            micro_batches=self.micro_batches,
            zero=self.zero,
            schedule=schedule,
            order="pipeline",
        )
        layers = tuple(StageLayers(0, 0, 0)._replace(**{self.recompute: count}) for count in self.layers)
        return ParallelConfig(degrees, layers, self.precision, self.gradients, self.degrees)


@dataclass(frozen=True, slots=True)
class TradeOffs:
    """The choices that were found within the time."""

    choices: tuple[Choice, ...]  # those that fit into memory, the fastest first; the best one of each shape
    unsearched: int = 0  # ways to divide devices and batch for which there was no time
    bound_s: float = 0.0  # no schedule or stages of the ways that were searched take less


def trade_offs(
    graph_of: Callable[[int], Graph],
    cluster: Cluster,
    batch: int,
    optimizer: str = "sgd",
    search: Search = AT_LENGTH,
    demands: Demands = ALL_OPEN,
) -> TradeOffs:
    """All choices that fit into memory; those with the most devices are searched first.

    Args:
        graph_of: the network for a number of samples; a number that it refuses is left out, unless it refuses all.
        cluster: a choice with n devices uses the first n, for one pipeline or, if they are alike, for replicas.
        batch: samples of a step.
        optimizer: a name of an optimizer of `Workload`.
        search: its time is for everything, including ``graph_of``. The remaining searches share the remaining time
            equally. A size is left out if the last import took longer than the remaining time; at least one size is
            imported and one placement evaluated. Its reporter is told of progress.
        demands: which degrees to search alone; whoever asks leaves out other schedules, pipelines and recomputation.

    Raises:
        InputError: for a batch below 1, an unknown optimizer, degrees that devices, batch or network do not allow, or
            from ``graph_of``.
        Interrupted: on Ctrl-C, with the choices so far.
    """
    if batch < 1:
        raise InputError(f"the batch is {batch}; it must be 1 or more")
    deadline, reporter = Deadline(SAME_DEGREES * search.time_limit_s), search.reporter
    tables = Tables(graph_of, cluster, Workload("training", optimizer=optimizer), demands, reporter)
    shapes = searched_shapes(cluster, batch, demands)
    found: dict[tuple[object, ...], Choice] = {}
    unsearched, bound_s = len(shapes), inf
    try:
        for number, shape in enumerate(shapes):
            if (found or tables.graphs) and deadline.left_s <= tables.import_s(shape):
                continue
            step = f"comparing schedules on {shape.n_devices} device{'s'[: shape.n_devices - 1]}"
            reporter.on_step(step, number, len(shapes))
            costs, plain = tables.of(shape), tables.plain(shape)
            if costs is not None:
                bound_s = min(bound_s, _bound_s(costs.table, shape))
                schedules = SCHEDULES if plain else RUN_IN_LAYERS
                each = _choices(costs, shape, schedules, deadline, len(shapes) - number, not found)
                _keep_best(found, each if plain else (tables.in_layers(one, shape) for one in each))
            unsearched -= 1
        for best, least_s in tables.own_degrees(shapes, Deadline((1 - SAME_DEGREES) * search.time_limit_s)):
            bound_s = min(bound_s, least_s)
            _keep_best(found, best)
    except KeyboardInterrupt as stopped:
        raise Interrupted(TradeOffs(_fastest_first(found.values()), unsearched, bound_s)) from stopped
    if not found:
        tables.check(demands.tensor or 1)
    return TradeOffs(_fastest_first(found.values()), unsearched, bound_s if found else 0.0)


def _keep_best(found: dict[tuple[object, ...], Choice], choices: Iterable[Choice]) -> None:
    """Keep the fastest choice of each shape."""
    for choice in choices:
        if choice.shape not in found or choice.step_s < found[choice.shape].step_s:
            found[choice.shape] = choice


def _fastest_first(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    return tuple(sorted(choices, key=lambda one: (one.step_s, one.peak_bytes, one.schedule, one.recompute)))


class Tables:
    """Cost tables for each way to divide devices and batch, made when they are needed."""

    def __init__(
        self,
        graph_of: Callable[[int], Graph],
        cluster: Cluster,
        workload: Workload,
        demands: Demands,
        reporter: Reporter,
    ) -> None:
        self._demands = demands
        self._graph_of, self._cluster, self._workload, self._reporter = graph_of, cluster, workload, reporter
        self._profiles, self._learned = cached_profiles(cluster), cache(learned_costs)
        self._shared: dict[tuple[int, int], SharedNetwork | None] = {}  # by samples in a micro-batch, devices
        self.graphs: dict[int, Graph] = {}  # by samples in a micro-batch
        self.refused: dict[int, InputError] = {}  # by the network: a batch norm cannot learn from a single value
        self._last_import_s = 0.0

    def of(self, shape: Shape, in_layers: bool = False) -> ShapeCosts | None:
        """The costs of a shape, as a plan runs it or in layers; None if the network refuses such micro-batches."""
        graph = self._graph(shape.samples)
        if graph is None:
            return None
        part = self._cluster.first(shape.n_devices).divided(shape.replicas).grouped(shape.tensor)
        work = replace(self._workload, batch=shape.samples, micro_batches=1 + (shape.micro_batches > 1))
        if self.plain(shape) and not in_layers:
            table = tabulate(graph, part, work, self._profiles, self._learned)
            return ShapeCosts(table, table.forward_s, table.backward_s)
        network = self._network(graph, shape)
        if network is None:
            return None
        table = tabulate(network.graph, part, work, self._profiles, self._learned)
        launch_s = np.array([device.launch_s for device in part.devices])
        costs = network.costs(table, self._fabric, launch_s, work, self._zero(shape))
        return ShapeCosts(costs, *network.computing_s(table, launch_s))

    def in_layers(self, choice: Choice, shape: Shape) -> Choice:
        """A choice for devices that share layers or states, with the layers of each stage."""
        network = self._network(self.graphs[shape.samples], shape)
        assert network is not None
        layers = network.counts([choice.placement.operators(device) for device in choice.placement.used])
        precision, gradients = self._demands.precision, self._demands.gradients
        row = replace(choice, tensor=shape.tensor, zero=shape.zero, layers=layers)
        return replace(row, precision=precision, gradients=gradients)

    def own_degrees(self, shapes: Sequence[Shape], deadline: Deadline) -> Iterator[tuple[list[Choice], float]]:
        """For each micro-batch size, ZeRO and recomputation, the best stages with degrees of their own, and a bound."""
        for shape, problem in self.degree_problems(shapes):
            if deadline.over:
                return
            self._reporter.on_step("comparing degrees of each stage", 0, 0)
            best, least_s = problem.best(deadline)
            yield [] if best is None else [self.with_degrees(best, problem, shape)], least_s

    def degree_problems(self, shapes: Sequence[Shape]) -> Iterator[tuple[Shape, DegreeSearch]]:
        """The problems of choosing degrees for each stage, for micro-batches of sizes that were imported.

        A stage is divided as a shape of one stage; devices must be alike, and ZeRO and recomputation are those of all.
        """
        asked, n_devices = self._demands, len(self._cluster.devices)
        if {asked.data, asked.tensor, asked.samples} != {None} or not shares_all(self._cluster):
            return
        for (micro_batches, zero), own in sorted(self._of_one_stage(shapes).items(), key=lambda way: way[0][1]):
            if (alone := self._alone(own)) is None:
                continue
            graph = self.graphs[alone.samples]
            networks = {one.tensor: self._network(graph, replace(alone, tensor=one.tensor)) for one in own}
            known = {tensor: network for tensor, network in networks.items() if network is not None}
            each = ((StageDegrees(one.replicas, one.tensor), self.of(one, in_layers=True)) for one in own)
            costs = {degrees: cost for degrees, cost in each if cost is not None and degrees.tensor in known}
            for recompute in RECOMPUTE_MODES:
                step = TrainingStep("1f1b", micro_batches, recompute)
                problem = DegreeSearch(costs, known, self._fabric, alone.samples, step)
                yield replace(alone, n_devices=n_devices, zero=zero), problem

    def _alone(self, own: Sequence[Shape]) -> Shape | None:
        """The one of a single device, if samples do not mix and the network has the same operators for all."""
        names = {tuple(op.name for op in self.graphs[one.samples].ops) for one in own}
        mixed = any(mixes_samples(self.graphs[one.samples]) for one in own)
        return None if mixed or len(names) > 1 else next((one for one in own if one.n_devices == 1), None)

    def _of_one_stage(self, shapes: Sequence[Shape]) -> dict[tuple[int, int], list[Shape]]:
        """By micro-batches and ZeRO, the ways to divide a stage that leave devices to others."""
        ways: dict[tuple[int, int], list[Shape]] = {}
        zeros = {0, *(one.zero for one in shapes)}
        for one in shapes:
            if one.replicas * one.tensor == one.n_devices < len(self._cluster.devices) and one.samples in self.graphs:
                for zero in zeros if one.replicas == 1 else (one.zero,):
                    ways.setdefault((one.micro_batches, zero), []).append(one)
        return ways

    def with_degrees(self, found: FoundStages, problem: DegreeSearch, shape: Shape) -> Choice:
        """Stages with degrees of their own as a choice; their devices follow each other."""
        table, placement = found.costs.table, found.placement
        choice = _choice(Problem(table, Goal.TRAINING, step=problem.step), placement, shape, found.costs)
        degrees = tuple(stage.degrees for stage in found.stages)
        firsts = np.cumsum([0, *(each.devices for each in degrees[:-1])]).tolist()
        names = tuple(self._cluster.devices[first].name for first in firsts)
        zero = shape.zero if any(each.data > 1 for each in degrees) else 0
        return replace(self.in_layers(choice, shape), devices=names, degrees=degrees, zero=zero)

    def plain(self, shape: Shape) -> bool:
        """Whether the choices of a shape are plans: in these, no device shares anything, and all is float32."""
        return shape.plain and self._demands.precision == "float32"

    def _zero(self, shape: Shape) -> ZeroStage:
        """How replicas divide states, with float32 ones beside parameters in bfloat16."""
        zero = ZeroStage(shape.zero, shape.replicas)
        if self._demands.precision == "float32":
            return zero
        return zero._replace(states=2.0, gradients=2.0 if self._demands.gradients == "float32" else 1.0)

    @cached_property
    def _fabric(self) -> Fabric:
        return fabric_of(self._cluster)

    def _network(self, graph: Graph, shape: Shape) -> SharedNetwork | None:
        """The network as groups of devices share it; None if they cannot."""
        key = shape.samples, shape.tensor
        if key not in self._shared:
            network = graph if self._demands.precision == "float32" else in_bfloat16(graph)
            self._shared[key] = SharedNetwork.of(network, shape.tensor)
        return self._shared[key]

    def check(self, tensor: int) -> None:
        """Tell why there is no table: the network refused all sizes, or so many devices share none of its layers."""
        if self.refused and not self.graphs:
            raise list(self.refused.values())[-1]
        for graph in self.graphs.values():
            tensor_styles(graph, [range(len(graph.ops))], tensor)

    def import_s(self, shape: Shape) -> float:
        """Seconds that an import for this size is expected to take, as the last one; 0 if there is none to do."""
        return 0.0 if shape.samples in self.graphs.keys() | self.refused.keys() else self._last_import_s

    def _graph(self, samples: int) -> Graph | None:
        if samples not in self.graphs.keys() | self.refused.keys():
            start_s = time.perf_counter()
            try:
                self.graphs[samples] = self._graph_of(samples)
            except InputError as error:
                self.refused[samples] = error
                self._reporter.on_step(f"leaving out micro-batches of {samples}: {error}", 0, 0)
            self._last_import_s = time.perf_counter() - start_s
        return self.graphs.get(samples)


def undominated(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """The choices that no other choice dominates in time and memory, the fastest first."""
    kept: list[Choice] = []
    for choice in sorted(choices, key=lambda choice: (choice.step_s, choice.peak_bytes)):
        if not kept or choice.peak_bytes < kept[-1].peak_bytes:
            kept.append(choice)
    return tuple(kept)


def _bound_s(table: CostTable, shape: Shape) -> float:
    """Seconds that no schedule and no stages undercut: split backward passes have the least bound.

    A single device adds up all gradients behind its last backward pass; several may do so meanwhile.
    """
    alone_s = table.update.sync_s(range(table.n_ops), 0) if table.update and table.n_devices == 1 else 0.0
    return alone_s + lower_bound(Problem(table, Goal.TRAINING, step=TrainingStep("zb-h1", shape.micro_batches)))


def _choices(
    costs: ShapeCosts,
    shape: Shape,
    schedules: Sequence[str],
    deadline: Deadline,
    shapes_left: int,
    must_find: bool,
) -> Iterator[Choice]:
    """Every schedule under each recomputation, each with the best placement that was found for any of them.

    All schedules are the same on a single device, which has nothing to recompute. When the time is over, the remaining
    schedules are left out, unless a first choice must be found.
    """
    placements: list[Placement] = []
    table, alone = costs.table, costs.table.n_devices == 1
    for schedule, recompute in [(SCHEDULES[0], RECOMPUTE_MODES[0])] if alone else product(schedules, RECOMPUTE_MODES):
        if deadline.over and not must_find:
            return
        step = TrainingStep(schedule, shape.micro_batches, recompute)
        problem = Problem(table, Goal.TRAINING, step=step)
        times_s = [objective_of(problem, placement) for placement in placements]
        if schedule in SEARCHED or min(times_s, default=inf) == inf:
            limit_s = max(LEAST_S, deadline.left_s / (shapes_left * len(RECOMPUTE_MODES) * len(SEARCHED)))
            if (placement := solve(problem, SEARCH, limit_s).placement) is not None:
                placements.append(placement)
                times_s.append(objective_of(problem, placement))
        if min(times_s, default=inf) < inf:
            choice = _choice(problem, placements[times_s.index(min(times_s))], shape, costs)
            if alone or must_find or len(choice.devices) > 1:
                yield choice
                must_find = False


def _choice(problem: Problem, placement: Placement, shape: Shape, costs: ShapeCosts) -> Choice:
    table, step = problem.costs(placement), problem.step
    run = simulate_training(table, placement, step)
    used = dict.fromkeys(placement.device[ops[0]] for ops in run.stages)
    busiest, streaming_s = int(run.load_s.argmax()), float(run.pipeline.end_s.max())
    own_s, computing_s = step.micro_batches * float(run.load_s[busiest]), costs.computing_s(placement, busiest, step)
    return Choice(
        schedule=step.schedule,
        devices=tuple(table.devices[device] for device in used),
        n_stages=len(run.stages),
        replicas=shape.replicas,
        micro_batches=shape.micro_batches,
        samples=shape.samples,
        recompute=step.recompute,
        price=StepPrice(
            step_s=run.makespan_s,
            computing_s=min(computing_s, own_s),
            communicating_s=max(0.0, own_s - computing_s),
            bubble_s=max(0.0, streaming_s - own_s),
            sync_s=run.makespan_s - streaming_s,
            memory_bytes=tuple(float(run.memory_bytes[device]) for device in used),
        ),
        placement=placement,
        n_devices=shape.n_devices,
    )
