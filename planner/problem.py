"""Problem: what a solver is asked."""

from dataclasses import dataclass, field
from enum import StrEnum

from costmodels.table import CostTable
from graphs.errors import InputError
from simulator.placement import Placement
from simulator.training import TrainingStep


class Goal(StrEnum):
    """What is minimised, in seconds."""

    THROUGHPUT = "throughput"  # the busiest device's time for one micro-batch; its inverse is the throughput
    LATENCY = "latency"  # the time of one micro-batch from start to end, alone on the devices
    TRAINING = "training"  # the time of one training step, all its micro-batches forward and backward
    COST = "cost"  # computing and transfers of one micro-batch, all added up: to fit into memory at least cost


@dataclass(frozen=True)
class Problem:
    """Place the operators of ``table`` for ``goal``, within memory, with groups kept together.

    Attributes:
        table: what everything costs. An operator may be kept from a device by an infinite time there.
        goal: what is minimised.
        contiguous: operators whose devices must follow one another: if tensors go from one device to another, directly
            or through others, none come back. Empty if any placement will do.
        step: how a training step is run; ignored by the other goals.

    Raises:
        InputError: if ``contiguous`` names an operator that does not exist.
    """

    table: CostTable
    goal: Goal
    contiguous: frozenset[int] = frozenset()
    step: TrainingStep = field(default_factory=TrainingStep)

    def __post_init__(self) -> None:
        if not all(0 <= op < self.table.n_ops for op in self.contiguous):
            odd = next(op for op in sorted(self.contiguous) if not 0 <= op < self.table.n_ops)
            raise InputError(f"operator {odd} must be contiguous but does not exist; there are {self.table.n_ops}")

    def costs(self, placement: Placement) -> CostTable:
        """What operators take under a placement, see `Placement.costs`."""
        return placement.costs(self.table, streaming=self.goal is Goal.THROUGHPUT)
