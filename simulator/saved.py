"""The memory that devices keep for backward passes over time, and its peak.

::

    0F0 0F1 0I0 0F2 0W0 ...        F keeps saved_bytes from its start until its B or I has ended;
    ▁▁▁▃▃▃▃▃▃▃▂▂▆▆▆▆▅▅▅            I then keeps kept_bytes until its W has ended
    a B or I that recomputes also keeps recomputed_bytes, from its start to its end
"""

from dataclasses import dataclass

import numpy as np

from costmodels.table import Floats, Ints
from simulator.lower_schedule import Lowered
from simulator.schedule import COMPUTATIONS, B, F, I, W


@dataclass(frozen=True)
class Saved:
    """Bytes that one device keeps for backward passes, as a step function."""

    time_s: Floats  # [n_steps], ascending; one instant may have several steps
    held_bytes: Ints  # [n_steps], from this second on

    @property
    def peak_bytes(self) -> int:
        """The largest number of bytes at any time."""
        return int(self.held_bytes.max(initial=0))

    @property
    def peak_s(self) -> float:
        """The second at which the peak is reached first."""
        return float(self.time_s[self.held_bytes.argmax()]) if self.held_bytes.size else 0.0


def saved_memory(lowered: Lowered, start_s: Floats, end_s: Floats) -> tuple[Saved, ...]:
    """[n_devices], the bytes that each device keeps over time; 0 without backward passes.

    Args:
        lowered: the schedule with its costs.
        start_s: [n_actions], second at which each action starts, as numbered in ``Schedule.columns``.
        end_s: [n_actions], second at which it ends.
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
    return tuple(Saved(time_s, change.cumsum()) for time_s, change in pairs)
