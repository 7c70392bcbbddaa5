"""Chain DP: cuts a line of all operators into intervals, one for each device, and minimises the busiest device."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, permutations, product
from math import inf, prod
from typing import NamedTuple

import numpy as np

from costmodels.table import CostTable
from graphs.common.arrays import Floats, Ints
from planner.problem.blocks import merge_blocks
from planner.problem.devices import alike, interchangeable, uniform_links
from planner.problem.problem import Goal, Problem
from planner.solvers.base import Answer, Budget, Incumbent
from planner.solvers.boundary import boundary_costs
from planner.solvers.dp.chains.chain import ENTERS, LEAVES, Chain, chains, with_places
from simulator.placement import Placement

MOST_STATES = 256  # of a route over sets of devices; with more, devices are in fixed sequences
MOST_COSTS = 50_000  # places of cuts times devices; with more, a sweep over the line takes seconds
MOST_PERMUTED = 4  # devices that are tried in every sequence
SHARE = 0.5  # of the time limit that the work may take; the rest is for slower machines
END_S, STEP_S, CELL_S = 3e-5, 3e-5, 2e-9
"""Seconds of a place on the line, of a leg that ends there, and of an interval and state of the leg; at 2.5 GHz."""
GROWTH = (1.01, 1.05, 1.2, 1.6, 3.0)  # limits to try first, in multiples of the lower bound


class NextDevices(NamedTuple):
    """Devices of one kind, of which one takes the next interval, and the tariffs of its traffic."""

    devices: tuple[int, ...]  # their capacities, times and overheads are equal
    enters: int  # which of the `Chain.tariffs` applies to traffic that enters, or -1 if it costs nothing
    leaves: int  # the same for traffic that leaves
    sources: Ints  # states before
    targets: Ints  # states after, one for each source, all different


@dataclass(frozen=True)
class Route:
    """The orders in which devices may take intervals: states from 0 (no device used), and legs between them."""

    used: list[tuple[int, ...]]  # [n_states], the devices used in a state, where the first of a kind comes first
    legs: list[NextDevices]


@dataclass(frozen=True)
class ChainDP:
    """Finds the best contiguous placement by dynamic programming over the line of blocks and the devices used.

    ``F[S, j]`` is the busiest device's time when the devices S have taken the blocks before position j::

        F[{}, 0] = 0        F[S + d, j] = min over i < j of max(F[S, i], cost(d, i, j))

    ``cost(d, i, j)`` is the time of device d for the interval [i, j): computing and the overhead of each message, plus
    entering and leaving traffic; or the largest of the three where the cluster overlaps them, as if all traffic went
    through one channel each way. Accelerators of a host fetch each tensor that enters, and store each tensor that
    leaves once. The program only considers intervals within a limit, which grows until an answer is within it; that
    answer is the optimum. It tries several lines and both ways of counting the traffic that leaves (see
    `Chain.changes`).

    The result is the best contiguous placement of these lines if devices pay at their boundary, or if links are
    uniform, each net is read by one block and, with overlap, comes from the neighbouring interval over a channel of its
    own. Otherwise the traffic is estimated, and `evaluate` decides between the answers of several device counts.
    Without uniform links, devices are in sequences of linked neighbours, and all traffic is charged as that of the
    neighbours.

    For the other goals, `evaluate` decides between the same answers; they are starting points where operators must be
    contiguous.

    It stops after an amount of work that depends on the time limit, so that the same input gives the same answer; the
    first line, which is the graph's own order, is swept even if there is no time.

    Source: Narayanan et al., PipeDream, SOSP 2019; Tarnawski et al., Efficient Algorithms for Device Placement of
    DNN Graph Operators, NeurIPS 2020. Their programs run over device counts, this one over sets of devices.
    """

    name: str = "chain-dp"
    goals: frozenset[Goal] = frozenset({Goal.THROUGHPUT, Goal.LATENCY, Goal.COST})

    def refuses(self, problem: Problem) -> str:  # noqa: ARG002  # the form of a solver
        """Nothing; it estimates the costs that it cannot charge exactly."""
        return ""

    def search(self, problem: Problem, budget: Budget) -> Answer:
        """Search for the best contiguous placement; it proves no bound, because other placements may be better."""
        best = Incumbent(problem, budget, self.name)
        if not merge_blocks(problem.table).fits.any(axis=1).all():
            return Answer(best.placement)
        effort = _SweepBudget(budget)
        for chain, route, each in _ways(problem.table):
            for limit_s in [budget.bound_s * growth for growth in GROWTH if budget.bound_s > 0] + [inf]:
                for placement in _sweep(chain, route, each, limit_s, effort):
                    best.offer(placement)
                if best.objective_s <= limit_s or effort.over:
                    break
            effort.first = False
            if best.objective_s <= budget.bound_s * (1 + budget.gap) or effort.over:
                break
        return Answer(best.placement, spent=budget.share(effort.spent_s))


class _SweepBudget:
    """The work that was done and may be done. The first line is swept whatever that takes."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.spent_s = 0.0
        self.first = True

    def sweep(self, n_ends: int) -> None:
        """Count the places of a line that is swept."""
        self.spent_s += END_S * n_ends

    def step(self, n_cells: int) -> None:
        """Count the intervals from some starts to one end, for some states each."""
        self.spent_s += STEP_S + CELL_S * n_cells

    @property
    def over(self) -> bool:
        """Whether to end: when the work is done, or the clock says so."""
        return not self.first and (self.spent_s > SHARE * self._budget.time_limit_s or self.stopped)

    @property
    def stopped(self) -> bool:
        """Whether the clock says so."""
        return not self.first and self._budget.brake_s <= 0


def _ways(table: CostTable) -> Iterator[tuple[Chain, Route, bool]]:
    """Yield every line, route and way of counting the traffic that leaves, the most promising first."""
    blocks = merge_blocks(table)
    several = boundary_costs(table) is None and any(len(net.readers) > 1 for net in blocks.nets)
    most, routes = MOST_COSTS // table.n_devices, _routes(table)
    for each in (False, True) if several else (False,):
        for line in chains(blocks):
            chain = with_places(line, most)
            for route in routes:
                yield chain, route, each


def _sweep(chain: Chain, route: Route, each: bool, limit_s: float, effort: _SweepBudget) -> list[Placement]:
    """One pass of the recurrence from left to right, with intervals of at most ``limit_s``."""
    n, n_states = chain.blocks.n, len(route.used)
    table = chain.blocks.table
    effort.sweep(n)
    best = np.full((n_states, n + 1), inf)
    best[0, 0] = 0.0
    came_from = np.zeros((n_states, n + 1, 2), dtype=np.int64)  # start of the last interval, and its leg
    tariffs = chain.tariffs[0].shape[1]
    traffic = np.zeros((2, 1 + tariffs, n))  # way, messages or seconds by a tariff, start of the interval
    earliest = [chain.earliest(leg.devices[0], limit_s) for leg in route.legs]
    opens, closes = _windows(chain, route, limit_s)
    begin = np.asarray([opens[leg.targets].min() for leg in route.legs])
    until = np.asarray([closes[leg.targets].max() for leg in route.legs])
    for end, changes in enumerate(chain.changes(each)):
        for way, first, last, size in changes:
            traffic[way, :, first:last] += size[:, None]
        if end % 256 == 0 and effort.stopped:
            return []
        for number in np.flatnonzero((begin <= end) & (end <= until)):
            leg = route.legs[number]
            start = earliest[number][end]
            rows = np.flatnonzero((opens[leg.targets] <= end) & (end <= closes[leg.targets]))
            if start >= end or not len(rows):
                continue
            effort.step((end - start) * len(rows))
            cost_s = _cost(table, chain.seconds[:, leg.devices[0]], traffic, leg, start, end)
            total_s = np.maximum(best[leg.sources[rows], start:end], cost_s)
            chosen = total_s.argmin(axis=1)
            reached = total_s[np.arange(len(rows)), chosen]
            targets = leg.targets[rows]
            better = (reached <= limit_s) & (reached < best[targets, end])
            best[targets[better], end] = reached[better]
            came_from[targets[better], end, 0] = start + chosen[better]
            came_from[targets[better], end, 1] = number
    return [_read(chain, route, came_from, state) for state in _worth(route, best[:, n])]


def _windows(chain: Chain, route: Route, limit_s: float) -> tuple[Ints, Ints]:
    """Return the first and the last position at which a state can be within the limit, [n_states] each.

    Let each block of some devices cost its time on the cheapest device, at any price of a device's second. All blocks
    cost at most what the devices' time within the limit is worth. So the used devices bound the work before the
    position, and the other devices the work after it. The price of a device is the inverse of its time for all blocks.
    """
    all_s = chain.seconds[-1]
    price = np.divide(1.0, all_s, out=np.zeros_like(all_s), where=all_s > 0)
    can = np.isfinite(chain.blocks.forward_s)
    pays = np.multiply(chain.blocks.forward_s, price, out=np.full(can.shape, inf), where=can).min(axis=1)
    paid = np.concatenate(([0.0], np.cumsum(pays[chain.line])))
    worth = np.asarray([price[list(used)].sum() for used in route.used])
    before, behind = (
        np.multiply(limit_s, side, out=np.zeros_like(side), where=side > 0) + 1e-9 * paid[-1]  # sums are rounded
        for side in (worth, worth.max() - worth)
    )
    return np.searchsorted(paid, paid[-1] - behind), np.searchsorted(paid, before, side="right") - 1


def _cost(table: CostTable, seconds: Floats, traffic: Floats, leg: NextDevices, start: int, end: int) -> Floats:
    """Return [end - start], seconds of the intervals [start, end) .. [end - 1, end) on the leg's device."""
    compute = seconds[end] - seconds[start:end]
    compute = compute + table.overhead_s[leg.devices[0]] * traffic[:, 0, start:end].sum(axis=0)
    enters = traffic[ENTERS, 1 + leg.enters, start:end] if leg.enters >= 0 else np.zeros(end - start)
    leaves = traffic[LEAVES, 1 + leg.leaves, start:end] if leg.leaves >= 0 else np.zeros(end - start)
    if table.overlap:
        return np.asarray(np.maximum.reduce([compute, enters, leaves]))
    return np.asarray(compute + enters + leaves)


def _worth(route: Route, value: Floats) -> list[int]:
    """Return the best state of each count of devices at the end of the line, best first."""
    by_count: dict[int, int] = {}
    for state in np.argsort(value, kind="stable").tolist():
        if np.isfinite(value[state]):
            by_count.setdefault(len(route.used[state]), state)
    return list(by_count.values())


def _read(chain: Chain, route: Route, came_from: Ints, state: int) -> Placement:
    """Return the placement that the choices lead to, from the end of the line back."""
    taken: list[tuple[int, int, int]] = []
    end = chain.blocks.n
    while end:
        start, number = came_from[state, end].tolist()
        taken.append((start, end, number))
        leg = route.legs[number]
        state, end = int(leg.sources[leg.targets == state][0]), start
    unused = [iter(leg.devices) for leg in route.legs]
    device = np.empty(chain.blocks.n, dtype=np.int64)
    for start, end, number in reversed(taken):
        device[chain.line[start:end]] = next(unused[number])
    return chain.blocks.spread(device)


def _routes(table: CostTable) -> list[Route]:
    """One route over sets of devices if all links are alike and there are few sets, else one for each sequence."""
    kinds = alike(table)
    if (boundary_costs(table) or uniform_links(table)) and prod(len(kind) + 1 for kind in kinds) <= MOST_STATES:
        return [_over_sets(table, kinds)]
    return [_along(table, sequence) for sequence in _sequences(table)]


def _over_sets(table: CostTable, kinds: Sequence[tuple[int, ...]]) -> Route:
    """Return the route whose states count the used devices of each kind; a leg stands for any device of a kind."""
    states = sorted(product(*(range(len(kind) + 1) for kind in kinds)), key=lambda counts: (sum(counts), counts))
    number = {counts: state for state, counts in enumerate(states)}
    at_boundary, legs = boundary_costs(table) is not None, []
    for which, kind in enumerate(kinds):
        before = [counts for counts in states if counts[which] < len(kind)]
        behind = [(*counts[:which], counts[which] + 1, *counts[which + 1 :]) for counts in before]
        sources, targets = (np.asarray([number[counts] for counts in side]) for side in (before, behind))
        charge = kind[0] if at_boundary else int(table.link_class[0, 1]) if table.n_devices > 1 else -1
        legs.append(NextDevices(kind, charge, charge, sources, targets))
    used = [tuple(d for kind, count in zip(kinds, counts, strict=True) for d in kind[:count]) for counts in states]
    return Route(used, legs)


def _along(table: CostTable, sequence: Sequence[int]) -> Route:
    """Return the route whose states count the used devices of a sequence, with the tariffs of the neighbours."""
    at_boundary, legs = boundary_costs(table) is not None, []
    for place, device in enumerate(sequence):
        near = [*sequence[max(0, place - 1) : place], *sequence[place + 1 : place + 2]]
        enters = device if at_boundary else int(table.link_class[near[0], device]) if near else -1
        leaves = device if at_boundary else int(table.link_class[device, near[-1]]) if near else -1
        legs.append(NextDevices((device,), enters, leaves, np.asarray([place]), np.asarray([place + 1])))
    return Route([tuple(sequence[:place]) for place in range(len(sequence) + 1)], legs)


def _sequences(table: CostTable) -> list[tuple[int, ...]]:
    """Return sequences of linked devices: all if there are few devices, or from each class on to the nearest."""
    classes = interchangeable(table)
    if table.n_devices > MOST_PERMUTED:
        return _unlike(table, [_nearest(table, devices[0]) for devices in classes])
    rank = {device: (number, place) for number, alike in enumerate(classes) for place, device in enumerate(alike)}
    orders = (
        order
        for order in permutations(range(table.n_devices))
        if all(rank[a][0] != rank[b][0] or rank[a] < rank[b] for a, b in combinations(order, 2))
    )
    return list(dict.fromkeys(_linked(table, order) for order in orders))


def _unlike(table: CostTable, sequences: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the sequences, only one of those that have the same kinds of devices and links, as from equal hosts."""
    kinds = alike(table)
    kind = {device: number for number, devices in enumerate(kinds) for device in devices}
    first: dict[tuple[tuple[int, int], ...], tuple[int, ...]] = {}
    for sequence in sequences:
        links = [-1, *(int(table.link_class[src, dst]) for src, dst in pairwise(sequence))]
        first.setdefault(tuple((kind[device], link) for device, link in zip(sequence, links, strict=True)), sequence)
    return list(first.values())


def _linked(table: CostTable, order: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sequence up to its first missing link."""
    for place, (src, dst) in enumerate(pairwise(order), 1):
        if not table.linked[src, dst]:
            return order[:place]
    return order


def _nearest(table: CostTable, first: int) -> tuple[int, ...]:
    """Return the sequence from a device on, always to the linked device that receives an average flow first."""
    typical_s = table.link_s.mean(axis=0) if len(table.flows) else table.link_latency_s
    order = [first]
    while len(order) < table.n_devices:
        linked = np.flatnonzero(table.linked[order[-1]]).tolist()
        left = [device for device in linked if device not in order]
        if not left:
            break
        order.append(min(left, key=lambda device: float(typical_s[table.link_class[order[-1], device]])))
    return tuple(order)
