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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from costmodels.cluster import Cluster
from costmodels.table import CostTable
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs.errors import InputError
from graphs.ir import Graph
from planner.cache import cached_profiles, learned_costs
from planner.problem import Goal, Problem
from planner.reporter import SILENT, Reporter
from planner.solve import solve
from planner.solvers.chains.pipeline import Pipeline
from planner.solvers.incumbent import judge
from simulator.placement import Placement
from simulator.training import TRAINING_SCHEDULES, TrainingStep, simulate_training

SEARCHED = ("1f1b", "interleaved", "zbv")
"""One stage a device, several in turns, down and up again: each kind of placement is searched for under one of them."""

SCHEDULES = (*SEARCHED, *(name for name in TRAINING_SCHEDULES if name not in SEARCHED))
MOST_EACH = 4  # up to so many devices, every number of them is tried; beyond, powers of two and all
MOST_SIZES = 8  # up to so many ways to divide a batch equally, all are tried; beyond, powers of two and single samples
LEAST_S = 0.5  # for one search, which should end before that by its own count of work
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


def trade_offs(
    graph_of: Callable[[int], Graph],
    cluster: Cluster,
    batch: int,
    optimizer: str = "sgd",
    time_limit_s: float = 60.0,
    reporter: Reporter = SILENT,
) -> tuple[Choice, ...]:
    """All choices that fit into memory, the fastest first; where several searches end in the same shape, the best.

    Args:
        graph_of: the network for so many samples; a size that it refuses is left out, unless it refuses all.
        cluster: of n devices the first n are used, all for one pipeline or divided into replicas where they are alike.
        batch: samples of a step.
        optimizer: a name of the optimizers that `Workload` knows.
        time_limit_s: for all searches together, as far as each may have `LEAST_S`.
        reporter: hears of progress.

    Raises:
        InputError: for a batch below 1, an unknown optimizer, or what ``graph_of`` says.
    """
    if batch < 1:
        raise InputError(f"the batch is {batch}; it must be 1 or more")
    workload = Workload("training", optimizer=optimizer)
    shapes = list(_shapes(cluster, batch))
    graphs = _imported(graph_of, list(dict.fromkeys(shape.samples for shape in shapes)), reporter)
    shapes = [shape for shape in shapes if shape.samples in graphs]

    profiles, learned = cached_profiles(cluster), cache(learned_costs)

    @cache
    def table_of(n_devices: int, replicas: int, samples: int, several: bool) -> CostTable:
        part = cluster.first(n_devices).divided(replicas)
        work = replace(workload, batch=samples, micro_batches=1 + several)
        return tabulate(graphs[samples], part, work, profiles, learned)

    found: dict[tuple[object, ...], Choice] = {}
    end_s = time.perf_counter() + time_limit_s
    for number, shape in enumerate(shapes):
        reporter.on_step(f"comparing schedules on {shape.n_devices} devices", number, len(shapes))
        limit_s = (end_s - time.perf_counter()) / ((len(shapes) - number) * 2 * len(SEARCHED))
        table = table_of(shape.n_devices, shape.replicas, shape.samples, shape.micro_batches > 1)
        for choice in _choices(table, shape, max(LEAST_S, limit_s)):
            if choice.shape not in found or choice.step_s < found[choice.shape].step_s:
                found[choice.shape] = choice
    return tuple(sorted(found.values(), key=lambda one: (one.step_s, one.peak_bytes, one.schedule, one.recompute)))


def _imported(graph_of: Callable[[int], Graph], sizes: Sequence[int], reporter: Reporter) -> Mapping[int, Graph]:
    """The network for each size of a micro-batch that it takes: a batch norm cannot learn from a single value."""
    graphs: dict[int, Graph] = {}
    refused: InputError | None = None
    for samples in sizes:
        try:
            graphs[samples] = graph_of(samples)
        except InputError as error:
            refused = error
            reporter.on_step(f"leaving out micro-batches of {samples}: {error}", 0, 0)
    if refused is not None and not graphs:
        raise refused
    return graphs


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
            for micro_batches in sizes:
                yield Shape(n_used, replicas, micro_batches, batch // replicas // micro_batches)


def _powers(n_devices: int) -> list[int]:
    return sorted({*(1 << power for power in range(n_devices.bit_length())), n_devices})


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _divides(cluster: Cluster, replicas: int) -> bool:
    """Whether it has so many equal parts."""
    try:
        cluster.divided(replicas)
    except InputError:
        return False
    return True


def _choices(table: CostTable, shape: Shape, time_limit_s: float) -> Iterator[Choice]:
    """Every schedule with and without recomputation, for the best of all placements that were found for any of them.

    A device alone runs one micro-batch after the other, whatever the schedule, and has nothing to recompute.
    """
    placements: list[Placement] = []
    alone = table.n_devices == 1
    for schedule in SCHEDULES[:1] if alone else SCHEDULES:
        for recompute in (False,) if alone else (False, True):
            step = TrainingStep(schedule, shape.micro_batches, recompute)
            problem = Problem(table, Goal.TRAINING, step=step)
            fits = any(judge(problem, placement) < float("inf") for placement in placements)
            if schedule in SEARCHED or not fits:
                placement = solve(problem, SEARCH, time_limit_s).placement
                placements += [placement] if placement is not None else []
            known = [(judge(problem, placement), number) for number, placement in enumerate(placements)]
            step_s, best = min(known, default=(float("inf"), -1))
            if step_s < float("inf"):
                choice = _choice(table, placements[best], step, shape)
                if alone or len(choice.devices) > 1:
                    yield choice


def _choice(table: CostTable, placement: Placement, step: TrainingStep, shape: Shape) -> Choice:
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
