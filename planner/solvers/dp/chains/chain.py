"""Chain: all blocks on a line, and what an interval of the line computes, sends and receives.

::

    line      0    1    2    3    4         interval [1, 3) holds the blocks at 1 and 2
              B0─►B1   B2─►B3   B4          B0─►B1 enters it, B2─►B3 and B2─►B4 leave it
                       └────────►┘
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from graphs.common.arrays import Floats, Ints
from planner.problem.blocks import Blocks, merge_blocks, successors
from planner.solvers.boundary import boundary_costs
from simulator.placement import Placement
from simulator.training import TrainingStep

ENTERS, LEAVES = 0, 1


class TrafficChange(NamedTuple):
    """A change at some end j to the traffic of the intervals [first, j) .. [last - 1, j)."""

    way: int  # ENTERS or LEAVES
    first: int  # the smallest start of an interval
    last: int  # one more than the largest start
    size: Floats  # [1 + n_tariffs], messages added or removed, then their seconds by each of the `Chain.tariffs`


@dataclass(frozen=True)
class Chain:
    """Blocks on a line; each stands where the first of its operators stands, so no cut divides it."""

    blocks: Blocks
    line: Ints  # [n_blocks], the blocks by position

    @cached_property
    def position(self) -> Ints:
        """[n_blocks], the position of each block."""
        position = np.empty_like(self.line)
        position[self.line] = np.arange(len(self.line))
        return position

    @cached_property
    def seconds(self) -> Floats:
        """[n_blocks + 1, n_devices], seconds of all blocks before a position; a block that cannot run counts 0."""
        forward_s = self.blocks.forward_s[self.line]
        return _running(np.where(np.isfinite(forward_s), forward_s, 0.0))

    @cached_property
    def n_bytes(self) -> Floats:
        """[n_blocks + 1], bytes of all blocks before a position."""
        return _running(self.blocks.n_bytes[self.line])

    def earliest(self, device: int, limit_s: float) -> Ints:
        """Return [n_blocks + 1], for each end the earliest start of an interval that fits and is within ``limit_s``."""
        seconds = self.seconds[:, device]
        barred = np.where(self.blocks.fits[self.line, device], 0, np.arange(self.blocks.n) + 1)
        barred = np.concatenate(([0], np.maximum.accumulate(barred)))
        slow = np.searchsorted(seconds, seconds - limit_s)
        full = np.searchsorted(self.n_bytes, self.n_bytes - self.blocks.room_bytes[device])
        return np.asarray(np.maximum.reduce([barred, slow, full]))

    @cached_property
    def tariffs(self) -> tuple[Floats, Floats]:
        """[n_flows, n_tariffs] each, seconds of a flow that enters an interval, and of a flow that leaves it.

        A tariff is a link class or, where devices pay at their boundary, a device.
        """
        link_s = self.blocks.table.link_s
        return boundary_costs(self.blocks.table) or (link_s, link_s)

    def changes(self, each: bool) -> list[list[TrafficChange]]:
        """Return [n_blocks + 1], for every end j the changes from the traffic of [., j - 1) to that of [., j).

        A net enters an interval once if it is written outside and read inside. It leaves an interval once if it is
        written inside and read outside or, if ``each``, once for each reader outside. The exact number lies between
        the two: once for each interval that reads the net; once where devices pay at their boundary.
        """
        position = self.position
        at: list[list[TrafficChange]] = [[] for _ in range(self.blocks.n + 1)]
        for net in self.blocks.nets:
            writer = int(position[net.writer])
            readers = sorted(position[list(net.readers)].tolist())
            flows = list(net.flows)
            enters, leaves = (np.append(len(flows), tariff[flows].sum(axis=0)) for tariff in self.tariffs)
            for end, first, last, sign in entering(writer, readers):
                at[end].append(TrafficChange(ENTERS, first, last, sign * enters))
            for group in [[reader] for reader in readers] if each else [readers]:
                for end, first, last, sign in _leaving(writer, group):
                    at[end].append(TrafficChange(LEAVES, first, last, sign * leaves))
        return at


def chains(blocks: Blocks) -> Iterator[Chain]:
    """Yield the lines to try, each once.

    They are the graph's own order; operators on demand, each right after its inputs; operators as late as possible,
    level by level, which keeps constants with their readers; and the last line reordered branch by branch, without the
    nets that run backward in it because a block stands at the place of its first operator.
    """
    n_ops, edges = blocks.table.n_ops, blocks.table.edges
    backward = [(reader, writer) for writer, reader in edges]
    late = _line(blocks, _topological(n_ops, backward, by_level=True)[::-1])
    lines = [_line(blocks, range(n_ops)), _line(blocks, _on_demand(n_ops, backward)), late]
    position = {block: place for place, block in enumerate(late)}
    ends = {(position[net.writer], position[reader]) for net in blocks.nets for reader in net.readers}
    forward = sorted((writer, reader) for writer, reader in ends if writer < reader)
    lines.append(tuple(late[place] for place in _topological(blocks.n, forward, by_level=False)))
    for line in dict.fromkeys(lines):
        yield Chain(blocks, np.asarray(line, dtype=np.int64))


def _line(blocks: Blocks, order: Sequence[int]) -> tuple[int, ...]:
    """Return the blocks in the order of their first operators."""
    return tuple(dict.fromkeys(blocks.block[list(order)].tolist()))


def entering(writer: int, readers: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Yield (end j, first, last, sign): from j on, the net enters the intervals that start in [first, last), or not.

    The net enters for its first reader inside. If that reader comes after the writer, the interval starts between the
    two. If it comes before the writer, the net enters until the interval reaches the writer.
    """
    before = [reader for reader in readers if reader < writer]
    behind = [reader for reader in readers if reader > writer]
    for previous, reader in zip([-1, *before], before, strict=False):
        yield reader + 1, previous + 1, reader + 1, 1
    if before:
        yield writer + 1, 0, before[-1] + 1, -1
    for previous, reader in zip([writer, *behind], behind, strict=False):
        yield reader + 1, previous + 1, reader + 1, 1


def _leaving(writer: int, readers: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """As `entering`, for intervals with the writer inside and a reader outside, which the net leaves."""
    if readers[-1] > writer:
        yield writer + 1, 0, writer + 1, 1
        yield readers[-1] + 1, 0, min(writer, readers[0]) + 1, -1
    else:
        yield writer + 1, readers[0] + 1, writer + 1, 1


def _running(values: Floats) -> Floats:
    """Return the sums of all values before each position, from 0 on."""
    return np.concatenate((np.zeros_like(values[:1]), np.cumsum(values, axis=0)))


def _on_demand(n: int, backward: Iterable[tuple[int, int]]) -> list[int]:
    """Return a topological order that takes operators without readers one by one, each after all of its inputs."""
    inputs, n_readers = successors(n, backward)
    order: list[int] = []
    seen = [False] * n
    for end in (op for op, count in enumerate(n_readers) if not count):
        stack = [(end, iter(inputs[end]))]
        while stack:
            writer = next((writer for writer in stack[-1][1] if not seen[writer]), None)
            if writer is None:
                order.append(stack.pop()[0])
            else:
                seen[writer] = True
                stack.append((writer, iter(inputs[writer])))
    return order


def _topological(n: int, edges: Iterable[tuple[int, int]], by_level: bool) -> list[int]:
    """Return a topological order that goes level by level, or that follows each branch as far as it can."""
    after, waiting = successors(n, edges)
    ready = deque(op for op in reversed(range(n)) if not waiting[op])
    order: list[int] = []
    while ready:
        order.append(ready.popleft() if by_level else ready.pop())
        for reader in reversed(after[order[-1]]):
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    return order


MOST_CUTS = 800  # places where a cut is tried; if the line has more, those with the least traffic


@dataclass(frozen=True)
class Line:
    """A line of blocks to be cut into the stages of a training step, and the costs of its intervals.

    ::

        line     0   1   2   3   4   5        an interval from one cut to another computes, keeps and receives
                 │       │           │        cuts are tried only at these places
    """

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

        They are forward, again what is recomputed, backward, and an equal part of the optimizer.
        """
        table = self.blocks.table
        both = table.forward_s + table.again_s(self.step.recompute) + table.backward_s
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
        """Return the placement with the blocks between ``at[cuts[r]]`` and ``at[cuts[r + 1]]`` on ``devices[r]``."""
        ends = self.at[list(cuts)]
        stage = np.repeat(np.arange(len(devices)), np.diff(ends))[self.chain.position]
        order = np.argsort(stage[self.blocks.block], kind="stable")
        placement = self.blocks.spread(np.asarray(devices)[stage])
        rank, (_, writer, reader) = np.argsort(order), self.blocks.table.reads
        is_topological = bool((rank[writer] < rank[reader]).all())
        return Placement(placement.device, tuple(order.tolist())) if is_topological else placement

    def needed_bytes(self, held: int) -> Floats:
        """Return [n_cuts, n_cuts], bytes that the interval between two cuts needs, with some micro-batches held."""
        resident_bytes, waiting_bytes, current_bytes = self._kept_bytes
        return resident_bytes + (held - 1) * waiting_bytes + current_bytes

    @cached_property
    def _kept_bytes(self) -> tuple[Floats, Floats, Floats]:
        """[n_cuts, n_cuts] each, bytes of an interval, of a waiting micro-batch in it, and of the current one."""
        table, training = self.blocks.table, self.blocks.table.trained

        def between(values: Floats) -> Floats:
            sums = self._before(values)
            return np.asarray(sums[None, :] - sums[:, None])

        recompute = self.step.recompute
        waiting_bytes = between(training.waiting_bytes(recompute)) + self.received_bytes
        if recompute == "none" or not training.layer.any():
            current_bytes = waiting_bytes + between(training.again_bytes(recompute))
            return between(table.op_bytes), waiting_bytes, current_bytes
        kept_bytes = np.zeros(table.n_ops)
        for flow, n_bytes in zip(table.flows, training.layer_bytes.tolist(), strict=True):
            kept_bytes[flow.writer] += n_bytes
        waiting_bytes += between(kept_bytes)
        return between(table.op_bytes), waiting_bytes, waiting_bytes + self._most_again

    @cached_property
    def _most_again(self) -> Floats:
        """[n_cuts, n_cuts], the most bytes that a layer of an interval keeps while it is recomputed."""
        training, of_block = self.blocks.table.trained, np.zeros(self.blocks.n)
        may = training.layer >= 0
        by_layer = np.bincount(training.layer[may], training.again_bytes(self.step.recompute)[may], minlength=1)
        np.maximum.at(of_block, np.asarray(self.blocks.block)[may], by_layer[training.layer[may]])
        line, most = of_block[self.chain.line], np.zeros((len(self.at), len(self.at)))
        for number, start in enumerate(self.at.tolist()):
            later = self.at[number + 1 :] - start - 1
            most[number, number + 1 :] = np.maximum.accumulate(line[start:])[later] if len(later) else 0.0
        return most

    def _before(self, values: Floats) -> Floats:
        """Return the sums of the values of all operators before each cut."""
        of_block = np.zeros((self.blocks.n, *values.shape[1:]))
        np.add.at(of_block, self.blocks.block, values)
        sums = np.cumsum(of_block[self.chain.line], axis=0)
        return np.concatenate([np.zeros_like(sums[:1]), sums])[self.at]


def line_of(chain: Chain, step: TrainingStep) -> Line:
    """Return the line of a chain, with the places where it may be cut."""
    n = chain.blocks.n
    at = np.arange(n + 1)
    if n + 1 > MOST_CUTS:
        quiet = np.argsort(crossing(chain)[1:n].sum(axis=1), kind="stable")[: MOST_CUTS - 2] + 1
        at = np.unique(np.concatenate([[0, n], quiet]))
    return Line(chain, at, step)


def quiet_places(chain: Chain, most: int) -> Ints:
    """Return the places to try cuts at, with both ends: all, or the one with the least traffic of each window.

    Windows have equal shares of the line's time and of its blocks, so that a cut is found near every balance.
    """
    n = chain.blocks.n
    if n < most:
        return np.arange(n + 1)
    seconds = chain.blocks.forward_s[chain.line].min(axis=1)
    share = np.cumsum(seconds / (seconds.sum() or 1.0) + 1 / n)[:-1]
    window = (share / 2 * (most - 1)).astype(np.int64)
    quietest = np.lexsort((crossing(chain)[1:n].sum(axis=1), window))
    _, first = np.unique(window[quietest], return_index=True)
    return np.concatenate([[0], np.sort(quietest[first] + 1), [n]])


def with_places(chain: Chain, most: int) -> Chain:
    """Return the chain with fewer blocks, so that cuts are tried at ``most`` places; see `quiet_places`."""
    if chain.blocks.n < most:
        return chain
    parts = np.split(chain.line, quiet_places(chain, most)[1:-1])
    members = chain.blocks.members
    joined = [[op for block in part.tolist() for op in members[block]] for part in parts]
    blocks = merge_blocks(chain.blocks.table, joined)
    return Chain(blocks, np.asarray([blocks.block[members[part[0]][0]] for part in parts]))


def crossing(chain: Chain) -> Floats:
    """Return [n_blocks + 1, 1 + n_link_classes], messages that cross each place, and their seconds on each link class.

    A flow crosses every place between its writer and its last reader; so does its gradient in the backward pass.
    """
    table = chain.blocks.table
    times = 1 + table.trained.gradient
    return over_places(chain, np.column_stack((times, table.link_s * times[:, None])))


def over_places(chain: Chain, sizes: Floats) -> Floats:
    """Return [n_blocks + 1, n_sizes], the sum of the sizes, [n_flows, n_sizes], of the flows that cross each place."""
    position, change = chain.position, np.zeros((chain.blocks.n + 2, sizes.shape[1]))
    for net in chain.blocks.nets:
        ends = [position[net.writer], *(position[reader] for reader in net.readers)]
        size = sizes[list(net.flows)].sum(axis=0)
        change[min(ends) + 1] += size
        change[max(ends) + 1] -= size
    return np.asarray(np.cumsum(change, axis=0)[:-1])
