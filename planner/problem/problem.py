"""Problem: the cost table, the goal and the constraints that a solver gets."""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Never

import numpy as np

from costmodels.table import CostTable
from graphs.common.arrays import Floats
from graphs.common.brief import Brief
from graphs.common.checks import instance, one_of
from graphs.common.errors import InputError
from simulator.placement import Placement
from simulator.training import TrainingStep, most_micro_batches


class Goal(StrEnum):
    """The seconds that a solver minimises."""

    THROUGHPUT = "throughput"  # the busiest device's time for one micro-batch; its inverse is the throughput
    LATENCY = "latency"  # the time of one micro-batch from start to end, while nothing else runs
    TRAINING = "training"  # the time of one training step, all its micro-batches forward and backward
    COST = "cost"  # the sum of all computing and all transfers of one micro-batch
    GENERATION = "generation"  # throughput or latency of a language model's passes, see `of_passes`

    @classmethod
    def _missing_(cls, value: object) -> Never:
        one_of(value, "the goal", cls)
        raise AssertionError  # Enum asks only about values that are no goal, and for those `one_of` raises

    def of_passes(self, groups: int) -> "Goal":
        """Return the goal of a problem: for generation, that of the passes of some groups of sequences.

        Each group waits for the end of its last pass. So one group alone takes the latency of a pass, and several are a
        stream with as many micro-batches in flight. Other goals stay as they are.
        """
        if self is not Goal.GENERATION:
            return self
        return Goal.THROUGHPUT if groups > 1 else Goal.LATENCY


@dataclass(frozen=True)
class Problem(Brief):
    """Place the operators of ``table`` for ``goal``, within memory, with groups kept together.

    Attributes:
        table: the costs. An infinite time forbids an operator on a device.
        goal: what is minimised.
        contiguous: operators whose devices must follow one another: if a tensor of theirs goes from one device to
            another, directly or through others, none comes back. Empty without this constraint.
        step: how a training step is run; other goals ignore it.
        copies: whether micro-batches that stream may take turns among several copies of the network, so that bounds
            have to hold for them too. Solvers look for the best single copy all the same.

    Raises:
        InputError: for the goal generation, if ``contiguous`` names an operator that does not exist, or a training step
            has more micro-batches than a schedule for these devices takes.
    """

    table: CostTable
    goal: Goal
    contiguous: frozenset[int] = frozenset()
    step: TrainingStep = field(default_factory=TrainingStep)
    copies: bool = False

    def __post_init__(self) -> None:
        instance(self.table, CostTable, "the table of a problem", "a CostTable")
        object.__setattr__(self, "goal", Goal(self.goal))
        if self.goal is Goal.GENERATION:
            raise InputError("a problem for generation is one for throughput or latency of passes; see Goal.of_passes")
        if not all(0 <= op < self.table.n_ops for op in self.contiguous):
            odd = next(op for op in sorted(self.contiguous) if not 0 <= op < self.table.n_ops)
            raise InputError(f"operator {odd} must be contiguous but does not exist; there are {self.table.n_ops}")

        if self.goal is Goal.TRAINING and self.step.micro_batches > (most := most_micro_batches(self.table.n_devices)):
            raise InputError(
                f"a step of {self.step.micro_batches:,} micro-batches is more than a schedule of "
                f"{self.table.n_devices} devices takes; give {most:,} at most, and more samples in each"
            )

    @cached_property
    def worked_out(self) -> dict[Hashable, Any]:
        """Results that callers work out from the problem and keep with it, by what they ask."""
        return {}

    @cached_property
    def contended(self) -> "Problem":
        """The problem that solvers are given: all devices compute all the time."""
        return replace(self, table=self.table.contended)

    @cached_property
    def both_s(self) -> Floats:
        """[n_ops, n_devices], seconds of a micro-batch there and back."""
        return np.asarray(self.table.forward_s + self.table.again_s(self.step.recompute) + self.table.backward_s)

    @cached_property
    def work_s(self) -> Floats:
        """[n_ops, n_devices], seconds of all that the goal counts: a micro-batch, or a step and its optimizer."""
        if self.goal is not Goal.TRAINING:
            return self.table.forward_s
        step_s, update = self.step.micro_batches * self.both_s, self.table.update
        return step_s + np.outer(update.gradient_bytes, update.optimizer_s_per_byte) if update else step_s

    def costs(self, placement: Placement) -> CostTable:
        """Return the table with the contention of a placement, see `Placement.costs`."""
        return placement.costs(self.table, streaming=self.goal is Goal.THROUGHPUT)
