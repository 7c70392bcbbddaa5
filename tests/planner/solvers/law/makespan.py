"""The makespan of one micro-batch in plain Python: stages, transfers and the clock, step by step.

A device runs its operators in the placement's order, in stages that neither wait nor send in between. Of all that is
ready and finds what it holds free, the earliest in the placement's order begins: first a stage, then what it sends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from costmodels.table import CostTable


@dataclass
class Task:
    """Something that takes time.

    Attributes:
        seconds: if it is alone on its channel.
        holds: what nobody else can use meanwhile.
        needs: positions of tasks that end before.
        channel: whose bandwidth it shares with the others there, behind its latency; -1 for none.
        latency_s: the first of its seconds.
    """

    seconds: float
    holds: frozenset[Any]
    needs: frozenset[int]
    channel: int = -1
    latency_s: float = 0.0


def finish(tasks: Sequence[Task]) -> list[float]:
    """[n_tasks], when each ends; of those that can begin the first one does."""
    end: dict[int, float] = {}
    due: dict[int, float] = {}  # when what runs ends, or its latency does
    left: dict[int, float] = {}  # what those on a channel have left, if they were alone there
    now = 0.0
    while len(end) < len(tasks):
        held = {thing for number in (*due, *left) for thing in tasks[number].holds}
        fit = (
            number
            for number, task in enumerate(tasks)
            if number not in end and number not in due and number not in left
            if task.needs <= end.keys() and not task.holds & held
        )
        if (first := next(fit, None)) is not None:
            task = tasks[first]
            if not task.seconds:
                end[first] = now
            else:
                due[first] = now + (task.latency_s if task.channel >= 0 else task.seconds)
            continue
        users = {number: sum(tasks[other].channel == tasks[number].channel for other in left) for number in left}
        leaves = {number: now + seconds * users[number] for number, seconds in left.items()}
        later = min((*due.values(), *leaves.values()))
        gone = [number for number, at in leaves.items() if at == later]
        left = {number: seconds - (later - now) / users[number] for number, seconds in left.items()}
        now = later
        end |= dict.fromkeys(gone, now)
        left = {number: seconds for number, seconds in left.items() if number not in gone}
        for number in [number for number, at in due.items() if at == now]:
            del due[number]
            if tasks[number].channel >= 0 and tasks[number].seconds > tasks[number].latency_s:
                left[number] = tasks[number].seconds - tasks[number].latency_s
            else:
                end[number] = now
    return [end[number] for number in range(len(tasks))]


class Makespan:
    """The makespans of a table's placements."""

    def __init__(self, table: CostTable) -> None:
        self._table = table
        self._known: dict[tuple[Any, ...], float] = {}
        self._readers = [frozenset(flow.readers) for flow in table.flows]
        self._writes = [[f for f, flow in enumerate(table.flows) if flow.writer == op] for op in range(table.n_ops)]

    def seconds(self, device: Sequence[int], order: Sequence[int], takes: Sequence[float]) -> float:
        """From the start to the end of the last task."""
        key = (tuple(device), *self._stages(device, order))
        if key not in self._known:
            self._known[key] = max(finish(self._tasks(device, key[1:], takes)), default=0.0)
        return self._known[key]

    def _sends(self, device: Sequence[int], op: int) -> list[tuple[int, int]]:
        """What an operator sends: (flow, device), in the order in which it does."""
        there = ((f, {device[reader] for reader in self._readers[f]} - {device[op]}) for f in self._writes[op])
        return [(f, dst) for f, elsewhere in there for dst in sorted(elsewhere)]

    def _stages(self, device: Sequence[int], order: Sequence[int]) -> list[tuple[int, ...]]:
        """A stage ends with what sends, and begins with what waits for a tensor that its device does not have yet."""
        stages: list[list[int]] = []
        latest: dict[int, list[int]] = {}
        there: set[tuple[int, int]] = set()
        for op in order:
            here = device[op]
            reads = {(f, here) for f, readers in enumerate(self._readers) if op in readers}
            arrives = {(f, d) for f, d in reads if device[self._table.flows[f].writer] != here} - there
            there |= arrives
            if here not in latest or arrives or self._sends(device, latest[here][-1]):
                latest[here] = []
                stages.append(latest[here])
            latest[here].append(op)
        return [tuple(stage) for stage in stages]

    def _tasks(self, device: Sequence[int], stages: Sequence[tuple[int, ...]], takes: Sequence[float]) -> list[Task]:
        table, tasks = self._table, list[Task]()
        arrival: dict[tuple[int, int], int] = {}
        latest: dict[int, int] = {}
        for stage in stages:
            here = device[stage[0]]
            fetched = {f for f, readers in enumerate(self._readers) if readers & set(stage)}
            waits = {arrival[f, here] for f in fetched if (f, here) in arrival}
            new = {number for number in waits if number >= 0}
            for f in fetched:
                if (f, here) in arrival:
                    arrival[f, here] = -1  # a later stage finds it there
            sends = self._sends(device, stage[-1])
            seconds = sum(takes[op] for op in stage) + float(table.overhead_s[here]) * (len(new) + len(sends))
            needs = new | ({latest[here]} if here in latest else set())
            latest[here] = len(tasks)
            tasks.append(Task(seconds, frozenset({here}), frozenset(needs)))
            for f, dst in sends:
                arrival[f, dst] = len(tasks)
                tasks.append(self._transfer(f, here, dst, latest[here]))
        return tasks

    def _transfer(self, flow: int, src: int, dst: int, sender: int) -> Task:
        table, link_class = self._table, int(self._table.link_class[src, dst])
        seconds, channel = float(table.link_s[flow, link_class]), int(table.channel[src, dst])
        holds: frozenset[Any] = frozenset() if table.overlap else frozenset({src, dst})
        needs = frozenset({sender})
        if table.sharing == "fifo":
            return Task(seconds, holds | {("channel", channel)}, needs)
        if table.sharing == "unlimited":
            return Task(seconds, holds, needs)
        return Task(seconds, holds, needs, channel, min(float(table.link_latency_s[link_class]), seconds))
