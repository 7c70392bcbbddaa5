"""Recorder: measured spans of the stages on this process's devices and of the tensors that go between them.

A tensor that is passed on by reference has arrived at once, unless its reader slept: then it arrives when the reader
has woken up. A tensor that is copied has arrived when its reader has copied it::

    cpu0          ── a ──┐                  cpu0          ── a ──┐
    cpu0 → cpu1          └ wakes ┐          cpu0 → gpu0          · gpu0 is busy ┌ copies ┐
    cpu1                         └── b ──   gpu0          ─────────── b ────────┘        └── c ──
"""

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import torch

from costmodels.cluster import Device
from planner.runtime.stages.compile import CompiledStage
from planner.runtime.stages.streams import mark
from simulator.timeline import Span

Moment: TypeAlias = "float | torch.cuda.Event"

T = TypeVar("T")
M = TypeVar("M", bound=tuple[Any, ...])
L = TypeVar("L", bound=Hashable)


class Ran(NamedTuple, Generic[T]):
    """One stage of one micro-batch, as its device saw it. A moment on a GPU is an event, which is over at that time."""

    slept: bool  # whether the device waited for the stage
    taken_s: T  # when the device took it, by ``time.perf_counter``
    ready_s: T  # when its inputs were on the device; equals ``taken_s`` if none was copied
    ended_s: T
    processor_s: float = 0.0  # processor time of the device's thread in between


class _Arrival(NamedTuple):
    """A tensor that a stage waits for."""

    flow: int
    sender: int  # the stage that writes it
    link: str
    copied: bool


class GpuClock:
    """Tells when events of a GPU were over, by ``time.perf_counter``; the GPU is waited for once, not at each event."""

    def __init__(self, cuda: int) -> None:
        """Compare both clocks now."""
        self._origin = mark(torch.device("cuda", cuda), timed=True)
        self._origin.synchronize()
        self._origin_s = time.perf_counter()

    def seconds(self, event: torch.cuda.Event) -> float:
        """Return the seconds at which an event was over; wait for it if it is not."""
        event.synchronize()
        since_ms: float = self._origin.elapsed_time(event)
        return self._origin_s + since_ms / 1e3


class Recorder:
    """Keeps the spans of an engine while it is on; the engine calls it with its lock held.

    The labels of transfers are empty: a runner, which knows the names of the tensors, fills them in.
    """

    def __init__(self, devices: Sequence[Device], stages: Mapping[int, CompiledStage]) -> None:
        """Prepare for the stages of an engine; tensors from stages elsewhere are not recorded here."""
        self._devices = devices
        self._stages = stages
        self._arrivals = {number: self._arrivals_of(number) for number in stages}
        self._ran: dict[tuple[int, int], Ran[Moment]] | None = None  # by stage and micro-batch
        self._first = 0  # the micro-batch that is number 0 of the spans
        self._origin_s = 0.0

    @property
    def on(self) -> bool:
        """Whether spans are kept."""
        return self._ran is not None

    def start(self, first: int, origin_s: float) -> None:
        """Keep what runs of micro-batches from a number on; times count from ``origin_s`` by ``time.perf_counter``."""
        self._ran, self._first, self._origin_s = {}, first, origin_s
        self._clocks = {i: GpuClock(device.cuda) for i, device in enumerate(self._devices) if device.cuda is not None}

    def add(self, number: int, micro_batch: int, ran: Ran[Moment]) -> None:
        """Keep a stage that has run."""
        if self._ran is not None and micro_batch >= self._first:
            self._ran[number, micro_batch] = ran

    def spans(self) -> tuple[Span, ...]:
        """Return the spans of stages and of the tensors that they waited for, sorted by starts, and stop recording."""
        ran, self._ran = self._ran or {}, None
        timed = {key: self._timed(key[0], each) for key, each in ran.items()}
        return in_order(span for (number, micro_batch) in timed for span in self._spans_of(number, micro_batch, timed))

    def _timed(self, number: int, ran: Ran[Moment]) -> Ran[float]:
        """Replace the events by seconds since the origin."""
        clock = self._clocks.get(self._stages[number].stage.device)

        def seconds(moment: Moment) -> float:
            if isinstance(moment, float):
                return moment - self._origin_s
            assert clock is not None, "only stages on GPUs have events"
            return clock.seconds(moment) - self._origin_s

        return Ran(ran.slept, seconds(ran.taken_s), seconds(ran.ready_s), seconds(ran.ended_s), ran.processor_s)

    def _spans_of(self, number: int, micro_batch: int, timed: Mapping[tuple[int, int], Ran[float]]) -> Iterator[Span]:
        ran, count = timed[number, micro_batch], micro_batch - self._first
        arrivals = [(arrival, timed[arrival.sender, micro_batch].ended_s) for arrival in self._arrivals[number]]
        latest_s = max((left_s for _, left_s in arrivals), default=0.0)
        for arrival, left_s in arrivals:
            woke = ran.slept and left_s == latest_s
            start_s = ran.taken_s if arrival.copied and not woke else left_s
            came_s = ran.ready_s if arrival.copied or woke else left_s
            yield Span("transfer", arrival.link, "", count, arrival.flow, start_s, came_s)
        stage = self._stages[number]
        name = self._devices[stage.stage.device].name
        yield Span("compute", name, stage.label, count, number, ran.ready_s, ran.ended_s, ran.processor_s)

    def _arrivals_of(self, number: int) -> tuple[_Arrival, ...]:
        stage = self._stages[number].stage
        senders = {
            flow: need
            for need in stage.needs
            if need in self._stages
            for flow, dst in self._stages[need].stage.sends
            if dst == stage.device
        }
        own = self._devices[stage.device]
        sources = ((flow, self._devices[src]) for flow, src in stage.receives if flow in senders)
        return tuple(
            _Arrival(flow, senders[flow], f"{src.name} → {own.name}", copied=src.cuda != own.cuda)
            for flow, src in sources
        )


def transfer_times(
    ends: Iterable[tuple[M, bool, float]], link_of: Callable[[M], L]
) -> Iterator[tuple[M, float, float]]:
    """Yield each message that has left and come, and from when to when it was on its link.

    A message is on its way from when it leaves, or the one before it on the same link has come. A message that never
    came, because its micro-batch failed, is left out. Where clocks are not known well enough, a message may seem to
    come before it left; it then takes no time. Each of ``ends`` has a message, whether it leaves, and when.
    """
    left_s: dict[M, float] = {}
    came_s: dict[M, float] = {}
    for message, leaves, at_s in ends:
        times_s = left_s if leaves else came_s
        times_s[message] = max(at_s, times_s.get(message, at_s))
    free_s: dict[L, float] = {}  # when the last message on each link came
    for message in sorted((m for m in left_s if m in came_s), key=lambda message: (left_s[message], message)):
        link = link_of(message)
        start_s = max(left_s[message], free_s.get(link, left_s[message]))
        free_s[link] = end_s = max(start_s, came_s[message])
        yield message, start_s, end_s


def in_order(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Sort spans by their starts."""
    return tuple(sorted(spans, key=lambda span: (span.start_s, span.resource)))
