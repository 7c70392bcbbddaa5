"""simulate_schedule: predicts the run of a pipeline whose devices have given orders of actions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from costmodels.table import Floats
from graphs.brief import brief
from graphs.errors import InputError
from simulator.engine import times
from simulator.lower_schedule import Channels, Lowered, StageCost, lower_schedule, message_name
from simulator.saved import Saved, saved_memory
from simulator.schedule import Schedule
from simulator.static_order import start_times
from simulator.step_end import OPTIMIZER, SYNC, StepEnd, step_end
from simulator.timeline import Span, Timeline

REPLICAS = "replicas"
"""The end of the link on which replicas add up gradients."""


@dataclass(frozen=True)
class PipelineRun:
    """A predicted run of a schedule. Actions are numbered as in ``Schedule.columns``."""

    lowered: Lowered  # the schedule with its costs
    devices: tuple[str, ...]  # names, in the order of the schedule
    start_s: Floats  # [n_actions], second at which each action starts
    sent_s: Floats  # [n_actions], second at which its message departs; nan for an action without a message
    arrived_s: Floats  # [n_actions], second at which its message arrives
    overlap: bool = True  # whether devices compute while they send

    __repr__ = brief

    @cached_property
    def end_s(self) -> Floats:
        """[n_actions], second at which each action ends."""
        return self.start_s + self.lowered.duration_s

    @property
    def makespan_s(self) -> float:
        """Seconds from the start of the run to the end of its last action, sync or optimizer."""
        return max(float(self.end_s.max()), self.step_end.end_s)

    @cached_property
    def step_end(self) -> StepEnd:
        """The sync of the gradients with other replicas, and the optimizers."""
        return step_end(self.lowered, self.end_s, self.overlap)

    @property
    def span_s(self) -> Floats:
        """[n_devices], seconds from the start of each device's first action to the end of its last one, or 0.

        The bubble of the zero-bubble papers is this minus the seconds that the device computes.
        """
        start_s, end_s = (self.lowered.schedule.split(times_s) for times_s in (self.start_s, self.end_s))
        return np.array([end[-1] - start[0] if len(end) else 0.0 for start, end in zip(start_s, end_s, strict=True)])

    @cached_property
    def saved(self) -> tuple[Saved, ...]:
        """[n_devices], the memory that each device keeps for backward passes over time."""
        return saved_memory(self.lowered, self.start_s, self.end_s)

    @cached_property
    def timeline(self) -> Timeline:
        """Every action (2F0) and every message (2SEND_F0), each with the number of the stage that runs or sends.

        The end of the step has the syncs of gradients (2SYNC) and each device's optimizer, with its first stage.
        """
        lowered = self.lowered
        resources = [self.devices[device] for device in lowered.schedule.columns.device.tolist()]
        times_s = zip(lowered.actions, resources, self.start_s.tolist(), self.end_s.tolist(), strict=True)
        spans = [
            Span("compute", resource, str(action), action.micro_batch, action.stage, start_s, end_s)
            for action, resource, start_s, end_s in times_s
        ]
        links = [" → ".join(self.devices[end] for end in ends) for ends in lowered.links]
        link, departs_s, arrives_s = (x.tolist() for x in (lowered.link, self.sent_s, self.arrived_s))
        for i in lowered.senders:
            action, resource = lowered.actions[i], links[link[i]]
            name = message_name(action)
            spans.append(Span("transfer", resource, name, action.micro_batch, action.stage, departs_s[i], arrives_s[i]))
        spans += self._last_spans()
        spans.sort(key=lambda span: span.start_s)
        return Timeline(self.devices, lowered.schedule.micro_batches, tuple(spans))

    def _last_spans(self) -> Iterator[Span]:
        """The spans of the end of the step, which count as a part of the last micro-batch."""
        number = self.lowered.schedule.micro_batches - 1
        for stage, device, start_s, end_s in self.step_end.syncs:
            link = f"{self.devices[device]} → {REPLICAS}"
            yield Span("transfer", link, f"{stage}{SYNC}", number, stage, start_s, end_s)
        for stage, device, start_s, end_s in self.step_end.optimizers:
            yield Span("compute", self.devices[device], OPTIMIZER, number, stage, start_s, end_s)


def simulate_schedule(
    schedule: Schedule,
    costs: Sequence[StageCost],
    overlap: bool = True,
    devices: Sequence[str] = (),
    channels: Channels | None = None,
) -> PipelineRun:
    """Predict a run of a schedule: each device executes its actions in order, each as soon as possible.

    A message takes the link between its devices, which are separate for the two directions, and waits for earlier
    messages on that link.

    Args:
        schedule: the order of each device.
        costs: [n_stages], the cost of each stage on its device.
        overlap: whether devices compute while they send and receive. If not, a message holds both its ends, is sent as
            soon as both are free, and has priority over their actions.
        devices: names of the devices; their numbers if left out.
        channels: channels of the links; a separate one for each link if left out.

    Raises:
        InputError: if devices wait for each other in a circle, or the costs or the names do not fit the schedule.
    """
    names = tuple(devices) or tuple(str(device) for device in range(schedule.n_devices))
    if len(names) != schedule.n_devices:
        raise InputError(f"there are names of {len(names)} devices; the schedule has {schedule.n_devices}")
    lowered = lower_schedule(schedule, costs, channels)
    start_s, sent_s = map(np.array, start_times(lowered))
    arrived_s = sent_s + lowered.message_s
    if lowered.links and not (overlap and lowered.in_order):
        all_start_s, all_end_s = map(np.array, times(lowered.tasks(overlap)))
        start_s = all_start_s[: len(start_s)]
        sent_s[lowered.senders] = all_start_s[len(start_s) :]
        arrived_s[lowered.senders] = all_end_s[len(start_s) :]
    return PipelineRun(lowered, names, start_s, sent_s, arrived_s, overlap)
