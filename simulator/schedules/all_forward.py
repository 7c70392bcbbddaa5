"""Schedules that run the forward passes of all micro-batches before the first backward pass.

::

    gpipe           0  0F0 0F1 0F2 .   .   0B0 0B1 0B2
                    1  .   1F0 1F1 1F2 1B0 1B1 1B2 .

    breadth-first   0  0F0 0F1 2F0 2F1 .   2B1 2B0 0B1 0B0      device 0 has the stages 0 and 2
                    1  .   1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0      device 1 has the stages 1 and 3
"""

from simulator.schedule import Schedule
from simulator.schedules.rows import check_counts, row_of


def forward_only(n_devices: int, micro_batches: int, stages_per_device: int = 1) -> Schedule:
    """Pipelined inference: no backward pass."""
    check_counts(n_devices, micro_batches, stages_per_device, only=1)
    return Schedule(tuple(tuple(row_of(stage, "F", range(micro_batches))) for stage in range(n_devices)))


def gpipe(n_devices: int, micro_batches: int, stages_per_device: int = 1) -> Schedule:
    """All micro-batches forward, then all backward in the same order.

    Source: Huang et al. 2019, GPipe: efficient training of giant neural networks using pipeline parallelism.
    """
    check_counts(n_devices, micro_batches, stages_per_device, only=1)
    every = range(micro_batches)
    return Schedule(tuple(tuple(row_of(stage, "F", every) + row_of(stage, "B", every)) for stage in range(n_devices)))


def breadth_first(n_devices: int, micro_batches: int, stages_per_device: int = 2) -> Schedule:
    """All micro-batches through a device's first stage, then all through its next one; backward in the opposite order.

    Stages go round the devices: stage s is on device s mod n_devices. There is no idle time between stages with at
    least as many micro-batches as devices.

    Source: Lamy-Poirier 2022, Breadth-first pipeline parallelism.
    """
    check_counts(n_devices, micro_batches, stages_per_device)
    rows = []
    for device in range(n_devices):
        stages = range(device, n_devices * stages_per_device, n_devices)
        row = [action for stage in stages for action in row_of(stage, "F", range(micro_batches))]
        row += [action for stage in stages[::-1] for action in row_of(stage, "B", range(micro_batches)[::-1])]
        rows.append(tuple(row))
    return Schedule(tuple(rows))
