"""Schedules with split backward passes: I, for which the stage before waits, and W, which has no reader.

::

    zb-h1   0  0F0 0F1 .   0I0 0W0 0F2 0I1 0W1 0I2 0W2      device 1 postpones each W until the next I has run,
            1  .   1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2      so that neither 1I1 nor 0I1 after it waits
"""

from simulator.schedule import Action, Schedule
from simulator.schedules.rows import Row, check_counts, one_by_one, row_of


def zb_h1(n_devices: int, micro_batches: int, stages_per_device: int = 1) -> Schedule:
    """ZB-H1: if F, I and W take equally long, a third of the bubbles of 1F1B, with hardly more memory.

    Source: Qi et al. 2024, Zero bubble pipeline parallelism, section 2.1.
    """
    check_counts(n_devices, micro_batches, stages_per_device, only=1)
    devices = range(n_devices)
    return Schedule(tuple(_row(d, micro_batches, warm_up=n_devices - 1 - d, put_off=d) for d in devices))


def zb_h2(n_devices: int, micro_batches: int, stages_per_device: int = 1) -> Schedule:
    """ZB-H2: if F, I and W take equally long, no bubbles between a device's first and last action; twice the memory.

    Source: Qi et al. 2024, Zero bubble pipeline parallelism, section 2.2.
    """
    check_counts(n_devices, micro_batches, stages_per_device, only=1)
    devices = range(n_devices)
    return Schedule(tuple(_row(d, micro_batches, warm_up=2 * (n_devices - 1 - d), put_off=2 * d) for d in devices))


def _row(device: int, micro_batches: int, warm_up: int, put_off: int) -> tuple[Action, ...]:
    """F and I alternately; each W follows the I that is ``put_off`` micro-batches later."""
    every = range(micro_batches)
    weights = row_of(device, "W", every)
    backward: list[Row] = [[action] for action in row_of(device, "I", every)]
    for step, action in zip(backward[put_off:], weights, strict=False):
        step.append(action)
    backward[-1] += weights[max(micro_batches - put_off, 0) :]
    return tuple(one_by_one(row_of(device, "F", every), backward, warm_up))
