"""ZBV: two stages a device in the form of a V, so that the first device also has the last stage."""

from collections import Counter
from typing import TypeAlias

from simulator.schedule import Action, Computation, Schedule
from simulator.schedules.rows import check_counts

DOWN, UP = 0, 1  # the two arms of the V
Move: TypeAlias = tuple[int, Computation]
"""A computation on one of the arms."""


def zbv(n_devices: int, micro_batches: int, stages_per_device: int = 2) -> Schedule:
    """ZB-V: if F, I and W take equally long, no bubbles between a device's first and last action, in 1F1B's memory.

    Device d has stage d, on the way down, and stage 2 · n_devices - 1 - d, on the way up.

    Source: Qi et al. 2024, Zero bubble pipeline parallelism, section 6, in the order of torch.distributed.pipelining.
    """
    check_counts(n_devices, micro_batches, stages_per_device, only=2)
    rows = []
    for device in range(n_devices):
        stages = (device, 2 * n_devices - 1 - device)
        counts: Counter[Move] = Counter()
        row = []
        for arm, computation in _pattern(n_devices, device, max(micro_batches, 2 * n_devices - 1)):
            row.append(Action(stages[arm], computation, counts[arm, computation]))
            counts[arm, computation] += 1
        rows.append(tuple(action for action in row if action.micro_batch < micro_batches))
    return Schedule(tuple(rows))


def _pattern(n_devices: int, device: int, micro_batches: int) -> list[Move]:
    """A device's computations by arm, each for its next micro-batch; 2 · n_devices - 1 micro-batches fill it."""
    behind, left = n_devices - device, micro_batches - 2 * n_devices + 1
    f_down, i_down, w_down = _moves(DOWN)
    f_up, i_up, w_up = _moves(UP)
    return [
        *(2 * behind - 1) * [f_down],
        *device * [f_up, f_down],
        *behind * [f_up, i_up, w_up],
        *(left + device) * [f_down, i_down, w_down, f_up, i_up, w_up],
        *(behind - 1) * [i_down, w_down, f_up, i_up, w_up],
        *device * [i_down, i_up],
        *behind * [i_down, w_down],
        *device * [w_up],
        *device * [w_down],
    ]


def _moves(arm: int) -> tuple[Move, Move, Move]:
    return (arm, "F"), (arm, "I"), (arm, "W")
