"""The choice of operators to split among equal devices, so that one sample passes the network sooner.

::

    strategies of an operator       whole on the first device, or divided by one of its shardings, part i on device i
    their costs                     the seconds of the largest part
    costs of neighbours together    the seconds to bring a tensor from the writer's layout into the reader's

The devices compute one operator after the other in step, so that seconds add up. One strategy is chosen for each
operator, with a bound (Alpa's problem: Zheng et al., OSDI 2022); the split network is then planned like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import inf
from operator import attrgetter

import numpy as np

from costmodels.cluster.cluster import Cluster
from costmodels.operators.flops import roofline_s, work_of
from costmodels.table import SURE, CostTable, Source
from graphs.common.arrays import Floats
from graphs.common.errors import InputError
from graphs.ir import STATE, Graph, Op
from graphs.rewrites.cache_shardings import caches_with_users, shard_of_cache
from graphs.rewrites.choices import can_be_split, nearest_split
from graphs.rewrites.experts_apart import experts_apart
from graphs.rewrites.network_shardings import network_shardings
from graphs.rewrites.sharding import REPLICATED, Sharding, shares
from graphs.rewrites.split import Origin, Split, part_number
from planner.planning.candidates import Candidate, best_of
from planner.planning.rewriting import AUTO_REWRITES, SPLIT, allows
from planner.planning.team import EVERYWHERE, SUMMED, WHOLE, Held, Overlapping, Team
from planner.plans.plan import PlacementTask, Plan
from planner.problem.bounds import lower_bound
from planner.problem.problem import Goal
from planner.problem.result import Status
from planner.problem.strategies import Edge, LiveRange, StrategyProblem
from planner.solvers.strategies.solve import solve_strategies
from simulator.placement import Placement

LEAST_GAIN = 0.02  # of the seconds of all operators, for which a network is split
ROUNDS = 3  # of choosing what to split
SPLITS_S = 2.0  # of a search for splits, at most
NAMED = 3  # kinds of operators in a message
PART_SPREAD = 0.2  # of the seconds of a part that was not measured


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


def side_by_side(split: Graph, team: Team) -> tuple[int, ...]:
    """Return [n_ops], part i of each operator on device i, other operators on the device of their first reader."""
    place: dict[str, int] = {}
    wanted: dict[str, int] = {}  # tensor -> the place of an operator that reads it
    for op in reversed(split.ops):
        part = part_number(op.name)
        read_at = next((wanted[name] for name in op.outputs if name in wanted), 0)
        place[op.name] = read_at if part is None else part
        wanted.update(dict.fromkeys(op.inputs, place[op.name]))
    return tuple(team.numbers[place[op.name]] for op in split.ops)


@dataclass(frozen=True)
class Splits:
    """A split network, with the costs that are known from the whole one."""

    split: Split  # the rewrite
    graph: Graph  # the split network
    parts: Mapping[str, Origin]  # where its operators come from
    whole: Graph  # the network as it would be planned for without splits, perhaps fused
    table: CostTable  # costs of the whole network
    search: SplitSearch  # what found the split

    @classmethod
    def of(
        cls, graph: Graph, whole: Graph, table: CostTable, cluster: Cluster, time_limit_s: float = inf
    ) -> Splits | None:
        """Return the splits of a network; None if they do not pay. ``whole``, perhaps fused, has the ``table``."""
        search = SplitSearch.of(graph, whole, table, cluster)
        return cls.found(search, whole, table, time_limit_s) if search else None

    @classmethod
    def found(cls, search: SplitSearch, whole: Graph, table: CostTable, time_limit_s: float) -> Splits | None:
        """Return the splits that a search finds; None if they do not pay."""
        split = search.found(time_limit_s)
        if split is None or not split.choices:
            return None
        applied = split.applied(search.graph)
        return cls(split, applied.graph, applied.parts, whole, table, search)

    def again(self, graph: Graph, table: CostTable, time_limit_s: float) -> Splits | None:
        """Return the splits that pay with the known costs of these parts; None if nothing changes.

        Args:
            graph: the split network, perhaps fused.
            table: its costs.
            time_limit_s: of the search.
        """
        taken_s: dict[str, float] = dict.fromkeys(self.split.choices, 0.0)
        together = (table.forward_s * (1 + table.slowdown))[:, self.search.team.numbers[0]]
        for op, seconds in zip(graph.ops, together.tolist(), strict=True):
            origin = self.parts.get(op.name)
            if origin and origin.op in taken_s:
                taken_s[origin.op] = max(taken_s[origin.op], seconds)
        own = {(name, sharding): taken_s[name] for name, (sharding, _) in self.split.choices.items()}
        search = replace(self.search, known={**self.search.known, **own})
        found = self.found(search, self.whole, self.table, time_limit_s)
        return found if found and found.split != self.split else None

    def with_costs(self, divided: PlacementTask) -> PlacementTask:
        """Return the task of the split network with costs that follow from those of the whole one."""
        return with_costs_of_parts(divided, self.parts, self.whole, self.table)

    def in_step(self, divided: PlacementTask) -> Plan:
        """Return a plan for the split network with the parts side by side."""
        placement = Placement(side_by_side(divided.graph, self.search.team))
        return divided.plan(placement, Status.FEASIBLE, SPLIT, lower_bound(divided.problem))


def with_costs_of_parts(
    divided: PlacementTask, parts: Mapping[str, Origin], graph: Graph, known: CostTable
) -> PlacementTask:
    """Return the task of a split network, in which unmeasured parts take their share of the measured whole.

    The share is that of a roofline: operators in parts are seldom quite as fast as the whole.

    Args:
        divided: the task of the split network.
        parts: where its operators come from.
        graph: the whole network, perhaps fused.
        known: its costs.
    """
    table = divided.table
    forward_s, source, spread = table.forward_s.copy(), table.source.copy(), table.spread.copy()
    slowdown = table.slowdown.copy()
    group_of = {member.name: number for number, op in enumerate(graph.ops) for member in op.members or (op,)}
    work = work_of(divided.graph), work_of(graph)
    for device_number, device in enumerate(divided.cluster.devices):
        part_s, whole_s = (roofline_s(each, device) for each in work)
        for number, op in enumerate(divided.graph.ops):
            part = parts.get(op.name)
            at = (group_of[part.op] if part else 0), device_number
            if not part or known.source[at] not in SURE or source[number, device_number] in SURE:
                continue
            share = min(1.0, float(part_s[number] / whole_s[at[0]])) if whole_s[at[0]] else 1.0
            here = number, device_number
            forward_s[here], slowdown[here] = share * known.forward_s[at], known.slowdown[at]
            source[here], spread[here] = Source.LEARNED, PART_SPREAD
    contention = table.contention and replace(table.contention, slowdown=slowdown, copies_slowdown=slowdown)
    costs = replace(table, forward_s=forward_s, source=source, spread=spread, contention=contention)
    return replace(divided, table=costs)


def best_in_step(splits: Splits, task: Callable[[Graph, Split], PlacementTask], time_limit_s: float) -> Plan:
    """Return the best plan with parts side by side: of these splits, or of those that pay with known costs of parts.

    Args:
        splits: the first ones.
        task: makes the task of a split, whose network is given.
        time_limit_s: of each search.
    """
    plans: list[Plan] = []
    for _ in range(ROUNDS):
        plans.append(splits.in_step(splits.with_costs(task(splits.graph, splits.split))))
        if not np.isin(plans[-1].table.source, list(SURE)).any():
            break  # nothing but a part's roofline is known
        again = splits.again(plans[-1].graph, plans[-1].table, time_limit_s)
        if again is None:
            break
        splits = again
    return best_of(map(Candidate, plans)) or min(plans, key=attrgetter("predicted_s"))


def splits_for(asked: str, graph: Graph, whole: PlacementTask, time_limit_s: float) -> Splits | None:
    """Return the splits of a network for a task; None if no split pays.

    "auto" splits for latency, and where an operator is larger than every device.

    Raises:
        InputError: if the user names the split, and there is training or there are constraints.
    """
    if not allows(asked, SPLIT):
        return None
    problem = "the goal is training" if whole.workload.trains else "there are constraints" if whole.constraints else ""
    if problem and asked != AUTO_REWRITES:
        raise InputError(f"the rewrite 'split' is for inference without constraints, and {problem}; leave it out")
    largest = float(whole.table.op_bytes.max(initial=0.0)) > float(whole.table.capacity_bytes.max())
    if asked != AUTO_REWRITES and len(whole.cluster.devices) > 1:
        _check_team(graph, whole.cluster)
        if not any(can_be_split(graph, op) for op in graph.ops):
            kinds = ", ".join(sorted({op.kind for op in graph.ops})[:NAMED])
            nothing = f"no operator of '{graph.name}' can be split ({kinds})"
            raise InputError(f"the rewrite 'split' changes nothing: {nothing}; leave it out")
    if problem or (asked == AUTO_REWRITES and whole.goal is not Goal.LATENCY and not largest):
        return None
    return Splits.of(graph, whole.graph, whole.table, whole.cluster, time_limit_s)


def too_large_to_split(whole: PlacementTask) -> str:
    """Return the end of a message on an operator that fits no device and cannot be split; empty if there is none."""
    large = np.flatnonzero(whole.table.op_bytes > whole.table.capacity_bytes.max())
    for op in (whole.graph.ops[number] for number in large.tolist()):
        if not op.members and not can_be_split(whole.graph, op):
            return f"; '{op.name}' ({op.kind}) cannot be split, {nearest_split(whole.graph, op)}"
    return ""


def _check_team(graph: Graph, cluster: Cluster) -> None:
    """Raise InputError if there are no experts, and no equal devices with links, for which operators could be split."""
    if Team.of(cluster) is not None or experts_apart(graph, 2) is not None:
        return
    kinds: dict[str, str] = {}
    for device in cluster.devices:
        if (other := kinds.setdefault(device.kind, device.name)) != device.name:
            raise InputError(
                f"the rewrite 'split' divides operators between equal devices, and no links lead from '{other}' to "
                f"'{device.name}' and back; add a [[link]] to cluster.toml, or leave the rewrite out"
            )
    raise InputError(
        f"the rewrite 'split' divides operators between equal devices, and all devices of '{cluster.name}' are of "
        "different kinds; leave it out"
    )
