"""A discrete-event engine: tasks, the exclusive resources that they hold, and one clock.

The rule is greedy. At every instant, first whatever ends gives its resources back; then, again and again, the best
ready task whose resources are all free starts. A task is ready when all that it needs have ended; the best one has the
smallest priority, and among equals the smallest number. A task without duration ends at once, before the next start:
what it makes ready at this instant is compared with what was ready before. A task with a channel shares that with the
others on it: see `simulator.sharing`.

::

    task  holds  needs  takes        r0  aaabb.          at 3, a ends: b is ready and takes r0
    a     r0            3            r1  ccccdd          at 4, c ends: d may have r1
    b     r0     a      2
    c     r1            4            d needs both a and c
    d     r1     a c    2

Tasks that hold the same resources wait in one line (a heap), because either all of them can start or none: an event
looks at the heads of the few lines that it may have unblocked, never at the tasks behind them.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from graphs.errors import InputError
from simulator.sharing import SharedChannels

SHOWN = 6  # how many names of a long circle an error shows


class Task(NamedTuple):
    """Something that takes time. A tuple, because there are a hundred thousand of them.

    Attributes:
        duration_s: 0 or more; with a channel, if it is alone there.
        resources: numbers of the resources that it holds from start to end, all at once; at least one, or a channel.
        needs: numbers of the tasks that must have ended before it starts.
        priority: the smallest goes first.
        name: for messages.
        channel: number of a channel whose bandwidth it shares equally with all tasks that are on it; -1 for none.
        latency_s: the first part of the duration, in which it does not occupy the channel yet.
    """

    duration_s: float
    resources: tuple[int, ...]
    needs: tuple[int, ...] = ()
    priority: int = 0
    name: str = ""
    channel: int = -1
    latency_s: float = 0.0

    @property
    def alone_s(self) -> float:
        """Seconds on its channel, if it is alone there."""
        return self.duration_s - self.latency_s


def run(tasks: Sequence[Task]) -> list[float]:
    """The second at which each task starts, in the order of the tasks; see `times`."""
    return times(tasks)[0]


def times(tasks: Sequence[Task]) -> tuple[list[float], list[float]]:
    """The seconds at which each task starts and ends, in the order of the tasks.

    Raises:
        InputError: for a duration that is negative or infinite, no resource, an unknown need, or a circle of needs.
    """
    _check(tasks)
    order = sorted(range(len(tasks)), key=[task.priority for task in tasks].__getitem__)  # stable: number breaks ties
    ranked = [tasks[number] for number in order]  # from here a task is its rank, so that a heap of ints is enough
    followers = _followers(tasks, order)
    line_of, touching = _lines(ranked)
    waiting: list[list[int]] = [[] for _ in range(len(set(line_of)))]  # line -> heap of its ready tasks
    missing = [len(task.needs) for task in ranked]
    busy = [False] * len(touching)
    heads: list[int] = []  # heap: the first of each line that may have become free, and perhaps some behind them
    running: list[tuple[float, int]] = []  # heap of (end, rank)
    sharing = SharedChannels()
    start_s, end_s, now = [inf] * len(tasks), [inf] * len(tasks), 0.0

    def ready(rank: int) -> None:
        heappush(waiting[line_of[rank]], rank)
        heappush(heads, rank)

    def end(rank: int) -> None:
        end_s[order[rank]] = now
        for resource in ranked[rank].resources:
            busy[resource] = False
            for line in touching[resource]:
                if waiting[line]:
                    heappush(heads, waiting[line][0])
        for follower in followers[rank]:
            missing[follower] -= 1
            if not missing[follower]:
                ready(follower)

    for rank in [rank for rank, task in enumerate(ranked) if not task.needs]:
        ready(rank)
    while heads:
        while heads:
            rank = heappop(heads)
            line = waiting[line_of[rank]]
            task = ranked[rank]
            if not line or line[0] != rank or any([busy[resource] for resource in task.resources]):  # noqa: C419 - faster
                continue
            start_s[order[rank]] = now
            heappop(line)
            if task.duration_s:
                for resource in task.resources:
                    busy[resource] = True
                heappush(running, (now + (task.duration_s if task.channel < 0 else task.latency_s), rank))
            else:
                end(rank)
        while running and (running[0][0] == now or not heads):
            now, rank = heappop(running)
            task = ranked[rank]
            if task.channel < 0 or sharing.arrives((now, rank), task.channel, task.alone_s, running):
                end(rank)
    if inf in start_s:
        raise InputError(f"{_circle(tasks, start_s)}; take one of these needs away")
    return start_s, end_s


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
    """The ranks of the tasks that need each task, by its rank."""
    by_number: list[list[int]] = [[] for _ in tasks]
    for rank, number in enumerate(order):
        for need in tasks[number].needs:
            by_number[need].append(rank)
    return [by_number[number] for number in order]


def _lines(tasks: Sequence[Task]) -> tuple[list[int], list[list[int]]]:
    """The line of each task, and the lines that touch each resource."""
    number: dict[tuple[int, ...], int] = {}
    line_of = [number.setdefault(task.resources, len(number)) for task in tasks]
    touching: list[list[int]] = [[] for _ in range(1 + max((max(held, default=-1) for held in number), default=-1))]
    for held, line in number.items():
        for resource in held:
            touching[resource].append(line)
    return line_of, touching


def _circle(tasks: Sequence[Task], start_s: Sequence[float]) -> str:
    """Name a circle among the tasks that never started: each of them needs another one."""
    position: dict[int, int] = {}  # of the tasks that the walk has met
    number = start_s.index(inf)
    while number not in position:
        position[number] = len(position)
        number = next(need for need in tasks[number].needs if start_s[need] == inf)
    circle = [*list(position)[position[number] :], number]
    names = [f"{number} '{tasks[number].name}'" for number in circle]
    if len(names) > SHOWN:
        names[SHOWN - 1 : -1] = ["..."]
    return f"tasks wait for each other in a circle: {' needs '.join(names)}"
