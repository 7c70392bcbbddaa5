"""Planning again: without a constraint, with another device, with faster links, with more memory."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

import numpy as np

from costmodels.units import format_seconds
from graphs.ir import Role
from planner.explain.changes import Changes, apply_changes, replan
from planner.explain.what_if import CutMove, How, Remedy, kept_out
from planner.planning.make_plan import Search
from planner.plans.plan import Plan
from planner.problem.bounds import lower_bound
from planner.problem.result import Interrupted, NoPlanError
from simulator.training import TURNS_BACK

BACK = "zbv"  # the schedule that is tried of those that turn back
NEARLY_FULL = 0.8  # of a device's memory; above it, more memory may help


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a constraint."""

    constraint: str  # in words
    with_s: float  # of the best known plan with all constraints
    without_s: float  # of the best plan without this constraint, at most ``with_s``


@dataclass(frozen=True, slots=True)
class Replanned:
    """The results of searching again. Times are `Plan.predicted_s`."""

    again_s: float  # for the same problem; less than the plan's if the first search missed a better plan
    prices: tuple[Price, ...]  # in the order of the constraints
    helps: tuple[Remedy, ...]  # devices, links and memory, compared with ``again_s``


def replanned(plan: Plan, moves: Iterable[CutMove], search: Search) -> Replanned:
    """Search again, for everything in the time of one search.

    Args:
        plan: the answer wherever no better plan is found.
        moves: those that were evaluated; a better move that has no room shows that memory limits.
        search: how to search; its time is divided equally.

    Raises:
        Interrupted: on Ctrl-C, with the results so far.
    """
    constraints = plan.constraints
    without = [replace(plan, constraints=constraints[:i] + constraints[i + 1 :]) for i in range(len(constraints))]
    questions = list(_questions(plan, moves))
    found_s: list[float] = []
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
        raise Interrupted(_replanned(plan, questions, found_s)) from stopped
    return _replanned(plan, questions, found_s)


def _replanned(plan: Plan, questions: "Sequence[_Question]", found_s: Sequence[float]) -> Replanned:
    """The results from the times of the plan, of the plan without each constraint, and of the questions.

    After Ctrl-C, the last times are missing.
    """
    again_s = found_s[0] if found_s else plan.predicted_s
    free_s, helped_s = found_s[1 : 1 + len(plan.constraints)], found_s[1 + len(plan.constraints) :]
    helps = [
        Remedy(question.change, min(seconds, again_s), again_s, How.REPLANNED, question.remark)
        for question, seconds in zip(questions, helped_s, strict=False)
    ]
    if not plan.cluster.links:
        like, larger = _with_another(plan)
        helps.append(Remedy(f"one more device like {like}", larger.bound_s, lower_bound(plan.problem), How.BOUND))
    prices = [Price(str(c), again_s, min(s, again_s)) for c, s in zip(plan.constraints, free_s, strict=False)]
    return Replanned(again_s, tuple(prices), tuple(helps))


class _Question(NamedTuple):
    """Another problem to plan for."""

    change: str  # in words
    plan: Plan  # that is to be planned again
    remark: str = ""


def _questions(plan: Plan, moves: Iterable[CutMove]) -> Iterator[_Question]:
    if plan.cluster.links:  # else the links of one more device are unknown
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
    """A remark on the shared parameter whose readers are farthest apart; empty if no parameter is shared.

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
    """The device whose duplicate lowers the bound the most, and the plan with it; one device of each kind is tried."""
    firsts = {device.kind: device.name for device in reversed(plan.cluster.devices)}
    names = [device.name for device in plan.cluster.devices if device.name in firsts.values()]
    larger = {name: apply_changes(plan, Changes(added=((name, ""),))) for name in names}
    return min(larger.items(), key=lambda pair: pair[1].bound_s)
