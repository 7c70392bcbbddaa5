"""The critical path: the stages and transfers, without a gap, that one micro-batch waits for from start to end.

::

    cpu0       [conv1 ─────][branch1 ─────]........[cat]        conv1, x, branch2, y, cat: branch1 could take longer
    cpu0→cpu1               x┐                  ┌y
    cpu1       .............. [branch2 ────────]                cpu1 stands still before branch2: it waits for x
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from planner.explain.regions import Region, regions
from planner.plans.plan import Plan
from simulator.engine import run
from simulator.simulate import LoweredStep, lower, repeat
from simulator.stages import split_stages
from simulator.timeline import Kind

REGIONS = 3  # that describe a leg


@dataclass(frozen=True, slots=True)
class Leg:
    """One piece of the path: consecutive stages of one device, or one transfer."""

    kind: Kind  # compute or transfer
    resource: str  # name of the device, or "src → dst"
    ops: tuple[str, ...]  # names of the operators in the order in which they run; empty for a transfer
    tensor: str  # empty for stages
    holds: tuple[Region, ...]  # the operators by module; empty for a transfer
    start_s: float  # since the micro-batch began
    seconds: float  # until the next leg starts
    wait_s: float  # of the device before its stages, or of the tensor before its transfer


class _SteadyRun(NamedTuple):
    """The steps of one micro-batch with the seconds at which they start and end."""

    steps: Sequence[LoweredStep]
    start_s: Sequence[float]
    end_s: Sequence[float]


def critical_path(plan: Plan) -> tuple[Leg, ...]:
    """The legs, which follow each other without a gap and end with the last stage; their seconds sum to the latency."""
    table = plan.costs
    steps = lower(table, plan.placement)
    start_s = run(repeat(steps, 1))
    end_s = [start + step.task.duration_s for start, step in zip(start_s, steps, strict=True)]
    timed = _SteadyRun(steps, start_s, end_s)
    stages = split_stages(table, plan.placement)
    legs: list[Leg] = []
    for (kind, resource), group in groupby(_walk(timed), lambda number: (steps[number].kind, steps[number].resource)):
        for numbers in [list(group)] if kind == "compute" else [[number] for number in group]:
            first, last = numbers[0], numbers[-1]
            ops = [op for number in numbers if kind == "compute" for op in stages[steps[number].index].ops]
            legs.append(
                Leg(
                    kind=kind,
                    resource=resource,
                    ops=tuple(table.ops[op] for op in ops),
                    tensor="" if ops else steps[first].task.name,
                    holds=regions(plan.graph, ops, REGIONS),
                    start_s=start_s[first],
                    seconds=end_s[last] - start_s[first],
                    wait_s=_wait_s(timed, first),
                )
            )
    return tuple(legs)


def _walk(timed: _SteadyRun) -> Iterator[int]:
    """The steps of the path from the first to the last."""
    number: int | None = max(range(len(timed.steps)), key=timed.end_s.__getitem__, default=None)
    path: list[int] = []
    while number is not None:
        path.append(number)
        number = _blocker(timed, number)
    return reversed(path)


def _blocker(timed: _SteadyRun, number: int) -> int | None:
    """A step whose end let this step start, if possible one of the same resource; None at the start of the path.

    A step starts when the last of its needs has ended, or when its resource has become free. A step of no duration
    occupies no resource, so every call goes back in time or along needs, and the walk ends.
    """
    step, start_s = timed.steps[number], timed.start_s[number]
    if start_s == 0:
        return None
    ended = [need for need in step.task.needs if timed.end_s[need] == start_s] or [
        other
        for other, before in enumerate(timed.steps)
        if timed.end_s[other] == start_s
        and before.task.duration_s
        and not set(before.task.resources).isdisjoint(step.task.resources)
    ]
    return next((other for other in ended if timed.steps[other].resource == step.resource), ended[0])


def _wait_s(timed: _SteadyRun, number: int) -> float:
    """For a stage, the time that its device was idle before; for a transfer, the time that its tensor waited."""
    step, start_s = timed.steps[number], timed.start_s[number]
    if step.kind == "transfer":
        return start_s - max(timed.end_s[need] for need in step.task.needs)
    (device,) = step.task.resources
    ends_s = (
        timed.end_s[other]
        for other, before in enumerate(timed.steps)
        if other != number and device in before.task.resources and timed.end_s[other] <= start_s
    )
    return start_s - max(ends_s, default=0.0)
