"""Recorder: a measured run of training steps as a Timeline, in the words of the schedule, like a predicted one."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from simulator.lower_schedule import message_name
from simulator.schedule import Action, Schedule
from simulator.timeline import Kind, Span, Timeline


class Passing(NamedTuple):
    """One end of the way that a message between devices takes, or a tensor of it.

    Attributes:
        sender: the action behind which it leaves; for a backward pass B, whole or not.
        leaves: it leaves, or else it comes.
        at_s: by `time.perf_counter`.
    """

    sender: Action
    leaves: bool
    at_s: float


class StepRecorder:
    """Keeps the times of steps while it is on."""

    def __init__(self, devices: Sequence[str], schedule: Schedule) -> None:
        """Be off.

        Args:
            devices: names, in the order of the schedule.
            schedule: of every step.
        """
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

    def add_step(self, rows: Sequence[Sequence[tuple[Action, float, float]]], passings: Iterable[Passing] = ()) -> None:
        """A step that is done.

        Args:
            rows: for each device its actions, with their starts and ends by `time.perf_counter`.
            passings: of messages between devices, where tensors do not go by reference.
        """
        if self._spans is None:
            return
        first = self._steps * self._schedule.micro_batches
        self._steps += 1
        for device, row in zip(self._devices, rows, strict=True):
            for action, start_s, end_s in row:
                number = first + action.micro_batch
                label = str(action._replace(micro_batch=number))
                self._add(device, label, number, action.stage, (start_s, end_s))
        self._add_messages(passings, first)

    def add_update(self, times: Sequence[tuple[float, float]]) -> None:
        """The optimizers behind a step, each with its start and end; they count for the last micro-batch."""
        for row, (device, time_s) in enumerate(zip(self._devices, times, strict=True)):
            last = self._steps * self._schedule.micro_batches - 1
            self._add(device, "optimizer", last, self._schedule.device.index(row), time_s)

    def timeline(self) -> Timeline:
        """All that was kept, in seconds since the first of it began; from here on it is off."""
        spans, self._spans = sorted(self._spans or [], key=lambda span: (span.start_s, span.resource)), None
        origin_s = spans[0].start_s if spans else 0.0
        since = (replace(span, start_s=span.start_s - origin_s, end_s=span.end_s - origin_s) for span in spans)
        return Timeline(self._devices, self._steps * self._schedule.micro_batches, tuple(since))

    def _add_messages(self, passings: Iterable[Passing], first: int) -> None:
        """A message is on its way from when it leaves, or the one before it on the same link has come.

        Where clocks are not known well enough, it may seem to come before it left; it took no time then.
        """
        left_s: dict[Action, float] = {}
        came_s: dict[Action, float] = {}
        for sender, leaves, at_s in passings:
            ends = left_s if leaves else came_s
            ends[sender] = max(at_s, ends.get(sender, at_s))  # with the last of its tensors
        free_s: dict[str, float] = {}
        for sender in sorted(left_s.keys() & came_s.keys(), key=lambda sender: (left_s[sender], sender)):
            to = sender.stage + (1 if sender.computation == "F" else -1)
            link = " → ".join(self._devices[self._schedule.device[stage]] for stage in (sender.stage, to))
            start_s = max(left_s[sender], free_s.get(link, left_s[sender]))
            free_s[link] = end_s = max(start_s, came_s[sender])
            number = first + sender.micro_batch
            label = message_name(sender._replace(micro_batch=number))
            self._add(link, label, number, sender.stage, (start_s, end_s), "transfer")

    def _add(
        self,
        resource: str,
        label: str,
        micro_batch: int,
        stage: int,
        time_s: tuple[float, float],
        kind: Kind = "compute",
    ) -> None:
        if self._spans is not None:
            self._spans.append(Span(kind, resource, label, micro_batch, stage, *time_s))
