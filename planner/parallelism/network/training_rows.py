"""Choices: ways to run a training step, with what it takes.

::

    step time
      │ x             x is dominated: another choice is as fast and needs no more memory on its fullest device
      │●   x          ● is not dominated
      │  ●    x
      │     ●
      └──────────── memory
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from costmodels.workload import RecomputeMode
from planner.parallelism.closed_form.config import (
    ParallelConfig,
    ParallelShape,
    Precision,
    StageDegrees,
    StageLayers,
    StepSchedule,
)
from planner.parallelism.closed_form.prices import StepPrice
from planner.parallelism.network.shape_tables import ShapeCosts
from planner.parallelism.network.training_shapes import Shape
from planner.problem.problem import Problem
from simulator.placement import Placement
from simulator.training import simulate_training


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to run a training step."""

    schedule: str
    devices: tuple[str, ...]  # names of one replica's devices that have a stage, in the order of the stages
    n_stages: int
    replicas: int
    micro_batches: int  # of each replica in a step
    samples: int  # in a micro-batch
    recompute: RecomputeMode  # where stages differ, ``layers`` say it
    price: StepPrice  # predicted, with the memory in the order of ``devices``
    placement: Placement
    n_devices: int = 0  # of all replicas, with those that have no stage
    tensor: int = 1  # devices that share each stage, of which ``devices`` names the first
    zero: int = 0  # stage of ZeRO
    layers: tuple[StageLayers, ...] = ()  # of each stage, where `config` has them
    degrees: tuple[StageDegrees, ...] = ()  # of each stage, where stages differ, as in `ParallelConfig`
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
        return self.schedule, self.recomputed, *many, self.tensor, self.zero, self.degrees

    @property
    def recomputed(self) -> str:
        """The recomputation, of each stage where stages differ."""
        return self.config.recompute if self.config else self.recompute

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
        return ParallelConfig(degrees, self.layers, self.precision, self.gradients, self.degrees)


@dataclass(frozen=True, slots=True)
class TradeOffs:
    """The choices that were found within the time."""

    choices: tuple[Choice, ...]  # those that fit into memory, the fastest first; the best one of each shape
    unsearched: int = 0  # ways to divide devices and batch for which there was no time
    bound_s: float = 0.0  # no schedule or stages of the ways that were searched take less


def choice_of(problem: Problem, placement: Placement, shape: Shape, costs: ShapeCosts) -> Choice:
    """Return a placement as a choice."""
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


def fastest_first(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    """Return the choices in the order of their rows."""
    return tuple(sorted(choices, key=lambda one: (one.step_s, one.peak_bytes, one.schedule, one.recomputed)))


def undominated(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """Return the choices that no other choice dominates in time and memory, the fastest first."""
    kept: list[Choice] = []
    for choice in sorted(choices, key=lambda choice: (choice.step_s, choice.peak_bytes)):
        if not kept or choice.peak_bytes < kept[-1].peak_bytes:
            kept.append(choice)
    return tuple(kept)
