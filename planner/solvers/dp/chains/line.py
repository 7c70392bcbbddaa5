"""Line: a line of blocks to be cut into the stages of a training step, and the costs of its intervals.

::

    line     0   1   2   3   4   5        an interval from one cut to another computes, keeps and receives
             │       │           │        cuts are tried only at these places
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from costmodels.table import Floats, Ints
from planner.problem.blocks import Blocks
from planner.solvers.dp.chains.chain import Chain, entering
from simulator.placement import Placement
from simulator.training import TrainingStep

MOST_CUTS = 800  # places where a cut is tried; if the line has more, those with the least traffic


@dataclass(frozen=True)
class Line:
    """A line of blocks, and the costs of its intervals."""

    chain: Chain
    at: Ints  # [n_cuts], the places where the line may be cut, with both ends
    step: TrainingStep

    @property
    def blocks(self) -> Blocks:
        """The blocks on the line."""
        return self.chain.blocks

    @cached_property
    def seconds(self) -> Floats:
        """[n_cuts, n_devices], seconds of one micro-batch before a cut; an operator that cannot run counts 0.

        They are forward, twice with recomputation, backward, and an equal part of the optimizer.
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
        """[n_cuts, n_devices], the number of operators before a cut that cannot run on a device."""
        return self._before(np.where(np.isfinite(self.blocks.table.forward_s), 0.0, 1.0))

    @cached_property
    def received_bytes(self) -> Floats:
        """[n_cuts, n_cuts], bytes that the interval from one cut to another reads from outside."""
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
        """[n_cuts, 1 + n_link_classes], messages that cross a cut both ways, and their seconds on each link class."""
        return crossing(self.chain)[self.at]

    def placement(self, cuts: Sequence[int], devices: Sequence[int]) -> Placement:
        """The placement with the blocks between ``at[cuts[r]]`` and ``at[cuts[r + 1]]`` on ``devices[r]``."""
        ends = self.at[list(cuts)]
        stage = np.repeat(np.arange(len(devices)), np.diff(ends))[self.chain.position]
        order = np.argsort(stage[self.blocks.block], kind="stable")
        placement = self.blocks.spread(np.asarray(devices)[stage])
        by_stage = Placement(placement.device, tuple(order.tolist()))
        rank = by_stage.rank
        is_topological = all(rank[writer] < rank[reader] for writer, reader in self.blocks.table.edges)
        return by_stage if is_topological else placement

    def needed_bytes(self, held: int) -> Floats:
        """[n_cuts, n_cuts], bytes that the interval from one cut to another needs while it holds some micro-batches."""
        resident_bytes, waiting_bytes, current_bytes = self._kept_bytes
        return resident_bytes + (held - 1) * waiting_bytes + current_bytes

    @cached_property
    def _kept_bytes(self) -> tuple[Floats, Floats, Floats]:
        """[n_cuts, n_cuts] each, bytes of an interval, of a waiting micro-batch in it, and of the current one."""
        table = self.blocks.table

        def between(values: Floats) -> Floats:
            sums = self._before(values)
            return np.asarray(sums[None, :] - sums[:, None])

        current_bytes = between(table.saved_bytes) + self.received_bytes
        waiting_bytes = between(table.ends_bytes) + self.received_bytes if self.step.recompute else current_bytes
        return between(table.op_bytes), waiting_bytes, current_bytes

    def _before(self, values: Floats) -> Floats:
        """The sums of the values of all operators before each cut."""
        of_block = np.zeros((self.blocks.n, *values.shape[1:]))
        np.add.at(of_block, self.blocks.block, values)
        sums = np.cumsum(of_block[self.chain.line], axis=0)
        return np.concatenate([np.zeros_like(sums[:1]), sums])[self.at]


def line_of(chain: Chain, step: TrainingStep) -> Line:
    """The line of a chain, with the places where it may be cut."""
    n = chain.blocks.n
    at = np.arange(n + 1)
    if n + 1 > MOST_CUTS:
        quiet = np.argsort(crossing(chain)[1:n].sum(axis=1), kind="stable")[: MOST_CUTS - 2] + 1
        at = np.unique(np.concatenate([[0, n], quiet]))
    return Line(chain, at, step)


def crossing(chain: Chain) -> Floats:
    """[n_blocks + 1, 1 + n_link_classes], messages that cross each place, and their seconds on each link class.

    A flow crosses every place between its writer and its last reader; so does its gradient in the backward pass.
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
