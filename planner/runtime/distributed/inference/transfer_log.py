"""Passages: when payloads leave a rank and when they come to another, of which the coordinator makes spans.

Each rank keeps its own times, which count from a moment that the coordinator tells it by the rank's clock. ::

    rank 1         ── a ──┐ leaves, behind stage 0, for rank 2
    cpu0 → cpu1           └──────────────────────┐
    rank 2                                 comes └── b ──
"""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from planner.runtime.distributed.transport.layout import RankLayout
from simulator.stages import Stage
from simulator.timeline import Span


class LoggedTransfer(NamedTuple):
    """One end of a payload's way.

    Attributes:
        stage: behind which it leaves.
        rank: for which it leaves.
        micro_batch: number 0 is the first that is recorded.
        leaves: it leaves, or else it comes.
        at_s: since the moment from which all count.
    """

    stage: int
    rank: int
    micro_batch: int
    leaves: bool
    at_s: float


class TransferLog:
    """Those at one rank, while it records."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[LoggedTransfer] | None = None
        self._first = 0
        self._origin_s = 0.0

    def start(self, first: int, origin_s: float) -> None:
        """Keep those of micro-batches from a number on; seconds count from a time of ``time.perf_counter``."""
        with self._lock:
            self._kept, self._first, self._origin_s = [], first, origin_s

    def leave(self, stage: int, rank: int, micro_batch: int) -> None:
        """A payload is handed to the connection now."""
        self._keep(stage, rank, micro_batch, leaves=True, at_s=time.perf_counter())

    def come(self, stage: int, rank: int, micro_batch: int, at_s: float) -> None:
        """A payload has come at a time of ``time.perf_counter``."""
        self._keep(stage, rank, micro_batch, leaves=False, at_s=at_s)

    def taken(self) -> tuple[LoggedTransfer, ...]:
        """What was kept; recording ends."""
        with self._lock:
            kept, self._kept = self._kept or [], None
        return tuple(kept)

    def _keep(self, stage: int, rank: int, micro_batch: int, leaves: bool, at_s: float) -> None:
        with self._lock:
            if self._kept is not None and micro_batch >= self._first:
                self._kept.append(LoggedTransfer(stage, rank, micro_batch - self._first, leaves, at_s - self._origin_s))


def transfers(logged: Iterable[LoggedTransfer], stages: Sequence[Stage], layout: RankLayout) -> Iterator[Span]:
    """A span for every tensor that went from a device to a device of another rank, without a label.

    It begins when the tensor is handed over, or when what left before it over the same connection has come: until then
    it waits its turn. What did not come, because its micro-batch failed, is left out. Where clocks are not known well
    enough, a payload may seem to come before it left; it took no time then.

    Args:
        logged: of all ranks.
        stages: of the plan.
        layout: of the ranks.
    """
    ends: dict[bool, dict[tuple[int, int, int], float]] = {True: {}, False: {}}
    for stage, rank, micro_batch, leaves, at_s in logged:
        ends[leaves][stage, rank, micro_batch] = at_s
    free_s: dict[tuple[int, int], float] = {}  # by source and destination: when the last one came
    for (number, rank, micro_batch), left_s in sorted(ends[True].items(), key=lambda item: item[1]):
        came_s = ends[False].get((number, rank, micro_batch))
        if came_s is None:
            continue
        src = stages[number].device
        start_s = max(left_s, free_s.get((layout.rank_of[src], rank), left_s))
        free_s[layout.rank_of[src], rank] = end_s = max(start_s, came_s)
        for flow, dst in stages[number].sends:
            if layout.rank_of[dst] == rank:
                link = f"{layout.names[src]} → {layout.names[dst]}"
                yield Span("transfer", link, "", micro_batch, flow, start_s, end_s)
