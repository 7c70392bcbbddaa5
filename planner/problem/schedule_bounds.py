"""Schedule bounds: what a training step takes at least if each device has the memory that the schedule needs there.

::

    stage    first ......... last       1f1b: the first of four stages holds four micro-batches, the last one holds one
    place      3    2    1    0         places are counted from the last stage, so that fewer stages leave the
    held       4    3    2    1         highest places empty
"""

from collections.abc import Sequence
from functools import cache

import numpy as np

from graphs.common.arrays import Floats, Ints
from graphs.common.errors import InputError
from planner.problem.blocks import Blocks, merge_blocks
from planner.problem.deadline import loading
from planner.problem.devices import alike
from planner.problem.linear_bounds import INFEASIBLE, MOST_COLUMNS
from planner.problem.problem import Problem
from simulator.schedule import F, I
from simulator.schedules import SCHEDULES
from simulator.training import IN_TURNS, SPLIT_BACKWARD, TURNS_BACK

ROUNDING_BYTES = 1.0  # of a micro-batch that waits: the simulator rounds what each stage keeps of it


@cache
def held_micro_batches(name: str, n_devices: int, micro_batches: int, per_device: int = 1) -> tuple[int, ...] | None:
    """Return [n_stages], the most micro-batches whose activations a stage keeps; None without such a schedule.

    The order of the actions on the stage's device decides: activations are kept from F to B or, if the backward pass
    is split, to W.
    """
    try:
        schedule = SCHEDULES[name](n_devices, micro_batches, per_device)
    except InputError:
        return None
    stage, computation, _, _ = schedule.columns
    change = np.select([computation == F, computation == I], [1, 0], -1)
    return tuple(int(change[stage == s].cumsum().max()) for s in range(schedule.n_stages))


def memory_bound(problem: Problem) -> float:
    """Return the least seconds of a step in which each stage has room for what the schedule holds there.

    It is a linear program in which blocks may be divided among all devices at all places::

        min S    sum_kj x[b, k, j] = 1                                          for every block b
                 sum_b (stays[b] + held[j] * waits[b]) * x[b, k, j] <= room[k] * y[k, j]
                 sum_k y[k, j] <= 1,   sum_j y[k, j] <= count[k]                y places devices of kind k
                 work at place j <= S,   work on kind k <= count[k] * S
                 m * T[j] + sum of T[i], i > j <= S                             T is forward and backward of a stage

    In the last row a stage waits for the first forward pass of the stages before it, and these for its last backward
    pass; of a split backward pass, only the former counts. Every number of devices is allowed, since ``held[j]`` is the
    least over all of them. As in `lp_bound`, the answer is computed again from the prices of the rows, which prove it.

    Infinite if the program has no solution. 0 for schedules that give a device several stages, and if a single device
    has room for everything in any case.
    """
    program = _StagedProgram(problem)
    if not program.binds:
        return 0.0
    every = -(-program.n_columns // MOST_COLUMNS)
    prices = program.prices(np.arange(0, program.blocks.n, every))
    if prices is None:
        return float("inf") if every == 1 else 0.0
    return program.price_bound(*prices)


class _StagedProgram:
    """The blocks, the kinds of devices and the places of a step, with the rows that seconds are in."""

    def __init__(self, problem: Problem) -> None:
        table, step = problem.table, problem.step
        training = table.trained
        self.blocks: Blocks = merge_blocks(table)
        classes = alike(table)
        self._first = [devices[0] for devices in classes]
        self._count = np.asarray([len(devices) for devices in classes])
        ways = (held_micro_batches(step.schedule, n, step.micro_batches) for n in range(1, table.n_devices + 1))
        held = [way[::-1] for way in ways if way is not None]
        places = 0 if step.schedule in IN_TURNS | TURNS_BACK else table.n_devices
        self._held = np.asarray([min((way[j] for way in held if len(way) > j), default=0) for j in range(places)])
        self._stays, self._waits = self._sums(table.op_bytes), self._sums(training.waiting_bytes(step.recompute))
        rounds = ROUNDING_BYTES if (self._waits % 1).any() else 0.0
        room = self.blocks.room_bytes[self._first][:, None] + rounds * self._held
        ahead_s = table.forward_s if step.schedule in SPLIT_BACKWARD else problem.both_s
        self._seconds = [self._sums(each_s)[:, self._first] for each_s in (problem.work_s, problem.both_s, ahead_s)]
        self._weights = self._rows(step.micro_batches)
        # [n_blocks, n_kinds, n_places], bytes of a block there, and whether it fits
        self._bytes = self._stays[:, None] + np.outer(self._waits, self._held)
        runs = np.isfinite(self._seconds[0])[:, :, None]
        self._fits = runs & (self._bytes[:, None, :] <= room)
        total = self._bytes.sum(axis=0)
        self.binds = bool(self._fits.size) and bool((total > room).any())  # whether memory can decide anything
        self._room = np.clip(room, 0.0, total)  # [n_kinds, n_places], at most the bytes of all blocks

    def _sums(self, values: Floats) -> Floats:
        """Return [n_blocks, ...], the sums over the operators of each block."""
        sums = np.zeros((self.blocks.n, *values.shape[1:]))
        np.add.at(sums, self.blocks.block, values)
        return sums

    def _rows(self, micro_batches: int) -> Sequence[Floats]:
        """Return [n_rows, n_kinds, n_places] for each of ``_seconds``: its weight in each row."""
        kinds, places = len(self._count), len(self._held)
        n_rows = 2 * places + kinds
        work, both, ahead = (np.zeros((n_rows, kinds, places)) for _ in range(3))
        for place in range(places):
            work[place, :, place] = 1.0
            both[places + kinds + place, :, place] = micro_batches
            ahead[places + kinds + place, :, place + 1 :] = 1.0
        for kind in range(kinds):
            work[places + kind, kind] = 1.0
        return work, both, ahead

    @property
    def n_columns(self) -> int:
        """The number of shares of blocks."""
        return self._fits.size

    def prices(self, sample: Ints) -> tuple[Floats, Floats] | None:
        """Return the prices of seconds, [n_rows], and of bytes, [n_kinds, n_places]; None without a solution.

        For a sample of the blocks, devices have a part of their memory.
        """
        with loading():
            from scipy.optimize import linprog  # late: see linear_bounds
            from scipy.sparse import csr_array, hstack, vstack

        block, kind, place = np.nonzero(self._fits[sample])
        own, (kinds, places) = sample[block], self._room.shape
        column, cell = np.arange(len(own)), kind * places + place
        row_s = sum(
            weight[:, kind, place] * seconds[own, kind]
            for weight, seconds in zip(self._weights, self._seconds, strict=True)
        )
        scale = float(self._seconds[0][sample].min(axis=1).sum()) or 1.0
        part = float(self._bytes[sample].sum()) / (float(self._bytes.sum()) or 1.0)
        room = self._room.ravel() * part
        unit = np.where(room > 0, room, 1.0)
        n_cells, n_rows = kinds * places, len(self._weights[0])
        held = csr_array((self._bytes[own, place] / unit[cell], (cell, column)), shape=(n_cells, len(own)))
        used = csr_array(np.vstack([np.repeat(np.eye(kinds), places, axis=1), np.tile(np.eye(places), kinds)]))
        rows = [
            [csr_array(row_s / scale), csr_array((n_rows, n_cells)), csr_array(-self._counts[:, None])],
            [held, csr_array(np.diag(-(room > 0).astype(float))), csr_array((n_cells, 1))],
            [csr_array((kinds + places, len(own))), used, csr_array((kinds + places, 1))],
        ]
        answer = linprog(
            c=np.append(np.zeros(len(own) + n_cells), 1.0),
            A_ub=vstack([hstack(row) for row in rows]),
            b_ub=np.concatenate([np.zeros(n_rows + n_cells), self._count, np.ones(places)]),
            A_eq=csr_array((np.ones(len(own)), (block, column)), shape=(len(sample), len(own) + n_cells + 1)),
            b_eq=np.ones(len(sample)),
            method="highs",
        )
        if answer.status == INFEASIBLE:
            return None
        if answer.ineqlin.marginals is None:
            return np.zeros(n_rows), np.zeros((kinds, places))
        price = np.maximum(0.0, -answer.ineqlin.marginals)
        return price[:n_rows], (price[n_rows : n_rows + n_cells] * scale / unit).reshape(kinds, places)

    @property
    def _counts(self) -> Floats:
        """[n_rows], how many devices share the seconds of a row."""
        places = len(self._held)
        return np.concatenate([np.ones(places), self._count, np.ones(places)])

    def price_bound(self, time_price: Floats, byte_price: Floats) -> float:
        """Return the least price of all blocks, minus what the devices' memory earns at the best places.

        Args:
            time_price: [n_rows], of a row's second.
            byte_price: [n_kinds, n_places], of a byte.
        """
        with loading():
            from scipy.optimize import linear_sum_assignment

        pays = self._bytes[:, None, :] * byte_price
        for weight, seconds in zip(self._weights, self._seconds, strict=True):
            rate = np.tensordot(time_price, weight, 1)
            pays += np.where(self._fits, seconds[:, :, None], 0.0) * rate
        pays[~self._fits] = np.inf
        earns = np.repeat(self._room * byte_price, self._count, axis=0)
        earned = float(earns[linear_sum_assignment(earns, maximize=True)].sum())
        total = float((self._counts * time_price).sum())
        return max(0.0, float(pays.min(axis=(1, 2)).sum()) - earned) / total if total > 0 else 0.0
