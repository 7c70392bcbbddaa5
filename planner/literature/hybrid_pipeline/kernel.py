"""The recurrence over downsets for a given time limit of a stage; compiled."""

from typing import NamedTuple

import numpy as np

from graphs.common.arrays import Floats, Ints
from planner.solvers.compiled import compiled, inner

NONE = np.int64(1 << 40)  # devices, where nothing fits
MARGIN = 1e-9  # relative; so that no stage is left out by rounding


class StageTable(NamedTuple):
    """The stages between downsets. Stages of downset i are those from ``start[i]`` to ``start[i + 1]``."""

    start: Ints  # [n_downsets + 1]
    end: Ints  # [n_stages], the downset that is complete after each stage; its number is larger
    before_s: Floats  # [n_downsets], the least time of the nodes of each downset, added up over devices
    at: Ints  # [n_degrees * n_stages + 1], where the times of each degree and stage begin in ``compute_s``
    compute_s: Floats  # [n_times], by micro-batches in flight, from 1; not falling within a degree and stage
    crossing_s: Floats  # [n_degrees, n_stages], to send both ways with one copy
    reduce_s: Floats  # [n_degrees, n_stages], to add up gradients, for each further copy
    data: Ints  # [n_data], numbers of copies
    tensor: Ints  # [n_degrees]

    def times(self, degree: int, stage: int) -> Floats:
        """Return [n_in_flight], the seconds of a stage under a degree, by micro-batches in flight."""
        number = degree * len(self.end) + stage
        return self.compute_s[self.at[number] : self.at[number + 1]]


class StageSweep(NamedTuple):
    """The result of a sweep, for each downset before a stage and each sum of copies from there on."""

    devices: Ints  # [n_downsets, most copies + 1], the fewest
    stage: Ints  # [n_downsets, most copies + 1], the stage that comes first
    data: Ints  # the same shape, its copies
    degree: Ints  # the same shape, the index of its tensor-parallel degree
    copies: Ints  # [n_downsets, most copies + 1], falling: sums that need fewer devices than all smaller ones; then -1


@compiled
def let_rise(at: Ints, times: Floats) -> None:
    """Make times rise with micro-batches in flight: a time with more of them holds for fewer, too."""
    for number in range(len(at) - 1):
        for y in range(at[number + 1] - 2, at[number] - 1, -1):
            times[y] = min(times[y], times[y + 1])


@compiled
def sweep_stages(table: StageTable, limit_s: float, most_devices: int, found: StageSweep) -> None:
    """Find the fewest devices for the nodes outside each downset so that no stage takes longer than the limit.

    ::

        devices[i, s + d] = min over stages i -> j, t, d of devices[j, s] + t d,  where y = 1 + ceil(s / d) is allowed

    A larger sum of copies is kept only if it needs fewer devices, and only if enough devices remain for the nodes of
    the downset.
    """
    n_downsets, width = found.devices.shape
    n_stages = len(table.end)
    found.devices[:] = NONE
    found.copies[:] = -1
    found.devices[n_downsets - 1, 0] = found.copies[n_downsets - 1, 0] = 0
    for i in range(n_downsets - 2, -1, -1):
        spare = most_devices - int(np.ceil(table.before_s[i] / limit_s * (1 - MARGIN)))
        for stage in range(table.start[i], table.start[i + 1]):
            j = table.end[stage]
            if found.copies[j, 0] < 0:
                continue
            least = found.devices[j, found.copies[j, 0]]
            for data in table.data:
                if least + data * table.tensor[0] > spare:
                    break
                most = 0
                for degree in range(len(table.tensor)):
                    cost = data * table.tensor[degree]
                    if least + cost > spare:
                        break
                    sent_s = table.crossing_s[degree, stage] + (data - 1) * table.reduce_s[degree, stage]
                    number = degree * n_stages + stage
                    times = table.compute_s[table.at[number] : table.at[number + 1]]
                    allowed = np.searchsorted(times, limit_s * data - sent_s, side="right")
                    if allowed <= most:
                        continue  # a smaller degree allows as much
                    most = allowed
                    reach = min((allowed - 1) * data, width - 1 - data)
                    for kept in range(width):
                        s = found.copies[j, kept]
                        if s < 0:
                            break
                        if s > reach:
                            continue
                        devices = found.devices[j, s] + cost
                        if devices <= spare and devices < found.devices[i, s + data]:
                            found.devices[i, s + data] = devices
                            found.stage[i, s + data] = stage
                            found.data[i, s + data] = data
                            found.degree[i, s + data] = degree
        _keep(found, i)


@inner
def _keep(found: StageSweep, i: int) -> None:
    """Note the sums of copies that are worth keeping."""
    least, count = NONE, 0
    for s in range(found.devices.shape[1]):
        if found.devices[i, s] < least:
            least = found.devices[i, s]
            found.copies[i, count] = s
            count += 1
    for kept in range(count // 2):
        found.copies[i, kept], found.copies[i, count - 1 - kept] = (
            found.copies[i, count - 1 - kept],
            found.copies[i, kept],
        )
