"""Schedules that start backward passes as early as possible, so that few micro-batches are in flight.

::

    1f1b   0  0F0 0F1 0F2 .   .   0B0 0F3 0B1 .   0B2 .   0B3      after a warm-up, forward and backward passes
           1  .   1F0 1F1 .   1B0 1F2 1B1 1F3 1B2 .   1B3 .        alternate; the warm-up has a forward pass for
           2  .   .   2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3 .   .        each later device
"""

from graphs.errors import InputError
from simulator.schedule import Action, Schedule
from simulator.schedules.rows import check_counts, one_by_one, row_of


def one_f_one_b(n_devices: int, micro_batches: int, stages_per_device: int = 1) -> Schedule:
    """1F1B, also PipeDream-Flush: as fast as GPipe, with at most as many micro-batches in flight as devices.

    Source: Narayanan et al. 2021, Efficient large-scale language model training on GPU clusters.
    """
    check_counts(n_devices, micro_batches, stages_per_device, only=1)
    every = range(micro_batches)
    rows = []
    for stage in range(n_devices):
        backward = [[action] for action in row_of(stage, "B", every)]
        rows.append(tuple(one_by_one(row_of(stage, "F", every), backward, warm_up=n_devices - 1 - stage)))
    return Schedule(tuple(rows))


def interleaved(n_devices: int, micro_batches: int, stages_per_device: int = 2) -> Schedule:
    """Interleaved 1F1B: several stages a device shorten the warm-up, in which devices are idle.

    Stages go round the devices: stage s is on device s mod n_devices. A group has as many micro-batches as there are
    devices, and passes all stages of a device before the next group enters.

    Source: Narayanan et al. 2021, Efficient large-scale language model training on GPU clusters, section 2.2.

    Raises:
        InputError: for a count below 1, or micro-batches that are not a multiple of the devices.
    """
    check_counts(n_devices, micro_batches, stages_per_device)
    if micro_batches % n_devices:
        raise InputError(f"{micro_batches} micro-batches on {n_devices} devices; interleaved needs a multiple of these")
    groups = [range(first, first + n_devices) for first in range(0, micro_batches, n_devices)]
    rows = []
    for device in range(n_devices):
        stages = range(device, n_devices * stages_per_device, n_devices)
        forward = [Action(stage, "F", i) for group in groups for stage in stages for i in group]
        backward = [[Action(stage, "B", i)] for group in groups for stage in stages[::-1] for i in group]
        warm_up = (stages_per_device - 1) * n_devices + 2 * (n_devices - 1 - device)
        rows.append(tuple(one_by_one(forward, backward, warm_up)))
    return Schedule(tuple(rows))
