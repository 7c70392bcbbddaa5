"""Simplification: the time that a plan gave away for fewer tensors between devices."""

from dataclasses import dataclass
from typing import NamedTuple

from costmodels.table import CostTable
from costmodels.units import format_bytes
from graphs.common.brief import brief
from graphs.common.checks import check_fields
from simulator.placement import Placement


class SentTensors(NamedTuple):
    """Tensors that a copy of the network sends between devices: of two placements, the smaller value is simpler."""

    tensors: int  # that go from one device to another for a micro-batch
    n_bytes: float  # of these tensors
    devices: int  # in use

    def __str__(self) -> str:
        many = f"{self.tensors:,} tensor{'s' * (self.tensors != 1)} between devices"
        return f"{many} ({format_bytes(self.n_bytes)})" if self.tensors else "no tensor between devices"


def sent_tensors(table: CostTable, placement: Placement) -> SentTensors:
    """Return what the first copy of a placement sends."""
    sent = [flow for flow, _, _ in placement.cuts(table)]
    return SentTensors(len(sent), float(table.flow_bytes[sent].sum()), len(placement.used))


@dataclass(frozen=True)
class Simplification:
    """The plan that was found first, compared with the simpler one that was taken.

    Attributes:
        slower: share of the predicted time that the simpler plan takes longer; below 0 if it takes less.
        tensors: that the former plan sends between devices for a micro-batch.
        n_bytes: of these tensors.
        devices: that the former plan uses.

    Raises:
        InputError: for a field of a wrong type.
    """

    slower: float
    tensors: int
    n_bytes: float
    devices: int

    __repr__ = brief

    def __post_init__(self) -> None:
        check_fields(self, "the simplification")

    def compared(self, now: SentTensors) -> str:
        """Return both in words: "1.2% slower on paper, 1 tensor between devices (4 MiB) instead of 5 (53 MiB)"."""
        words = f"{abs(self.slower):.2%} {'faster' if self.slower < 0 else 'slower'} on paper"
        used = f"{now.devices} device{'s' * (now.devices != 1)}"
        fewer = f", {used} instead of {self.devices}" if now.devices < self.devices else ""
        return f"{words}, {now} instead of {self.tensors:,} ({format_bytes(self.n_bytes)}){fewer}"
