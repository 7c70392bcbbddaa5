"""Timeline: what ran where and when. A predicted run and a measured run are the same type."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from costmodels.table import Floats

Kind: TypeAlias = Literal["compute", "transfer"]


@dataclass(frozen=True, slots=True)
class Span:
    """One stage of one micro-batch on a device, or one flow of one micro-batch on its way.

    Attributes:
        kind: compute or transfer.
        resource: name of the device, or "src → dst" for a transfer.
        label: what a person reads: first and last operator of the stage, or the tensor.
        micro_batch: number of the micro-batch, from 0.
        index: number of the stage, or of the flow in ``CostTable.flows``; of the sending stage in a schedule.
        start_s: since the run began.
        end_s: since the run began.
    """

    kind: Kind
    resource: str
    label: str
    micro_batch: int
    index: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """Spans in the order in which they start.

    Attributes:
        devices: names, in the order of the cluster.
        micro_batches: how many went through.
        spans: every stage and every transfer of every micro-batch.
    """

    devices: tuple[str, ...]
    micro_batches: int
    spans: tuple[Span, ...]

    @cached_property
    def makespan_s(self) -> float:
        """From the start of the run to the end of its last span; for one micro-batch this is the latency."""
        return max((span.end_s for span in self.spans), default=0.0)

    @cached_property
    def busy_s(self) -> Floats:
        """[n_devices], seconds that each device computes."""
        index = {name: i for i, name in enumerate(self.devices)}
        busy = np.zeros(len(self.devices))
        for span in self.spans:
            if span.kind == "compute":
                busy[index[span.resource]] += span.end_s - span.start_s
        return busy

    @property
    def bubble(self) -> float:
        """The idle share of all devices over the makespan, 0 to 1."""
        total = self.makespan_s * len(self.devices)
        return 1 - float(self.busy_s.sum()) / total if total > 0 else 0.0

    @cached_property
    def finish_s(self) -> tuple[float, ...]:
        """[micro_batches], when the last span of each micro-batch ended."""
        finish = [0.0] * self.micro_batches
        for span in self.spans:
            finish[span.micro_batch] = max(finish[span.micro_batch], span.end_s)
        return tuple(finish)

    @property
    def period_s(self) -> float:
        """Seconds from one micro-batch to the next in the second half of the run, where it streams steadily."""
        finish = sorted(self.finish_s)
        half = len(finish) // 2
        return (finish[-1] - finish[half - 1]) / (len(finish) - half) if half else self.makespan_s
