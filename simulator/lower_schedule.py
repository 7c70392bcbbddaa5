"""Lowers a schedule to tasks: the dependencies, messages and durations of its actions.

::

    device 0  0F0 0F1             an action waits for the one before it on its device, and for its inputs:
    0 → 1         SEND_F0 SEND_F1 an F for the F of the stage before it, a B or I for the B or I of the stage after it;
    device 1              1F0 ... a link carries one message at a time, in the order in which they are sent

For links that share a channel, or carry several messages at a time, see `Channels`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite

import numpy as np

from costmodels.cluster.cluster import Sharing
from graphs.common.arrays import Floats, Ints
from graphs.common.brief import Brief
from graphs.common.errors import InputError
from simulator.engine import Task
from simulator.schedule import COMPUTATIONS, Action, B, F, I, Schedule, W


@dataclass(frozen=True, slots=True)
class StageCost:
    """The cost of one stage for one micro-batch on its device.

    Raises:
        InputError: for a number that is negative, infinite or undefined.
    """

    forward_s: float  # seconds of F
    input_grad_s: float = 0.0  # seconds of I, without recomputation; B takes as long as I and W together
    weight_grad_s: float = 0.0  # seconds of W
    activation_s: float = 0.0  # seconds of the transfer of its output to the next stage, if that is on another device
    gradient_s: float = 0.0  # seconds of the transfer of its input's gradient to the stage before
    saved_bytes: int = 0  # bytes that F saves for the backward pass, until B or I has ended
    kept_bytes: int = 0  # bytes that I keeps for W, until W has ended
    recompute_s: float = 0.0  # seconds of the recomputation at the start of B or I, which it prolongs (`recomputing`)
    recomputed_bytes: int = 0  # bytes of the recomputation from the start of B or I to its end, besides ``saved_bytes``
    sync_s: float = 0.0  # seconds to add up gradients with the stage's other replicas, once, after the last micro-batch
    sync_latency_s: float = 0.0  # of these, seconds that do not occupy the uplink
    optimizer_s: float = 0.0  # seconds of the optimizer's step, once, after the sync

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not (isfinite(value := getattr(self, name)) and value >= 0):
                raise InputError(f"the {name} of a stage is {value}; it must be a finite number, 0 or more")

    def recomputing(self, waiting_bytes: int, again_s: float, again_bytes: int | None = None) -> "StageCost":
        """Return the stage with recomputation: from F to B or I it keeps less, and then runs forward again.

        ``waiting_bytes`` are what it keeps of one micro-batch, such as its input, and ``again_bytes`` what it keeps
        besides while it runs again; all the rest that it would have saved if left out.

        Source: Chen et al. 2016, Training deep nets with sublinear memory cost.
        """
        return replace(
            self,
            saved_bytes=waiting_bytes,
            recompute_s=again_s,
            recomputed_bytes=max(self.saved_bytes - waiting_bytes, 0) if again_bytes is None else again_bytes,
        )


@dataclass(frozen=True)
class Channels:
    """The channels of the links between the devices of a schedule, and the uplinks to their replicas."""

    number: Ints  # [n_devices, n_devices], the channel of each link
    latency_s: Floats  # [n_devices, n_devices], the first part of a message, which does not occupy its channel
    sharing: Sharing = (
        "fifo"  # as in `costmodels.cluster.cluster.Sharing`; with "fifo", the oldest micro-batch goes first
    )
    uplink: Ints | None = None  # [n_devices], which devices share an uplink; None if each has its own

    @classmethod
    def own(cls, n_devices: int) -> "Channels":
        """Return a separate channel for each link."""
        return cls(np.arange(n_devices**2).reshape(n_devices, n_devices), np.zeros((n_devices, n_devices)))


@dataclass(frozen=True)
class LoweredSchedule(Brief):
    """A schedule with its costs: actions are numbered as in ``Schedule.columns``."""

    schedule: Schedule  # the order of each device
    costs: tuple[StageCost, ...]  # [n_stages]
    duration_s: Floats  # [n_actions], seconds of each action
    feeds: Ints  # [n_actions], the action of a neighbouring stage that waits for this one; -1 for none
    message_s: Floats  # [n_actions], seconds of the message to that action; 0 if there is none to send
    link: Ints  # [n_actions], number of the link that the message takes; -1 if there is none to send
    links: tuple[tuple[int, int], ...]  # from device and to device of each link, in the order of their numbers
    channels: Channels  # channels of these links

    @property
    def in_order(self) -> bool:
        """Whether the order of messages on every link is independent of the other links."""
        numbers = {self.channels.number[link] for link in self.links}
        return self.channels.sharing == "fifo" and len(numbers) == len(self.links)

    @cached_property
    def actions(self) -> list[Action]:
        """[n_actions], the actions of one device after the other."""
        return [action for row in self.schedule.actions for action in row]

    @cached_property
    def senders(self) -> list[int]:
        """Numbers of the actions that send a message, one device after the other."""
        return np.flatnonzero(self.link >= 0).tolist()

    def tasks(self, overlap: bool) -> list[Task]:
        """Tasks for the engine: first the actions, then the messages in the order of `senders`.

        Resources are the devices, then the channels if their sharing is "fifo". Unless the devices overlap computing
        and sending, a message holds both its ends, and has priority over their actions.
        """
        n_actions, n_devices = len(self.actions), self.schedule.n_devices
        device, link, seconds = self.schedule.columns.device.tolist(), self.link.tolist(), self.message_s.tolist()
        message = {sender: n_actions + index for index, sender in enumerate(self.senders)}
        needs = [[i - 1] if i and device[i] == device[i - 1] else [] for i in range(n_actions)]
        for action, follower in enumerate(self.feeds.tolist()):
            if follower >= 0:
                needs[follower].append(message.get(action, action))
        tasks = [
            Task(duration_s, (device[i],), tuple(needs[i]), self.schedule.micro_batches, str(self.actions[i]))
            for i, duration_s in enumerate(self.duration_s.tolist())
        ]
        latest: dict[int, int] = {}  # link -> the message before
        for sender in self.senders:
            sent, ends = self.actions[sender], self.links[link[sender]]
            task = Task(seconds[sender], () if overlap else ends, (sender,), sent.micro_batch, message_name(sent))
            if self.channels.sharing == "fifo":
                before = (latest[link[sender]],) if link[sender] in latest else ()
                latest[link[sender]] = len(tasks)
                channel = n_devices + int(self.channels.number[ends])
                tasks.append(task._replace(resources=(channel, *task.resources), needs=(sender, *before)))
            else:
                fair, latency_s = self.channels.sharing == "fair", float(self.channels.latency_s[ends])
                waits_s = min(latency_s, task.duration_s) if fair else task.duration_s
                tasks.append(task._replace(channel=int(self.channels.number[ends]), latency_s=waits_s))
        return tasks


def message_name(sender: Action) -> str:
    """Return the name of an action's message in torch.distributed.pipelining: 2SEND_F0 or 2SEND_B0."""
    return f"{sender.stage}SEND_{'F' if sender.computation == 'F' else 'B'}{sender.micro_batch}"


def lower_schedule(schedule: Schedule, costs: Sequence[StageCost], channels: Channels | None = None) -> LoweredSchedule:
    """Determine duration, reader and message of each action.

    Messages that take no time, and messages within a device, are left out. Without ``channels``, each link has its own
    channel.

    Raises:
        InputError: unless there is one cost for each stage.
    """
    if len(costs) != schedule.n_stages:
        raise InputError(f"there are costs of {len(costs)} stages; the schedule has {schedule.n_stages}")
    stage, computation, _, device = schedule.columns
    seconds = np.zeros((len(COMPUTATIONS), len(costs)))
    seconds[F] = [cost.forward_s for cost in costs]
    seconds[I] = [cost.recompute_s + cost.input_grad_s for cost in costs]
    seconds[W] = [cost.weight_grad_s for cost in costs]
    seconds[B] = seconds[I] + seconds[W]
    sent_s = np.zeros_like(seconds)
    sent_s[F] = [cost.activation_s for cost in costs]
    sent_s[[B, I]] = [cost.gradient_s for cost in costs]

    feeds = _feeds(schedule)
    elsewhere = (feeds >= 0) & (device[feeds] != device)
    message_s = np.where(elsewhere, sent_s[computation, stage], 0.0)
    sends = message_s > 0
    pairs = device[sends] * schedule.n_devices + device[feeds[sends]]
    used, number = np.unique(pairs, return_inverse=True)
    link = np.full(len(stage), -1, dtype=np.int64)
    link[sends] = number
    links = tuple(divmod(pair, schedule.n_devices) for pair in used.tolist())
    channels = channels or Channels.own(schedule.n_devices)
    return LoweredSchedule(schedule, tuple(costs), seconds[computation, stage], feeds, message_s, link, links, channels)


def _feeds(schedule: Schedule) -> Ints:
    """Return [n_actions], the action of a neighbouring stage that reads the result of an action; -1 for none."""
    feeds = np.full(len(schedule.columns.stage), -1, dtype=np.int64)
    forward, backward = schedule.position[F], np.maximum(schedule.position[B], schedule.position[I])
    feeds[forward[:-1]] = forward[1:]
    if schedule.trains:
        feeds[backward[1:]] = backward[:-1]
    return feeds
