"""Line: blocks in a row that are cut into the stages of a training step, and what its intervals cost.

::

    line     0   1   2   3   4   5        an interval from one cut to another computes, keeps, receives
             │       │           │        cuts are tried only at these places
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from costmodels.table import CostTable, Floats, Ints
from planner.problem.blocks import Blocks
from planner.problem.evaluate import MEMORY_TOLERANCE
from planner.solvers.dp.chains.chain import Chain, entering
from simulator.placement import Placement
from simulator.training import TrainingStep

MOST_CUTS = 800  # places on the line where a cut is tried; of more, those with the least traffic


@dataclass(frozen=True)
class Line:
    """Blocks in a row, and what intervals of it cost."""

    chain: Chain  # the blocks
    at: Ints  # [n_cuts], the places where it may be cut, with both ends
    step: TrainingStep  # how a training step is run

    @property
    def blocks(self) -> Blocks:
        """What stands there."""
        return self.chain.blocks

    @cached_property
    def seconds(self) -> Floats:
        """[n_cuts, n_devices], of one micro-batch, of everything before a cut; what cannot run counts 0.

        Forward, once more if it is recomputed, backward, and a part of the optimizer.
        """
        table = self.blocks.table
        both = table.forward_s * (1 + self.step.recompute) + table.backward_s
        if table.update:
            both = both + np.outer(
                table.update.gradient_bytes, table.update.optimizer_s_per_byte / self.step.micro_batches
            )
        return self._before(np.where(np.isfinite(both), both, 0.0))

    @cached_property
    def barred(self) -> Floats:
        """[n_cuts, n_devices], how many operators before a cut cannot run there."""
        return self._before(np.where(np.isfinite(self.blocks.table.forward_s), 0.0, 1.0))

    @cached_property
    def op_bytes(self) -> Floats:
        """[n_cuts], what stays, of everything before a cut."""
        return self._before(self.blocks.table.op_bytes)

    @cached_property
    def saved_bytes(self) -> Floats:
        """[n_cuts], what one micro-batch leaves for its backward pass, of everything before a cut."""
        return self._before(self.blocks.table.saved_bytes)

    @cached_property
    def ends_bytes(self) -> Floats:
        """[n_cuts], what of that is kept even if it is recomputed."""
        return self._before(self.blocks.table.ends_bytes)

    @cached_property
    def received_bytes(self) -> Floats:
        """[n_cuts, n_cuts], what the interval from one cut to another reads from outside of it."""
        table, n = self.blocks.table, len(self.at)
        position = self.chain.position
        change = np.zeros((n + 1, n + 1))
        for net in self.blocks.nets:
            readers = sorted(position[list(net.readers)].tolist())
            n_bytes = float(table.flow_bytes[list(net.flows)].sum())
            for end, first, last, sign in entering(int(position[net.writer]), readers):
                low, high, until = np.searchsorted(self.at, (first, last, end))
                change[low, until] += sign * n_bytes
                change[high, until] -= sign * n_bytes
        return np.asarray(change.cumsum(axis=0).cumsum(axis=1)[:n, :n])

    @cached_property
    def traffic(self) -> Floats:
        """[n_cuts, 1 + n_link_classes], messages that cross a cut both ways, and their seconds on each link."""
        return crossing(self.chain)[self.at]

    def placement(self, cuts: Sequence[int], devices: Sequence[int]) -> Placement:
        """Stage r holds the blocks between ``at[cuts[r]]`` and ``at[cuts[r + 1]]`` and is on ``devices[r]``."""
        ends = self.at[list(cuts)]
        stage = np.repeat(np.arange(len(devices)), np.diff(ends))[self.chain.position]
        order = np.argsort(stage[self.blocks.block], kind="stable")
        found = self.blocks.spread(np.asarray(devices)[stage])
        runs = Placement(found.device, tuple(order.tolist()))
        return runs if _is_topological(self.blocks.table, runs) else found

    def needed_bytes(self, held: int) -> Floats:
        """[n_cuts, n_cuts], what the interval from one cut to another needs with so many micro-batches held."""
        resident_bytes, waiting_bytes, current_bytes = self._kept_bytes
        return resident_bytes + (held - 1) * waiting_bytes + current_bytes

    @cached_property
    def _kept_bytes(self) -> tuple[Floats, Floats, Floats]:
        """[n_cuts, n_cuts] each, of an interval: what stays, what a waiting micro-batch keeps, and the current one."""

        def between(values: Floats) -> Floats:
            return np.asarray(values[None, :] - values[:, None])

        current_bytes = between(self.saved_bytes) + self.received_bytes
        waiting_bytes = between(self.ends_bytes) + self.received_bytes if self.step.recompute else current_bytes
        return between(self.op_bytes), waiting_bytes, current_bytes

    def room_bytes(self, device: int) -> float:
        """What a device has for an interval."""
        table = self.blocks.table
        return float(table.capacity_bytes[device]) * (1 + MEMORY_TOLERANCE) - table.working_bytes

    def _before(self, values: Floats) -> Floats:
        """Sums over the operators of everything before each cut."""
        of_block = np.zeros((self.blocks.n, *values.shape[1:]))
        np.add.at(of_block, self.blocks.block, values)
        sums = np.cumsum(of_block[self.chain.line], axis=0)
        return np.concatenate([np.zeros_like(sums[:1]), sums])[self.at]


def line_of(chain: Chain, step: TrainingStep) -> Line:
    """The line with the places where it may be cut."""
    n = chain.blocks.n
    at = np.arange(n + 1)
    if n + 1 > MOST_CUTS:
        quiet = np.argsort(crossing(chain)[1:n].sum(axis=1), kind="stable")[: MOST_CUTS - 2] + 1
        at = np.unique(np.concatenate([[0, n], quiet]))
    return Line(chain, at, step)


def crossing(chain: Chain) -> Floats:
    """[n_blocks + 1, 1 + n_link_classes], messages and seconds on each kind of link that cross each place of a line.

    A flow crosses every place between its writer and its last reader, and so does its gradient on the backward pass.
    """
    table, n = chain.blocks.table, chain.blocks.n
    position = chain.position
    change = np.zeros((n + 2, 1 + table.link_s.shape[1]))
    for net in chain.blocks.nets:
        ends = [position[net.writer], *(position[reader] for reader in net.readers)]
        times = 1 + table.gradient[list(net.flows)]
        size = np.append(times.sum(), (table.link_s[list(net.flows)] * times[:, None]).sum(axis=0))
        change[min(ends) + 1] += size
        change[max(ends) + 1] -= size
    return np.asarray(np.cumsum(change, axis=0)[: n + 1])


def _is_topological(table: CostTable, placement: Placement) -> bool:
    rank = placement.rank
    return all(rank[writer] < rank[reader] for writer, reader in table.edges)
