"""Recorder: a measured run of training steps as a Timeline, in the words of the schedule, like a predicted one."""

import time
from collections.abc import Sequence

from simulator.schedule import Action, Schedule
from simulator.timeline import Span, Timeline


class Recorder:
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
        self._origin_s = 0.0
        self._steps = 0

    @property
    def on(self) -> bool:
        """Whether times are kept."""
        return self._spans is not None

    def start(self) -> None:
        """Keep times from here on; seconds count from now."""
        self._spans, self._steps, self._origin_s = [], 0, time.perf_counter()

    def add_step(self, rows: Sequence[Sequence[tuple[Action, float, float]]]) -> None:
        """A step that is done.

        Args:
            rows: for each device its actions, with their starts and ends by `time.perf_counter`.
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

    def add_update(self, times: Sequence[tuple[float, float]]) -> None:
        """The optimizers behind a step, each with its start and end; they count for the last micro-batch."""
        for row, (device, time_s) in enumerate(zip(self._devices, times, strict=True)):
            last = self._steps * self._schedule.micro_batches - 1
            self._add(device, "optimizer", last, self._schedule.device.index(row), time_s)

    def timeline(self) -> Timeline:
        """All that was kept; from here on it is off."""
        spans, self._spans = sorted(self._spans or [], key=lambda span: (span.start_s, span.resource)), None
        return Timeline(self._devices, self._steps * self._schedule.micro_batches, tuple(spans))

    def _add(self, device: str, label: str, micro_batch: int, stage: int, time_s: tuple[float, float]) -> None:
        if self._spans is not None:
            start_s, end_s = (moment_s - self._origin_s for moment_s in time_s)
            self._spans.append(Span("compute", device, label, micro_batch, stage, start_s, end_s))
