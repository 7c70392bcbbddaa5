"""One device for everything, which proofs rely on and plans are compared with; and devices that gain nothing."""

from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.table import CostTable
from planner.problem.bounds import one_device_bounds
from planner.problem.devices import alike
from planner.problem.evaluate import evaluate
from planner.problem.problem import Goal, Problem
from planner.solvers.base import objective_of
from simulator.placement import Placement

ROUNDING = 1e-12  # relative; sums of seconds in another order
MOST_MERGED = 16  # other devices that are tried, one after the other, to take over what a device does
MOST_JUDGED = 1_000_000  # operators and flows of all that are tried: a second or two


def worth_one_device(problem: Problem, enough_s: Callable[[], float]) -> Iterator[Placement]:
    """Every placement on one device that could be better than what is enough, the most promising first.

    One of each class of devices alike. What solvers prove of devices under contention does not hold for one alone, so
    every one that is not ruled out by its bound has to be judged. ``enough_s``, the seconds of the best placement so
    far, is asked for again and again.
    """
    bound_s = one_device_bounds(problem)
    first = [devices[0] for devices in _classes(problem.table)]
    for device in sorted(first, key=lambda device: bound_s[device]):
        if not bound_s[device] * (1 - ROUNDING) < enough_s():
            return
        yield Placement((device,) * problem.table.n_ops)


def best_single_device(problem: Problem) -> tuple[Placement, float] | None:
    """The best placement on one device and its objective; None if no device alone can run and hold everything."""
    judged: list[tuple[Placement, float]] = []
    for placement in worth_one_device(problem, lambda: min((seconds for _, seconds in judged), default=inf)):
        judged.append((placement, objective_of(problem, placement)))
    best = min(judged, key=lambda one: one[1], default=None)
    return best if best and best[1] < inf else None


def _classes(table: CostTable) -> tuple[tuple[int, ...], ...]:
    """Classes of devices that take the same for everything, the others idle."""
    numbers: list[NDArray[Any]] = [table.forward_s, table.backward_s, table.capacity_bytes]
    if table.update:
        numbers += [table.update.optimizer_s_per_byte, table.update.sync_s_per_byte, table.update.sync_latency_s]
    if table.offload:
        numbers += [table.offload.host]
    return alike(*numbers)


def on_fewer(problem: Problem, placement: Placement, most_s: float, stop: Callable[[], bool]) -> Placement:
    """The placement without the devices that it can do without: another one takes over all that a device does.

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
    """Placements on one device less that are worth a look, the most promising first."""
    load_s = evaluate(problem, placement).load_s
    device = np.asarray(placement.device)
    used = np.unique(device)
    seconds = problem.table.forward_s  # at least what it takes
    gone = int(used[np.argmin(load_s[used])])
    mine = device == gone
    taken_s = seconds[mine][:, used].sum(axis=0)
    most = min(MOST_MERGED, 1 + MOST_JUDGED // (problem.table.n_ops + len(problem.table.flows)))
    for other in np.argsort(load_s[used] + taken_s, kind="stable")[: most + 1].tolist():
        here_s = float(seconds[device == used[other], used[other]].sum() + taken_s[other])
        least_s = here_s if problem.goal is Goal.THROUGHPUT else 0.0
        if used[other] != gone and np.isfinite(taken_s[other]) and least_s <= most_s:
            yield Placement(tuple(np.where(mine, used[other], device).tolist()), placement.order)
