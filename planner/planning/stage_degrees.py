"""Stages with degrees of their own: how many devices each stage of a pipeline has, and how they divide its work.

::

    d0 ┐                    convolutions     data 3     4 samples of each micro-batch of 12 on each of d0, d1 and d2
    d1 ├──► d3              linear layers    data 1     all 12 on d3: nothing has to be added up
    d2 ┘

Every stage runs every micro-batch, and its replicas take equal parts of the samples. The search adds stages from the
first one on, those first that could still be the fastest (A*); whole pipelines are simulated. With m micro-batches,
f and b for the passes of a stage, and s for its gradients and the optimizer, no step is shorter than

::

    f[0] + .. + f[i - 1] + m (f[i] + b[i]) + s[i]         for every stage i: what comes before its first pass,
                                                          all of its passes, what comes behind its last one
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import pairwise
from math import ceil, inf
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from costmodels.collectives import Port
from costmodels.fabric import Fabric
from costmodels.table import CostTable, Floats, Ints, StepUpdate
from graphs.brief import brief
from graphs.ir import Role
from planner.problem.deadline import Deadline
from planner.problem.hybrid_training.config import StageDegrees
from planner.problem.hybrid_training.shared_costs import SharedNetwork
from simulator.placement import Placement
from simulator.training import TrainingStep, simulate_training

MOST_STAGES = 8
MOST_STEPS = 1000  # of a search, each for the beginning of a pipeline


class ShapeCosts(NamedTuple):
    """The costs of a way to divide devices and batch, and what of them is computing."""

    table: CostTable
    forward_s: Floats  # [n_ops, n_devices]
    backward_s: Floats  # [n_ops, n_devices]

    def computing_s(self, placement: Placement, device: int, step: TrainingStep) -> float:
        """Seconds of a step in which a device computes."""
        ops = list(placement.operators(device))
        computing = replace(self.table, forward_s=self.forward_s)
        seconds = self.forward_s + computing.again_s(step.recompute) + self.backward_s
        return step.micro_batches * float(seconds[ops, device].sum())


class OwnStage(NamedTuple):
    """A stage: its blocks, from one on and before another, and what divides its work."""

    start: int
    stop: int
    degrees: StageDegrees


BegunStages: TypeAlias = tuple[float, int, int, int, float, float, tuple[OwnStage, ...]]
"""What no step undercuts, stages that are left, the next block and device, seconds of forward passes so far, the most
that a stage so far takes, and these stages."""


class FoundStages(NamedTuple):
    """Stages that do not all have the same degrees, as groups of devices that stand for one device each."""

    stages: tuple[OwnStage, ...]
    costs: ShapeCosts
    placement: Placement
    step_s: float


@dataclass(frozen=True)
class DegreeSearch:
    """The problem of choosing stages and their degrees.

    Attributes:
        costs: by degrees, on one group of devices that has all of the network.
        networks: the network for a whole micro-batch, by tensor-parallel degree.
        fabric: of the devices, which are alike.
        samples: of a micro-batch.
        step: its micro-batches, and what runs again.
    """

    costs: Mapping[StageDegrees, ShapeCosts]
    networks: Mapping[int, SharedNetwork]
    fabric: Fabric
    samples: int
    step: TrainingStep

    __repr__ = brief

    def best(self, deadline: Deadline) -> tuple[FoundStages | None, float]:
        """The fastest stages that fit, of degrees that are not all the same; and seconds that no stages undercut."""
        most = min(MOST_STAGES, self._n, len(self.fabric.devices))
        heap: list[BegunStages] = [
            (float(self._least[left][0, 0]), left, 0, 0, 0.0, 0.0, ())
            for left in range(2, most + 1)
            if self._least[left][0, 0] < inf
        ]
        heapify(heap)
        best: FoundStages | None = None
        bound_s = inf
        for _ in range(MOST_STEPS):
            if not heap or (best and heap[0][0] >= best.step_s):
                return best, best.step_s if best else inf
            bound_s, left, start, at, before_s, longest_s, stages = heappop(heap)
            if deadline.over:
                break
            if left:
                for begun in self._longer(left, start, at, before_s, longest_s, stages):
                    heappush(heap, begun)
            elif len({stage.degrees for stage in stages}) > 1:
                found = self.simulated(stages)
                if found and (best is None or found.step_s < best.step_s):
                    best = found
        return best, bound_s

    def allows(self, stages: Sequence[OwnStage]) -> bool:
        """Whether stages, on devices that follow each other, may be cut so."""
        at = 0
        for number, (start, stop, degrees) in enumerate(stages):
            own_s = self._alone(len(stages) - number, start, degrees)[1]
            if at not in self._places(degrees) or own_s[stop] == inf:
                return False
            at += degrees.devices
        return True

    def simulated(self, stages: Sequence[OwnStage]) -> FoundStages | None:
        """What a step of these stages takes; None if they do not fit."""
        costs, placement = self._costs_of(stages), Placement(tuple(self._owner(stages)))
        run = simulate_training(costs.table, placement, self.step)
        if (run.memory_bytes > costs.table.capacity_bytes).any():
            return None
        return FoundStages(tuple(stages), costs, placement, run.makespan_s)

    # --- where a stage may begin -------------------------------------------------------------------------------------

    @cached_property
    def _home(self) -> list[int]:
        """[n_ops], the block of each operator; what depends on no parameter is where it is read first."""
        graph, moving = self.networks[1].graph, self._moving
        home = [moving.get(number, self._n - 1) for number in range(len(graph.ops))]
        for flow in reversed(graph.flows):
            if flow.writer not in moving:
                home[flow.writer] = min(home[reader] for reader in flow.readers)
        return home

    @cached_property
    def _moving(self) -> dict[int, int]:
        """The block of each operator that depends on parameters."""
        return {number: block for block, unit in enumerate(self.networks[1].units) for number in unit}

    @cached_property
    def _n(self) -> int:
        """How many blocks there are: layers, with what comes before and behind them."""
        return len(self.networks[1].units)

    @cached_property
    def _begins(self) -> dict[int, set[int]]:
        """By tensor-parallel degree, the blocks that a stage may begin with, and the number behind the last one.

        What goes over is divided by samples, so nothing else may; and no weight is in two stages.
        """
        graph, home = self.networks[1].graph, self._home
        joined = [
            (home[flow.writer], max(home[reader] for reader in flow.readers))
            for flow in graph.flows
            if flow.writer in self._moving and graph.tensor[flow.tensor].shape[:1] != (self.samples,)
        ]
        readers: dict[str, list[int]] = {}
        for number, op in enumerate(graph.ops):
            for tensor in graph.state(op):
                if tensor.role is Role.PARAMETER:
                    readers.setdefault(tensor.name, []).append(home[number])
        joined += [(min(blocks), max(blocks)) for blocks in readers.values()]
        closed = {block for first, last in joined for block in range(first + 1, last + 1)}
        return {
            tensor: {home[min(unit)] for unit in network.units} - closed | {self._n}
            for tensor, network in self.networks.items()
        }

    # --- bounds ------------------------------------------------------------------------------------------------------

    @cached_property
    def _sums(self) -> dict[StageDegrees, Floats]:
        """By degrees, [6, n_blocks + 1]: passes, bytes, gradients and divided layers of all blocks before one."""
        found = {}
        for degrees, (table, *_) in self.costs.items():
            back_s = table.backward_s + table.again_s(self.step.recompute)
            waiting = table.waiting_bytes(self.step.recompute)
            assert table.update is not None
            styled = np.array([op in self.networks[degrees.tensor].styles.style for op in table.ops], dtype=float)
            rows = table.forward_s[:, 0], back_s[:, 0], table.op_bytes, waiting, table.update.gradient_bytes, styled
            sums = np.zeros((len(rows), self._n + 1))
            for own, row in zip(sums, rows, strict=True):
                np.add.at(own, np.asarray(self._home) + 1, row)
            found[degrees] = sums.cumsum(axis=1)
        return found

    def _alone(self, left: int, start: int, degrees: StageDegrees) -> tuple[Floats, Floats]:
        """[n_blocks + 1] each, by where the stage ends: its forward pass; all of its passes and what comes behind.

        Infinite where it may not end or does not fit; ``left`` stages have still to be made, with this one.
        """
        sums, table = self._sums[degrees], self.costs[degrees].table
        forward_s, back_s, fixed, waiting, gradients, styled = sums - sums[:, start : start + 1]
        held = min(self.step.micro_batches, left)
        assert table.update is not None
        per_byte_s = table.update.optimizer_s_per_byte[0] + table.update.sync_s_per_byte[0]
        after_s = np.where(gradients > 0, table.update.sync_latency_s[0] + gradients * per_byte_s, 0.0)
        may = np.zeros(self._n + 1, dtype=bool)
        may[[stop for stop in self._begins[degrees.tensor] if start < stop]] = start in self._begins[degrees.tensor]
        may &= table.working_bytes + fixed + held * waiting <= table.capacity_bytes[0]
        may &= (styled > 0) | (degrees.tensor == 1)
        own_s = np.where(may, self.step.micro_batches * (forward_s + back_s) + after_s, inf)
        return forward_s, own_s

    def _message_s(self, degrees: StageDegrees, places: Ints) -> Floats:
        """[n_blocks + 1, n_places], what a stage sends behind a forward pass at least, by next block and first device.

        A replica sends its samples once at least.
        """
        rates = [port.bytes_per_s for port in (self.fabric.inside, self.fabric.between) if port.bytes_per_s < inf]
        leaves = places // self.fabric.host_devices != (places + degrees.devices) // self.fabric.host_devices
        rate = np.where(leaves, self.fabric.between.bytes_per_s, max(rates, default=inf))
        return np.asarray(self._crossing[:, None] / (degrees.data * rate))

    @cached_property
    def _crossing(self) -> Floats:
        """[n_blocks + 1], bytes of a whole micro-batch that go over to a block and those behind it."""
        crossing = np.zeros(self._n + 1)
        for number, (flow, n_bytes) in enumerate(zip(self._any.flows, self._any.flow_bytes.tolist(), strict=True)):
            if number in self._sent:
                crossing[self._home[flow.writer] + 1 : max(self._home[r] for r in flow.readers) + 1] += n_bytes
        return crossing

    @cached_property
    def _least(self) -> list[Floats]:
        """[n_stages + 1] of [n_blocks + 1, n_devices + 1]: what so many stages from a block and a device on take."""
        n_devices = len(self.fabric.devices)
        last = np.full((self._n + 1, n_devices + 1), inf)
        last[self._n] = -inf
        found = [last]
        for left in range(1, min(MOST_STAGES, self._n, n_devices) + 1):
            least = np.full_like(last, inf)
            for start in range(self._n - left + 1):
                for degrees in self.costs:
                    forward_s, own_s = self._alone(left, start, degrees)
                    at = self._places(degrees)
                    rest_s = forward_s[:, None] + self._message_s(degrees, at) + found[-1][:, at + degrees.devices]
                    least[start, at] = np.minimum(least[start, at], np.maximum(own_s[:, None], rest_s).min(axis=0))
            found.append(least)
        return found

    def _longer(
        self, left: int, start: int, at: int, before_s: float, longest_s: float, stages: tuple[OwnStage, ...]
    ) -> Iterator[BegunStages]:
        """A begun pipeline with one stage more, in all ways, with the seconds that no step of it undercuts."""
        for degrees in self.costs:
            if at not in self._places(degrees):
                continue
            forward_s, own_s = self._alone(left, start, degrees)
            ahead_s = before_s + forward_s + self._message_s(degrees, np.array([at]))[:, 0]
            rest_s = ahead_s + self._least[left - 1][:, at + degrees.devices]
            bounds = np.maximum(np.maximum(before_s + own_s, longest_s), rest_s)
            for stop in np.flatnonzero(bounds < inf).tolist():
                stage = OwnStage(start, stop, degrees)
                longest = max(longest_s, before_s + float(own_s[stop]))
                passed = left - 1, stop, at + degrees.devices, float(ahead_s[stop]), longest
                yield (float(bounds[stop]), *passed, (*stages, stage))

    # --- devices and what joins them ---------------------------------------------------------------------------------

    def _places(self, degrees: StageDegrees) -> Ints:
        """The numbers of the first devices of a stage: within a host, or from the beginning of one on."""
        each, at = self.fabric.host_devices, np.arange(len(self.fabric.devices) - degrees.devices + 1)
        return np.asarray(at[(at % each == 0) | (at % each + degrees.devices <= each)])

    def _port(self, first: int, end: int) -> Port:
        """What joins the devices from one on and before another."""
        each = self.fabric.host_devices
        return self.fabric.inside if first // each == (end - 1) // each else self.fabric.between

    @property
    def _any(self) -> CostTable:
        """The costs of a whole micro-batch on one device."""
        return self.costs[StageDegrees(1, 1)].table

    @cached_property
    def _sent(self) -> list[int]:
        """The flows that stages send each other; each computes what depends on no parameter by itself."""
        return [number for number, flow in enumerate(self._any.flows) if flow.writer in self._moving]

    # --- the costs of some stages ------------------------------------------------------------------------------------

    def _owner(self, stages: Sequence[OwnStage]) -> list[int]:
        """[n_ops], the number of the stage of each operator."""
        of_block = [number for number, stage in enumerate(stages) for _ in range(stage.start, stage.stop)]
        return [of_block[block] for block in self._home]

    def _costs_of(self, stages: Sequence[OwnStage]) -> ShapeCosts:
        """A table with a device for each stage, which stands for its group."""
        each, owner = [self.costs[stage.degrees] for stage in stages], self._owner(stages)
        updates = [costs.table.update for costs in each if costs.table.update is not None]
        own: dict[str, Any] = {
            name: np.array([getattr(each[n].table, name)[op] for op, n in enumerate(owner)])
            for name in ("op_bytes", "saved_bytes", "ends_bytes", "once_bytes", "once_saved_bytes")
        }
        for number, costs in enumerate(each):
            own["op_bytes"][owner.index(number)] += costs.table.working_bytes
        rates = {
            name: np.array([float(getattr(update, name)[0]) for update in updates])
            for name in ("optimizer_s_per_byte", "sync_s_per_byte", "sync_latency_s")
        }
        table = replace(
            self._any.of_devices([0] * len(stages)),
            **(own | self._links(stages, owner)),
            devices=tuple(f"stage {number}" for number in range(len(stages))),
            forward_s=np.column_stack([costs.table.forward_s for costs in each]),
            backward_s=np.column_stack([costs.table.backward_s for costs in each]),
            working_bytes=0.0,
            together=(),
            contention_group=np.arange(len(stages)),
            update=StepUpdate(np.array([updates[n].gradient_bytes[op] for op, n in enumerate(owner)]), **rates),
        )
        computing_s = (
            np.column_stack([getattr(costs, name) for costs in each]) for name in ("forward_s", "backward_s")
        )
        return ShapeCosts(table, *computing_s)

    def _links(self, stages: Sequence[OwnStage], owner: Sequence[int]) -> dict[str, Any]:
        """Flows between stages: what arrives on each device, and a link between neighbours, one for each way."""
        flows = [self._any.flows[number] for number in self._sent]
        whole = self._any.flow_bytes[self._sent]
        ends = np.cumsum([0, *(stage.degrees.devices for stage in stages)]).tolist()
        link_class = np.full((len(stages), len(stages)), -1)
        seconds, latency_s = [], []
        for border, (one, other) in enumerate(pairwise(stages)):
            port = self._port(ends[border], ends[border + 2])
            for ways, src, dst in ((0, one.degrees, other.degrees), (1, other.degrees, one.degrees)):
                sent = whole / src.data * ceil(dst.tensor / src.tensor)
                seconds.append(port.latency_s + np.maximum(sent, whole / dst.data) / port.bytes_per_s)
                latency_s.append(port.latency_s)
                link_class[border + ways, border + 1 - ways] = len(latency_s) - 1
        parts = [min(stages[owner[reader]].degrees.data for reader in flow.readers) for flow in flows]
        return {
            "flows": tuple(flows),
            "flow_bytes": whole / np.array(parts, dtype=float),
            "gradient": self._any.gradient[self._sent],
            "layer_bytes": np.array(
                [
                    self.costs[stages[owner[flow.writer]].degrees].table.layer_bytes[number]
                    for number, flow in zip(self._sent, flows, strict=True)
                ]
            ),
            "link_class": link_class,
            "channel": link_class,
            "link_s": np.column_stack(seconds),
            "link_latency_s": np.array(latency_s),
        }
