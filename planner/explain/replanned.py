"""What planning again would find: without a constraint, with another device, faster links, more memory."""

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
from planner.problem.constraints import Constraint
from planner.problem.result import Interrupted, NoPlanError
from simulator.training import TURNS_BACK

BACK = "zbv"  # of the schedules that turn back, the one that is asked about
NEARLY_FULL = 0.8  # of a device's memory; from there on more of it may help


@dataclass(frozen=True, slots=True)
class Price:
    """What a constraint costs.

    Attributes:
        constraint: in words.
        with_s: the best plan that is known with all constraints.
        without_s: the best that is found without this one; never more than with it.
    """

    constraint: str
    with_s: float
    without_s: float


@dataclass(frozen=True, slots=True)
class Replanned:
    """What searching once more brought. Times are what `Plan.predicted_s` says.

    Attributes:
        again_s: for the same question; below the plan's if the first search missed something.
        prices: of the constraints, in their order.
        helps: of devices, links and memory, beside what was found for the same question.
    """

    again_s: float
    prices: tuple[Price, ...]
    helps: tuple[Remedy, ...]


def replanned(plan: Plan, moves: Iterable[CutMove], search: Search) -> Replanned:
    """Search again, for everything in the time of one search.

    Args:
        plan: the plan; it stays the answer wherever nothing better is found.
        moves: those that were judged; one that is better but for the memory shows that memory binds.
        search: how to look; its time is divided equally.

    Raises:
        Interrupted: on Ctrl-C, with the answers until then.
    """
    without = [replace(plan, constraints=_but(plan.constraints, number)) for number in range(len(plan.constraints))]
    asked = list(_questions(plan, moves))
    found_s: list[float] = []
    try:
        for seconds in _answers([plan, *without, *(one.plan for one in asked)], search):
            found_s.append(seconds)  # those before Ctrl-C are kept
    except KeyboardInterrupt as stopped:
        raise Interrupted(_replanned(plan, asked, found_s)) from stopped
    return _replanned(plan, asked, found_s)


def _replanned(plan: Plan, asked: "Sequence[_Question]", found_s: Sequence[float]) -> Replanned:
    """What answers say: to the same question, then without each constraint, then those asked; the last may lack."""
    again_s = found_s[0] if found_s else plan.predicted_s
    free_s, helped_s = found_s[1 : 1 + len(plan.constraints)], found_s[1 + len(plan.constraints) :]
    helps = [
        Remedy(one.change, min(seconds, again_s), again_s, How.REPLANNED, one.remark)
        for one, seconds in zip(asked, helped_s, strict=False)
    ]
    if not plan.cluster.links:
        like, larger = _with_another(plan)
        helps.append(Remedy(f"one more device like {like}", larger.bound_s, lower_bound(plan.problem), How.BOUND))
    prices = [Price(str(c), again_s, min(s, again_s)) for c, s in zip(plan.constraints, free_s, strict=False)]
    return Replanned(again_s, tuple(prices), tuple(helps))


def _answers(plans: Sequence[Plan], search: Search) -> Iterator[float]:
    """The figures of the best plans that are found, or of those that there are."""
    share = replace(search, time_limit_s=search.time_limit_s / len(plans))
    for number, plan in enumerate(plans):
        search.reporter.on_step("planning again", number, len(plans))
        try:
            yield replan(plan, share).predicted_s
        except NoPlanError:
            yield inf


def _but(constraints: tuple[Constraint, ...], number: int) -> tuple[Constraint, ...]:
    """All but one."""
    return (*constraints[:number], *constraints[number + 1 :])


class _Question(NamedTuple):
    """What else could be planned for: in words, as a plan that can be replanned, and what there is to know besides."""

    change: str
    plan: Plan
    remark: str = ""


def _questions(plan: Plan, moves: Iterable[CutMove]) -> Iterator[_Question]:
    if plan.cluster.links:  # how one more device would be linked is known
        like, larger = _with_another(plan)
        remark = f"no plan would be below {format_seconds(larger.bound_s)}"
        yield _Question(f"one more device like {like}", larger, remark)
        faster = replace(plan.table, link_s=(plan.table.link_s + plan.table.link_latency_s) / 2)
        yield _Question("links of twice the bandwidth", replace(plan, table=faster))
    if full := _full(plan, moves):
        capacity_bytes = plan.table.capacity_bytes.copy()
        capacity_bytes[full] *= 2
        names = ", ".join(plan.table.devices[device] for device in full)
        roomier = replace(plan.table, capacity_bytes=capacity_bytes)
        yield _Question(f"twice the memory on {names}", replace(plan, table=roomier))
    idle = len(set(plan.placement.device)) < plan.table.n_devices
    if plan.workload.trains and idle and plan.workload.schedule not in TURNS_BACK:
        yield _Question(f"the schedule {BACK}", apply_changes(plan, Changes(schedule=BACK)), _shared(plan))


def _shared(plan: Plan) -> str:
    """Of the parameters that several operators read, the one whose readers are farthest apart; empty if there is none.

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


def _full(plan: Plan, moves: Iterable[CutMove]) -> list[int]:
    """Devices whose memory is nearly full, or keeps a better move out."""
    used = plan.evaluation.memory_bytes > NEARLY_FULL * plan.table.capacity_bytes
    used[[plan.cluster.index[moved.to] for _, moved in kept_out(plan, moves)]] = True
    full: list[int] = np.flatnonzero(used).tolist()
    return full


def _with_another(plan: Plan) -> tuple[str, Plan]:
    """The device of which one more lowers the bound the most, and the plan with it; one of each kind is tried."""
    firsts = {device.kind: device.name for device in reversed(plan.cluster.devices)}
    names = [device.name for device in plan.cluster.devices if device.name in firsts.values()]
    larger = {name: apply_changes(plan, Changes(added=((name, ""),))) for name in names}
    return min(larger.items(), key=lambda pair: pair[1].bound_s)
