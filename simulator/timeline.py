"""Timeline: the spans of a run. A predicted run and a measured run are the same type."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from graphs.common.arrays import Floats
from graphs.common.brief import Brief
from graphs.common.notebook import repr_html

Kind: TypeAlias = Literal["compute", "transfer"]


@dataclass(frozen=True, slots=True)
class Span:
    """One stage of one micro-batch on a device, or the transfer of one flow of one micro-batch."""

    kind: Kind  # compute or transfer
    resource: str  # name of the device, or "src → dst" for a transfer
    label: str  # text in charts: first and last operator of the stage, or the tensor
    micro_batch: int  # number of the micro-batch, from 0
    index: int  # number of the stage, or of the flow in ``CostTable.flows``; in a schedule of the sending stage
    start_s: float  # seconds since the start of the run
    end_s: float  # seconds since the start of the run
    processor_s: float = 0.0  # processor time of the thread that computed, where it was measured; 0 elsewhere

    def clipped(self, start_s: float, end_s: float) -> "Span":
        """Return the part of the span between two times; its processor time is in proportion."""
        start_s, end_s = max(self.start_s, start_s), min(self.end_s, end_s)
        whole_s = self.end_s - self.start_s
        share = (end_s - start_s) / whole_s if whole_s > 0 else 1.0
        return replace(self, start_s=start_s, end_s=end_s, processor_s=self.processor_s * share)


@dataclass(frozen=True)
class Timeline(Brief):
    """Spans in the order in which they start.

    Attributes:
        devices: names, in the order of the cluster.
        micro_batches: number of micro-batches.
        spans: every stage and every transfer of every micro-batch.
    """

    devices: tuple[str, ...]
    micro_batches: int
    spans: tuple[Span, ...]
    _repr_html_ = repr_html

    @cached_property
    def makespan_s(self) -> float:
        """Seconds from the start of the run to the end of its last span; for one micro-batch this is the latency."""
        return max((span.end_s for span in self.spans), default=0.0)

    def clipped(self, start_s: float, end_s: float) -> "Timeline":
        """Return the parts of the spans between two times."""
        inside = (span for span in self.spans if span.start_s < end_s and span.end_s > start_s)
        return replace(self, spans=tuple(span.clipped(start_s, end_s) for span in inside))

    def first(self, micro_batches: int) -> "Timeline":
        """Return the spans of the first micro-batches."""
        kept = tuple(span for span in self.spans if span.micro_batch < micro_batches)
        return Timeline(self.devices, min(self.micro_batches, micro_batches), kept)

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
        """Seconds in which each link sends, by its name, in the order of their first transfers."""
        busy: dict[str, float] = {}
        free_s: dict[str, float] = {}  # link -> second at which its transfers so far have arrived
        for span in self.spans:  # in the order of their starts
            if span.kind == "transfer":
                latest_s = free_s.get(span.resource, 0.0)
                more_s = max(0.0, span.end_s - max(span.start_s, latest_s))
                busy[span.resource] = busy.get(span.resource, 0.0) + more_s
                free_s[span.resource] = max(latest_s, span.end_s)
        return busy

    @cached_property
    def critical_path(self) -> tuple[Span, ...]:
        """Spans without gaps up to the last end, one of which must become faster for the run to become faster.

        Each span follows one that ended when it started: preferably a span of the same micro-batch on the same devices,
        then one of the same resource, of the same devices, or any. The chain begins with a span without a predecessor.
        """
        ended: dict[float, list[Span]] = {}
        for span in self.spans:
            ended.setdefault(span.end_s, []).append(span)
        chain = [max(self.spans, key=lambda span: span.end_s)] if self.spans else []
        visited = set(chain)
        while before := [s for s in ended.get(chain[-1].start_s, ()) if s not in visited] if chain else []:
            chain.append(min(before, key=lambda span: _distance(span, chain[-1])))
            visited.add(chain[-1])
        return tuple(reversed(chain))

    @property
    def bubble(self) -> float:
        """The idle share of all devices over the makespan, 0 to 1."""
        total = self.makespan_s * len(self.devices)
        return 1 - float(self.busy_s.sum()) / total if total > 0 else 0.0

    @cached_property
    def finish_s(self) -> tuple[float, ...]:
        """[micro_batches], second at which the last span of each micro-batch ended."""
        finish = [0.0] * self.micro_batches
        for span in self.spans:
            finish[span.micro_batch] = max(finish[span.micro_batch], span.end_s)
        return tuple(finish)

    @property
    def period_s(self) -> float:
        """Seconds from one micro-batch to the next in the second half of the run, which is in a steady state."""
        finish = sorted(self.finish_s)
        half = len(finish) // 2
        return (finish[-1] - finish[half - 1]) / (len(finish) - half) if half else self.makespan_s


def _distance(cause: Span, effect: Span) -> tuple[bool, bool, bool]:
    """Return a sort key that is smallest for the span that another span most likely waited for."""
    apart = set(cause.resource.split(" → ")).isdisjoint(effect.resource.split(" → "))
    return apart or cause.micro_batch != effect.micro_batch, cause.resource != effect.resource, apart
