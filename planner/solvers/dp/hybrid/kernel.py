"""The recurrence over downsets for a time limit of a stage; compiled."""

from typing import NamedTuple

import numpy as np

from costmodels.table import Floats, Ints
from planner.solvers.compiled import compiled

NONE = np.int64(1 << 40)  # devices, where nothing fits


class StageTable(NamedTuple):
    """The stages between downsets. Stages of downset i are those from ``start[i]`` to ``start[i + 1]``."""

    start: Ints  # [n_downsets + 1]
    end: Ints  # [n_stages], the downset that is complete after each stage; its number is larger
    compute_s: Floats  # [n_degrees, n_stages, most in flight], not falling in the last axis
    crossing_s: Floats  # [n_degrees, n_stages], to send both ways, if there is one copy
    reduce_s: Floats  # [n_degrees, n_stages], to add up gradients, for one more copy
    data: Ints  # [n_data], numbers of copies
    tensor: Ints  # [n_degrees]


class StageSweep(NamedTuple):
    """What a sweep finds, for each downset before a stage and each sum of copies from there on."""

    devices: Ints  # [n_downsets, most copies + 1], the fewest
    stage: Ints  # [n_downsets, most copies + 1], the stage that comes first
    data: Ints  # the same shape, its copies
    degree: Ints  # the same shape, the index of its tensor-parallel degree


@compiled
def sweep(table: StageTable, limit_s: float, most_devices: int, found: StageSweep) -> None:
    """Find the fewest devices for the nodes outside each downset so that no stage takes longer than the limit.

    ::

        devices[i, s + d] = min over stages i -> j, t, d of devices[j, s] + t d,  where y = 1 + ceil(s / d) is allowed
    """
    n_downsets, width = found.devices.shape
    found.devices[:] = NONE
    found.devices[n_downsets - 1, 0] = 0
    for i in range(n_downsets - 2, -1, -1):
        for stage in range(table.start[i], table.start[i + 1]):
            j = table.end[stage]
            for data in table.data:
                most = 0
                for degree in range(len(table.tensor)):
                    cost = data * table.tensor[degree]
                    if cost > most_devices:
                        break
                    sent_s = table.crossing_s[degree, stage] + (data - 1) * table.reduce_s[degree, stage]
                    times = table.compute_s[degree, stage]
                    allowed = np.searchsorted(times, limit_s * data - sent_s, side="right")
                    if allowed <= most:
                        continue  # a smaller degree allows as much
                    most = allowed
                    for s in range(min((allowed - 1) * data, width - 1 - data) + 1):
                        devices = found.devices[j, s] + cost
                        if devices <= most_devices and devices < found.devices[i, s + data]:
                            found.devices[i, s + data] = devices
                            found.stage[i, s + data] = stage
                            found.data[i, s + data] = data
                            found.degree[i, s + data] = degree
