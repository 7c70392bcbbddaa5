"""The choice of a sharding for each operator, so that one sample passes the network sooner on equal devices.

::

    strategies of an operator       whole on the first device, or divided by one of its shardings, part i on device i
    their costs                     the seconds of the largest part
    costs of neighbours together    the seconds to bring a tensor from the writer's layout into the reader's

The devices compute one operator after the other in step, so that seconds add up. One strategy is chosen for each
operator, with a bound (Alpa's problem: Zheng et al., OSDI 2022).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import inf

import numpy as np

from costmodels.cluster.cluster import Cluster
from costmodels.operators.flops import work_of
from costmodels.table import CostTable
from graphs.common.arrays import Floats
from graphs.ir import STATE, Graph, Op
from graphs.rewrites.cache_shardings import caches_with_users, shard_of_cache
from graphs.rewrites.network_shardings import network_shardings
from graphs.rewrites.sharding import REPLICATED, Sharding, shares
from graphs.rewrites.split import Split
from planner.planning.team import EVERYWHERE, SUMMED, WHOLE, Held, Overlapping, Team
from planner.problem.strategies import Edge, LiveRange, StrategyProblem
from planner.solvers.strategies.solve import solve_strategies

LEAST_GAIN = 0.02  # of the seconds of all operators, for which a network is split


@dataclass(frozen=True)
class SplitSearch:
    """The search for a sharding of each operator of a network.

    Attributes:
        graph: the network without fused operators.
        seconds: [n_ops], of each operator on one device of the team while the others are idle.
        slowdown: [n_ops], by what share that is longer while all compute.
        team: the devices.
        strategies: [n_ops], the strategies of each operator; None for the whole on the first device.
        known: by operator and sharding, what the largest part takes if the parts were looked at, see `Splits.again`.
    """

    graph: Graph
    seconds: Floats
    slowdown: Floats
    team: Team
    strategies: Sequence[Sequence[Sharding | None]]
    known: Mapping[tuple[str, str], float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        graph: Graph,
        planned: Graph,
        table: CostTable,
        cluster: Cluster,
        known: Mapping[str, Sequence[Sharding]] | None = None,
    ) -> SplitSearch | None:
        """Return the search for a network whose operators may be fused in ``planned``, the graph of the table.

        A fused operator's seconds count for the member whose name it has. ``known`` are the shardings of operators,
        by default all. None without equal devices that are linked, and if one of them cannot run an operator.
        """
        team = Team.of(cluster)
        if team is None:
            return None
        seconds, slowdown = np.zeros(len(graph.ops)), np.zeros(len(graph.ops))
        for number, op in enumerate(planned.ops):
            at = number, team.numbers[0]
            seconds[graph.index[op.name]], slowdown[graph.index[op.name]] = table.forward_s[at], table.slowdown[at]
        if not np.isfinite(seconds).all():
            return None
        known = network_shardings(graph) if known is None else known
        strategies = [[None, *(one for one in known[op.name] if one.units >= team.size)] for op in graph.ops]
        return cls(graph, seconds, slowdown, team, strategies)

    @cached_property
    def problem(self) -> StrategyProblem:
        """One strategy for each operator, and one layout for each tensor that several operators read."""
        node_cost = [self._own_s(number) for number in range(len(self.graph.ops))]
        edges: list[Edge] = []
        for flow in self.graph.flows:
            n_bytes = self.graph.tensor[flow.tensor].n_bytes
            source, left = flow.writer, self._written(flow.writer, flow.tensor)
            if len(flow.readers) > 1:
                wanted = {need: None for reader in flow.readers for need in self._read(reader, flow.tensor)}
                layouts = [*dict.fromkeys((*left, *wanted))]
                source = len(node_cost)
                node_cost.append(np.zeros(len(layouts)))
                edges.append(Edge((flow.writer, source), self._between(left, layouts, n_bytes)))
                left = layouts
            for reader in flow.readers:
                edges.append(Edge((source, reader), self._between(left, self._read(reader, flow.tensor), n_bytes)))
        edges += self._ties()
        live, limit = self._memory()
        return StrategyProblem(tuple(node_cost), tuple(edges), live, limit)

    def _ties(self) -> Iterator[Edge]:
        """Yield a tie for each two neighbours among the operators of a cache, which all divide it alike or none."""
        for cache, ops in caches_with_users(self.graph).items():
            numbers = [self.graph.index[op.name] for op in ops]
            shards = [
                [shard_of_cache(op, one, cache) for one in self.strategies[n]]
                for op, n in zip(ops, numbers, strict=True)
            ]
            written = any(cache[1] in op.outputs for op in ops)
            for (a, ours), (b, theirs) in pairwise(zip(numbers, shards, strict=True)):
                alike = [[one == other and (written or one is None) for other in theirs] for one in ours]
                yield Edge((a, b), np.where(alike, 0.0, inf))

    def found(self, time_limit_s: float) -> Split | None:
        """Return the fastest split; None if it gains less than `LEAST_GAIN`."""
        result = solve_strategies(self.problem, time_limit_s)
        if result.choice is None:
            return None
        fits = self.problem.limit == inf
        if fits and result.objective > (1 - LEAST_GAIN) * float(self.seconds.sum()):
            return None
        chosen = zip(self.graph.ops, self.strategies, result.choice[: len(self.graph.ops)], strict=True)
        picked = {op.name: strategies[number] for op, strategies, number in chosen}
        return Split({name: (one.name, self.team.size) for name, one in picked.items() if one is not None})

    def _own_s(self, number: int) -> Floats:
        """Return [n_strategies], seconds of an operator, and of gathering its outputs for the caller."""
        op, whole_s, launch_s = self.graph.ops[number], float(self.seconds[number]), self.team.device.launch_s
        own = []
        for sharding in self.strategies[number]:
            part_s = min(launch_s, whole_s) + max(0.0, whole_s - launch_s) * self._share(number, sharding)
            part_s *= 1 + self.slowdown[number] if sharding else 1.0
            part_s = self.known.get((op.name, sharding.name), part_s) if sharding else part_s
            for name in ({*op.outputs} & {*self.graph.outputs}) - self._kept:
                part_s += self.team.relaid_s(_layout(op, sharding, name), WHOLE, self.graph.tensor[name].n_bytes)
            own.append(part_s)
        return np.array(own)

    @cached_property
    def _kept(self) -> frozenset[str]:
        """The successors of caches, which no caller gets."""
        return frozenset(after for _, after in self.graph.caches)

    def _share(self, number: int, sharding: Sharding | None) -> float:
        """Return the time of the largest part as a share of the whole operator's, by a roofline."""
        if sharding is None or sharding.name == REPLICATED or sharding.has_all_rows:
            return 1.0
        op, device = self.graph.ops[number], self.team.device
        share = max(stop - start for start, stop in shares(sharding.units, self.team.size)) / sharding.units
        shards = zip((*op.inputs, *op.outputs), (*sharding.inputs, *sharding.outputs), strict=True)
        sizes = [(self.graph.tensor[name].n_bytes, share if shard else 1.0) for name, shard in shards]
        flops_s = self._flop[number] / max(device.flops_per_s.values())
        whole_s = sum(n_bytes for n_bytes, _ in sizes) / device.memory_bytes_per_s
        part_s = sum(n_bytes * part for n_bytes, part in sizes) / device.memory_bytes_per_s
        largest = max(flops_s, whole_s)
        return max(share * flops_s, part_s) / largest if largest else 1.0

    @cached_property
    def _flop(self) -> Floats:
        return work_of(self.graph).flop

    def _written(self, number: int, tensor: str) -> list[Held]:
        op = self.graph.ops[number]
        return [_layout(op, sharding, tensor) for sharding in self.strategies[number]]

    def _read(self, number: int, tensor: str) -> list[Held]:
        """Return [n_strategies], the layout in which an operator reads a tensor; everywhere, if in several layouts."""
        op, needs = self.graph.ops[number], list[Held]()
        for sharding in self.strategies[number]:
            if sharding is None:
                needs.append(WHOLE)
                continue
            needed = {self._needed(op, sharding, number) for number, name in enumerate(op.inputs) if name == tensor}
            needs.append(needed.pop() if len(needed) == 1 else EVERYWHERE)
        return needs

    def _needed(self, op: Op, sharding: Sharding, number: int) -> Held:
        """Return the layout in which parts read one of their inputs."""
        shard, halo = sharding.inputs[number], sharding.halo
        if shard is None:
            return EVERYWHERE
        if halo is None or number or halo.window <= halo.stride:
            return shard
        return Overlapping(shard, (halo.window - halo.stride) / self.graph.tensor[op.inputs[0]].shape[shard.axis])

    def _between(self, written: Sequence[Held], read: Sequence[Held], n_bytes: float) -> Floats:
        return np.array([[self.team.relaid_s(one, other, n_bytes) for other in read] for one in written])

    def _memory(self) -> tuple[tuple[LiveRange, ...], float]:
        """Return the memory that parameters and buffers need on the first device, and its limit; nothing if all fit."""
        limit = self.team.device.usable_bytes
        usage = [self._held(op, strategies) for op, strategies in zip(self.graph.ops, self.strategies, strict=True)]
        if sum(float(each[0]) for each in usage) <= limit:
            return (), inf
        return tuple(LiveRange(number, 0, 1, each) for number, each in enumerate(usage) if each.any()), limit

    def _held(self, op: Op, strategies: Sequence[Sharding | None]) -> Floats:
        """Return [n_strategies], bytes of parameters and buffers that an operator reads on the first device."""
        state = [
            (number, tensor.n_bytes)
            for number, name in enumerate(op.inputs)
            if (tensor := self.graph.tensor[name]).role in STATE
        ]
        return np.array(
            [
                sum(n_bytes / (self.team.size if one and one.inputs[number] else 1) for number, n_bytes in state)
                for one in strategies
            ]
        )


def _layout(op: Op, sharding: Sharding | None, tensor: str) -> Held:
    """Return the layout of a tensor that an operator writes."""
    if sharding is None:
        return WHOLE
    shard = sharding.outputs[op.outputs.index(tensor)]
    return SUMMED if sharding.summed else shard or EVERYWHERE
