"""A discrete-event engine: tasks, the exclusive resources that they hold, and one clock.

The rule is greedy. At every instant, first the tasks that end release their resources; then, repeatedly, the best ready
task whose resources are all free starts. A task is ready when all tasks that it needs have ended; the best task has the
smallest priority, and among equals the smallest number. A task without duration ends at once, before the next start:
the tasks that it makes ready compete with those that were ready before. A task with a channel shares the channel with
the others on it: see `SharedChannels`.

::

    task  holds  needs  takes        r0  aaabb.          at 3, a ends: b is ready and takes r0
    a     r0            3            r1  ccccdd          at 4, c ends: d may have r1
    b     r0     a      2
    c     r1            4            d needs both a and c
    d     r1     a c    2

Tasks that hold the same resources wait in one line (a heap), because either all of them can start or none: an event
looks at the heads of the few lines that it may have unblocked, never at the tasks further back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple, TypeAlias

from graphs.common.errors import InputError

Event: TypeAlias = tuple[float, int]
"""A second, and the message that may enter or leave a channel then."""


@dataclass(slots=True)
class _Channel:
    """One channel."""

    clock_s: float = 0.0  # the clock of isolated seconds
    at_s: float = 0.0  # second at which the clock was last set
    leaves: list[Event] = field(default_factory=list)  # heap of (clock at which the message leaves, message)
    due: Event = (0.0, -1)  # the next departure, if no other message enters before

    def advance(self, now_s: float) -> None:
        if self.leaves:
            self.clock_s += (now_s - self.at_s) / len(self.leaves)
        self.at_s = now_s


class SharedChannels:
    """The messages on all channels, which share their bandwidth equally; the caller keeps the events and reports them.

    ::

        a  ====----====          a has the whole bandwidth for 4 s, half of it for 4 s, then the whole again
        b      ----              b takes twice as long as it would without a

    If each message uses one channel, this is progressive filling (Bertsekas and Gallager, Data Networks, section
    6.5.2). A channel has a clock of isolated seconds: it advances by 1 / n of the real time while n messages are sent,
    which is the progress of each of them. So a message of w isolated seconds leaves when the clock shows w more than at
    its arrival.
    """

    def __init__(self) -> None:
        self._channels: dict[int, _Channel] = {}
        self._entered: set[int] = set()

    def arrives(self, event: Event, channel: int, isolated_s: float, events: list[Event]) -> bool:
        """Return whether a message has arrived at its receiver; at its first event, it enters its channel.

        The time of the events never decreases from call to call. The next event is pushed to the heap ``events``, where
        it is obsolete if another event comes before.
        """
        state = self._channels.setdefault(channel, _Channel())
        now_s, number = event
        arrived = number in self._entered
        if not arrived:
            self._entered.add(number)
            state.advance(now_s)
            heappush(state.leaves, (state.clock_s + isolated_s, number))
        elif state.due == event:
            state.at_s, state.clock_s = now_s, heappop(state.leaves)[0]
        else:
            return False
        state.due = (0.0, -1)
        if state.leaves:
            clock_s, first = state.leaves[0]
            state.due = (now_s + max(0.0, clock_s - state.clock_s) * len(state.leaves), first)
            heappush(events, state.due)
        return arrived


SHOWN = 6  # names of a long circle in an error


class Task(NamedTuple):
    """Work that takes time. A tuple, because there are a hundred thousand of them."""

    duration_s: float  # 0 or more; for a task with a channel, the duration without other tasks on the channel
    resources: tuple[int, ...]  # numbers of the resources that it holds from start to end; at least one, or a channel
    needs: tuple[int, ...] = ()  # numbers of the tasks that must have ended before it starts
    priority: int = 0  # the smallest goes first
    name: str = ""  # name in messages
    channel: int = -1  # number of a channel whose bandwidth it shares equally with all tasks on it; -1 for none
    latency_s: float = 0.0  # the first part of the duration, in which it does not occupy the channel yet

    @property
    def isolated_s(self) -> float:
        """Seconds on its channel without other tasks there."""
        return self.duration_s - self.latency_s


def times(tasks: Sequence[Task]) -> tuple[list[float], list[float]]:
    """Return [n_tasks] each, the seconds at which tasks start and end.

    Raises:
        InputError: for a duration that is negative or infinite, no resource, an unknown need, or a circle of needs.
    """
    _check(tasks)
    order = sorted(range(len(tasks)), key=[task.priority for task in tasks].__getitem__)  # stable: number breaks ties
    run = _EngineState([tasks[number] for number in order], _followers(tasks, order))
    run.to_the_end()
    rank_of = sorted(range(len(order)), key=order.__getitem__)
    start_s, end_s = ([by_rank[rank] for rank in rank_of] for by_rank in (run.start_s, run.end_s))
    if inf in start_s:
        raise InputError(f"{_circle(tasks, start_s)}; take one of these needs away")
    return start_s, end_s


class _EngineState:
    """The state of one run of the engine. Tasks are numbered by their rank, so that heaps of ints are enough."""

    def __init__(self, tasks: Sequence[Task], followers: list[list[int]]) -> None:
        self.tasks = tasks
        self.followers = followers
        self.line_of, self.touching = _lines(tasks)
        self.waiting: list[list[int]] = [[] for _ in range(len(set(self.line_of)))]  # line -> heap of its ready tasks
        self.missing = [len(task.needs) for task in tasks]
        self.busy = [False] * len(self.touching)
        self.heads: list[int] = []  # heap: the first task of each line that may be free to start, and perhaps others
        self.running: list[tuple[float, int]] = []  # heap of (end, rank)
        self.sharing = SharedChannels()
        self.start_s, self.end_s = [inf] * len(tasks), [inf] * len(tasks)

    def to_the_end(self) -> None:
        for rank, task in enumerate(self.tasks):
            if not task.needs:
                self._ready(rank)
        now = 0.0
        while self.heads:
            self._start_all(now)
            now = self._end_next(now)

    def _ready(self, rank: int) -> None:
        heappush(self.waiting[self.line_of[rank]], rank)
        heappush(self.heads, rank)

    def _start_all(self, now: float) -> None:
        """Start the best ready task whose resources are free, until there is none."""
        heads, waiting, line_of, busy = self.heads, self.waiting, self.line_of, self.busy
        while heads:
            rank = heappop(heads)
            line = waiting[line_of[rank]]
            task = self.tasks[rank]
            if not line or line[0] != rank or any([busy[resource] for resource in task.resources]):  # noqa: C419 - faster
                continue
            self.start_s[rank] = now
            heappop(line)
            if task.duration_s:
                for resource in task.resources:
                    busy[resource] = True
                heappush(self.running, (now + (task.duration_s if task.channel < 0 else task.latency_s), rank))
            else:
                self._end(rank, now)

    def _end_next(self, now: float) -> float:
        """End the tasks that end now or, if none is ready then, the next ones; the second at which they end."""
        running, heads = self.running, self.heads
        while running and (running[0][0] == now or not heads):
            now, rank = heappop(running)
            task = self.tasks[rank]
            if task.channel < 0 or self.sharing.arrives((now, rank), task.channel, task.isolated_s, running):
                self._end(rank, now)
        return now

    def _end(self, rank: int, now: float) -> None:
        self.end_s[rank] = now
        for resource in self.tasks[rank].resources:
            self.busy[resource] = False
            for line in self.touching[resource]:
                if self.waiting[line]:
                    heappush(self.heads, self.waiting[line][0])
        for follower in self.followers[rank]:
            self.missing[follower] -= 1
            if not self.missing[follower]:
                self._ready(follower)


def _check(tasks: Sequence[Task]) -> None:
    n_tasks = len(tasks)
    for number, (duration_s, resources, needs, _, name, channel, latency_s) in enumerate(tasks):
        if not 0 <= duration_s < inf:
            raise InputError(f"task {number} '{name}' takes {duration_s} s; it must be a finite number, 0 or more")
        if not 0 <= latency_s <= duration_s:
            raise InputError(f"task {number} '{name}' has a latency of {latency_s} s; give 0 to its {duration_s} s")
        if min(resources, default=channel) < 0:
            raise InputError(f"task {number} '{name}' holds the resources {resources}; give one or more, from 0")
        for need in needs:
            if not 0 <= need < n_tasks:
                raise InputError(f"task {number} '{name}' needs task {need}; tasks run from 0 to {n_tasks - 1}")


def _followers(tasks: Sequence[Task], order: Sequence[int]) -> list[list[int]]:
    """Return [n_tasks] by rank, the ranks of the tasks that need each task."""
    by_number: list[list[int]] = [[] for _ in tasks]
    for rank, number in enumerate(order):
        for need in tasks[number].needs:
            by_number[need].append(rank)
    return [by_number[number] for number in order]


def _lines(tasks: Sequence[Task]) -> tuple[list[int], list[list[int]]]:
    """Return the line of each task, and the lines that touch each resource."""
    number: dict[tuple[int, ...], int] = {}
    line_of = [number.setdefault(task.resources, len(number)) for task in tasks]
    touching: list[list[int]] = [[] for _ in range(1 + max((max(held, default=-1) for held in number), default=-1))]
    for held, line in number.items():
        for resource in held:
            touching[resource].append(line)
    return line_of, touching


def _circle(tasks: Sequence[Task], start_s: Sequence[float]) -> str:
    """Name a circle among the tasks that never started, each of which needs another one."""
    circle = circle_from(start_s.index(inf), lambda n: next(need for need in tasks[n].needs if start_s[need] == inf))
    names = shorten([f"{number} '{tasks[number].name}'" for number in (*circle, circle[0])])
    return f"tasks wait for each other in a circle: {' needs '.join(names)}"


def circle_from(number: int, following: Callable[[int], int]) -> list[int]:
    """Return the numbers of the circle in which a walk from number to number ends."""
    position: dict[int, int] = {}
    while number not in position:
        position[number] = len(position)
        number = following(number)
    return list(position)[position[number] :]


def shorten(texts: list[str]) -> list[str]:
    """Return the texts of a circle; of more than `SHOWN` the first ones and the last one."""
    return texts if len(texts) <= SHOWN else [*texts[: SHOWN - 1], "...", texts[-1]]
