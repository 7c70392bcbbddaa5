"""simulate_schedule: predicts the run of a pipeline whose devices have given orders of actions, to the step's end."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import inf, nan
from typing import NamedTuple

import numpy as np

from graphs.common.arrays import Floats, Ints
from graphs.common.brief import Brief
from graphs.common.errors import InputError
from simulator.engine import Task, circle_from, shorten, times
from simulator.lower_schedule import Channels, LoweredSchedule, StageCost, lower_schedule, message_name
from simulator.schedule import COMPUTATIONS, B, F, I, Schedule, W
from simulator.timeline import Span, Timeline

OPTIMIZER, SYNC = "optimizer", "SYNC"
"""Labels in a timeline: of a device's optimizers, and of the sync of a stage's gradients, after the stage's number."""


class Piece(NamedTuple):
    """A sync or an optimizer, which runs once in a step."""

    stage: int  # the stage of the gradients, or the first stage of the optimizer's device
    device: int  # number of the device
    start_s: float  # seconds since the start of the step
    end_s: float  # seconds since the start of the step


class StepEnd(NamedTuple):
    """The syncs of the stages and the optimizers of the devices after the last micro-batch, if they take time."""

    syncs: tuple[Piece, ...]
    optimizers: tuple[Piece, ...]

    @property
    def end_s(self) -> float:
        """Second of the end; 0 if there are no pieces."""
        return max((piece.end_s for piece in (*self.syncs, *self.optimizers)), default=0.0)


def ends_step(label: str) -> bool:
    """Return whether a span with this label belongs to the end of a step, and to no micro-batch."""
    return label == OPTIMIZER or (label.endswith(SYNC) and label.removesuffix(SYNC).isdecimal())


def step_end(lowered: LoweredSchedule, end_s: Floats, overlap: bool) -> StepEnd:
    """Return the times at which stages add up their gradients and devices run their optimizers.

    ::

        device 0   ... 0B2 0B3        [optimizer]      the sync of a stage's gradients follows its last backward pass;
        0 → replicas          -----===                 the optimizer waits for all stages of its device
        device 1   ... 1B3           [optimizer]       syncs of one uplink share it equally: --- has half of it
        1 → replicas      ====-----

    A device adds up the gradients of one stage after the other as they become ready, or after its last action if it
    does not overlap computing and sending. Actions end at ``end_s``, [n_actions].
    """
    schedule, costs = lowered.schedule, lowered.costs
    if not (schedule.trains and any(cost.sync_s or cost.optimizer_s for cost in costs)):
        return StepEnd((), ())
    last = np.maximum(schedule.position[B], schedule.position[W])
    ready_s = end_s[last].max(axis=1).tolist()  # [n_stages]
    computed_s = [float(actions_end_s[-1]) if len(actions_end_s) else 0.0 for actions_end_s in schedule.split(end_s)]
    order = sorted(range(len(costs)), key=ready_s.__getitem__)
    if not overlap:
        ready_s = [max(ready, computed_s[device]) for ready, device in zip(ready_s, schedule.device, strict=True)]
    syncs = _syncs(lowered, order, ready_s)
    optimizers = []
    for device, free_s in enumerate(computed_s):
        stages = [stage for stage, where in enumerate(schedule.device) if where == device]
        takes_s = sum(costs[stage].optimizer_s for stage in stages)
        if takes_s:
            start_s = max(free_s, max((sync.end_s for sync in syncs if sync.device == device), default=0.0))
            optimizers.append(Piece(stages[0], device, start_s, start_s + takes_s))
    return StepEnd(syncs, tuple(optimizers))


def _syncs(lowered: LoweredSchedule, order: Sequence[int], ready_s: Sequence[float]) -> tuple[Piece, ...]:
    """Return the syncs of stages in this order, which can begin at these seconds, [n_stages]."""
    costs, device, uplink = lowered.costs, lowered.schedule.device, lowered.channels.uplink
    channel = list(range(lowered.schedule.n_devices)) if uplink is None else uplink.tolist()
    stages = [stage for stage in order if costs[stage].sync_s]
    if not stages:
        return ()
    alone = [channel.count(channel[device[stage]]) == 1 for stage in stages]
    if all(alone):
        return _one_by_one(lowered, stages, ready_s)
    tasks = [Task(ready_s[stage], (len(channel) + number,)) for number, stage in enumerate(stages)]
    for number, stage in enumerate(stages):
        needs = (number, *(len(stages) + other for other in range(number) if device[stages[other]] == device[stage]))
        task = Task(costs[stage].sync_s, (device[stage],), needs)
        shared = task._replace(channel=channel[device[stage]], latency_s=costs[stage].sync_latency_s)
        tasks.append(task if alone[number] else shared)
    starts, ends = times(tasks)
    pieces = (Piece(stage, device[stage], starts[i], ends[i]) for i, stage in enumerate(stages, len(stages)))
    return tuple(sorted(pieces, key=lambda piece: (piece.device, piece.start_s)))


def _one_by_one(lowered: LoweredSchedule, stages: Sequence[int], ready_s: Sequence[float]) -> tuple[Piece, ...]:
    """Return the syncs of these stages, if each device has an uplink of its own."""
    pieces, free_s = [], [0.0] * lowered.schedule.n_devices
    for stage in stages:
        device = lowered.schedule.device[stage]
        start_s = max(ready_s[stage], free_s[device])
        free_s[device] = start_s + lowered.costs[stage].sync_s
        pieces.append(Piece(stage, device, start_s, free_s[device]))
    return tuple(sorted(pieces, key=lambda piece: (piece.device, piece.start_s)))


@dataclass(frozen=True)
class SavedBytes:
    """Bytes that one device keeps for backward passes, as a step function."""

    time_s: Floats  # [n_steps], ascending; one instant may have several steps
    held_bytes: Ints  # [n_steps], from this second on

    @property
    def peak_bytes(self) -> int:
        """The largest number of bytes at any time."""
        return int(self.held_bytes.max(initial=0))


def saved_memory(lowered: LoweredSchedule, start_s: Floats, end_s: Floats) -> tuple[SavedBytes, ...]:
    """Return [n_devices], the bytes that each device keeps over time; 0 without backward passes.

    ::

        0F0 0F1 0I0 0F2 0W0 ...        F keeps saved_bytes from its start until its B or I has ended;
        ▁▁▁▃▃▃▃▃▃▃▂▂▆▆▆▆▅▅▅            I then keeps kept_bytes until its W has ended
        a B or I that recomputes also keeps recomputed_bytes, from its start to its end

    Actions start and end at ``start_s`` and ``end_s``, [n_actions], as numbered in ``Schedule.columns``.
    """
    schedule, costs = lowered.schedule, lowered.costs
    saved = np.array([cost.saved_bytes for cost in costs], dtype=np.int64)
    kept = np.array([cost.kept_bytes for cost in costs], dtype=np.int64)
    change_bytes = np.zeros((len(COMPUTATIONS), len(costs)), dtype=np.int64)
    if schedule.trains:
        change_bytes[F], change_bytes[B], change_bytes[I], change_bytes[W] = saved, -saved, kept - saved, -kept
    stage, computation, _, _ = schedule.columns
    times_s, changes_bytes = np.where(computation == F, start_s, end_s), change_bytes[computation, stage]
    lengths = np.array([len(row) for row in schedule.actions])
    again = np.array([cost.recomputed_bytes for cost in costs], dtype=np.int64)[stage]
    again[(computation == F) | (computation == W)] = 0
    if (added := np.flatnonzero(again)).size:  # an additional step before that of the action itself
        times_s = np.insert(times_s, added, start_s[added])
        changes_bytes = np.insert(changes_bytes - again, added, again[added])
        lengths += np.bincount(schedule.columns.device[added], minlength=len(lengths))
    rows = np.cumsum(lengths)[:-1]
    pairs = zip(np.split(times_s, rows), np.split(changes_bytes, rows), strict=True)
    return tuple(SavedBytes(time_s, change.cumsum()) for time_s, change in pairs)


def start_times(lowered: LoweredSchedule) -> tuple[list[float], list[float]]:
    """Return [n_actions] each, the seconds at which an action and its message start; nan without a message.

    The orders of all devices and links are fixed, so the result equals that of the engine for the same tasks, and takes
    much less time: each action is visited once, in a topological order.

    An action starts as soon as the one before it on its device has ended and its inputs have arrived; a message, as
    soon as its sender has ended and its link has delivered the message before. Devices send while they compute.

    Raises:
        InputError: if devices wait for each other in a circle.
    """
    duration_s, message_s = lowered.duration_s.tolist(), lowered.message_s.tolist()
    feeds, link, device = lowered.feeds.tolist(), lowered.link.tolist(), lowered.schedule.columns.device.tolist()
    arrived_s = [0.0] * len(feeds)
    for follower in feeds:
        if follower >= 0:
            arrived_s[follower] = inf  # until its input has arrived
    start_s, sent_s = [nan] * len(feeds), [nan] * len(feeds)
    *head, _ = bounds = list(accumulate(map(len, lowered.schedule.actions), initial=0))  # next action of each device
    free_s, link_free_s = [0.0] * len(head), [0.0] * len(lowered.links)
    runnable = list(range(len(head)))
    while runnable:
        runner = runnable.pop()
        now, action = free_s[runner], head[runner]
        while action < bounds[runner + 1] and (arrival := arrived_s[action]) < inf:
            start_s[action] = now = arrival if arrival > now else now  # max() takes twice as long
            now += duration_s[action]
            if (follower := feeds[action]) >= 0:
                arrival = now
                if (channel := link[action]) >= 0:
                    sent_s[action] = max(now, link_free_s[channel])
                    link_free_s[channel] = arrival = sent_s[action] + message_s[action]
                arrived_s[follower] = arrival
                if head[reader := device[follower]] == follower:
                    runnable.append(reader)
            action += 1
        free_s[runner], head[runner] = now, action
    if head != bounds[1:]:
        raise InputError(_circle(lowered, head))
    return start_s, sent_s


def _circle(lowered: LoweredSchedule, head: Sequence[int]) -> str:
    """Name a circle of devices, each of which waits for an action that the next one has not reached.

    ``head`` [n_devices] is the first action that each device has not run.
    """
    source = {follower: action for action, follower in enumerate(lowered.feeds.tolist())}
    device = lowered.schedule.columns.device.tolist()
    behind = accumulate(map(len, lowered.schedule.actions))
    runner = next(d for d, (action, end) in enumerate(zip(head, behind, strict=True)) if action < end)
    circle = circle_from(runner, lambda d: device[source[head[d]]])  # a blocked device waits for another blocked device
    waits = [f"device {d} at {lowered.actions[head[d]]} for {lowered.actions[source[head[d]]]}" for d in circle]
    return f"the schedule comes to a stop, waiting in a circle: {', '.join(shorten(waits))}; run one of these earlier"


REPLICAS = "replicas"
"""The end of the link on which replicas add up gradients."""


@dataclass(frozen=True)
class PipelineRun(Brief):
    """A predicted run of a schedule. Actions are numbered as in ``Schedule.columns``."""

    lowered: LoweredSchedule  # the schedule with its costs
    devices: tuple[str, ...]  # names, in the order of the schedule
    start_s: Floats  # [n_actions], second at which each action starts
    sent_s: Floats  # [n_actions], second at which its message departs; nan for an action without a message
    arrived_s: Floats  # [n_actions], second at which its message arrives
    overlap: bool = True  # whether devices compute while they send

    @cached_property
    def end_s(self) -> Floats:
        """[n_actions], second at which each action ends."""
        return self.start_s + self.lowered.duration_s

    @cached_property
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
    def saved(self) -> tuple[SavedBytes, ...]:
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
        """Yield the spans of the end of the step, which count as a part of the last micro-batch."""
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
    below_s: float = inf,
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
        below_s: a run that takes as long at least is not worked out: messages wait as if each link had its own channel.

    Raises:
        InputError: if devices wait for each other in a circle, or the costs or the names do not fit the schedule.
    """
    names = tuple(devices) or tuple(str(device) for device in range(schedule.n_devices))
    if len(names) != schedule.n_devices:
        raise InputError(f"there are names of {len(names)} devices; the schedule has {schedule.n_devices}")
    lowered = lower_schedule(schedule, costs, channels)
    start_s, sent_s = map(np.array, start_times(lowered))
    arrived_s = sent_s + lowered.message_s
    waits = lowered.links and not (overlap and lowered.in_order)
    if waits and (lowered.channels.sharing != "fifo" or _least_s(lowered, start_s) < below_s):
        all_start_s, all_end_s = map(np.array, times(lowered.tasks(overlap)))
        start_s = all_start_s[: len(start_s)]
        sent_s[lowered.senders] = all_start_s[len(start_s) :]
        arrived_s[lowered.senders] = all_end_s[len(start_s) :]
    return PipelineRun(lowered, names, start_s, sent_s, arrived_s, overlap)


def _least_s(lowered: LoweredSchedule, start_s: Floats) -> float:
    """Return the seconds of a run at least, to the end of the optimizers, if no action starts earlier."""
    schedule, optimizer_s = lowered.schedule, np.zeros(lowered.schedule.n_devices)
    if schedule.trains:
        np.add.at(optimizer_s, list(schedule.device), [cost.optimizer_s for cost in lowered.costs])
    ends_s = schedule.split(start_s + lowered.duration_s)
    return max(float(end_s.max(initial=0.0) + own_s) for end_s, own_s in zip(ends_s, optimizer_s, strict=True))
