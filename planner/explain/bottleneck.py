"""The bottleneck: what the goal's seconds are made of."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from planner.explain.critical_path import Leg, critical_path
from planner.explain.regions import TimeShare, parts
from planner.plans.plan import Plan
from planner.problem.bottleneck import Busiest, busiest
from planner.problem.problem import Goal

TRANSFERS = "sending and receiving"
WAITING = "waiting, sending and receiving"
NEGLIGIBLE = 1e-9  # relative; what is left of a sum after rounding


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What limits a plan."""

    kind: Literal["device", "link", "path", "total"]  # device or link for throughput, path for latency
    names: tuple[str, ...]  # the device; the links that share the busiest channel; the devices of the critical path
    seconds: float  # the objective
    parts: tuple[TimeShare, ...]  # the largest first: operators by module, and transfers; the tensors of a link
    path: tuple[Leg, ...] = ()  # the legs of the critical path; empty for other kinds


def bottleneck(plan: Plan) -> Bottleneck:
    """The busiest device or channel, of several the first; or the critical path; or everything that costs."""
    if plan.goal is Goal.LATENCY:
        return _path(plan)
    if plan.goal is Goal.COST:
        used = tuple(plan.table.devices[device] for device in sorted(set(plan.placement.device)))
        return Bottleneck("total", used, plan.objective_s, _parts(plan, range(plan.table.n_ops)))
    if plan.goal is Goal.TRAINING:
        return _training(plan)
    busy = busiest(plan.problem, plan.placement)
    if busy.device is None:
        return _channel(plan, busy)
    ops = [op for op, device in enumerate(plan.placement.device) if device == busy.device]
    return Bottleneck("device", (plan.table.devices[busy.device],), busy.seconds, _parts(plan, ops))


def _path(plan: Plan) -> Bottleneck:
    path = critical_path(plan)
    devices = dict.fromkeys(leg.resource for leg in path if leg.kind == "compute")
    ops = [plan.graph.index[op] for leg in path for op in leg.ops]
    return Bottleneck("path", tuple(devices), plan.objective_s, _parts(plan, ops), path)


def _training(plan: Plan) -> Bottleneck:
    """The device that computes the longest, and how long it waits."""
    table, placed = plan.costs, np.asarray(plan.placement.device)
    step_s = plan.workload.micro_batches * (table.forward_s + table.backward_s)[np.arange(table.n_ops), placed]
    busy_s = np.bincount(placed, weights=step_s, minlength=table.n_devices)
    busiest = int(busy_s.argmax())
    seconds = {int(op): float(step_s[op]) for op in np.flatnonzero(placed == busiest)}
    return Bottleneck("device", (table.devices[busiest],), plan.objective_s, _shares(plan, seconds, WAITING))


def _channel(plan: Plan, busy: Busiest) -> Bottleneck:
    """The links that share a channel, and the tensors on them."""
    table = plan.table
    sent: list[TimeShare] = []
    for flow, src, dst in plan.placement.cuts(table):
        if (src, dst) in busy.links:
            seconds = table.send_s(flow, src, dst)
            sent.append(TimeShare(table.flows[flow].tensor, seconds, seconds / busy.seconds, 0))
    names = tuple(busy.link_names(table.devices))
    return Bottleneck("link", names, busy.seconds, tuple(sorted(sent, key=lambda part: -part.seconds)))


def _parts(plan: Plan, ops: Iterable[int]) -> tuple[TimeShare, ...]:
    """What operators take where they run; what is left of the total went into transfers."""
    return _shares(plan, {op: float(plan.costs.forward_s[op, plan.placement.device[op]]) for op in ops}, TRANSFERS)


def _shares(plan: Plan, seconds: Mapping[int, float], rest: str) -> tuple[TimeShare, ...]:
    """Operators with their seconds by module, and what is left of the objective."""
    total_s = plan.objective_s
    found = [replace(part, share=part.seconds / total_s if total_s else 0.0) for part in parts(plan.graph, seconds)]
    rest_s = total_s - sum(seconds.values())
    if rest_s > NEGLIGIBLE * total_s:
        found.append(TimeShare(rest, rest_s, rest_s / total_s, 0))
    return tuple(sorted(found, key=lambda part: -part.seconds))
