"""Chain: all blocks lined up, and what an interval of the line computes, sends and receives.

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

from costmodels.table import Floats, Ints
from planner.problem.blocks import Blocks

ENTERS, LEAVES = 0, 1


class TrafficChange(NamedTuple):
    """At some end j, the traffic of the intervals [first, j) .. [last - 1, j) changes."""

    way: int  # ENTERS or LEAVES
    first: int  # smallest start of an interval
    last: int  # one after the largest
    # [1 + n_tariffs], how many messages more (or less), and how many seconds by each of the `Chain.tariffs`
    size: Floats


@dataclass(frozen=True)
class Chain:
    """Blocks on a line. A block stands where the first of its operators stands, so no cut tears it."""

    blocks: Blocks  # what stands there
    line: Ints  # [n_blocks], the blocks by position

    @cached_property
    def position(self) -> Ints:
        """[n_blocks], where each block stands."""
        position = np.empty_like(self.line)
        position[self.line] = np.arange(len(self.line))
        return position

    @cached_property
    def seconds(self) -> Floats:
        """[n_blocks + 1, n_devices], computing time of everything before a position; what cannot run counts 0."""
        forward_s = self.blocks.forward_s[self.line]
        return _running(np.where(np.isfinite(forward_s), forward_s, 0.0))

    @cached_property
    def n_bytes(self) -> Floats:
        """[n_blocks + 1], bytes of everything before a position."""
        return _running(self.blocks.n_bytes[self.line])

    def earliest(self, device: int, limit_s: float) -> Ints:
        """[n_blocks + 1], the earliest start of an interval that ends there, fits and computes ``limit_s`` at most."""
        seconds = self.seconds[:, device]
        here = np.arange(self.blocks.n)
        barred = np.where(self.blocks.fits[self.line, device], 0, here + 1)
        barred = np.concatenate(([0], np.maximum.accumulate(barred)))
        slow = np.searchsorted(seconds, seconds - limit_s)
        full = np.searchsorted(self.n_bytes, self.n_bytes - self.blocks.room_bytes[device])
        return np.asarray(np.maximum.reduce([barred, slow, full]))

    @cached_property
    def tariffs(self) -> tuple[Floats, Floats]:
        """[n_flows, n_tariffs] each, seconds of a flow that enters an interval, and of one that leaves it.

        A tariff is a kind of link or, where devices exchange tensors through a host, a device.
        """
        table = self.blocks.table
        return (table.offload.fetch_s, table.offload.store_s) if table.offload else (table.link_s, table.link_s)

    def changes(self, each: bool) -> list[list[TrafficChange]]:
        """[n_blocks + 1], how the traffic of [., j - 1) turns into that of [., j), for every end j.

        Traffic enters an interval once for each net that is written outside and read inside. It leaves the
        interval once for each net that is written inside and read outside or, if ``each``, once for each reader
        outside; the truth lies between: once for each interval that reads it or, through a host, just once.
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
    """Lines worth trying, each once.

    The graph's own order; operators on demand, each right behind its inputs; operators as late as possible, level by
    level, which keeps constants with their readers; and the latter followed branch by branch, where nets that run
    backward, because a block stands where its first operator stands, do not count.
    """
    n_ops, edges = blocks.table.n_ops, blocks.table.edges
    late = _line(blocks, _by_level_from_end(n_ops, edges))
    lines = [_line(blocks, range(n_ops)), _line(blocks, _on_demand(n_ops, edges)), late]
    position = {block: place for place, block in enumerate(late)}
    ends = {(position[net.writer], position[reader]) for net in blocks.nets for reader in net.readers}
    forward = _depth_first(blocks.n, sorted((writer, reader) for writer, reader in ends if writer < reader))
    lines.append(tuple(late[place] for place in forward))
    for line in dict.fromkeys(lines):
        yield Chain(blocks, np.asarray(line, dtype=np.int64))


def _line(blocks: Blocks, order: Sequence[int]) -> tuple[int, ...]:
    """The blocks in the order of their first operators."""
    return tuple(dict.fromkeys(blocks.block[list(order)].tolist()))


def entering(writer: int, readers: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """(end j, first, last, sign): from j on, the net enters the intervals that start in [first, last).

    A reader behind the writer lets the net in if the interval starts behind the writer; it is charged to the first
    reader inside. A reader before the writer lets it in until the interval reaches the writer.
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
    """As `entering`: the net leaves intervals with the writer inside and some reader outside."""
    if readers[-1] > writer:
        yield writer + 1, 0, writer + 1, 1
        yield readers[-1] + 1, 0, min(writer, readers[0]) + 1, -1
    else:
        yield writer + 1, readers[0] + 1, writer + 1, 1


def _running(values: Floats) -> Floats:
    """Sums of everything before each position, starting with 0."""
    return np.concatenate((np.zeros_like(values[:1]), np.cumsum(values, axis=0)))


def _on_demand(n: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """A topological order that takes what nobody reads, one by one, and before each its inputs, and theirs."""
    inputs = _neighbours(n, ((reader, writer) for writer, reader in edges))
    read = {writer for writer, _ in edges}
    order: list[int] = []
    seen = [False] * n
    for end in (op for op in range(n) if op not in read):
        stack = [(end, iter(inputs[end]))]
        while stack:
            found = next((writer for writer in stack[-1][1] if not seen[writer]), None)
            if found is None:
                order.append(stack.pop()[0])
            else:
                seen[found] = True
                stack.append((found, iter(inputs[found])))
    return order


def _by_level_from_end(n: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """A topological order by the distance to the end, all branches in step."""
    inputs, waiting = _neighbours(n, ((reader, writer) for writer, reader in edges)), [0] * n
    for writers in inputs:
        for writer in writers:
            waiting[writer] += 1
    queue = deque(op for op in reversed(range(n)) if not waiting[op])
    order: list[int] = []
    while queue:
        op = queue.popleft()
        order.append(op)
        for writer in reversed(inputs[op]):
            waiting[writer] -= 1
            if not waiting[writer]:
                queue.append(writer)
    return order[::-1]


def _depth_first(n: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """A topological order that follows one branch as far as it can before it takes the next."""
    readers, waiting = _neighbours(n, edges), [0] * n
    for others in readers:
        for reader in others:
            waiting[reader] += 1
    stack = [op for op in reversed(range(n)) if not waiting[op]]
    order: list[int] = []
    while stack:
        op = stack.pop()
        order.append(op)
        for reader in reversed(readers[op]):
            waiting[reader] -= 1
            if not waiting[reader]:
                stack.append(reader)
    return order


def _neighbours(n: int, edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Where the edges of each operator lead."""
    found: list[list[int]] = [[] for _ in range(n)]
    for here, there in edges:
        found[here].append(there)
    return found
