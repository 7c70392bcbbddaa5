"""Find what would help: remedies for this very placement, and plans from a new search.

A placement is evaluated again with free transfers, more memory or more in flight. A search is repeated without a
constraint, with another device, faster links or more memory.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from typing import NamedTuple

import numpy as np

from costmodels.memory.device import lasting_bytes
from costmodels.units import format_bytes, format_seconds
from graphs.ir import Role
from planner.explanations.changes import Changes, apply_changes, replan
from planner.explanations.cuts import CutMove
from planner.planning.make_plan import Search
from planner.plans.plan import STEADY_ROUNDS, Plan
from planner.problem.bounds import lower_bound
from planner.problem.evaluate import MEMORY_TOLERANCE, evaluate, memory
from planner.problem.problem import Goal
from planner.problem.result import Interrupted, NoPlanError
from simulator.simulate import simulate
from simulator.training import TURNS_BACK

NOTICEABLE = 1e-3  # relative; smaller differences are ignored


class Method(StrEnum):
    """How a figure was computed."""

    BOUND = "bound"  # `planner.problem.bounds.lower_bound`: no plan is below it, but perhaps none reaches it
    JUDGED = "same placement"  # `planner.evaluate` of this placement with other costs
    SIMULATED = "simulated"  # a stream of micro-batches through this placement
    REPLANNED = "planned again"  # the best placement with other costs, see `planner.explanations.what_if`


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change, apart from the placement, and what it would bring."""

    change: str  # in words
    seconds: float  # with the change
    now_s: float  # without the change
    how: Method  # how both times were computed
    remark: str = ""


def helps(plan: Plan, moves: Iterable[CutMove]) -> tuple[Remedy, ...]:
    """Remedies for this very placement: free transfers, memory for a move, more micro-batches in flight.

    Of the ``moves`` that were evaluated, a better one that has no room shows that memory limits.
    """
    remedies, table = [], plan.problem.table
    if plan.n_used > 1:
        link_s, latency_s, overhead_s = map(np.zeros_like, (table.link_s, table.link_latency_s, table.overhead_s))
        free = replace(table, link_s=link_s, link_latency_s=latency_s, overhead_s=overhead_s)
        free_s = evaluate(replace(plan.problem, table=free), plan.placement).objective_s
        remedies.append(Remedy("transfers that cost nothing", free_s, plan.objective_s, Method.JUDGED))
    if barred := kept_out(plan, moves):
        objective_s, moved = min(barred, key=lambda pair: pair[0])
        change = f"more memory on {moved.to}, for {moved.op}"
        remedies.append(Remedy(change, objective_s, plan.objective_s, Method.JUDGED, moved.obstacle))
    if plan.minimised is Goal.THROUGHPUT and plan.period_s > plan.objective_s * (1 + NOTICEABLE):
        remedies.append(_more_in_flight(plan))
    return tuple(remedies)


def kept_out(plan: Plan, moves: Iterable[CutMove]) -> list[tuple[float, CutMove]]:
    """Return the moves that would improve the objective if there was memory for them, with that objective."""
    return [
        (moved.objective_s, moved)
        for moved in moves
        if moved.roomless and moved.objective_s is not None and moved.objective_s < plan.objective_s * (1 - NOTICEABLE)
    ]


def _more_in_flight(plan: Plan) -> Remedy:
    """Return twice the micro-batches in flight; in generation, twice the sequences, with caches of their own."""
    table, now = plan.costs, plan.workload.in_flight
    twice = 2 * now
    period_s = simulate(table, plan.placement, STEADY_ROUNDS * twice, twice).period_s
    cached = now * lasting_bytes(plan.graph)
    roomier = replace(table, working_bytes=2 * table.working_bytes, op_bytes=table.op_bytes + cached)
    full = memory(roomier, plan.placement) > table.capacity_bytes * (1 + MEMORY_TOLERANCE)
    remark = f"{format_bytes(table.working_bytes)} more on each device"
    if cached.any():
        remark += f", and {format_bytes(cached.sum())} of caches"
    if full.any():
        remark += f", for which '{table.devices[int(full.argmax())]}' has no room"
    what = "groups of sequences" if plan.workload.generates else "micro-batches in flight"
    change = f"{twice} {what}, not {now}"
    return Remedy(change, period_s, plan.period_s, Method.SIMULATED, remark)


BACK = "zbv"  # the schedule that is tried of those that turn back
NEARLY_FULL = 0.8  # of a device's memory; above it, more memory may help


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a constraint."""

    constraint: str  # in words
    with_s: float  # of the best known plan with all constraints
    without_s: float  # of the best plan without this constraint, at most ``with_s``


@dataclass(frozen=True, slots=True)
class SecondSearch:
    """The results of searching again. Times are `Plan.predicted_s`."""

    again_s: float  # for the same problem; less than the plan's if the first search missed a better plan
    prices: tuple[Price, ...]  # in the order of the constraints
    helps: tuple[Remedy, ...]  # devices, links and memory, compared with ``again_s``


def replanned(plan: Plan, moves: Iterable[CutMove], search: Search) -> SecondSearch:
    """Search again, for everything in the time of one search, which is divided equally; ``moves`` are those of `helps`.

    The plan is the answer wherever no better one is found. Raise Interrupted on Ctrl-C, with the results so far.
    """
    constraints = plan.constraints
    without = [replace(plan, constraints=constraints[:i] + constraints[i + 1 :]) for i in range(len(constraints))]
    questions = list(_questions(plan, moves))
    found_s: list[float] = []  # after Ctrl-C, the last times are missing
    interruption: KeyboardInterrupt | None = None
    plans = [plan, *without, *(question.plan for question in questions)]
    share = search.part(1 / len(plans))
    try:
        for number, another in enumerate(plans):
            search.reporter.on_step("planning again", number, len(plans))
            try:
                found_s.append(replan(another, share).predicted_s)  # kept on Ctrl-C
            except NoPlanError:
                found_s.append(inf)
    except KeyboardInterrupt as stopped:
        interruption = stopped
    again_s = found_s[0] if found_s else plan.predicted_s
    free_s, helped_s = found_s[1 : 1 + len(constraints)], found_s[1 + len(constraints) :]
    helps = [
        Remedy(question.change, min(seconds, again_s), again_s, Method.REPLANNED, question.remark)
        for question, seconds in zip(questions, helped_s, strict=False)
    ]
    if not plan.cluster.link:
        like, larger = _with_another(plan)
        helps.append(Remedy(f"one more device like {like}", larger.bound_s, lower_bound(plan.problem), Method.BOUND))
    prices = [Price(str(c), again_s, min(s, again_s)) for c, s in zip(constraints, free_s, strict=False)]
    result = SecondSearch(again_s, tuple(prices), tuple(helps))
    if interruption is not None:
        raise Interrupted(result) from interruption
    return result


class _Question(NamedTuple):
    """Another problem to plan for."""

    change: str  # in words
    plan: Plan  # that is to be planned again
    remark: str = ""


def _questions(plan: Plan, moves: Iterable[CutMove]) -> Iterator[_Question]:
    if plan.cluster.link:  # else the links of one more device are unknown
        like, larger = _with_another(plan)
        remark = f"no plan would be below {format_seconds(larger.bound_s)}"
        yield _Question(f"one more device like {like}", larger, remark)
        faster = replace(plan.table, link_s=(plan.table.link_s + plan.table.link_latency_s) / 2)
        yield _Question("links of twice the bandwidth", replace(plan, table=faster))
    used = plan.evaluation.memory_bytes > NEARLY_FULL * plan.table.capacity_bytes
    used[[plan.cluster.index[moved.to] for _, moved in kept_out(plan, moves)]] = True
    if full := np.flatnonzero(used).tolist():  # nearly, or so full that it prevents a better move
        capacity_bytes = plan.table.capacity_bytes.copy()
        capacity_bytes[full] *= 2
        names = ", ".join(plan.table.devices[device] for device in full)
        roomier = replace(plan.table, capacity_bytes=capacity_bytes)
        yield _Question(f"twice the memory on {names}", replace(plan, table=roomier))
    if plan.workload.trains and plan.n_used < plan.table.n_devices and plan.workload.schedule not in TURNS_BACK:
        yield _Question(f"the schedule {BACK}", apply_changes(plan, Changes(schedule=BACK)), _shared(plan))


def _shared(plan: Plan) -> str:
    """Return a remark on the shared parameter whose readers are farthest apart; empty if no parameter is shared.

    Its readers share a device, and most schedules do not come back to a device that a micro-batch has left.
    """
    readers: dict[str, list[int]] = {}
    for number, op in enumerate(plan.graph.ops):
        for name in op.inputs:
            if plan.graph.tensor[name].role is Role.PARAMETER:
                readers.setdefault(name, []).append(number)
    spans = {name: ops[-1] - ops[0] for name, ops in readers.items()}
    farthest = max(spans, key=spans.__getitem__, default="")
    if not spans.get(farthest):
        return ""
    first, last = (plan.graph.ops[readers[farthest][end]].name for end in (0, -1))
    return f"{first} and {last} share '{farthest}' and so a device, to which {BACK} comes back"


def _with_another(plan: Plan) -> tuple[str, Plan]:
    """Return the device whose duplicate lowers the bound the most, and its plan; tries one device of each kind."""
    firsts = {device.kind: device.name for device in reversed(plan.cluster.devices)}
    names = [device.name for device in plan.cluster.devices if device.name in firsts.values()]
    larger = {name: apply_changes(plan, Changes(added=((name, ""),))) for name in names}
    return min(larger.items(), key=lambda pair: pair[1].bound_s)
