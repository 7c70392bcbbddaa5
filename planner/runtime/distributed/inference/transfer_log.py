"""Transfer log: when payloads leave a rank and come to another, from which the coordinator makes spans.

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
from planner.runtime.inference.recorder import transfer_times
from simulator.stages import Stage
from simulator.timeline import Span


class LoggedTransfer(NamedTuple):
    """One end of a payload's way."""

    stage: int  # the stage that wrote the payload
    rank: int  # the destination
    micro_batch: int  # number 0 is the first that is recorded
    leaves: bool  # whether the payload leaves; else it comes
    at_s: float  # since the moment from which all ranks count


class TransferLog:
    """Keeps the times of the payloads that leave one rank or come to it, while it records."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[LoggedTransfer] | None = None
        self._first = 0
        self._origin_s = 0.0

    def start(self, first: int, origin_s: float) -> None:
        """Record micro-batches from a number on; times count from ``origin_s`` by ``time.perf_counter``."""
        with self._lock:
            self._kept, self._first, self._origin_s = [], first, origin_s

    def leave(self, stage: int, rank: int, micro_batch: int) -> None:
        """Note that a payload is given to the connection now."""
        self._keep(stage, rank, micro_batch, leaves=True, at_s=time.perf_counter())

    def come(self, stage: int, rank: int, micro_batch: int, at_s: float) -> None:
        """Note that a payload has come, at a time of ``time.perf_counter``."""
        self._keep(stage, rank, micro_batch, leaves=False, at_s=at_s)

    def taken(self) -> tuple[LoggedTransfer, ...]:
        """Return what was recorded, and stop recording."""
        with self._lock:
            kept, self._kept = self._kept or [], None
        return tuple(kept)

    def _keep(self, stage: int, rank: int, micro_batch: int, leaves: bool, at_s: float) -> None:
        with self._lock:
            if self._kept is not None and micro_batch >= self._first:
                self._kept.append(LoggedTransfer(stage, rank, micro_batch - self._first, leaves, at_s - self._origin_s))


def transfers(logged: Iterable[LoggedTransfer], stages: Sequence[Stage], layout: RankLayout) -> Iterator[Span]:
    """Yield a span without a label for every tensor that went from a device to a device of another rank."""
    ends = (((stage, rank, micro_batch), leaves, at_s) for stage, rank, micro_batch, leaves, at_s in logged)
    times = transfer_times(ends, lambda message: (layout.rank_of[stages[message[0]].device], message[1]))
    for (number, rank, micro_batch), start_s, end_s in times:
        src = stages[number].device
        for flow, dst in stages[number].sends:
            if layout.rank_of[dst] == rank:
                link = f"{layout.names[src]} → {layout.names[dst]}"
                yield Span("transfer", link, "", micro_batch, flow, start_s, end_s)
