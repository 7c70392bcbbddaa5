"""The exact division of layers among unequal devices: dynamic programming over how many of each class are in use.

::

    f[used, class, i]   least cost of the first i layers on the devices ``used``, the last of them of ``class``
    f[used + g of c, c, j] = min over i < j of f[used, class, i] + hop(class, c) + block[c, g][i, j]

A block [i, j) on a unit costs what its layers cost, the head if j is the last layer, and infinity if it does not fit;
experts go to the host where a block fits only so, those with the least loss of time for each byte first. The order of
devices is free, devices may stay idle, and equal ones of a host are interchangeable, so this is every contiguous
division. What the experts of several GPUs need of one host together is priced by a multiplier for each host
(Lagrangian relaxation): its value is the bound, and the gap is what the best division found is above it.

Sources: Held and Karp, J. SIAM 1962 (dynamic programming over sets); Geoffrion, 1974 (Lagrangian relaxation).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, inf
from typing import NamedTuple, TypeAlias

import numpy as np

from graphs.common.arrays import Floats
from graphs.common.brief import Brief
from planner.generation.split_problem import (
    Division,
    DivisionPart,
    SplitProblem,
    division_cost,
    extra_bytes,
    host_bytes,
    over_bytes,
)
from planner.generation.units import UnitPrice

MULTIPLIER_TURNS = 24  # of the price of a host's memory
ALIKE = 1e-9  # relative; costs that close are equal

Used: TypeAlias = tuple[int, ...]
"""How many devices of each class are in use."""


@dataclass(frozen=True)
class Divided(Brief):
    """Result of the search.

    Attributes:
        best: the best division; None if none fits.
        bound_s: no division costs less.
        next_best: the best one of other devices; None if there is none.
        alone: the best one on a single device; None if none has room.
        states: numbers of devices in use that were searched.
    """

    best: Division | None
    bound_s: float
    next_best: Division | None
    alone: Division | None
    states: int

    @property
    def gap(self) -> float:
        """By how much the best division may be above the optimum, as a share."""
        if self.best is None:
            return 1.0
        gap = max(0.0, 1 - self.bound_s / self.best.cost_s) if self.best.cost_s > 0 else 0.0
        return gap if gap > ALIKE else 0.0


def divide_model(problem: SplitProblem) -> Divided:
    """Return the best division with its proof, the best of other devices, and the best on one device."""
    hosts = sorted({unit.host for unit in problem.units if unit.host is not None})
    prices = dict.fromkeys(hosts, 0.0)
    search = _ChainSearch(problem, prices)
    states, finals = search.run(), search.finals()
    bound_s = min((each.cost_s for each in finals.values()), default=inf)
    fitting = {used: each for used, each in finals.items() if not _over(problem, each)}
    if finals and hosts and (not fitting or min(each.cost_s for each in fitting.values()) > bound_s):
        fitting, bound_s = _with_multipliers(problem, prices, fitting, bound_s)
    ranked = sorted(fitting.items(), key=lambda item: (item[1].cost_s, item[0]))
    alone = [each for used, each in ranked if len(each.parts) == 1 and problem.units[each.parts[0].unit].size == 1]
    best = ranked[0][1] if ranked else None
    following = ranked[1][1] if len(ranked) > 1 else None
    return Divided(best, bound_s if best else inf, following, alone[0] if alone else None, states)


def _over(problem: SplitProblem, division: Division) -> dict[int, float]:
    """Return by how many bytes the experts on hosts are more than their memory, less what lies there anyway."""
    over = {}
    for host, n_bytes in host_bytes(problem, division).items():
        room = _host_room(problem, host)
        for part in division.parts:
            unit = problem.units[part.unit]
            if unit.device_class == host:
                room -= sum(price.bytes for price in problem.layer_prices(unit)[part.start : part.stop])
        if n_bytes > room:
            over[host] = n_bytes - room
    return over


def _host_room(problem: SplitProblem, host: int) -> float:
    own = problem.classes[host].devices
    return sum(problem.question.cluster.devices[number].usable_bytes for number in own)


def _with_multipliers(
    problem: SplitProblem, prices: dict[int, float], fitting: dict[Used, Division], bound_s: float
) -> tuple[dict[Used, Division], float]:
    """Return divisions that hosts have room for, and the best bound, by raising the price of hosts' memory."""
    found, best_bound = dict(fitting), bound_s
    step = bound_s / max(1.0, max(_host_room(problem, host) for host in prices))
    low, high = 0.0, step
    for _ in range(MULTIPLIER_TURNS):
        middle = dict.fromkeys(prices, high if not found else (low + high) / 2)
        search = _ChainSearch(problem, middle)
        search.run()
        finals = search.finals()
        if not finals:
            break
        lagrangian = min(_relaxed(problem, each, middle) for each in finals.values())
        best_bound = max(best_bound, lagrangian)
        good = {used: each for used, each in finals.items() if not _over(problem, each)}
        for used, each in good.items():
            if used not in found or each.cost_s < found[used].cost_s:
                found[used] = each
        if good:
            high = next(iter(middle.values()))
        elif found:
            low = next(iter(middle.values()))
        else:
            low, high = high, high * 4
    least = min((each.cost_s for each in found.values()), default=inf)
    return found, min(best_bound, least)


def _relaxed(problem: SplitProblem, division: Division, prices: Mapping[int, float]) -> float:
    """Return the cost of a division with hosts' memory at a price for each byte, less the price of what they have."""
    used = host_bytes(problem, division)
    paid = sum(prices[host] * (used.get(host, 0.0) - _host_room(problem, host)) for host in prices)
    return division.cost_s + paid


class _LastBlock(NamedTuple):
    """The last block of a division: its unit, its first layer, and the class of devices before it."""

    unit: int
    start: int
    before: int


class _ChainSearch:
    """The tables of the dynamic programming.

    Attributes:
        costs: least cost of the first i layers, [n + 1], by the devices in use and the class of the last of them.
        steps: how each of them is reached.
    """

    def __init__(self, problem: SplitProblem, prices: Mapping[int, float]) -> None:
        self.problem, self.prices = problem, prices
        self.blocks = [_blocks(problem, number, prices) for number in range(len(problem.units))]
        kinds = range(len(problem.classes))
        self.hops = [[problem.hop_s(source, target) for target in kinds] for source in kinds]
        self.costs: dict[tuple[Used, int], Floats] = {}
        self.steps: dict[tuple[Used, int, int], _LastBlock] = {}

    def run(self) -> int:
        """Fill the tables, fewer devices first; return how many numbers of devices in use there are."""
        counts = (range(len(each.devices) + 1) for each in self.problem.classes)
        states = sorted(product(*counts), key=lambda used: (sum(used), used))
        for used in states:
            for number, unit in enumerate(self.problem.units):
                free = len(self.problem.classes[unit.device_class].devices) - used[unit.device_class]
                if unit.size <= free:
                    self._extend(used, number)
        return len(states)

    def _extend(self, used: Used, number: int) -> None:
        """Put a last block on a unit after the devices in use."""
        unit, n = self.problem.units[number], self.problem.n_layers
        own = unit.device_class
        reached = self._reached(used, own)
        if reached is None:
            return
        before, last = reached
        costs = before[:, None] + self.blocks[number]
        start = costs.argmin(axis=0)
        cost = costs[start, np.arange(n + 1)]
        after = (*used[:own], used[own] + unit.size, *used[own + 1 :])
        known = self.costs.setdefault((after, own), np.full(n + 1, inf))
        for stop in np.flatnonzero(cost < known).tolist():
            known[stop] = cost[stop]
            self.steps[after, own, stop] = _LastBlock(number, int(start[stop]), int(last[start[stop]]))

    def _reached(self, used: Used, own: int) -> tuple[Floats, Floats] | None:
        """Return the least cost of the first i layers and a hop to a class, for all i, and the class before it."""
        n = self.problem.n_layers
        if not any(used):
            return np.where(np.arange(n + 1) == 0, 0.0, inf), np.full(n + 1, -1)
        kinds = [other for other in range(len(used)) if (used, other) in self.costs]
        if not kinds:
            return None
        costs = np.array([self.costs[used, other] + self.hops[other][own] for other in kinds])
        which = costs.argmin(axis=0)
        return costs[which, np.arange(n + 1)], np.array(kinds)[which]

    def finals(self) -> dict[Used, Division]:
        """Return the best division of each number of devices in use, by the cost with hosts' memory at a price."""
        n, found = self.problem.n_layers, dict[Used, tuple[float, int]]()
        for (used, own), costs in self.costs.items():
            if costs[n] < found.get(used, (inf, 0))[0]:
                found[used] = (float(costs[n]), own)
        return {used: self._traced(used, own) for used, (_, own) in found.items()}

    def _traced(self, used: Used, own: int) -> Division:
        """Return the division that led to a state, with its true cost: hosts' memory has no price in it."""
        parts: list[DivisionPart] = []
        stop = self.problem.n_layers
        while stop:
            step = self.steps[used, own, stop]
            away = _away(self.problem, step.unit, step.start, stop, self.prices)
            parts.append(DivisionPart(step.unit, step.start, stop, away))
            used = (*used[:own], used[own] - self.problem.units[step.unit].size, *used[own + 1 :])
            own, stop = step.before, step.start
        parts.reverse()
        return Division(tuple(parts), division_cost(self.problem, parts))


def _blocks(problem: SplitProblem, number: int, prices: Mapping[int, float]) -> Floats:
    """Return [n + 1, n + 1], the costs of all blocks on a unit, infinite where one does not fit.

    Hosts' memory has a price for each byte of experts.
    """
    unit, n = problem.units[number], problem.n_layers
    own = problem.layer_prices(unit)
    cost, size = (
        np.concatenate(([0.0], np.cumsum(each)))
        for each in ([problem.cost_s(price) for price in own], [price.bytes for price in own])
    )
    costs = np.where(np.arange(n + 1)[:, None] < np.arange(n + 1)[None, :], cost[None, :] - cost[:, None], inf)
    costs[:, n] += problem.cost_s(unit.head)
    place = np.arange(n + 1)
    over = size[None, :] - size[:, None] + extra_bytes(problem, unit, place[:, None], place) - unit.room_bytes
    if unit.host is None:
        return np.where(over > 0, inf, costs)
    extra = _away_costs(problem, own, over, prices.get(unit.host, 0.0))
    return np.where(over > 0, costs + extra, costs)


class _Movable(NamedTuple):
    """Layers of equal experts: their bytes, what moving one of them costs, and where they are."""

    n_bytes: float
    cost_s: float
    layers: tuple[int, ...]


def _movable(problem: SplitProblem, own: Sequence[UnitPrice], rate: float) -> list[_Movable]:
    """Return the groups of layers whose experts can go to the host, the cheapest for each byte first."""
    groups: dict[tuple[float, float], list[int]] = {}
    for layer, price in enumerate(own):
        if price.expert_bytes and price.away_token_s < inf:
            lost = problem.cost_s(price, away=True) - problem.cost_s(price) + rate * price.host_bytes
            groups.setdefault((price.expert_bytes, float(f"{lost:.9g}")), []).append(layer)
    found = [_Movable(n_bytes, lost, tuple(layers)) for (n_bytes, lost), layers in groups.items()]
    return sorted(found, key=lambda each: (each.cost_s / each.n_bytes, each.layers))


def _away_costs(problem: SplitProblem, own: Sequence[UnitPrice], over: Floats, rate: float) -> Floats:
    """Return what it costs each block to have as many experts on the host as it must, infinite where all are too few.

    With one group of equal experts this is exact; of several, the cheapest for each byte go first, which is within one
    layer's experts of the least.
    """
    n = len(own)
    costs, left = np.zeros_like(over), over.copy()
    for group in _movable(problem, own, rate):
        before = np.concatenate(([0], np.cumsum([layer in group.layers for layer in range(n)])))
        there = np.maximum(before[None, :] - before[:, None], 0)
        moved = np.minimum(there, np.ceil(np.maximum(left, 0.0) / group.n_bytes))
        costs += moved * group.cost_s
        left -= moved * group.n_bytes
    return np.where(left > 0, inf, costs)


def _away(problem: SplitProblem, number: int, start: int, stop: int, prices: Mapping[int, float]) -> tuple[int, ...]:
    """Return the layers of a block whose experts are on the host: the last ones of each group."""
    unit = problem.units[number]
    left = over_bytes(problem, DivisionPart(number, start, stop))
    if unit.host is None or left <= 0:
        return ()
    own = problem.layer_prices(unit)
    chosen: list[int] = []
    for group in _movable(problem, own, prices.get(unit.host, 0.0)):
        there = [layer for layer in group.layers if start <= layer < stop]
        count = min(len(there), ceil(max(left, 0.0) / group.n_bytes))
        chosen += there[len(there) - count :]
        left -= count * group.n_bytes
    return tuple(sorted(chosen))
