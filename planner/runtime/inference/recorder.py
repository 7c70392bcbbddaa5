"""Recorders: measured spans of the stages of micro-batches and of training steps, and of tensors on their way.

A tensor that is passed on by reference has arrived at once, unless its reader slept: then it arrives when the reader
has woken up. A tensor that is copied has arrived when its reader has copied it::

    cpu0          ── a ──┐                  cpu0          ── a ──┐
    cpu0 → cpu1          └ wakes ┐          cpu0 → gpu0          · gpu0 is busy ┌ copies ┐
    cpu1                         └── b ──   gpu0          ─────────── b ────────┘        └── c ──
"""

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import torch

from costmodels.cluster.cluster import Device
from planner.runtime.stages.compile import CompiledStage, mark
from simulator.lower_schedule import message_name
from simulator.schedule import Action, Schedule
from simulator.timeline import Span, Timeline

Moment: TypeAlias = "float | torch.cuda.Event"

T = TypeVar("T")
M = TypeVar("M", bound=tuple[Any, ...])
L = TypeVar("L", bound=Hashable)


class StageRun(NamedTuple, Generic[T]):
    """One stage of one micro-batch, as its device saw it. A moment on a GPU is an event, which is over at that time."""

    slept: bool  # whether the device waited for the stage
    taken_s: T  # when the device took it, by ``time.perf_counter``
    ready_s: T  # when its inputs were on the device; equals ``taken_s`` if none was copied
    ended_s: T
    processor_s: float = 0.0  # processor time of the device's thread in between


def equal_runs(ran: StageRun[Moment], count: int) -> list[StageRun[Moment]]:
    """Divide the record of micro-batches that a device ran at once into equal parts, one after the other."""
    begin_s, end_s = ran.ready_s, ran.ended_s
    assert isinstance(begin_s, float), "a GPU runs one at a time"
    assert isinstance(end_s, float), "a GPU runs one at a time"
    each_s, processor_s = (end_s - begin_s) / count, ran.processor_s / count
    starts_s = [begin_s + number * each_s for number in range(count)]
    parts: list[StageRun[Moment]] = [StageRun(False, each, each, each + each_s, processor_s) for each in starts_s]
    parts[0] = parts[0]._replace(slept=ran.slept, taken_s=ran.taken_s)
    return parts


class LoggedTransfer(NamedTuple):
    """One end of a payload's way to another rank."""

    stage: int  # the stage that wrote the payload
    rank: int  # the destination
    micro_batch: int  # number 0 is the first that is recorded
    leaves: bool  # whether the payload leaves; else it comes
    at_s: float  # since the moment from which all ranks count


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
    """Keeps the spans of an engine while it is on; any device's thread may add to it at any time.

    The labels of transfers are empty: a runner, which knows the names of the tensors, fills them in.
    """

    def __init__(self, devices: Sequence[Device], stages: Mapping[int, CompiledStage]) -> None:
        """Prepare for the stages of an engine; tensors from stages elsewhere are not recorded here."""
        self._devices = devices
        self._stages = stages
        self._arrivals = {number: self._arrivals_of(number) for number in stages}
        self._ran: dict[tuple[int, int], StageRun[Moment]] | None = None  # by stage and micro-batch
        self.noted: list[LoggedTransfer] = []
        self._first = 0  # the micro-batch that is number 0 of the spans
        self._origin_s = 0.0

    @property
    def on(self) -> bool:
        """Whether spans are kept."""
        return self._ran is not None

    @property
    def processor_s(self) -> float:
        """The processor time of the calling thread while spans are kept: to ask for it takes most of a microsecond."""
        return time.thread_time() if self.on else 0.0

    def start(self, first: int, origin_s: float) -> None:
        """Keep what runs of micro-batches from a number on; times count from ``origin_s`` by ``time.perf_counter``."""
        self._ran, self.noted, self._first, self._origin_s = {}, [], first, origin_s
        own = {compiled.stage.device for compiled in self._stages.values()}  # others may be GPUs of other hosts
        gpus = {i: self._devices[i].cuda for i in sorted(own)}
        self._clocks = {i: GpuClock(cuda) for i, cuda in gpus.items() if cuda is not None}

    def note(self, end: LoggedTransfer) -> None:
        """Keep the time of a payload, by ``time.perf_counter``, if its micro-batch is recorded."""
        if self._ran is not None and (number := end.micro_batch - self._first) >= 0:
            self.noted.append(end._replace(micro_batch=number, at_s=end.at_s - self._origin_s))

    def add(self, number: int, micro_batch: int, ran: StageRun[Moment]) -> None:
        """Keep a stage that has run."""
        if (kept := self._ran) is not None and micro_batch >= self._first:
            kept[number, micro_batch] = ran

    def spans(self) -> tuple[Span, ...]:
        """Return the spans of stages and of the tensors that they waited for, sorted by starts, and stop recording."""
        ran, self._ran = self._ran or {}, None
        timed = {key: self._timed(key[0], each) for key, each in ran.copy().items()}
        spans = (span for number, micro_batch in timed for span in self._spans(number, micro_batch, timed))
        return in_order(spans, self._origin_s, self._first)

    def _timed(self, number: int, ran: StageRun[Moment]) -> StageRun[float]:
        """Replace the events of a GPU by seconds."""
        clock = self._clocks.get(self._stages[number].stage.device)

        def seconds(moment: Moment) -> float:
            if isinstance(moment, float):
                return moment
            assert clock is not None, "only stages on GPUs have events"
            return clock.seconds(moment)

        return StageRun(ran.slept, seconds(ran.taken_s), seconds(ran.ready_s), seconds(ran.ended_s), ran.processor_s)

    def _spans(self, number: int, micro_batch: int, timed: Mapping[tuple[int, int], StageRun[float]]) -> Iterator[Span]:
        """Yield the spans of the tensors that a stage waited for, and its own."""
        ran = timed[number, micro_batch]
        ended_s = [timed[sender, micro_batch].ended_s for _, sender, _, _ in self._arrivals[number]]
        for (flow, _, link, copied), left_s in zip(self._arrivals[number], ended_s, strict=True):
            woke = ran.slept and left_s == max(ended_s)
            taken_s = max(ran.taken_s, left_s)  # a reader of a GPU takes what the GPU still computes
            start_s = taken_s if copied and not woke else left_s
            came_s = ran.ready_s if copied or woke else left_s
            yield Span("transfer", link, "", micro_batch, flow, start_s, came_s)
        stage = self._stages[number]
        name = self._devices[stage.stage.device].name
        yield Span("compute", name, stage.label, micro_batch, number, ran.ready_s, ran.ended_s, ran.processor_s)

    def _arrivals_of(self, number: int) -> tuple[tuple[int, int, str, bool], ...]:
        """Return the tensors that a stage waits for: flow, the stage that writes it, link, and whether it is copied."""
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
        return tuple((flow, senders[flow], f"{src.name} → {own.name}", src.cuda != own.cuda) for flow, src in sources)


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


def in_order(spans: Iterable[Span], origin_s: float = 0.0, first: int = 0) -> tuple[Span, ...]:
    """Sort spans by their starts, and count their times and micro-batches from others."""
    since = (
        replace(s, micro_batch=s.micro_batch - first, start_s=s.start_s - origin_s, end_s=s.end_s - origin_s)
        for s in spans
    )
    return tuple(sorted(since, key=lambda span: (span.start_s, span.resource)))


class MessageEnd(NamedTuple):
    """A message between devices, or a tensor of it, at one end of its way."""

    sender: Action  # the action that it follows; B for a backward pass, whole or not
    leaves: bool  # whether it leaves; else it comes
    at_s: float  # by `time.perf_counter`


class StepRecorder:
    """Keeps the times of steps while it is on."""

    def __init__(self, devices: Sequence[str], schedule: Schedule) -> None:
        """Prepare for devices, by their names, in the order of the schedule's rows."""
        self._devices = tuple(devices)
        self._schedule = schedule
        self._spans: list[Span] | None = None
        self._steps = 0

    @property
    def on(self) -> bool:
        """Whether times are kept."""
        return self._spans is not None

    def start(self) -> None:
        """Keep times from here on."""
        self._spans, self._steps = [], 0

    def add_step(
        self, rows: Sequence[Sequence[tuple[Action, float, float]]], message_ends: Iterable[MessageEnd] = ()
    ) -> None:
        """Keep the times of a step: actions of each device with start and end, and ends of messages."""
        if self._spans is None:
            return
        first = self._steps * self._schedule.micro_batches
        self._steps += 1
        for device, row in zip(self._devices, rows, strict=True):
            for action, start_s, end_s in row:
                number = first + action.micro_batch
                label = str(action._replace(micro_batch=number))
                self._spans.append(Span("compute", device, label, number, action.stage, start_s, end_s))
        for sender, start_s, end_s in transfer_times(message_ends, self._link_of):
            number = first + sender.micro_batch
            label = message_name(sender._replace(micro_batch=number))
            self._spans.append(Span("transfer", self._link_of(sender), label, number, sender.stage, start_s, end_s))

    def add_update(self, times: Sequence[tuple[float, float]]) -> None:
        """Keep the start and end of each optimizer's step, which counts for the last micro-batch."""
        if self._spans is None:
            return
        last = self._steps * self._schedule.micro_batches - 1
        for row, (device, time_s) in enumerate(zip(self._devices, times, strict=True)):
            self._spans.append(Span("compute", device, "optimizer", last, self._schedule.device.index(row), *time_s))

    def timeline(self) -> Timeline:
        """Return all that was kept, in seconds since the first span began, and stop recording."""
        spans, self._spans = self._spans or [], None
        origin_s = min((span.start_s for span in spans), default=0.0)
        return Timeline(self._devices, self._steps * self._schedule.micro_batches, in_order(spans, origin_s))

    def _link_of(self, sender: Action) -> str:
        receiver = sender.stage + (1 if sender.computation == "F" else -1)
        return " → ".join(self._devices[self._schedule.device[stage]] for stage in (sender.stage, receiver))
