"""StageProblem: the costs of stages with degrees, ZeRO and recomputation of their own, and where they may be cut.

::

    d0 ┐                    convolutions     data 3, ZeRO 1        4 samples of each micro-batch of 12 on each device
    d1 ├──► d3              linear layers    data 1, recomputed    all 12 on d3: no gradients to add up
    d2 ┘

Every stage runs every micro-batch, and its replicas take equal parts of the samples: batch norms add up statistics over
replicas, and each stage that reads a weight has its own copy. Unequal devices of a stage wait for the slowest at every
operator.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import accumulate, pairwise
from math import ceil, inf
from typing import Any, NamedTuple

import numpy as np

from costmodels.cluster.collectives import Port
from costmodels.cluster.fabric import Fabric
from costmodels.step_update import StepUpdate
from costmodels.table import CostTable
from costmodels.workload import RECOMPUTE_MODES, RecomputeMode
from graphs.common.arrays import Floats, Ints
from graphs.common.brief import brief
from planner.parallelism.closed_form.config import StageDegrees
from planner.parallelism.closed_form.shared_costs import SharedNetwork
from planner.parallelism.network.shape_tables import ShapeCosts
from simulator.placement import Placement
from simulator.training import TrainingStep, simulate_training


class StageSpec(NamedTuple):
    """A stage: its blocks, from ``start`` up to but not including ``stop``, its degrees, and its recomputation."""

    start: int
    stop: int
    degrees: StageDegrees
    recompute: RecomputeMode = "none"


class StageSolution(NamedTuple):
    """Stages with their costs, in which each group of devices stands for one device."""

    stages: tuple[StageSpec, ...]
    costs: ShapeCosts  # backward passes include recomputation
    placement: Placement
    step_s: float
    peak_bytes: float

    @property
    def alike(self) -> bool:
        """Whether all stages have the same degrees, ZeRO and recomputation."""
        return len({(stage.degrees, stage.recompute) for stage in self.stages}) == 1


@dataclass(frozen=True)
class StageProblem:
    """The problem of choosing stages, their degrees, ZeRO and recomputation.

    Attributes:
        costs: of the whole network on one group of devices of each kind, by degrees.
        networks: the network for a whole micro-batch, by tensor-parallel degree.
        fabric: of the devices.
        kinds: [n_devices], the number of the kind of each device of the fabric.
        samples: of a micro-batch.
        micro_batches: of a step.
        recomputes: the modes of recomputation that a stage may have.
    """

    costs: Mapping[StageDegrees, Sequence[ShapeCosts]]
    networks: Mapping[int, SharedNetwork]
    fabric: Fabric
    kinds: tuple[int, ...]
    samples: int
    micro_batches: int
    recomputes: tuple[RecomputeMode, ...] = RECOMPUTE_MODES

    __repr__ = brief

    def may_be(self, start: int, degrees: StageDegrees) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Return [n_blocks + 1], where a stage that begins with a block may end."""
        begins = self._begins[degrees.tensor]
        may = np.zeros(self.n_blocks + 1, dtype=bool)
        may[[stop for stop in begins if start < stop]] = start in begins
        if degrees.tensor > 1:
            may &= self._styled[degrees.tensor] > self._styled[degrees.tensor][start]
        return may

    def simulated(self, stages: Sequence[StageSpec], most_bytes: float = inf) -> StageSolution | None:
        """Return the simulated step of these stages; None if a device holds more than its memory or ``most_bytes``."""
        costs, placement = self._costs_of(stages), Placement(tuple(self._owner(stages)))
        run = simulate_training(costs.table, placement, TrainingStep("1f1b", self.micro_batches))
        if (run.memory_bytes > np.minimum(costs.table.capacity_bytes, most_bytes)).any():
            return None
        return StageSolution(tuple(stages), costs, placement, run.makespan_s, float(run.memory_bytes.max()))

    # --- where a stage may begin -------------------------------------------------------------------------------------

    @cached_property
    def home(self) -> list[int]:
        """[n_ops], the block of each operator; one that depends on no parameter is in the block that reads it first."""
        graph, moving = self.networks[1].graph, self._moving
        home = [moving.get(number, self.n_blocks - 1) for number in range(len(graph.ops))]
        for flow in reversed(graph.flows):
            if flow.writer not in moving:
                home[flow.writer] = min(home[reader] for reader in flow.readers)
        return home

    @cached_property
    def _moving(self) -> dict[int, int]:
        """The block of each operator that depends on parameters."""
        return {number: block for block, unit in enumerate(self.networks[1].units) for number in unit}

    @cached_property
    def n_blocks(self) -> int:
        """The number of blocks: layers, the first with the stem before it, the last with the head after it."""
        return len(self.networks[1].units)

    @cached_property
    def _begins(self) -> dict[int, set[int]]:
        """By tensor-parallel degree, the blocks that a stage may begin with, and `n_blocks`, where the last one ends.

        Replicas divide samples, so only tensors whose first dimension is the samples may cross between stages.
        """
        graph, home = self.networks[1].graph, self.home
        joined = [
            (home[flow.writer], max(home[reader] for reader in flow.readers))
            for flow in graph.flows
            if flow.writer in self._moving and graph.tensor[flow.tensor].shape[:1] != (self.samples,)
        ]
        closed = {block for first, last in joined for block in range(first + 1, last + 1)}
        return {
            tensor: {home[min(unit)] for unit in network.units} - closed | {self.n_blocks}
            for tensor, network in self.networks.items()
        }

    @cached_property
    def _styled(self) -> dict[int, Ints]:
        """By tensor-parallel degree, [n_blocks + 1], how many operators before a block are divided."""
        found = {}
        for tensor, network in self.networks.items():
            number = np.zeros(self.n_blocks + 1, dtype=np.int64)
            for op, block in zip(network.graph.ops, self.home, strict=True):
                number[block + 1] += op.name in network.styles.style
            found[tensor] = number.cumsum()
        return found

    # --- devices and what joins them ---------------------------------------------------------------------------------

    def kinds_of(self, at: int, size: int) -> tuple[int, ...]:
        """Return the kinds of ``size`` devices from ``at`` on, ascending."""
        return tuple(sorted(set(self.kinds[at : at + size])))

    def on_kinds(self, degrees: StageDegrees, kinds: Sequence[int]) -> ShapeCosts:
        """Return the costs of a group of devices of these kinds."""
        return reduce(ShapeCosts.slower, (self.costs[degrees][kind] for kind in kinds))

    def port(self, first: int, end: int) -> Port:
        """Return the port that joins devices ``first`` to ``end - 1``: that of a host, or the one between hosts."""
        each = self.fabric.host_devices
        return self.fabric.inside if first // each == (end - 1) // each else self.fabric.between

    @property
    def any_table(self) -> CostTable:
        """The costs of a whole micro-batch on one device."""
        return self.costs[StageDegrees(1, 1)][0].table

    @cached_property
    def sent(self) -> list[int]:
        """The flows that stages send each other; each stage computes for itself what depends on no parameter."""
        return [number for number, flow in enumerate(self.any_table.flows) if flow.writer in self._moving]

    # --- the costs of some stages ------------------------------------------------------------------------------------

    def _owner(self, stages: Sequence[StageSpec]) -> list[int]:
        """Return [n_ops], the number of the stage of each operator."""
        of_block = [number for number, stage in enumerate(stages) for _ in range(stage.start, stage.stop)]
        return [of_block[block] for block in self.home]

    def _costs_of(self, stages: Sequence[StageSpec]) -> ShapeCosts:
        """Return a cost table in which one device stands for the group of each stage."""
        ends = list(accumulate((stage.degrees.devices for stage in stages), initial=0))
        each = [
            self.on_kinds(stage.degrees, self.kinds_of(at, stage.degrees.devices))
            for at, stage in zip(ends, stages, strict=False)
        ]
        tables, owner = [costs.table for costs in each], self._owner(stages)
        op_bytes, saved_bytes = _held(stages, tables, owner)
        again_s = [table.again_s(stage.recompute) for table, stage in zip(tables, stages, strict=True)]
        computed = (
            np.where(again > 0, costs.forward_s, 0.0) + costs.backward_s
            for again, costs in zip(again_s, each, strict=True)
        )
        any_table = self.any_table.of_devices([0] * len(stages))
        assert any_table.training is not None
        training = replace(
            any_table.training,
            backward_s=np.column_stack([one.backward_s + more for one, more in zip(tables, again_s, strict=True)]),
            gradient=any_table.training.gradient[self.sent],
            saved_bytes=saved_bytes,
            layer_bytes=np.zeros(len(self.sent)),
            update=_joined_update([table.update for table in tables if table.update is not None], owner),
        )
        table = replace(
            any_table,
            **self._links(stages, owner, ends),
            devices=tuple(f"stage {number}" for number in range(len(stages))),
            op_bytes=op_bytes,
            forward_s=np.column_stack([table.forward_s for table in tables]),
            capacity_bytes=np.array([float(table.capacity_bytes[0]) for table in tables]),
            working_bytes=0.0,
            together=(),
            training=training,
            contention=any_table.contention and replace(any_table.contention, group=np.arange(len(stages))),
        )
        return ShapeCosts(table, np.column_stack([costs.forward_s for costs in each]), np.column_stack(list(computed)))

    def _links(self, stages: Sequence[StageSpec], owner: Sequence[int], ends: Sequence[int]) -> dict[str, Any]:
        """Return the fields of the table for flows, in bytes that arrive on a device, and for a link each way."""
        flows = [self.any_table.flows[number] for number in self.sent]
        whole = self.any_table.flow_bytes[self.sent]
        link_class = np.full((len(stages), len(stages)), -1)
        seconds, latency_s = [], []
        for border, (one, other) in enumerate(pairwise(stages)):
            port = self.port(ends[border], ends[border + 2])
            for ways, src, dst in ((0, one.degrees, other.degrees), (1, other.degrees, one.degrees)):
                sent = whole / src.data * ceil(dst.tensor / src.tensor)
                seconds.append(port.latency_s + np.maximum(sent, whole / dst.data) / port.bytes_per_s)
                latency_s.append(port.latency_s)
                link_class[border + ways, border + 1 - ways] = len(latency_s) - 1
        parts = [min(stages[owner[reader]].degrees.data for reader in flow.readers) for flow in flows]
        return {
            "flows": tuple(flows),
            "flow_bytes": whole / np.array(parts, dtype=float),
            "link_class": link_class,
            "channel": link_class,
            "link_s": np.column_stack(seconds),
            "link_latency_s": np.array(latency_s),
        }


def _held(stages: Sequence[StageSpec], tables: Sequence[CostTable], owner: Sequence[int]) -> tuple[Floats, Floats]:
    """Return the bytes that a device holds for an operator always, and for each micro-batch, [n_ops] each.

    Bytes that a stage holds only once are counted at its first operator.
    """
    op_bytes = np.array([tables[n].op_bytes[op] for op, n in enumerate(owner)])
    saved = [table.trained.waiting_bytes(stage.recompute) for table, stage in zip(tables, stages, strict=True)]
    saved_bytes = np.array([saved[n][op] for op, n in enumerate(owner)])
    for number, (table, stage) in enumerate(zip(tables, stages, strict=True)):
        ops = [op for op, own in enumerate(owner) if own == number]
        op_bytes[ops[0]] += table.working_bytes + _most_again_bytes(table, ops, stage.recompute)
        saved_bytes[ops[0]] += table.inputs_bytes(ops, stage.recompute) if stage.recompute != "none" else 0.0
    return op_bytes, saved_bytes


def _most_again_bytes(table: CostTable, ops: Sequence[int], recompute: RecomputeMode) -> float:
    """Return the most bytes that a recomputed layer of a stage saves; 1F1B holds them on top of all others."""
    layer, own = table.trained.layer[list(ops)], table.trained.again_bytes(recompute)[list(ops)]
    return float(np.bincount(layer[layer >= 0], own[layer >= 0]).max(initial=0.0))


def _joined_update(updates: Sequence[StepUpdate], owner: Sequence[int]) -> StepUpdate:
    """Return gradients and optimizer of a step, with each operator on the device of its stage."""
    rates = ("optimizer_s_per_byte", "sync_s_per_byte", "sync_latency_s")
    return StepUpdate(
        np.array([updates[number].gradient_bytes[op] for op, number in enumerate(owner)]),
        **{name: np.array([float(getattr(update, name)[0]) for update in updates]) for name in rates},
    )
