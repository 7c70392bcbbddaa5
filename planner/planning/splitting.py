"""Splits of a network between equal devices: the split network, the costs of its parts, and its plan side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from operator import attrgetter

import numpy as np

from costmodels.cluster.cluster import Cluster
from costmodels.operators.flops import roofline_s, work_of
from costmodels.table import SURE, CostTable, Source
from graphs.common.errors import InputError
from graphs.ir import Graph
from graphs.rewrites.choices import can_be_split, nearest_split
from graphs.rewrites.experts_apart import experts_apart
from graphs.rewrites.split import Origin, Split, part_number
from planner.planning.candidates import Candidate, best_of
from planner.planning.rewriting import AUTO_REWRITES, SPLIT, allows
from planner.planning.sharding_search import SplitSearch
from planner.planning.team import Team
from planner.plans.plan import PlacementTask, Plan
from planner.problem.bounds import lower_bound
from planner.problem.problem import Goal
from planner.problem.result import Status
from simulator.placement import Placement

ROUNDS = 3  # of choosing what to split
SPLITS_S = 2.0  # of a search for splits, at most
NAMED = 3  # kinds of operators in a message
PART_SPREAD = 0.2  # of the seconds of a part that was not measured


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
