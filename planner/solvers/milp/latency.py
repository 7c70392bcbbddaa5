"""The integer program for latency: start times, and which of two operators on one device goes first."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from costmodels.table import CostTable
from graphs.common.arrays import Floats
from planner.problem.blocks import Blocks, by_priority
from planner.problem.bounds import longest_paths
from planner.solvers.milp.model import PlacementModel
from simulator.placement import Placement


class LatencyModel(PlacementModel):
    """Minimise the makespan of one micro-batch.

    In this program, channels carry any number of tensors at once, and without overlap transfers count as load of their
    devices but do not delay operators. The simulator delays both, so its makespan is never below the optimum of this
    program.

    Source: the disjunctive formulation of scheduling (Manne, On the job-shop scheduling problem, Operations
    Research 8(2), 1960), with transfers as in Tarnawski et al. 2020.
    """

    def __init__(self, blocks: Blocks, lower_s: float, upper_s: float) -> None:
        super().__init__(blocks, lower_s, upper_s)
        head_s, tail_s = longest_paths(self.table)
        self.head, self.tail = head_s / self.scale_s, tail_s / self.scale_s
        latest = np.maximum(self.head, self.upper - self.tail).tolist()
        self.start_of = [
            self.model.add_variable(f"start_{op}", head, latest[op]) for op, head in enumerate(self.head.tolist())
        ]
        self.pairs: dict[tuple[int, int], dict[tuple[int, int], Any]] = {}
        self.first: dict[tuple[int, int], Any] = {}

    @property
    def families(self) -> Sequence[Callable[[], None]]:
        """The constraints, in the order in which they are added."""
        return (*super().families, self._finish, self._precedence, self._one_at_a_time)

    def _channels_busy(self) -> None:
        """The constraints for throughput, unless sharing is fair: then the latencies of several tensors overlap."""
        if self.table.sharing != "fair":
            super()._channels_busy()

    def _finish(self) -> None:
        """start[i] + takes[i] <= makespan."""
        for op in range(self.table.n_ops):
            self.add([(self.start_of[op], 1.0), *self._takes(op, 1.0), (self.busiest, -1.0)], "<=", 0.0)

    def _precedence(self) -> None:
        """start[j] >= start[i] + takes[i] + sends[i, j] for every edge.

        ::

            sends[i, j] = sum over s != d of seconds[s, d] * pair[s, d]
        """
        for (writer, reader), sends_s in edge_seconds(self.table).items():
            terms = [(self.start_of[reader], 1.0), (self.start_of[writer], -1.0), *self._takes(writer, -1.0)]
            ends = int(self.blocks.block[writer]), int(self.blocks.block[reader])
            if ends[0] != ends[1]:
                sends = np.minimum(sends_s / self.scale_s, 2 * self.upper)
                terms += [(v, -float(sends[s, d])) for (s, d), v in self._pairs_of(ends).items() if s != d]
            self.add(terms, ">=", 0.0)

    def _pairs_of(self, ends: tuple[int, int]) -> dict[tuple[int, int], Any]:
        """pair[s, d]: the first block is on s and the second on d, where there is a link.

        ::

            sum_d pair[s, d] = on[i, s]       sum_s pair[s, d] = on[j, d]
        """
        if ends not in self.pairs:
            linked = self.table.linked
            writer, reader = (self.on(block) for block in ends)
            name = "pair_{}_{}".format(*ends)
            pair = {
                (s, d): self.share(f"{name}_{s}_{d}", 1.0) for s in writer for d in reader if s == d or linked[s, d]
            }
            for src, variable in writer.items():
                self.add([(variable, -1.0), *((v, 1.0) for (s, _), v in pair.items() if s == src)], "==", 0.0)
            for dst, variable in reader.items():
                self.add([(variable, -1.0), *((v, 1.0) for (_, d), v in pair.items() if d == dst)], "==", 0.0)
            self.pairs[ends] = pair
        return self.pairs[ends]

    def _one_at_a_time(self) -> None:
        """Two operators without a path between them, on the same device: one has finished when the other starts.

        ::

            first[i, j] + first[j, i] >= on[i, d] + on[j, d] - 1      for every device d
            start[j] >= start[i] + takes[i] - wait[i, j] * (1 - first[i, j])

        ``wait`` is by how much i can finish after the start of j at most, within the upper bound.
        """
        shortest = self.table.forward_s.min(axis=1) / self.scale_s
        wait = self.upper - (self.tail - shortest)[:, None] - self.head
        for i, j in incomparable(self.table):
            blocks = int(self.blocks.block[i]), int(self.blocks.block[j])
            shared = [d for d in self.on(blocks[0]) if d in self.on(blocks[1])]
            if not shared or min(wait[i, j], wait[j, i]) <= 0:
                continue  # never on one device, or the time windows keep them apart
            for first, second in ((i, j), (j, i)):
                self.first[first, second] = self.binary(f"first_{first}_{second}")
                missed = float(wait[first, second])
                ends = [(self.start_of[second], 1.0), (self.start_of[first], -1.0), *self._takes(first, -1.0)]
                self.add([*ends, (self.first[first, second], -missed)], ">=", -missed)
            either = [(self.first[i, j], 1.0), (self.first[j, i], 1.0)]
            if blocks[0] == blocks[1]:
                self.add(either, ">=", 1.0)
                continue
            for device in shared:
                self.add([*either, *((self.is_on[block, device], -1.0) for block in blocks)], ">=", -1.0)

    def _takes(self, op: int, factor: float) -> list[tuple[Any, float]]:
        """The computing time of an operator, as terms."""
        seconds = self.table.forward_s[op] / self.scale_s
        return [(v, factor * float(seconds[d])) for d, v in self.on(int(self.blocks.block[op])).items()]

    def start(self, placement: Placement) -> Mapping[Any, float]:
        """The value of every variable for a placement, with each operator as early as the order allows."""
        values = dict(super().start(placement))
        device = self._canonical(self.blocks.devices_of(placement))
        for (writer, reader), pair in self.pairs.items():
            values |= {v: float((s, d) == (device[writer], device[reader])) for (s, d), v in pair.items()}
        on = device[self.blocks.block].tolist()
        begin = as_early_as_possible(self.table, Placement(tuple(on), placement.order))
        values |= {variable: begin[op] / self.scale_s for op, variable in enumerate(self.start_of)}
        rank = placement.rank
        values |= {v: float(on[i] == on[j] and rank[i] < rank[j]) for (i, j), v in self.first.items()}
        return values

    def read(self, value: Mapping[str, float]) -> Placement:
        """The placement of a solution, in the order of its starts."""
        device = super().read(value).device
        earliest_first = [-value[variable.name] for variable in self.start_of]
        return Placement(device, tuple(by_priority(earliest_first, self.table.edges)))


def incomparable(table: CostTable) -> Iterator[tuple[int, int]]:
    """The pairs of operators i < j without a path from one to the other."""
    before = [0] * table.n_ops  # bit i is set if there is a path from i
    for writer, reader in table.edges:
        before[reader] |= before[writer] | 1 << writer
    for j, bits in enumerate(before):
        yield from ((i, j) for i in range(j) if not bits >> i & 1)


def edge_seconds(table: CostTable) -> dict[tuple[int, int], Floats]:
    """[n_devices, n_devices] for each edge, seconds that its flows take at least in all.

    They follow one another if they wait for a channel or for their devices; else they may be sent all at once.
    """
    add = np.add if table.sharing == "fifo" or not table.overlap else np.maximum
    seconds: dict[tuple[int, int], Floats] = {}
    for flow, sends_s in zip(table.flows, table.transfer_s, strict=True):
        for reader in sorted(set(flow.readers)):
            ends = flow.writer, reader
            seconds[ends] = add(seconds[ends], sends_s) if ends in seconds else sends_s
    return seconds


def as_early_as_possible(table: CostTable, placement: Placement) -> list[float]:
    """[n_ops], the least starts in seconds if each device keeps its order and the edges take `edge_seconds`."""
    inputs: list[dict[int, Floats]] = [{} for _ in range(table.n_ops)]
    for (writer, reader), seconds in edge_seconds(table).items():
        inputs[reader][writer] = seconds
    start, finish = [0.0] * table.n_ops, [0.0] * table.n_ops
    free = [0.0] * table.n_devices
    for op in placement.order:
        device = placement.device[op]
        arrivals = (finish[writer] + float(s[placement.device[writer], device]) for writer, s in inputs[op].items())
        start[op] = max([free[device], *arrivals])
        free[device] = finish[op] = start[op] + float(table.forward_s[op, device])
    return start
