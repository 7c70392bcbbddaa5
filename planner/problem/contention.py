"""What is proved for devices that are never idle, said of devices that pause while others still compute.

Solvers and linear bounds add up what operators take under contention. The evaluator counts contention only while there
is some (see `simulator.placement.Placement.costs`), so its times are shorter, the more so the less balanced a placement
is::

    device 0   ████████████████████████   slowed down for as long as device 1 computes
    device 1   ██████████████             always
                             ├─ idle ──┤  device 0 is quicker here
"""

from dataclasses import replace

import numpy as np

from costmodels.table import CostTable, Floats
from planner.problem.problem import Goal, Problem


def always_contended(problem: Problem) -> Problem:
    """The problem that solvers are given: no device is ever idle, and none is quicker alone."""
    return replace(problem, table=problem.table.contended)


def counts_pauses(problem: Problem) -> bool:
    """Whether the evaluator's times are other ones than those of `always_contended`, but for plans on one device."""
    return problem.goal is Goal.THROUGHPUT and bool(problem.table.slowdown.any())


def with_pauses(table: CostTable, least_s: float, contended_s: float) -> float:
    """What nothing streams faster than.

    Let M be the time of the busiest of n devices as if it never paused, ``L[d]`` what d computes of it, C the sum of
    all ``L``, and k the size of the group of d. The other devices have ``n M - C`` seconds less than M in sum, so d
    computes at most ``(n M - C) / (k - 1)`` of its seconds beyond the others of its group, on average, and at most all
    M. Where it does, it saves the share of its work that is due to contention; the operators with the largest shares
    that fill M seconds have the largest one. What is left of M is piecewise linear in M and has its least value at the
    smallest M there is, or at the one for which d has no contention at all.

    Args:
        table: with times under contention.
        least_s: at least the sum of what all devices compute, for any placement.
        contended_s: what nothing streams faster than if every device is always under contention.

    Returns:
        Seconds; ``contended_s`` at most.
    """
    n, bound_s = table.n_devices, contended_s
    if contended_s in (0.0, np.inf):
        return contended_s
    for device, size in _slowed_down(table):
        saved = _largest_share(table.forward_s[:, device], table.slowdown[:, device], contended_s)
        for busiest_s in (contended_s, max(contended_s, least_s / (n - size + 1))):
            spare_s = max(0.0, n * busiest_s - least_s)
            idle_s = min(busiest_s, spare_s / (size - 1)) if size > 1 else busiest_s
            bound_s = min(bound_s, busiest_s - saved * idle_s)
    return bound_s


def _slowed_down(table: CostTable) -> list[tuple[int, int]]:
    """A device of each kind that others slow down, and how many its group has."""
    sizes = 1 + table.contends.sum(axis=1)
    columns = np.concatenate([table.forward_s, table.slowdown, sizes[None, :]])
    _, first = np.unique(columns, axis=1, return_index=True)
    return [(d, int(sizes[d])) for d in sorted(first.tolist()) if table.slowdown[:, d].any()]


def _largest_share(forward_s: Floats, slowdown: Floats, busy_s: float) -> float:
    """Of operators that fill so many seconds, or of all if these are fewer, how much of it is due to contention at
    most.

    Args:
        forward_s: [n_ops], under contention.
        slowdown: [n_ops].
        busy_s: what they fill; the last one may be torn.
    """
    share = slowdown / (1 + slowdown)
    order = np.argsort(-share, kind="stable")
    order = order[np.isfinite(forward_s[order]) & (share[order] > 0)]
    taken_s = np.minimum(np.cumsum(forward_s[order]), busy_s)
    return float((np.diff(taken_s, prepend=0.0) * share[order]).sum() / busy_s)
