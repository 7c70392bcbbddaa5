"""List scheduling: ranks of operators, and a schedule to which operators are added one by one on chosen devices.

::

    dev0  |aaaa|    |cc|          e takes 2 and may start at 4: it goes into the hole on dev0,
    dev1  |bbbbbbbb|              not after c
"""

from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, TypeAlias

import numpy as np

from costmodels.table import CostTable
from graphs.common.arrays import Floats
from planner.problem.blocks import input_flows, merge_blocks, successors
from planner.problem.problem import Goal, Problem
from planner.solvers.base import Answer, Budget, Incumbent
from simulator.placement import Placement

Slots: TypeAlias = list[tuple[float, float]]
"""When a device or channel is busy: (finish, start) in seconds, ascending."""


@dataclass(frozen=True)
class ListSchedule:
    """When each operator is planned to run; in the simulator, the placement may do better or worse."""

    placement: Placement  # devices, and the order of the starts
    start_s: tuple[float, ...]  # [n_ops]
    finish_s: tuple[float, ...]  # [n_ops]

    @property
    def makespan_s(self) -> float:
        """Seconds until the last operator finishes."""
        return max(self.finish_s, default=0.0)


@dataclass(frozen=True)
class ListScheduler:
    """A list scheduler makes two schedules and answers with the better one by `evaluate`.

    In the first, as in the papers, transfers start at once, whatever else is sent; in the second they book their
    channel and, unless the cluster overlaps, both devices. An operator goes only to a device with room for its block,
    and the other members of the block follow it.
    """

    name: str
    # from a table, and whether transfers are booked; None without room or link for an operator, or if time runs out
    schedule: Callable[[CostTable, bool, Budget], ListSchedule | None] = field(repr=False)
    goals: frozenset[Goal] = frozenset({Goal.LATENCY})

    def refuses(self, problem: Problem) -> str:  # noqa: ARG002  # the form of a solver
        """Refuse nothing."""
        return ""

    def search(self, problem: Problem, budget: Budget) -> Answer:
        """Make the two schedules."""
        best = Incumbent(problem, budget, self.name)
        for book_transfers in (False, True):
            schedule = self.schedule(problem.table, book_transfers, budget)
            if schedule is not None:
                best.offer(schedule.placement)
            if budget.brake_s <= 0:
                break
        return Answer(best.placement)


class TentativePlacement(NamedTuple):
    """An operator on a device: when its inputs are there, when it runs, and its transfers: (flow, start, finish)."""

    device: int
    ready_s: float
    start_s: float
    finish_s: float
    transfers: tuple[tuple[int, float, float], ...]


class ListPlan:
    """A schedule under construction.

    Transfers occupy their channels if ``book_transfers``. An operator may start before others of its device that are
    planned already if ``fill_holes``.
    """

    def __init__(self, table: CostTable, book_transfers: bool, fill_holes: bool = True) -> None:
        self._blocks, self._table = merge_blocks(table), table
        self._book_transfers, self._fill_holes = book_transfers, fill_holes
        self._inputs = input_flows(table)
        self._home = [-1] * self._blocks.n  # device of each block
        self._free = self._blocks.room_bytes.copy()
        n_channels = int(table.channel.max(initial=-1)) + 1
        self._slots: list[Slots] = [[] for _ in range(table.n_devices + n_channels)]
        self._arrived: dict[tuple[int, int], float] = {}  # (flow, device) -> when
        self._done = [TentativePlacement(-1, 0.0, 0.0, 0.0, ())] * table.n_ops

    def trials(self, op: int) -> list[TentativePlacement]:
        """Return trials of an operator on every device with room and links for it; its writers are planned already."""
        trials = [self._trial(op, device) for device in self._choices(op)]
        return [trial for trial in trials if trial.finish_s < inf]

    def _choices(self, op: int) -> list[int]:
        block = int(self._blocks.block[op])
        if self._home[block] >= 0:
            return [self._home[block]]
        return np.flatnonzero(self._blocks.fits[block] & (self._blocks.n_bytes[block] <= self._free)).tolist()

    def _trial(self, op: int, device: int) -> TentativePlacement:
        """Return the trial of an operator as early as possible on a device; infinitely late without a link."""
        ready = 0.0
        transfers: list[tuple[int, float, float]] = []
        for flow in sorted(self._inputs[op], key=lambda flow: self._written(flow).finish_s):
            written = self._written(flow)
            arrived = written.finish_s if written.device == device else self._arrived.get((flow, device))
            if arrived is None:
                takes = self._table.send_s(flow, written.device, device)
                if takes == inf:
                    return TentativePlacement(device, inf, inf, inf, ())
                # The transfers of this trial follow one another on each channel, in the order of this loop.
                after = max(written.finish_s, self._last(transfers, written.device, device))
                begin = _first_hole(self._held(written.device, device), after, takes)
                arrived = begin + takes
                transfers.append((flow, begin, arrived))
            ready = max(ready, arrived)
        takes = float(self._table.forward_s[op, device])
        slots = self._slots[device]
        after = ready if self._fill_holes or not slots else max(ready, slots[-1][0])
        begin = _first_hole([slots], after, takes)
        return TentativePlacement(device, ready, begin, begin + takes, tuple(transfers))

    def book(self, op: int, trial: TentativePlacement) -> None:
        """Add a trial to the schedule."""
        block = int(self._blocks.block[op])
        if self._home[block] < 0:
            self._home[block] = trial.device
            self._free[trial.device] -= self._blocks.n_bytes[block]
        for flow, begin, arrived in trial.transfers:
            self._arrived[flow, trial.device] = arrived
            for slots in self._held(self._written(flow).device, trial.device):
                insort(slots, (arrived, begin))
        insort(self._slots[trial.device], (trial.finish_s, trial.start_s))
        self._done[op] = trial

    def schedule(self) -> ListSchedule:
        """Return the schedule; operators are ordered by start, then finish, then number, so that writers come first."""
        done = self._done
        order = sorted(range(len(done)), key=lambda op: (done[op].start_s, done[op].finish_s, op))
        placement = Placement(tuple(trial.device for trial in done), tuple(order))
        return ListSchedule(placement, tuple(trial.start_s for trial in done), tuple(trial.finish_s for trial in done))

    def _written(self, flow: int) -> TentativePlacement:
        return self._done[self._table.flows[flow].writer]

    def _held(self, src: int, dst: int) -> list[Slots]:
        """Return the slots of the channel and the devices that a transfer occupies."""
        if not self._book_transfers:
            return []
        channel = self._slots[self._table.n_devices + int(self._table.channel[src, dst])]
        return [channel] if self._table.overlap else [channel, self._slots[src], self._slots[dst]]

    def _last(self, transfers: Sequence[tuple[int, float, float]], src: int, dst: int) -> float:
        """When the trial's own transfers have left all that another transfer from ``src`` to ``dst`` occupies."""
        if not self._book_transfers:
            return 0.0
        channel = self._table.channel
        last = 0.0
        for flow, _, arrived in transfers:
            other = self._written(flow).device
            if not self._table.overlap or channel[other, dst] == channel[src, dst]:
                last = max(last, arrived)
        return last


def _first_hole(held: Sequence[Slots], ready_s: float, takes_s: float) -> float:
    """Return the first time from ``ready_s`` on at which all of these slots are free for long enough."""
    begin, moved = ready_s, True
    while moved:
        moved = False
        for slots in held:
            for finish, start in slots[bisect_right(slots, (begin, inf)) :]:
                if begin + takes_s <= start:
                    break
                begin, moved = max(begin, finish), True
    return begin


def mean_computes(table: CostTable) -> list[float]:
    """Return [n_ops], mean seconds of each operator over the devices that can run it."""
    able = np.where(np.isfinite(table.forward_s), table.forward_s, np.nan)
    return [float(mean) for mean in np.nanmean(able, axis=1)]


def mean_sends(table: CostTable) -> list[float]:
    """Return [n_flows], mean seconds to send each flow over the links; 0 without links."""
    links = table.link_class[table.link_class >= 0]
    return [float(mean) for mean in table.link_s[:, links].mean(axis=1)] if len(links) else [0.0] * len(table.flows)


def upward_rank(table: CostTable) -> list[float]:
    """Return [n_ops], seconds from each operator's start to the end of the graph along its longest path (HEFT)."""
    computes, sends = mean_computes(table), mean_sends(table)
    tail, rank = [0.0] * table.n_ops, [0.0] * table.n_ops
    inputs = input_flows(table)
    for op in reversed(range(table.n_ops)):  # readers come after their writers, so the tail is final by now
        rank[op] = computes[op] + tail[op]
        for flow in inputs[op]:
            writer = table.flows[flow].writer
            tail[writer] = max(tail[writer], sends[flow] + rank[op])
    return rank


def downward_rank(table: CostTable) -> list[float]:
    """Return [n_ops], seconds from the beginning to each operator's start along its longest path (CPOP)."""
    computes, sends = mean_computes(table), mean_sends(table)
    rank = [0.0] * table.n_ops
    for op, flows in enumerate(input_flows(table)):
        for flow in flows:
            writer = table.flows[flow].writer
            rank[op] = max(rank[op], rank[writer] + computes[writer] + sends[flow])
    return rank


def longest_path(table: CostTable, length_s: Sequence[float]) -> list[int]:
    """The operators of one longest path, by the length of the longest path through each operator, [n_ops]."""
    readers, n_writers = successors(table.n_ops, table.edges)
    choices = [op for op, count in enumerate(n_writers) if not count]
    path: list[int] = []
    while choices:
        path.append(min(choices, key=lambda op: (-length_s[op], op)))
        choices = readers[path[-1]]
    return path


def optimistic_costs(table: CostTable) -> Floats:
    """Return [n_ops, n_devices], the least seconds from an operator's end on a device to the graph's end (PEFT).

    ::

        cost[i, p] = max over readers j of min over devices q of cost[j, q] + computes[j, q] + (sends if q != p)
    """
    sends, inputs = mean_sends(table), input_flows(table)
    cost = np.zeros((table.n_ops, table.n_devices))
    for op in reversed(range(table.n_ops)):
        ahead = cost[op] + table.forward_s[op]
        for flow in inputs[op]:
            writer = table.flows[flow].writer
            cost[writer] = np.maximum(cost[writer], np.minimum(ahead, ahead.min() + sends[flow]))
    return cost
