"""The truth about a small problem: what a placement is worth, and the least of all placements, in plain Python.

It is written from what a problem means (`planner.problem`, `costmodels.table`) and shares no code with
`planner.evaluate`, the simulator or any solver: loops over every operator, every tensor and every device.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product
from math import inf

from planner.literature.placement.offload import OffloadTable, offload_of
from planner.problem.problem import Goal, Problem
from tests.planner.solvers.law.makespan import Makespan
from tests.planner.solvers.law.step import Step

BYTES_TOLERANCE = 1e-9  # relative; sums of bytes in floating point


class Truth:
    """What the placements of a problem are worth: seconds, infinite where one breaks a constraint."""

    def __init__(self, problem: Problem) -> None:
        table = problem.table
        self._problem, self._table, self._n, self._k = problem, table, table.n_ops, table.n_devices
        self._seconds = table.forward_s.tolist()
        self._slowdown = table.slowdown.tolist() if table.slowdown.any() else None
        self._linked = [
            [here == there or table.link_class[here, there] >= 0 for there in range(self._k)] for here in range(self._k)
        ]
        self._flows = [(flow.writer, tuple(set(flow.readers) - {flow.writer})) for flow in table.flows]
        self._edges = {(writer, reader) for writer, readers in self._flows for reader in readers}
        self._inside = {(a, b) for a, b in self._edges if a in problem.contiguous and b in problem.contiguous}
        self._makespan = (
            Makespan(table) if problem.goal is Goal.LATENCY and not isinstance(table, OffloadTable) else None
        )
        self._step = Step(table, problem.step) if problem.goal is Goal.TRAINING else None

    @cached_property
    def least_s(self) -> float:
        """The best of all placements and orders; infinite if none is feasible."""
        return min((self._least_s(device) for device in product(range(self._k), repeat=self._n)), default=inf)

    def seconds(self, device: Sequence[int], order: Sequence[int] = ()) -> float:
        """What a placement is worth for the goal; infinite if it is not feasible."""
        if not self._feasible(device):
            return inf
        order = order or range(self._n)
        position = {op: place for place, op in enumerate(order)}
        if sorted(order) != list(range(self._n)) or any(position[a] > position[b] for a, b in self._edges):
            return inf
        if self._step:
            return self._step.seconds(device, self._factors(device))
        takes = self._takes(device)
        return self._makespan.seconds(device, order, takes) if self._makespan else self._unordered(device, takes)

    @cached_property
    def orders(self) -> tuple[tuple[int, ...], ...]:
        """Every order of the operators in which writers come before readers."""
        return tuple(_orders(self._n, self._edges))

    def _least_s(self, device: tuple[int, ...]) -> float:
        if not self._makespan:
            return self.seconds(device)
        if not self._feasible(device):
            return inf
        takes = self._takes(device)
        return min(self._makespan.seconds(device, order, takes) for order in self.orders)

    def _unordered(self, device: Sequence[int], takes: Sequence[float]) -> float:
        """What does not depend on the order of operators."""
        if not isinstance(self._table, OffloadTable):
            busiest_s, total_s = self._direct(device, takes)
            return total_s if self._problem.goal is Goal.COST else busiest_s
        load_s = self._beside_a_host(device, takes)
        if self._problem.goal is Goal.LATENCY:
            return self._calls(device, takes, load_s)
        return sum(load_s) if self._problem.goal is Goal.COST else max(load_s)

    # --- constraints -------------------------------------------------------------------------------------------------

    def _feasible(self, device: Sequence[int]) -> bool:
        """Whether operators can run where they are, have room and links, share devices and follow one another."""
        if any(self._seconds[op][here] == inf for op, here in enumerate(device)):
            return False
        if any(len({device[op] for op in group}) > 1 for group in self._table.together):
            return False
        if any(not self._linked[device[writer]][device[reader]] for writer, reader in self._edges):
            return False
        return (self._step is not None or self._has_room(device)) and not self._goes_to_and_fro(device)

    def _has_room(self, device: Sequence[int]) -> bool:
        table = self._table
        held = [float(table.op_bytes[op] + table.trained.held * table.trained.saved_bytes[op]) for op in range(self._n)]
        for here in set(device):
            needed = table.working_bytes + sum(n_bytes for op, n_bytes in enumerate(held) if device[op] == here)
            if needed > table.capacity_bytes[here] * (1 + BYTES_TOLERANCE):
                return False
        return True

    def _goes_to_and_fro(self, device: Sequence[int]) -> bool:
        """Whether devices of contiguous operators come before and after each other."""
        before = {(device[a], device[b]) for a, b in self._inside if device[a] != device[b]}
        reached = set(before)
        while more := {(a, d) for a, b in reached for c, d in before if b == c} - reached:
            reached |= more
        return any(a == b for a, b in reached)

    # --- costs -------------------------------------------------------------------------------------------------------

    def _takes(self, device: Sequence[int]) -> list[float]:
        """[n_ops], seconds of every operator where it is, in the contention that it has there."""
        isolated = [self._seconds[op][here] for op, here in enumerate(device)]
        return [s * factor for s, factor in zip(isolated, self._factors(device), strict=True)]

    def _factors(self, device: Sequence[int]) -> list[float]:
        """[n_ops], how much of its isolated time each operator takes in the contention that it has."""
        if not self._slowdown:
            return [1.0] * self._n
        share = dict.fromkeys(device, 1.0)
        if len(share) == 1:
            share = dict.fromkeys(share, 0.0)
        elif self._problem.goal is Goal.THROUGHPUT:
            busy = [0.0] * self._k
            for op, here in enumerate(device):
                busy[here] += self._seconds[op][here] * (1 + self._slowdown[op][here])
            share = {here: self._company(here, busy) for here in share}
        slow = [self._slowdown[op][here] for op, here in enumerate(device)]
        return [1 + share[here] * more for here, more in zip(device, slow, strict=True)]

    def _company(self, here: int, busy: Sequence[float]) -> float:
        """The share of a device's time in which the others of its group compute too, on average over them."""
        group = self._table.contention_group
        others = [there for there in range(self._k) if there != here and group[there] == group[here]]
        if not others or not busy[here]:
            return 0.0
        return sum(min(1.0, busy[there] / busy[here]) for there in others) / len(others)

    def _direct(self, device: Sequence[int], takes: Sequence[float]) -> tuple[float, float]:
        """The busiest device or channel, and everything added up, where devices send to each other."""
        table = self._table
        load_s, channel_s, total_s = [0.0] * self._k, dict[int, float](), sum(takes)
        for here, seconds in zip(device, takes, strict=True):
            load_s[here] += seconds
        for flow, (writer, readers) in enumerate(self._flows):
            src = device[writer]
            for dst in {device[reader] for reader in readers} - {src}:
                sent_s, channel = float(table.link_s[flow, table.link_class[src, dst]]), int(table.channel[src, dst])
                channel_s[channel] = channel_s.get(channel, 0.0) + sent_s
                total_s += sent_s
                for end in (src, dst):
                    load_s[end] += float(table.overhead_s[end]) + (0.0 if table.overlap else sent_s)
                    total_s += float(table.overhead_s[end])
        if table.sharing == "unlimited":
            channel_s = {}
        return max([*load_s, *channel_s.values()]), total_s

    def _beside_a_host(self, device: Sequence[int], takes: Sequence[float]) -> list[float]:
        """[n_devices], computing, storing once what others read, fetching once what others wrote."""
        offload, load_s = offload_of(self._table), [0.0] * self._k
        for here, seconds in zip(device, takes, strict=True):
            load_s[here] += seconds
        for flow, (writer, readers) in enumerate(self._flows):
            src = device[writer]
            elsewhere = {device[reader] for reader in readers} - {src}
            if elsewhere:
                load_s[src] += float(offload.store_s[flow, src])
            for dst in elsewhere:
                load_s[dst] += float(offload.fetch_s[flow, dst])
        return load_s

    def _calls(self, device: Sequence[int], takes: Sequence[float], load_s: Sequence[float]) -> float:
        """The end of the last call, each of which is an operator on a host or all that an accelerator does."""
        host = offload_of(self._table).host
        call = [("op", op) if host[here] else ("device", here) for op, here in enumerate(device)]
        lasts = {call[op]: takes[op] if host[here] else load_s[here] for op, here in enumerate(device)}
        end: dict[tuple[str, int], float] = {}
        while len(end) < len(lasts):
            waiting = [one for one in lasts if one not in end]
            needs = {one: {call[a] for a, b in self._edges if call[b] == one and call[a] != one} for one in waiting}
            ready = [one for one in waiting if needs[one] <= end.keys()]
            if not ready:
                return inf  # calls wait for each other in a circle
            end |= {one: max((end[need] for need in needs[one]), default=0.0) + lasts[one] for one in ready}
        return max(end.values())


def _orders(n: int, edges: set[tuple[int, int]], start: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    if len(start) == n:
        yield start
    for op in sorted(set(range(n)) - set(start)):
        if all(a in start for a, b in edges if b == op):
            yield from _orders(n, edges, (*start, op))
