"""Builds the rows of schedules: the actions of one device."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from graphs.errors import InputError
from simulator.schedule import Action, Computation

Row = list[Action]
"""The actions of one device."""


def check_counts(n_devices: int, micro_batches: int, stages_per_device: int = 1, only: int | None = None) -> None:
    """Check the counts of a schedule; ``only`` is the number of stages a device that it requires, or None for any.

    Raises:
        InputError: for a count below 1, or another number of stages a device than ``only``.
    """
    counts = {"devices": n_devices, "micro-batches": micro_batches, "stages a device": stages_per_device}
    for name, count in counts.items():
        if count < 1:
            raise InputError(f"a schedule of {count} {name}; it must be 1 or more")
    if only is not None and stages_per_device != only:
        raise InputError(f"a schedule of {stages_per_device} stages a device; this one is for {only}")


def row_of(stage: int, computation: Computation, micro_batches: Iterable[int]) -> Row:
    """The same computation of one stage for one micro-batch after the other."""
    return [Action(stage, computation, micro_batch) for micro_batch in micro_batches]


def one_by_one(forward: Row, backward: Sequence[Row], warm_up: int) -> Row:
    """``warm_up`` forward actions, then one forward action and one backward step alternately."""
    row = forward[:warm_up]
    for action, step in zip_longest(forward[warm_up:], backward):
        row += [action] if action is not None else []
        row += step
    return row
