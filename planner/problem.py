"""Problem: what a solver is asked."""

from dataclasses import dataclass
from enum import StrEnum

from costmodels.table import CostTable


class Goal(StrEnum):
    """What is minimised, in seconds."""

    THROUGHPUT = "throughput"  # the busiest device's time for one micro-batch; its inverse is the throughput
    LATENCY = "latency"  # the time of one micro-batch from start to end, alone on the devices


@dataclass(frozen=True)
class Problem:
    """Place the operators of ``table`` for ``goal``, within memory, with groups kept together."""

    table: CostTable
    goal: Goal
