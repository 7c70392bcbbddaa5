"""Copies of a network among which micro-batches take turns, for throughput: of everything, or of single stages.

::

    copies of everything          cpu0: micro-batches 0, 2, 4, ...        a device that is twice as fast gets twice as
                                  cpu1: micro-batches 1, 3, 5, ...        many; no tensor leaves its device

    copies of a stage             a on gpu0 ──► b on gpu1: 0, 2, 4, ...   where the memory holds no more, or a device
                                           └──► b on gpu2: 1, 3, 5, ...   cannot run everything
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise, product
from math import inf, lcm
from typing import TypeAlias

import numpy as np

from costmodels.table import CostTable
from planner.problem.bounds import lower_bound
from planner.problem.devices import alike
from planner.problem.problem import Problem
from planner.problem.result import Result
from simulator.placement import Placement

MOST_COPIES = 16
MANY = 8  # equal devices; more of them are divided into teams of one size only
MOST_DIVISIONS = 64  # whose bounds are compared
MOST_SOLVED = 3  # of them, those that promise most
ROUNDED = 6  # digits to which bounds are compared

Teams: TypeAlias = tuple[tuple[int, ...], ...]
"""A division of the devices: those of one team are alike, and run the same operators of micro-batches in turns."""


def copies_of_everything(problem: Problem, gap: float) -> Placement | None:
    """Return the fewest copies of the whole network that are within the gap of any number of them; None for one copy.

    Those on devices of one host share its cache, see `Placement.shared_copies`. Each micro-batch goes to the device
    that is through with it first, which is best for devices of any speeds (Graham, Bounds on multiprocessing timing
    anomalies, SIAM Journal on Applied Mathematics 1969, for equal ones).
    """
    table = problem.table.contended
    seconds = table.forward_s.sum(axis=0)
    roomy = table.placed_bytes.sum() + table.working_bytes <= table.capacity_bytes
    able = np.flatnonzero(np.isfinite(seconds) & roomy)
    if len(able) < 2:
        return None
    free_s, turns, period_s = np.zeros(len(able)), list[int](), list[float]()
    for number in range(1, MOST_COPIES + 1):
        first = int((free_s + seconds[able]).argmin())
        free_s[first] += seconds[able[first]]
        turns.append(int(able[first]))
        period_s.append(float(free_s.max()) / number)
    fewest = next(number for number, each_s in enumerate(period_s, 1) if each_s * (1 - gap) <= min(period_s))
    group_of = problem.table.contention_group
    groups = [able[group_of[able] == group].tolist() for group in np.unique(group_of)]
    ways = [turns[:fewest], *(group for group in groups if len(group) > 1)]
    found = [_in_turns([Placement((device,) * table.n_ops) for device in way]) for way in ways]
    best = min(found, key=lambda each: float(each.busy_s(each.costs(problem.table, streaming=True)).max()))
    return best if best.others else None


def copies_of_stages(
    problem: Problem, solve: Callable[[Problem], Result], reached_s: float, gap: float
) -> Iterator[Placement]:
    """Yield placements in which single stages have several copies. None has to be feasible.

    The devices are divided into teams. With each team as one fast device, the problem is one of a single copy.

    Args:
        problem: for throughput.
        solve: finds placements of one copy; asked at most `MOST_SOLVED` times.
        reached_s: seconds that another placement takes; only what may be faster by more than the gap is tried.
        gap: relative.
    """
    contended = replace(problem.contended, copies=False)
    bounds_s = {teams: _bound(contended, teams) for teams in islice(_divisions(contended.table), MOST_DIVISIONS)}
    least_s = min(bounds_s.values(), default=0.0) or 1.0
    promise = {
        teams: (round(bound_s / least_s, ROUNDED), *_reach(contended.table, teams))
        for teams, bound_s in bounds_s.items()
    }
    for teams in sorted(bounds_s, key=promise.__getitem__)[:MOST_SOLVED]:
        if not bounds_s[teams] < reached_s * (1 - gap):
            return
        found = solve(replace(contended, table=_of_teams(contended.table, teams)))
        if found.placement is not None:
            reached_s = min(reached_s, found.objective_s)
            yield _of_members(found.placement, teams)


def _in_turns(copies: Sequence[Placement]) -> Placement:
    return replace(copies[0], others=tuple(copies[1:]))


def _divisions(table: CostTable) -> Iterator[Teams]:
    """Yield divisions of the devices into teams, at least one of which has several members."""
    classes = alike(table)
    for division in product(*(_partitions(len(devices), MOST_COPIES) for devices in classes)):
        teams = tuple(team for part in map(_members, classes, division) for team in part)
        if any(len(team) > 1 for team in teams) and lcm(*map(len, teams)) <= MOST_COPIES:
            yield teams


def _partitions(n_devices: int, most: int) -> Iterator[tuple[int, ...]]:
    """Yield the sizes of teams of at most ``most`` equal devices, the largest team first.

    Many devices are divided into teams of one size, and what is left over into single devices.
    """
    if not n_devices:
        yield ()
    if n_devices > MANY:
        for size in range(1, min(most, n_devices) + 1):
            yield (size,) * (n_devices // size) + (1,) * (n_devices % size)
        return
    for size in range(min(most, n_devices), 0, -1):
        for others in _partitions(n_devices - size, size):
            yield (size, *others)


def _members(devices: Sequence[int], sizes: Sequence[int]) -> Teams:
    """Return the teams of these sizes. Neighbouring devices belong to one copy, so that a copy is on few hosts."""
    teams: list[list[int]] = [[] for _ in sizes]
    places = [team for copy in range(max(sizes)) for team, size in zip(teams, sizes, strict=True) if copy < size]
    for team, device in zip(places, devices, strict=True):
        team.append(device)
    return tuple(map(tuple, teams))


def _reach(table: CostTable, teams: Teams) -> tuple[float, int]:
    """Return the seconds of a mean tensor on the first copy's slowest link, and the number of copies."""
    typical_s = np.append(table.link_s.mean(axis=0) if len(table.flows) else table.link_latency_s, inf)
    first = [team[0] for team in teams]
    slowest_s = max((float(typical_s[table.link_class[ends]]) for ends in pairwise(first)), default=0.0)
    return slowest_s, lcm(*map(len, teams))


def _of_teams(table: CostTable, teams: Teams) -> CostTable:
    """Return the table with each team as one device, whose speed is multiplied by the number of members.

    A member of a team holds everything placed on the team, and takes its turn of the messages.
    """
    one_each = table.of_devices([team[0] for team in teams])
    sizes = np.asarray([len(team) for team in teams], dtype=float)
    linked = np.asarray([[all(table.linked[a, b] for a in src for b in dst) for dst in teams] for src in teams])
    return replace(
        one_each,
        forward_s=one_each.forward_s / sizes,
        overhead_s=one_each.overhead_s / sizes,
        link_class=np.where(linked, one_each.link_class, -1),
        channel=np.where(linked, one_each.channel, -1),
    )


def _bound(problem: Problem, teams: Teams) -> float:
    """Return a lower bound of the period over all placements on these teams."""
    return lower_bound(replace(problem, table=_of_teams(problem.table, teams)))


def _of_members(found: Placement, teams: Teams) -> Placement:
    """Return the placement on the members of the teams, which take micro-batches in turns."""
    used = [teams[team] for team in found.used]
    return _in_turns(
        [
            replace(found, device=tuple(teams[team][copy % len(teams[team])] for team in found.device))
            for copy in range(lcm(*map(len, used)))
        ]
    )
