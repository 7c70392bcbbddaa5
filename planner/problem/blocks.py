"""Blocks: operators that must share a device, merged into one unit; nets: the flows between them; and their order.

::

    ops      a ─x─► b ─y─► c ─z─► d        a and d read one parameter, so they are together
    blocks   B0 = [a d]   B1 = [b]   B2 = [c]
    nets     B0 ─► B1     B1 ─► B2     B2 ─► B0        a block may come before and after another
"""

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.table import CostTable
from graphs.common.arrays import Floats, Ints
from graphs.common.groups import least_members
from planner.problem.evaluate import MEMORY_TOLERANCE
from simulator.placement import Placement

BLOCKS = "blocks"  # kept with a table


class Net(NamedTuple):
    """All flows with the same writing block and the same reading blocks."""

    writer: int  # a block
    readers: tuple[int, ...]  # other blocks, ascending
    flows: tuple[int, ...]  # indices in ``CostTable.flows``

    def seconds(self, table: CostTable) -> Floats:
        """Return [n_devices, n_devices], seconds to send the net between devices; infinite without a link."""
        return table.seconds(table.link_s[list(self.flows)].sum(axis=0))


@dataclass(frozen=True)
class Blocks:
    """The units that a solver places: sets of operators, in the order of their first members."""

    table: CostTable
    block: Ints  # [n_ops], the block of each operator
    forward_s: Floats  # [n_blocks, n_devices], infinite where one of the members cannot run
    n_bytes: Floats  # [n_blocks]

    @property
    def n(self) -> int:
        """The number of blocks."""
        return len(self.n_bytes)

    @cached_property
    def worked_out(self) -> dict[Hashable, Any]:
        """Results that callers work out from the blocks and keep with them, by what they ask."""
        return {}

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The operators of each block, ascending."""
        members: list[list[int]] = [[] for _ in range(self.n)]
        for op, block in enumerate(self.block.tolist()):
            members[block].append(op)
        return tuple(map(tuple, members))

    @cached_property
    def room_bytes(self) -> Floats:
        """[n_devices], bytes that a device in use has for operators; negative if its working memory is too large."""
        return np.asarray(self.table.capacity_bytes * (1 + MEMORY_TOLERANCE) - self.table.working_bytes)

    @cached_property
    def fits(self) -> NDArray[np.bool_]:
        """[n_blocks, n_devices], whether a device can run a block and has room for it, if for nothing else."""
        return np.asarray(np.isfinite(self.forward_s) & (self.n_bytes[:, None] <= self.room_bytes))

    @cached_property
    def nets(self) -> tuple[Net, ...]:
        """The nets, in the order of their first flows."""
        flows_of: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        block = self.block.tolist()
        for number, flow in enumerate(self.table.flows):
            writer = block[flow.writer]
            readers = tuple(sorted({block[reader] for reader in flow.readers} - {writer}))
            if readers:
                flows_of.setdefault((writer, readers), []).append(number)
        return tuple(Net(*ends, tuple(flows)) for ends, flows in flows_of.items())

    @cached_property
    def nets_of(self) -> list[list[Net]]:
        """[n_blocks], the nets that each block writes or reads."""
        nets_of: list[list[Net]] = [[] for _ in range(self.n)]
        for net in self.nets:
            for end in (net.writer, *net.readers):
                nets_of[end].append(net)
        return nets_of

    def spread(self, device: Sequence[int] | Ints, order: tuple[int, ...] = ()) -> Placement:
        """Return the placement that puts each block on its device, [n_blocks]."""
        return Placement(tuple(np.asarray(device, dtype=np.int64)[self.block].tolist()), order)

    def devices_of(self, placement: Placement) -> Ints:
        """Return [n_blocks], the device of each block's first member."""
        return np.asarray([placement.device[members[0]] for members in self.members], dtype=np.int64)


def merge_blocks(table: CostTable, also: Collection[Sequence[int]] = ()) -> Blocks:
    """Return the blocks of the table's groups and of further sets of operators; sets that overlap become one block.

    Those of the table's own groups are kept with it.
    """
    if also:
        return _merged(table, also)
    if BLOCKS not in table.worked_out:
        table.worked_out[BLOCKS] = _merged(table, ())
    blocks: Blocks = table.worked_out[BLOCKS]
    return blocks


def _merged(table: CostTable, also: Iterable[Sequence[int]]) -> Blocks:
    number: dict[int, int] = {}
    leaders = least_members(table.n_ops, (*table.together, *also))
    block = np.asarray([number.setdefault(leader, len(number)) for leader in leaders], dtype=np.int64)
    forward_s = np.zeros((len(number), table.n_devices))
    np.add.at(forward_s, block, table.forward_s)
    n_bytes = np.zeros(len(number))
    np.add.at(n_bytes, block, table.placed_bytes)
    return Blocks(table, block, forward_s, n_bytes)


def successors(n: int, edges: Iterable[tuple[int, int]]) -> tuple[list[list[int]], list[int]]:
    """Return the readers of each operator, in the order of the edges, and its number of writers, [n] each."""
    after: list[list[int]] = [[] for _ in range(n)]
    n_before = [0] * n
    for first, second in edges:
        after[first].append(second)
        n_before[second] += 1
    return after, n_before


def by_priority(priority: Sequence[float], edges: Iterable[tuple[int, int]]) -> list[int]:
    """Return the topological order that takes the ready operator with the highest priority, [n_ops], each time.

    Among equals the smallest number comes first. Operators on a cycle, and all that wait for them, are left out.
    """
    readers, missing = successors(len(priority), edges)
    ready = [(-priority[op], op) for op, count in enumerate(missing) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        order.append(heappop(ready)[1])
        for reader in readers[order[-1]]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, (-priority[reader], reader))
    return order


def input_flows(table: CostTable) -> list[list[int]]:
    """Return [n_ops], the flows that each operator reads."""
    inputs: list[list[int]] = [[] for _ in range(table.n_ops)]
    for number, flow in enumerate(table.flows):
        for reader in flow.readers:
            inputs[reader].append(number)
    return inputs
