"""Recorder: when stages ran on this process's devices, and when what they hand to each other was there, as spans.

A tensor that is handed over by reference is there at once, unless its reader slept: then when that has woken. One that
is copied is there when its reader has copied it::

    cpu0          ── a ──┐                  cpu0          ── a ──┐
    cpu0 → cpu1          └ wakes ┐          cpu0 → gpu0          · gpu0 is busy ┌ copies ┐
    cpu1                         └── b ──   gpu0          ─────────── b ────────┘        └── c ──
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from costmodels.cluster import Device
from planner.runtime.stages.compile import CompiledStage
from simulator.timeline import Span


class Began(NamedTuple):
    """How a stage began.

    Attributes:
        slept: whether its device waited for it.
        taken_s: when the device took it, by ``time.perf_counter``.
        ready_s: when all that it reads was where the device is; the same where nothing was copied.
    """

    slept: bool
    taken_s: float
    ready_s: float


class _Arrival(NamedTuple):
    """A tensor that a stage waits for."""

    flow: int
    sender: int  # the stage that writes it
    link: str
    copied: bool


class Recorder:
    """Keeps the spans of an engine while it is on; the engine calls it with its lock held.

    The labels of transfers are empty: who knows the tensors by their numbers puts them in.
    """

    def __init__(self, devices: Sequence[Device], stages: Mapping[int, CompiledStage]) -> None:
        """Be off.

        Args:
            devices: of the cluster.
            stages: of the engine, by their numbers; what others send to them is not recorded here.
        """
        self._names = [device.name for device in devices]
        self._places = [device.cuda for device in devices]
        self._stages = stages
        self._arrivals = {number: self._arrivals_of(number) for number in stages}
        self._spans: list[Span] | None = None
        self._ended_s: dict[tuple[int, int], float] = {}  # by stage and micro-batch
        self._first = 0  # the micro-batch that is number 0 of the spans
        self._origin_s = 0.0

    @property
    def on(self) -> bool:
        """Whether anything is kept."""
        return self._spans is not None

    def start(self, first: int, origin_s: float) -> None:
        """Keep the spans of micro-batches from a number on; seconds count from a time of ``time.perf_counter``."""
        self._spans, self._ended_s, self._first, self._origin_s = [], {}, first, origin_s

    def add(self, number: int, micro_batch: int, began: Began, end_s: float) -> None:
        """A stage has run; before it came what it waited for."""
        if self._spans is None or micro_batch < self._first:
            return
        self._ended_s[number, micro_batch] = end_s
        came = [(arrival, self._ended_s[arrival.sender, micro_batch]) for arrival in self._arrivals[number]]
        latest_s = max((left_s for _, left_s in came), default=0.0)
        for arrival, left_s in came:
            woke = began.slept and left_s == latest_s
            start_s = began.taken_s if arrival.copied and not woke else left_s
            there_s = began.ready_s if arrival.copied or woke else left_s
            self._spans.append(Span("transfer", arrival.link, "", micro_batch, arrival.flow, start_s, there_s))
        stage = self._stages[number]
        name = self._names[stage.stage.device]
        self._spans.append(Span("compute", name, stage.label, micro_batch, number, began.ready_s, end_s))

    def spans(self) -> tuple[Span, ...]:
        """What was kept, in the order in which it started; recording ends."""
        spans, self._spans = self._spans or [], None
        return in_order(
            replace(
                span,
                micro_batch=span.micro_batch - self._first,
                start_s=span.start_s - self._origin_s,
                end_s=span.end_s - self._origin_s,
            )
            for span in spans
        )

    def _arrivals_of(self, number: int) -> tuple[_Arrival, ...]:
        stage = self._stages[number].stage
        senders = {
            flow: need
            for need in stage.needs
            if need in self._stages
            for flow, dst in self._stages[need].stage.sends
            if dst == stage.device
        }
        here = stage.device
        return tuple(
            _Arrival(
                flow,
                senders[flow],
                f"{self._names[src]} → {self._names[here]}",
                copied=self._places[src] != self._places[here],
            )
            for flow, src in stage.receives
            if flow in senders
        )


def in_order(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Sorted by their starts."""
    return tuple(sorted(spans, key=lambda span: (span.start_s, span.resource)))
