"""Trade-offs of training: what schedules, numbers of devices and sizes of micro-batches make of one batch.

::

    step time
      │ x             x is dominated: another choice is as fast and takes no more memory on its fullest device
      │●   x          ● are what is worth choosing between
      │  ●    x
      │     ●
      └──────────── memory
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from costmodels.cluster import Cluster
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs.errors import InputError
from graphs.ir import Graph
from planner.plan import cached_profiles
from planner.problem import Goal, Problem
from planner.reporter import SILENT, Reporter
from planner.solve import solve
from simulator.placement import Placement
from simulator.training import TrainingStep, simulate_training

SCHEDULES = ("1f1b", "gpipe", "interleaved", "breadth-first", "zb-h1")
MOST_EACH = 4  # up to so many devices, every number of them is tried; beyond, powers of two and all
LEAST_S = 0.2  # for one search


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to run a training step.

    Attributes:
        schedule: its name.
        devices: names of those that have a stage, in the order of the stages.
        n_stages: how many.
        micro_batches: in a step.
        samples: in a micro-batch.
        step_s: predicted seconds of a step.
        memory_bytes: [n_devices], predicted, in the order of ``devices``.
        placement: the operators' devices.
    """

    schedule: str
    devices: tuple[str, ...]
    n_stages: int
    micro_batches: int
    samples: int
    step_s: float
    memory_bytes: tuple[float, ...]
    placement: Placement

    @property
    def peak_bytes(self) -> float:
        """Of the device that needs the most."""
        return max(self.memory_bytes)

    @property
    def samples_per_s(self) -> float:
        """Throughput."""
        return self.micro_batches * self.samples / self.step_s if self.step_s > 0 else float("inf")


@dataclass(frozen=True, slots=True)
class Asked:
    """One search: a schedule, devices, and micro-batches of a size."""

    schedule: str
    n_devices: int
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
        graph_of: the network for so many samples.
        cluster: of n devices the first n are used.
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
    searches = list(_searches(len(cluster.devices), batch))
    graphs = {samples: graph_of(samples) for samples in dict.fromkeys(asked.samples for asked in searches)}
    found: dict[tuple[str, int, int, int], Choice] = {}
    end_s = time.perf_counter() + time_limit_s
    for number, asked in enumerate(searches):
        reporter.on_step(f"comparing {asked.schedule} on {asked.n_devices} devices", number, len(searches))
        limit_s = max(LEAST_S, (end_s - time.perf_counter()) / (len(searches) - number))
        work = replace(workload, batch=asked.samples, micro_batches=asked.micro_batches, schedule=asked.schedule)
        choice = _search(graphs[asked.samples], cluster.first(asked.n_devices), work, limit_s)
        if choice is not None:
            shape = (choice.schedule, len(choice.devices), choice.n_stages, choice.micro_batches)
            if shape not in found or choice.step_s < found[shape].step_s:
                found[shape] = choice
    return tuple(sorted(found.values(), key=lambda choice: (choice.step_s, choice.peak_bytes, choice.schedule)))


def undominated(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """Those to which no other is as fast with as little memory and better in one of them, the fastest first."""
    kept: list[Choice] = []
    for choice in sorted(choices, key=lambda choice: (choice.step_s, choice.peak_bytes)):
        if not kept or choice.peak_bytes < kept[-1].peak_bytes:
            kept.append(choice)
    return tuple(kept)


def _searches(n_devices: int, batch: int) -> Iterator[Asked]:
    """Everything that may be worth a look."""
    counts = [1 << power for power in range(batch.bit_length()) if batch % (1 << power) == 0]
    several = range(1, n_devices + 1) if n_devices <= MOST_EACH else _powers(n_devices)
    for n_used in several:
        for micro_batches in counts:
            for schedule in SCHEDULES if n_used > 1 else SCHEDULES[:1]:
                if schedule == "interleaved" and micro_batches % n_used:
                    continue
                yield Asked(schedule, n_used, micro_batches, batch // micro_batches)


def _powers(n_devices: int) -> list[int]:
    return sorted({*(1 << power for power in range(n_devices.bit_length())), n_devices})


def _search(graph: Graph, cluster: Cluster, workload: Workload, time_limit_s: float) -> Choice | None:
    """The best placement for one of them; None if none fits."""
    table = tabulate(graph, cluster, workload, cached_profiles(cluster))
    step = TrainingStep(workload.schedule, workload.micro_batches)
    placement = solve(Problem(table, Goal.TRAINING, step=step), time_limit_s=time_limit_s).placement
    if placement is None:
        return None
    run = simulate_training(table, placement, step)
    used = dict.fromkeys(placement.device[ops[0]] for ops in run.stages)
    if len(used) == 1 and workload.schedule != SCHEDULES[0]:
        return None  # nothing that the first schedule does not do there in less memory
    return Choice(
        schedule=workload.schedule,
        devices=tuple(table.devices[device] for device in used),
        n_stages=len(run.stages),
        micro_batches=workload.micro_batches,
        samples=workload.batch,
        step_s=run.makespan_s,
        memory_bytes=tuple(float(run.memory_bytes[device]) for device in used),
        placement=placement,
    )
