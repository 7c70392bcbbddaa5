"""Recorder: measured training steps as a Timeline, with the labels of the schedule, like a predicted one."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from planner.runtime.inference.recorder import in_order, transfer_times
from simulator.lower_schedule import message_name
from simulator.schedule import Action, Schedule
from simulator.timeline import Kind, Span, Timeline


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
                self._add(device, label, number, action.stage, (start_s, end_s))
        for sender, start_s, end_s in transfer_times(message_ends, self._link_of):
            number = first + sender.micro_batch
            label = message_name(sender._replace(micro_batch=number))
            self._add(self._link_of(sender), label, number, sender.stage, (start_s, end_s), "transfer")

    def add_update(self, times: Sequence[tuple[float, float]]) -> None:
        """Keep the start and end of each optimizer's step, which counts for the last micro-batch."""
        for row, (device, time_s) in enumerate(zip(self._devices, times, strict=True)):
            last = self._steps * self._schedule.micro_batches - 1
            self._add(device, "optimizer", last, self._schedule.device.index(row), time_s)

    def timeline(self) -> Timeline:
        """Return all that was kept, in seconds since the first span began, and stop recording."""
        spans, self._spans = in_order(self._spans or []), None
        origin_s = spans[0].start_s if spans else 0.0
        since = (replace(span, start_s=span.start_s - origin_s, end_s=span.end_s - origin_s) for span in spans)
        return Timeline(self._devices, self._steps * self._schedule.micro_batches, tuple(since))

    def _link_of(self, sender: Action) -> str:
        receiver = sender.stage + (1 if sender.computation == "F" else -1)
        return " → ".join(self._devices[self._schedule.device[stage]] for stage in (sender.stage, receiver))

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
