"""traffic_bound: a lower bound of the largest load from a linear program of which nets are cut, without devices.

::

    r ──a── u ──b── v ──c── w       r's device has T seconds at most: of 2 T seconds of work in a tree around r, T
            └──d── x                seconds must be cut off, and each net that is cut keeps r's device busy

A program that says where each block is has little to say of equal devices: with a part of everything on each of them,
no net is cut. This one has a variable for each net, whether it is cut, and does not know devices. Its inequalities are
the knapsack tree inequalities of graph partitioning (Ferreira et al., Formulations and valid inequalities for the node
capacitated graph partitioning problem, Mathematical Programming 74, 1996) with the seconds of cut nets; those that are
violated are added round by round, along the shortest paths when a net is as long as it is cut (Even et al., Fast
approximate graph partitioning algorithms, SIAM Journal on Computing 28(6), 1999).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from graphs.common.arrays import Bools, Floats, Ints
from planner.problem.blocks import Blocks
from planner.problem.deadline import loading
from planner.problem.linear_bounds import time_prices
from planner.problem.problem import Goal
from planner.solvers.base import Budget
from planner.solvers.compiled import compiled
from planner.solvers.netlist import Netlist, netlist

ROUNDING = 1e-12  # of all numbers in a sum; far more than the sum loses
MOST_TREES = 200  # of a round
SIZES = (1.02, 1.05, 1.1, 1.25, 2.0, 4.0)  # loads, the work of the trees with one root
HOP = 1e-3  # added to the length of a net, so that of equally long paths the one with the fewest nets is taken
LEAST_GAIN, PATIENCE = 1e-3, 6  # the relative gain of this many rounds, or the search ends
LEAST_EXCESS = 1e-4  # of a tree's work; less is noise of the linear program
ROUND_S, ENTRY_S, VERTEX_S = 0.02, 4e-6, 1e-6
"""Seconds of a round, of an entry of its program, and of a vertex of its trees, on one core of 2.5 GHz."""
SHARE = 0.25  # of the time that is left, for all rounds


class CutCosts(NamedTuple):
    """The least costs of blocks and of cut nets on any devices; free devices pay for no transfer."""

    work_s: Floats  # [n_blocks], seconds on a device that pays; 0 where none can run the block
    priced_s: Floats  # [n_blocks], the same at the prices of the devices
    free_s: Floats  # [n_blocks], seconds on a free device; infinite where none can run the block in time
    n_free: int  # free devices
    pay_s: Floats  # [n_nets], seconds of a device that pays, for a net with blocks both on and off it
    pair_s: Floats  # [n_nets], priced seconds of a net between two devices that pay
    single_s: Floats  # [n_nets], of a net between one that pays and free ones; ``pair_s`` at most


def cut_costs(nets: Netlist, price: Floats, most_s: float) -> CutCosts | None:
    """Return the least costs for the prices of devices, [n_devices]; None if no device sends or pays.

    Costs are at most ``most_s``, and blocks that take longer on a free device are not on one.
    """
    linked = nets.link_class >= 0
    if not linked.any():
        return None
    leave_s, enter_s = nets.once_out_s + nets.each_out_s, nets.each_in_s
    if nets.busy:
        between_s = np.where(linked, nets.link_s[:, nets.link_class], most_s)
        leave_s, enter_s = leave_s + between_s.min(axis=2), enter_s + between_s.min(axis=1)
    pays = (leave_s + enter_s).sum(axis=0) > 0
    if not pays.any():
        return None
    price = price[pays] / price[pays].sum() if price[pays].any() else np.full(int(pays.sum()), 1 / pays.sum())
    leave_s, enter_s = np.minimum(leave_s[:, pays], most_s), np.minimum(enter_s[:, pays], most_s)
    pair_s = (leave_s * price)[:, :, None] + (enter_s * price)[:, None, :]
    pair_s = np.where(linked[np.ix_(pays, pays)], pair_s, most_s).min(axis=(1, 2))
    pay_s = np.minimum(leave_s, enter_s)
    seconds = np.minimum(nets.seconds[:, pays], most_s)
    runs = np.isfinite(nets.seconds[:, pays]).any(axis=1)
    free_s = nets.seconds[:, ~pays].min(axis=1, initial=np.inf)
    return CutCosts(
        work_s=np.where(runs, seconds.min(axis=1), 0.0),
        priced_s=np.where(runs, (seconds * price).min(axis=1), 0.0),
        free_s=np.where(free_s <= most_s, free_s, np.inf),
        n_free=int((~pays).sum()),
        pay_s=pay_s.min(axis=1),
        pair_s=pair_s,
        single_s=np.minimum((pay_s * price).min(axis=1), pair_s),
    )


class Inequality(NamedTuple):
    """An inequality ``sum of factor * column >= right``."""

    column: Ints
    factor: Floats
    right: float


class PathTree(NamedTuple):
    """The nets of a tree of blocks."""

    root: int
    net: Ints
    lost: Floats  # [n_nets of the tree], the work beyond each net, less what a device pays for it; above 0
    work: float


@dataclass
class Relaxation:
    """The linear program, in units of ``unit_s``, with T >= ``bound``, which is known.

    ::

        min T    T >= sum_b priced[b] * (1 - free[b]) + sum_n pair[n] * cut[n] - (pair[n] - single[n]) * half[n]
                 n_free * T >= sum_b free_s[b] * free[b]
                 half[n] <= cut[n],  half[n] <= sum_{b in n} free[b]
                 T + sum_n lost[n] * cut[n] + (work - bound) * free[r] >= work       for a tree with root r

    A net is cut unless all its blocks are on one device that pays, or all on free ones, and half cut if some are free.
    Of a tree, the device of the root has all blocks but those beyond cut nets, and pays for the first cut net on each
    way; so ``lost[n]`` is the work beyond the net, less what a device pays for it. No more than ``work - bound`` is
    needed, for then one cut net is enough. All variables but T are between 0 and 1.
    """

    nets: Netlist
    costs: CutCosts
    unit_s: float
    bound: float
    trees: list[PathTree] = field(default_factory=list)
    cut: Floats = field(init=False)  # [n_nets], the last solution
    free: Floats = field(init=False)  # [n_blocks]

    def __post_init__(self) -> None:
        n_nets = len(self.nets.start) - 1
        self.cut, self.free = np.zeros(n_nets), np.zeros(self.nets.n_cells)
        is_free = np.isfinite(self.costs.free_s)
        halves = np.logical_or.reduceat(is_free[self.nets.pin], self.nets.start[:-1]) if n_nets else np.zeros(0, bool)
        self._free_column = np.where(is_free, np.cumsum(is_free) + n_nets, -1)
        self._half_column = np.where(halves, np.cumsum(halves) + n_nets + is_free.sum(), -1)
        self.n_columns = 1 + n_nets + int(is_free.sum()) + int(halves.sum())
        self._base = [*self._given(is_free, np.flatnonzero(halves))]

    def _given(self, is_free: Bools, halves: Ints) -> Iterator[Inequality]:
        """The inequalities that are there from the start."""
        costs, unit_s, cut = self.costs, self.unit_s, 1 + np.arange(len(self.cut))
        able = np.flatnonzero(is_free)
        column = np.concatenate(([0], cut, self._free_column[able], self._half_column[halves]))
        gains = costs.priced_s[able], (costs.pair_s - costs.single_s)[halves]
        factor = np.concatenate(([unit_s], -costs.pair_s, *gains)) / unit_s
        yield Inequality(column, factor, float(costs.priced_s.sum()) / unit_s)
        column = np.append(0, self._free_column[able])
        yield Inequality(column, np.append(costs.n_free, -costs.free_s[able] / unit_s), 0.0)
        for net in halves.tolist():
            half, pins = self._half_column[net], self.nets.pin[self.nets.start[net] : self.nets.start[net + 1]]
            yield Inequality(np.asarray([1 + net, half]), np.asarray([1.0, -1.0]), 0.0)
            columns = self._free_column[pins[is_free[pins]]]
            yield Inequality(np.append(columns, half), np.append(np.ones(len(columns)), -1.0), 0.0)

    @property
    def n_entries(self) -> int:
        """The number of coefficients."""
        return sum(len(row.column) for row in self._base) + sum(len(tree.net) for tree in self.trees)

    def row(self, tree: PathTree) -> Inequality:
        """The inequality of a tree under the bound that is known."""
        more = max(0.0, tree.work - self.bound)
        root = self._free_column[tree.root]
        column, factor = np.append(1 + tree.net, 0), np.append(np.minimum(tree.lost, more), 1.0)
        return (
            Inequality(np.append(column, root), np.append(factor, more), tree.work)
            if root >= 0
            else Inequality(column, factor, tree.work)
        )

    def violates(self, tree: PathTree) -> bool:
        """Return whether the last solution violates the inequality of a tree."""
        more = tree.work - self.bound
        cut_off = np.minimum(tree.lost, more) @ self.cut[tree.net]
        return bool(more * (1 - self.free[tree.root]) - cut_off > LEAST_EXCESS * tree.work)

    def solve(self) -> None:
        """Solve the program, take its bound, and keep the trees that the bound needs.

        The bound is computed from the prices of the rows: the least of the Lagrange function over all values of the
        variables. So no tolerance of the solver can make it wrong.
        """
        with loading():
            from scipy.optimize import linprog  # late: see `linear_bounds`
            from scipy.sparse import csr_array

        rows = [*self._base, *map(self.row, self.trees)]
        start = np.cumsum([0, *(len(row.column) for row in rows)])
        factor, column = np.concatenate([row.factor for row in rows]), np.concatenate([row.column for row in rows])
        matrix = csr_array((factor, column, start), shape=(len(rows), self.n_columns))
        right, objective = np.asarray([row.right for row in rows]), np.eye(1, self.n_columns)[0]
        limits = np.asarray([(self.bound, np.inf), *[(0.0, 1.0)] * (self.n_columns - 1)])
        answer = linprog(objective, A_ub=-matrix, b_ub=-right, bounds=limits, method="highs")
        if answer.ineqlin.marginals is None or answer.x is None:
            return
        price = np.maximum(0.0, -answer.ineqlin.marginals)
        price /= max(1.0, float((matrix.T @ price)[0]))
        reduced = objective - matrix.T @ price
        found = price @ right + max(0.0, reduced[0]) * self.bound + np.minimum(0.0, reduced[1:]).sum()
        self.bound = max(self.bound, float(found - ROUNDING * (price @ (abs(right) + abs(matrix).sum(axis=1)))))
        needed = price[len(self._base) :] > 0
        self.trees = [tree for tree, keep in zip(self.trees, needed.tolist(), strict=True) if keep]
        self.cut = np.clip(answer.x[1 : 1 + len(self.cut)], 0.0, 1.0)
        able = self._free_column >= 0
        self.free[able] = answer.x[self._free_column[able]]

    def grow(self, roots: Ints) -> None:
        """Add the violated inequalities of the trees of shortest paths around some blocks."""
        with loading():
            from scipy.sparse import csr_array
            from scipy.sparse.csgraph import dijkstra

        nets, n = self.nets, self.nets.n_cells
        size, net = n + len(self.cut), np.repeat(np.arange(len(self.cut)), np.diff(nets.start))
        lengths = np.concatenate((self.cut[net] + HOP / 2, np.full(len(net), HOP / 2)))
        ends = np.concatenate((nets.pin, n + net)), np.concatenate((n + net, nets.pin))
        graph = csr_array((lengths, ends), shape=(size, size))
        distance, parent = dijkstra(graph, indices=roots, limit=1.0, return_predecessors=True)
        work = np.append(self.costs.work_s / self.unit_s, np.zeros(len(self.cut)))
        for root, far, before in zip(roots.tolist(), distance, parent, strict=True):
            order = np.argsort(far, kind="stable")[: np.isfinite(far).sum()]
            inside = np.cumsum(work[order])
            for loads in SIZES:
                within = order[: 1 + np.searchsorted(inside, loads * self.bound)]
                beyond = work.copy()
                add_up(within, before, beyond)
                net = within[within >= n]
                lost = beyond[net] - self.costs.pay_s[net - n] / self.unit_s
                tree = PathTree(root, net[lost > 0] - n, lost[lost > 0], float(beyond[root]))
                if self.violates(tree):
                    self.trees.append(tree)
                if len(within) == len(order):
                    break


@compiled
def add_up(order: Ints, parent: Ints, amount: Floats) -> None:
    """Add the amount of each vertex to its parent's, [n_vertices]; the order begins with the root of the tree."""
    for place in range(len(order) - 1, 0, -1):
        amount[parent[order[place]]] += amount[order[place]]


def traffic_bound(blocks: Blocks, between_s: tuple[float, float], budget: Budget) -> tuple[float, float]:
    """Return seconds that no placement better than the second of ``between_s`` can beat, and the seconds that it took.

    The first of ``between_s`` is a bound that is known. Each round adds trees and solves the program, until a round
    gains little or a share of the budget is used up, by count.
    """
    lower_s, upper_s = between_s
    nets = netlist(blocks, Goal.THROUGHPUT)
    costs = cut_costs(nets, time_prices(blocks), upper_s) if len(nets.pin) else None
    if costs is None or not costs.pair_s.any() or not lower_s < upper_s:
        return lower_s, 0.0
    program = Relaxation(nets, costs, upper_s, lower_s / upper_s)
    spent_s = 0.0
    stride, bounds = -(-blocks.n // MOST_TREES), [program.bound]
    while program.bound < 1:
        n_trees = len(program.trees)
        program.grow(np.arange(len(bounds) % stride, blocks.n, stride))
        seconds = ROUND_S + ENTRY_S * program.n_entries + VERTEX_S * MOST_TREES * (blocks.n + len(program.cut))
        if len(program.trees) == n_trees or spent_s + seconds > SHARE * budget.time_limit_s or budget.brake_s <= 0:
            break
        program.solve()
        spent_s += seconds
        budget.prove(min(upper_s, program.bound * upper_s))
        budget.meanwhile(seconds)
        bounds.append(program.bound)
        if len(bounds) > PATIENCE * stride and bounds[-1] <= (1 + LEAST_GAIN) * bounds[-PATIENCE * stride]:
            break
    return min(upper_s, max(lower_s, program.bound * upper_s)), spent_s
