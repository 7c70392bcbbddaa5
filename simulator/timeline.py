"""Timeline: what ran where and when. A predicted run and a measured run are the same type."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from costmodels.table import Floats
from graphs.brief import brief
from graphs.notebook import repr_html

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

    __repr__ = brief
    _repr_html_ = repr_html

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

    @cached_property
    def link_busy_s(self) -> Mapping[str, float]:
        """Seconds in which each link has something on its way, by its name, in the order of their first transfers."""
        busy: dict[str, float] = {}
        free_s: dict[str, float] = {}  # when all that has started until now has arrived
        for span in self.spans:  # in the order of their starts
            if span.kind == "transfer":
                latest_s = free_s.get(span.resource, 0.0)
                more_s = max(0.0, span.end_s - max(span.start_s, latest_s))
                busy[span.resource] = busy.get(span.resource, 0.0) + more_s
                free_s[span.resource] = max(latest_s, span.end_s)
        return busy

    @cached_property
    def critical_path(self) -> tuple[Span, ...]:
        """Spans that follow each other without a gap, up to one that ends last: to be faster, one of them must be.

        Before each span stands one that ended when it started: one of the same micro-batch that touches the same
        devices, else one of the same resource, of the same devices, or any. The chain begins where there is none.
        """
        ended: dict[float, list[Span]] = {}
        for span in self.spans:
            ended.setdefault(span.end_s, []).append(span)
        chain = [max(self.spans, key=lambda span: span.end_s)] if self.spans else []
        met = set(chain)
        while before := [span for span in ended.get(chain[-1].start_s, ()) if span not in met] if chain else []:
            chain.append(min(before, key=lambda span: _distance(span, chain[-1])))
            met.add(chain[-1])
        return tuple(reversed(chain))

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


def _distance(cause: Span, effect: Span) -> tuple[bool, bool, bool]:
    """How little one span looks like what another one waited for; the smallest is the likeliest."""
    apart = set(cause.resource.split(" → ")).isdisjoint(effect.resource.split(" → "))
    return apart or cause.micro_batch != effect.micro_batch, cause.resource != effect.resource, apart
