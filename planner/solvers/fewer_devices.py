"""Placements on one device, and on one device less: what a search tries before and after its solvers."""

from collections.abc import Callable, Iterator
from math import inf

import numpy as np

from planner.problem.bounds import one_device_bounds
from planner.problem.devices import alike
from planner.problem.evaluate import evaluate
from planner.problem.problem import Goal, Problem
from planner.solvers.base import objective_of
from simulator.placement import Placement

ROUNDING = 1e-12  # relative; sums of seconds in another order
MOST_MERGED = 16  # devices that are tried one by one to take over the work of another one
MOST_JUDGED = 1_000_000  # operators and flows of all placements that are tried: a second or two


def worth_one_device(problem: Problem, enough_s: Callable[[], float]) -> Iterator[Placement]:
    """Yield every placement on one device that could be better than the best one so far, the most promising first.

    It tries one device of each class of equal devices. Solvers prove bounds for contended devices only, so every single
    device that its own bound does not exclude must be evaluated. ``enough_s`` returns the seconds of the best placement
    so far, and is called before each device.
    """
    bound_s = one_device_bounds(problem)
    first = [devices[0] for devices in alike(problem.table)]
    for device in sorted(first, key=lambda device: bound_s[device]):
        if not bound_s[device] * (1 - ROUNDING) < enough_s():
            return
        yield Placement((device,) * problem.table.n_ops)


def best_single_device(problem: Problem) -> tuple[Placement, float] | None:
    """Return the best placement on one device and its objective; None if no device can run and hold everything."""
    judged: list[tuple[Placement, float]] = []
    for placement in worth_one_device(problem, lambda: min((seconds for _, seconds in judged), default=inf)):
        judged.append((placement, objective_of(problem, placement)))
    best = min(judged, key=lambda one: one[1], default=None)
    return best if best and best[1] < inf else None


def on_fewer(problem: Problem, placement: Placement, most_s: float, stop: Callable[[], bool]) -> Placement:
    """Return the placement with fewer devices, if another device can take over all of a device's work.

    The least busy device goes first, to whichever of the others is then the least busy, as long as the objective is no
    more than ``most_s``.
    """
    while len(set(placement.device)) > 1:
        for fewer in _merged(problem, placement, most_s):
            if stop():
                return placement
            if objective_of(problem, fewer) <= most_s:
                placement = fewer
                break
        else:
            break
    return placement


def _merged(problem: Problem, placement: Placement, most_s: float) -> Iterator[Placement]:
    """Yield promising placements on one device less, the best first."""
    load_s = evaluate(problem, placement).load_s
    device = np.asarray(placement.device)
    used = np.unique(device)
    seconds = problem.table.forward_s  # a lower bound of the times
    gone = int(used[np.argmin(load_s[used])])
    mine = device == gone
    taken_s = seconds[mine][:, used].sum(axis=0)
    most = min(MOST_MERGED, 1 + MOST_JUDGED // (problem.table.n_ops + len(problem.table.flows)))
    for other in np.argsort(load_s[used] + taken_s, kind="stable")[: most + 1].tolist():
        here_s = float(seconds[device == used[other], used[other]].sum() + taken_s[other])
        least_s = here_s if problem.goal is Goal.THROUGHPUT else 0.0
        if used[other] != gone and np.isfinite(taken_s[other]) and least_s <= most_s:
            yield Placement(tuple(np.where(mine, used[other], device).tolist()), placement.order)
