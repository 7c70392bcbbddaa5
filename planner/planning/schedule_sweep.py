"""Trade-offs of training: what schedules, numbers of devices, replicas and micro-batches make of one batch.

::

    step time
      │ x             x is dominated: another choice is as fast and takes no more memory on its fullest device
      │●   x          ● are what is worth choosing between
      │  ●    x
      │     ●
      └──────────── memory
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import isqrt

from costmodels.cluster import Cluster
from costmodels.table import CostTable
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs.checks import seconds
from graphs.errors import InputError
from graphs.ir import Graph
from planner.planning.cache import cached_profiles, learned_costs
from planner.problem.deadline import Deadline
from planner.problem.problem import Goal, Problem
from planner.problem.reporter import SILENT, Reporter
from planner.problem.result import Interrupted
from planner.solvers.dp.chains.pipeline import Pipeline
from planner.solvers.incumbent import objective_of
from planner.solvers.solve import solve
from simulator.placement import Placement
from simulator.training import TRAINING_SCHEDULES, TrainingStep, most_micro_batches, simulate_training

SEARCHED = ("1f1b", "interleaved", "zbv")
"""One stage a device, several in turns, down and up again: each kind of placement is searched for under one of them."""

SCHEDULES = (*SEARCHED, *(name for name in TRAINING_SCHEDULES if name not in SEARCHED))
MOST_EACH = 4  # up to so many devices, every number of them is tried; beyond, powers of two and all
MOST_SIZES = 8  # up to so many ways to divide a batch equally, all are tried; beyond, powers of two and single samples
LEAST_S = 1e-3  # for one search; however short its time is, it judges one placement
SEARCH = Pipeline(most_work=150)


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to run a training step.

    Attributes:
        schedule: its name.
        devices: names of those that have a stage, in the order of the stages; of one replica.
        n_stages: how many.
        replicas: how many pipelines like that share the batch.
        micro_batches: of each of them in a step.
        samples: in a micro-batch.
        recompute: whether stages keep only their inputs and run forward again.
        step_s: predicted seconds of a step.
        memory_bytes: [n_devices], predicted, in the order of ``devices``.
        placement: the operators' devices.
    """

    schedule: str
    devices: tuple[str, ...]
    n_stages: int
    replicas: int
    micro_batches: int
    samples: int
    recompute: bool
    step_s: float
    memory_bytes: tuple[float, ...]
    placement: Placement

    @property
    def peak_bytes(self) -> float:
        """Of the device that needs the most."""
        return max(self.memory_bytes)

    @property
    def samples_per_s(self) -> float:
        """Throughput of all replicas."""
        done = self.replicas * self.micro_batches * self.samples
        return done / self.step_s if self.step_s > 0 else float("inf")

    @property
    def shape(self) -> tuple[object, ...]:
        """What tells it from others, but for where its stages are cut."""
        many = len(self.devices), self.n_stages, self.replicas, self.micro_batches
        return self.schedule, self.recompute, *many


@dataclass(frozen=True, slots=True)
class Shape:
    """Devices divided into replicas, and a batch into micro-batches of a size."""

    n_devices: int
    replicas: int
    micro_batches: int
    samples: int


@dataclass(frozen=True, slots=True)
class TradeOffs:
    """What was found within the time.

    Attributes:
        choices: all that fit into memory, the fastest first; where several searches end in the same shape, the best.
        unsearched: of how many ways to divide devices and batch nothing is known, because the time was out.
    """

    choices: tuple[Choice, ...]
    unsearched: int = 0


def trade_offs(
    graph_of: Callable[[int], Graph],
    cluster: Cluster,
    batch: int,
    optimizer: str = "sgd",
    time_limit_s: float = 60.0,
    reporter: Reporter = SILENT,
) -> TradeOffs:
    """All choices that fit into memory; those of the most devices are searched for first.

    Args:
        graph_of: the network for so many samples; a size that it refuses is left out, unless it refuses all.
        cluster: of n devices the first n are used, all for one pipeline or divided into replicas where they are alike.
        batch: samples of a step.
        optimizer: a name of the optimizers that `Workload` knows.
        time_limit_s: for everything, ``graph_of`` too. What is left is divided equally among the searches to come. A
            size is not imported if that would take too long, as the last import took; however short the limit is, one
            size is, and one placement of it is judged.
        reporter: hears of progress.

    Raises:
        InputError: for a batch below 1, an unknown optimizer, or what ``graph_of`` says.
        Interrupted: on Ctrl-C, with what was found before.
    """
    if batch < 1:
        raise InputError(f"the batch is {batch}; it must be 1 or more")
    deadline = Deadline(seconds(time_limit_s, "the time limit"))
    tables = _Tables(graph_of, cluster, Workload("training", optimizer=optimizer), reporter)
    shapes = sorted(_shapes(cluster, batch), key=lambda shape: -shape.n_devices)
    found: dict[tuple[object, ...], Choice] = {}
    unsearched = len(shapes)
    try:
        for number, shape in enumerate(shapes):
            if (found or tables.graphs) and deadline.left_s <= tables.import_s(shape):
                continue
            reporter.on_step(_progress(shape), number, len(shapes))
            table, shapes_left = tables.of(shape), len(shapes) - number
            for choice in () if table is None else _choices(table, shape, deadline, shapes_left, not found):
                if choice.shape not in found or choice.step_s < found[choice.shape].step_s:
                    found[choice.shape] = choice
            unsearched -= 1
    except KeyboardInterrupt as stopped:
        raise Interrupted(TradeOffs(_fastest_first(found.values()), unsearched)) from stopped
    if tables.refused is not None and not tables.graphs:
        raise tables.refused
    return TradeOffs(_fastest_first(found.values()), unsearched)


def _progress(shape: Shape) -> str:
    return f"comparing schedules on {shape.n_devices} device{'s'[: shape.n_devices - 1]}"


def _fastest_first(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    return tuple(sorted(choices, key=lambda one: (one.step_s, one.peak_bytes, one.schedule, one.recompute)))


class _Tables:
    """What everything costs, for each way to divide devices and batch; worked out when it is asked for.

    Attributes:
        graphs: the network for each size of a micro-batch that it takes.
        refused: what it says to one that it does not take, as a batch norm cannot learn from a single value.
    """

    def __init__(
        self, graph_of: Callable[[int], Graph], cluster: Cluster, workload: Workload, reporter: Reporter
    ) -> None:
        self._graph_of, self._cluster, self._workload, self._reporter = graph_of, cluster, workload, reporter
        self._profiles, self._learned = cached_profiles(cluster), cache(learned_costs)
        self.graphs: dict[int, Graph] = {}
        self.refused: InputError | None = None
        self._refused_sizes: set[int] = set()
        self._last_import_s = 0.0

    def of(self, shape: Shape) -> CostTable | None:
        """The table; None if the network does not take micro-batches of this size."""
        graph = self._graph(shape.samples)
        if graph is None:
            return None
        part = self._cluster.first(shape.n_devices).divided(shape.replicas)
        work = replace(self._workload, batch=shape.samples, micro_batches=1 + (shape.micro_batches > 1))
        return tabulate(graph, part, work, self._profiles, self._learned)

    def import_s(self, shape: Shape) -> float:
        """Seconds that an import for this size is expected to take, as the last one; 0 if there is none to do."""
        return 0.0 if shape.samples in self.graphs.keys() | self._refused_sizes else self._last_import_s

    def _graph(self, samples: int) -> Graph | None:
        if samples not in self.graphs and samples not in self._refused_sizes:
            start_s = time.perf_counter()
            try:
                self.graphs[samples] = self._graph_of(samples)
            except InputError as error:
                self.refused = error
                self._refused_sizes.add(samples)
                self._reporter.on_step(f"leaving out micro-batches of {samples}: {error}", 0, 0)
            self._last_import_s = time.perf_counter() - start_s
        return self.graphs.get(samples)


def undominated(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """Those to which no other is as fast with as little memory and better in one of them, the fastest first."""
    kept: list[Choice] = []
    for choice in sorted(choices, key=lambda choice: (choice.step_s, choice.peak_bytes)):
        if not kept or choice.peak_bytes < kept[-1].peak_bytes:
            kept.append(choice)
    return tuple(kept)


def _shapes(cluster: Cluster, batch: int) -> Iterator[Shape]:
    """Everything that may be worth a look."""
    n_devices = len(cluster.devices)
    for n_used in range(1, n_devices + 1) if n_devices <= MOST_EACH else _powers(n_devices):
        for replicas in _divisors(n_used):
            if batch % replicas or not _divides(cluster.first(n_used), replicas):
                continue
            sizes = _divisors(batch // replicas)
            if len(sizes) > MOST_SIZES:
                sizes = [size for size in sizes if size.bit_count() == 1 or size == batch // replicas]
            for micro_batches in (size for size in sizes if size <= most_micro_batches(n_used // replicas)):
                yield Shape(n_used, replicas, micro_batches, batch // replicas // micro_batches)


def _powers(n_devices: int) -> list[int]:
    return sorted({*(1 << power for power in range(n_devices.bit_length())), n_devices})


def _divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def _divides(cluster: Cluster, replicas: int) -> bool:
    """Whether it has so many equal parts."""
    try:
        cluster.divided(replicas)
    except InputError:
        return False
    return True


def _choices(table: CostTable, shape: Shape, deadline: Deadline, shapes_left: int, must_find: bool) -> Iterator[Choice]:
    """Every schedule with and without recomputation, for the best of all placements that were found for any of them.

    A device alone runs one micro-batch after the other, whatever the schedule, and has nothing to recompute. When the
    time is out, the schedules to come are left out, unless a first choice must be found.
    """
    placements: list[Placement] = []
    alone = table.n_devices == 1
    for schedule in SCHEDULES[:1] if alone else SCHEDULES:
        for recompute in (False,) if alone else (False, True):
            if deadline.over and not must_find:
                return
            step = TrainingStep(schedule, shape.micro_batches, recompute)
            problem = Problem(table, Goal.TRAINING, step=step)
            fits = any(objective_of(problem, placement) < float("inf") for placement in placements)
            if schedule in SEARCHED or not fits:
                limit_s = max(LEAST_S, deadline.left_s / (shapes_left * 2 * len(SEARCHED)))
                placement = solve(problem, SEARCH, limit_s).placement
                placements += [placement] if placement is not None else []
            known = [(objective_of(problem, placement), number) for number, placement in enumerate(placements)]
            step_s, best = min(known, default=(float("inf"), -1))
            if step_s < float("inf"):
                choice = _choice(problem, placements[best], shape)
                if alone or must_find or len(choice.devices) > 1:
                    yield choice
                    must_find = False


def _choice(problem: Problem, placement: Placement, shape: Shape) -> Choice:
    table, step = problem.costs(placement), problem.step
    run = simulate_training(table, placement, step)
    used = dict.fromkeys(placement.device[ops[0]] for ops in run.stages)
    return Choice(
        schedule=step.schedule,
        devices=tuple(table.devices[device] for device in used),
        n_stages=len(run.stages),
        replicas=shape.replicas,
        micro_batches=shape.micro_batches,
        samples=shape.samples,
        recompute=step.recompute,
        step_s=run.makespan_s,
        memory_bytes=tuple(float(run.memory_bytes[device]) for device in used),
        placement=placement,
    )
