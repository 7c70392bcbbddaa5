"""List scheduling: operators one by one, the most urgent first, each on the device that finishes it first.

::

    dev0  |aaaa|    |cc|          e takes 2 and may start at 4: it goes into the hole on dev0,
    dev1  |bbbbbbbb|              not behind c
"""

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, TypeAlias

import numpy as np

from costmodels.table import CostTable
from planner.problem import Goal, Problem
from planner.solvers.base import Answer, Budget
from planner.solvers.blocks import Blocks, merge_blocks
from planner.solvers.incumbent import Incumbent
from simulator.placement import Placement

Slots: TypeAlias = list[tuple[float, float]]
"""What a device or channel is busy with: (finish, start) in seconds, ascending."""


@dataclass(frozen=True)
class Heft:
    """Heterogeneous Earliest Finish Time: urgency is the upward rank, and holes between operators are filled.

    It makes two schedules: in one, as in the paper, transfers start at once, whatever else is sent; in the other
    they book their channel and, unless the cluster overlaps, both devices. The better one by `evaluate` is the answer.
    An operator goes only where its block has room, and the members of a block follow the first.

    Source: Topcuoglu, Hariri, Wu: Performance-effective and low-complexity task scheduling for heterogeneous
    computing, IEEE TPDS 13(3), 2002.
    """

    name: str = "heft"
    goals: frozenset[Goal] = frozenset({Goal.LATENCY})

    def refuses(self, problem: Problem) -> str:
        """It schedules operators one by one on devices that exchange tensors directly."""
        return "accelerators beside a host" if problem.table.offload else ""

    def search(self, problem: Problem, budget: Budget) -> Answer:
        """Make the two schedules; a schedule is given up if it runs out of room or of links on the way."""
        best = Incumbent(problem, budget, self.name)
        urgency = upward_rank(problem.table)
        by_urgency = sorted(range(problem.table.n_ops), key=lambda op: (-urgency[op], op))
        for book_transfers in (False, True):
            schedule = list_schedule(problem.table, by_urgency, book_transfers)
            if schedule is not None:
                best.offer(schedule.placement)
            if budget.left_s <= 0:
                break
        return Answer(best.placement)


@dataclass(frozen=True)
class Schedule:
    """When everything is planned to run; in the simulator, a placement may do better or worse.

    Attributes:
        placement: devices, and the order of the starts.
        start_s: [n_ops].
        finish_s: [n_ops].
    """

    placement: Placement
    start_s: tuple[float, ...]
    finish_s: tuple[float, ...]

    @property
    def makespan_s(self) -> float:
        """When the last operator finishes."""
        return max(self.finish_s, default=0.0)


def upward_rank(table: CostTable) -> list[float]:
    """[n_ops], seconds from each operator's start to the end of the graph along its longest path, on average devices.

    An operator counts with its mean over the devices that can run it, a flow with its mean over the links.
    """
    computes = np.nanmean(np.where(np.isfinite(table.forward_s), table.forward_s, np.nan), axis=1).tolist()
    wires = table.wire[table.wire >= 0]
    sends = table.wire_s[:, wires].mean(axis=1).tolist() if len(wires) else [0.0] * len(table.flows)
    tail = [0.0] * table.n_ops
    rank = [0.0] * table.n_ops
    inputs = inputs_of(table)
    for op in reversed(range(table.n_ops)):  # readers come after their writers, so its tail is known by now
        rank[op] = computes[op] + tail[op]
        for flow in inputs[op]:
            writer = table.flows[flow].writer
            tail[writer] = max(tail[writer], sends[flow] + rank[op])
    return rank


def list_schedule(table: CostTable, by_urgency: Sequence[int], book_transfers: bool) -> Schedule | None:
    """Schedule the operators in this order, which must be a topological one; None if one has nowhere to go."""
    plan = _Plan(merge_blocks(table), book_transfers)
    inputs = inputs_of(table)
    for op in by_urgency:
        trials = [plan.trial(op, device, inputs[op]) for device in plan.choices(op)]
        best = min(trials, key=lambda trial: trial.finish_s, default=None)
        if best is None or best.finish_s == inf:
            return None
        plan.book(op, best)
    return plan.schedule()


def inputs_of(table: CostTable) -> list[list[int]]:
    """[n_ops], the flows that each operator reads."""
    inputs: list[list[int]] = [[] for _ in range(table.n_ops)]
    for number, flow in enumerate(table.flows):
        for reader in flow.readers:
            inputs[reader].append(number)
    return inputs


class _Trial(NamedTuple):
    """An operator on a device: when, and the transfers that it takes, as (flow, start, finish)."""

    device: int
    start_s: float
    finish_s: float
    transfers: tuple[tuple[int, float, float], ...]


class _Plan:
    """A schedule while it grows."""

    def __init__(self, blocks: Blocks, book_transfers: bool) -> None:
        table = blocks.table
        self._blocks, self._table, self._book_transfers = blocks, table, book_transfers
        self._home = [-1] * blocks.n  # device of each block
        self._free = blocks.room_bytes.copy()
        n_channels = int(table.channel.max(initial=-1)) + 1
        self._slots: list[Slots] = [[] for _ in range(table.n_devices + n_channels)]
        self._arrived: dict[tuple[int, int], float] = {}  # (flow, device) -> when
        self._done = [_Trial(-1, 0.0, 0.0, ())] * table.n_ops

    def choices(self, op: int) -> list[int]:
        """The devices where an operator may go."""
        block = int(self._blocks.block[op])
        if self._home[block] >= 0:
            return [self._home[block]]
        here = np.flatnonzero(self._blocks.fits[block] & (self._blocks.n_bytes[block] <= self._free))
        return [int(device) for device in here]

    def trial(self, op: int, device: int, inputs: Sequence[int]) -> _Trial:
        """The earliest an operator can be done on a device; infinitely late without a link."""
        ready = 0.0
        transfers: list[tuple[int, float, float]] = []
        for flow in sorted(inputs, key=lambda flow: self._done[self._table.flows[flow].writer].finish_s):
            written = self._done[self._table.flows[flow].writer]
            arrived = written.finish_s if written.device == device else self._arrived.get((flow, device))
            if arrived is None:
                takes = self._table.send_s(flow, written.device, device)
                if takes == inf:
                    return _Trial(device, inf, inf, ())
                # What this trial sends itself is booked in its own order: one after the other on each channel.
                after = max(written.finish_s, self._last(transfers, written.device, device))
                begin = _first_hole(self._held(written.device, device), after, takes)
                arrived = begin + takes
                transfers.append((flow, begin, arrived))
            ready = max(ready, arrived)
        takes = float(self._table.forward_s[op, device])
        begin = _first_hole([self._slots[device]], ready, takes)
        return _Trial(device, begin, begin + takes, tuple(transfers))

    def book(self, op: int, trial: _Trial) -> None:
        """Make a trial true."""
        block = int(self._blocks.block[op])
        if self._home[block] < 0:
            self._home[block] = trial.device
            self._free[trial.device] -= self._blocks.n_bytes[block]
        for flow, begin, arrived in trial.transfers:
            self._arrived[flow, trial.device] = arrived
            for slots in self._held(self._done[self._table.flows[flow].writer].device, trial.device):
                insort(slots, (arrived, begin))
        insort(self._slots[trial.device], (trial.finish_s, trial.start_s))
        self._done[op] = trial

    def schedule(self) -> Schedule:
        """Operators by their start; one that takes no time goes before one that starts with it, a writer before all."""
        done = self._done
        order = sorted(range(len(done)), key=lambda op: (done[op].start_s, done[op].finish_s, op))
        placement = Placement(tuple(trial.device for trial in done), tuple(order))
        return Schedule(placement, tuple(trial.start_s for trial in done), tuple(trial.finish_s for trial in done))

    def _held(self, src: int, dst: int) -> list[Slots]:
        """The slots of everything that a transfer holds."""
        if not self._book_transfers:
            return []
        channel = self._slots[self._table.n_devices + int(self._table.channel[src, dst])]
        return [channel] if self._table.overlap else [channel, self._slots[src], self._slots[dst]]

    def _last(self, transfers: Sequence[tuple[int, float, float]], src: int, dst: int) -> float:
        """When the trial's own transfers leave free what another one from ``src`` to ``dst`` holds."""
        if not self._book_transfers:
            return 0.0
        channel = self._table.channel
        last = 0.0
        for flow, _, arrived in transfers:
            other = self._done[self._table.flows[flow].writer].device
            if not self._table.overlap or channel[other, dst] == channel[src, dst]:
                last = max(last, arrived)
        return last


def _first_hole(held: Sequence[Slots], ready_s: float, takes_s: float) -> float:
    """The first time from ``ready_s`` on at which everything held is free for long enough."""
    begin, moved = ready_s, True
    while moved:
        moved = False
        for slots in held:
            for finish, start in slots[bisect_right(slots, (begin, inf)) :]:
                if begin + takes_s <= start:
                    break
                begin, moved = max(begin, finish), True
    return begin
