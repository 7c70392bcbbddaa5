"""List schedulers.

HEFT, CPOP and PEFT take operators by falling priority, each on the device of the least cost; m-ETF and m-SCT take, of
all ready operators, the one that can start first, on that device, within memory.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, TypeAlias

import numpy as np

from costmodels.table import CostTable
from graphs.common.arrays import Floats
from planner.problem.blocks import by_priority, successors
from planner.problem.deadline import loading
from planner.solvers.base import Budget
from planner.solvers.list_scheduling.schedule import (
    ListPlan,
    ListSchedule,
    ListScheduler,
    TentativePlacement,
    downward_rank,
    longest_path,
    mean_computes,
    mean_sends,
    optimistic_costs,
    upward_rank,
)


def _heft(table: CostTable, book_transfers: bool, budget: Budget) -> ListSchedule | None:
    """Heterogeneous Earliest Finish Time: the longest path to the end is the priority; the earliest finish decides.

    Source: Topcuoglu, Hariri, Wu: Performance-effective and low-complexity task scheduling for heterogeneous
    computing, IEEE TPDS 13(3), 2002.
    """
    order = by_priority(upward_rank(table), table.edges)
    return list_schedule(ListPlan(table, book_transfers), order, lambda _, trial: trial.finish_s, budget)


def _cpop(table: CostTable, book_transfers: bool, budget: Budget) -> ListSchedule | None:
    """Critical Path On a Processor: the longest path goes to the device that computes it fastest, the rest as in HEFT.

    The priority of an operator is the length of the longest path through it. An operator of the critical path that
    cannot run on that device, or has no room there, goes where it finishes first.

    Source: that of `_heft`.
    """
    length_s = [up + down for up, down in zip(upward_rank(table), downward_rank(table), strict=True)]
    path = longest_path(table, length_s)
    home, inside = int(table.forward_s[path].sum(axis=0).argmin()), frozenset(path)

    def cost(op: int, trial: TentativePlacement) -> tuple[bool, float]:
        return op in inside and trial.device != home, trial.finish_s

    return list_schedule(ListPlan(table, book_transfers), by_priority(length_s, table.edges), cost, budget)


def _peft(table: CostTable, book_transfers: bool, budget: Budget) -> ListSchedule | None:
    """Predict Earliest Finish Time: an operator goes where it and the longest path from there to the end take least.

    Source: Arabnejad, Barbosa: List scheduling algorithm for heterogeneous systems by an optimistic cost table,
    IEEE TPDS 25(3), 2014.
    """
    ahead_s = optimistic_costs(table)
    order = by_priority(ahead_s.mean(axis=1).tolist(), table.edges)

    def cost(op: int, trial: TentativePlacement) -> float:
        return trial.finish_s + float(ahead_s[op, trial.device])

    return list_schedule(ListPlan(table, book_transfers), order, cost, budget)


def list_schedule(
    plan: ListPlan, order: Sequence[int], cost: Callable[[int, TentativePlacement], Any], budget: Budget
) -> ListSchedule | None:
    """Schedule the operators in a topological order, each on the first device of the least cost.

    Returns:
        None if no device has room and links for an operator, or time runs out.
    """
    for op in order:
        trials = plan.trials(op)
        if not trials or budget.brake_s <= 0:
            return None
        plan.book(op, min(trials, key=lambda trial: cost(op, trial)))
    return plan.schedule()


MOST_EDGES = 20_000  # with more, the linear program of the favourites takes minutes
FAVOURITE = 0.5  # an edge below it leads to the favourite; the constraints allow each operator one such edge at most


def _m_etf(table: CostTable, book_transfers: bool, budget: Budget) -> ListSchedule | None:
    """m-ETF: Earliest Task First on devices that have room; among equals the operator that finishes first.

    Source: Jeon et al., Baechi: fast device placement of machine learning graphs, SoCC 2020; without memory: Hwang,
    Chow, Anger, Lee, Scheduling precedence graphs in systems with interprocessor communication times, SIAM Journal on
    Computing 18(2), 1989.
    """
    return _Earliest(table, book_transfers, {}).schedule(budget)


def _m_sct(table: CostTable, book_transfers: bool, budget: Budget) -> ListSchedule | None:
    """m-SCT: as `_m_etf`, but a device waits for the favourite child of the operator that it ran last.

    An operator's favourite is the reader that gains most from staying on its device, by a linear program. For the time
    that the tensor would take to another device, the operator's own device runs nothing else, except an operator whose
    inputs are on every device already (an urgent one).

    Source: Jeon et al. 2020, as above; without memory: Hanen, Munier, An approximation algorithm for scheduling
    dependent tasks on m processors with small communication delays, ETFA 1995.
    """
    return _Earliest(table, book_transfers, favourites(table, budget.brake_s)).schedule(budget)


Favourites: TypeAlias = dict[int, tuple[int, float]]
"""The favourite reader of each operator, and the seconds that the device waits for it."""


def favourites(table: CostTable, time_limit_s: float) -> Favourites:
    """Return the favourite reader of each operator that has one, and the mean seconds to send it what it reads.

    A linear program finds them, for average devices and links and any number of devices. x[i, j] is 0 if j is the
    favourite of i, so that nothing is sent; it is rounded::

        min T    start[i] + computes[i] + sends[i, j] * x[i, j] <= start[j]      for every edge
                 start[i] + computes[i] <= T                                     for every operator
                 sum_j x[i, j] >= readers of i - 1, sum_i x[i, j] >= writers of j - 1, 0 <= x <= 1

    Empty without edges, for more than `MOST_EDGES`, or if time runs out.
    """
    with loading():
        from scipy.optimize import linprog  # late: scipy takes a third of a second, and most commands never solve
        from scipy.sparse import csr_array, hstack, vstack

    edges = np.asarray(table.edges, dtype=np.int64).reshape(-1, 2)
    if not 0 < len(edges) <= MOST_EDGES or time_limit_s <= 0:
        return {}
    n, m = table.n_ops, len(edges)
    sends = _edge_sends(table)
    computes = np.asarray(mean_computes(table))
    scale = float(computes.sum() + sends.sum()) or 1.0
    edge, ones = np.arange(m), np.ones(m)
    leaves, enters = (csr_array((ones, (edges[:, end], edge)), shape=(n, m)) for end in (0, 1))
    follows = hstack([(leaves - enters).T, csr_array((sends / scale, (edge, edge)), shape=(m, m)), csr_array((m, 1))])
    ends = hstack([csr_array(np.eye(n)), csr_array((n, m)), csr_array(np.full((n, 1), -1.0))])
    one_each = hstack([csr_array((2 * n, n)), -vstack([leaves, enters]), csr_array((2 * n, 1))])
    degree = np.concatenate([np.bincount(edges[:, 0], minlength=n), np.bincount(edges[:, 1], minlength=n)])
    answer = linprog(
        c=np.append(np.zeros(n + m), 1.0),
        A_ub=vstack([follows, ends, one_each]),
        b_ub=np.concatenate([-computes[edges[:, 0]] / scale, -computes / scale, 1.0 - degree]),
        bounds=np.vstack([np.tile([0.0, np.inf], (n, 1)), np.tile([0.0, 1.0], (m, 1)), [[0.0, np.inf]]]),
        method="highs-ds",
        options={"time_limit": time_limit_s},
    )
    if answer.x is None:
        return {}
    chosen = answer.x[n : n + m] < FAVOURITE
    return {i: (j, s) for (i, j), s, kept in zip(edges.tolist(), sends.tolist(), chosen.tolist(), strict=True) if kept}


def _edge_sends(table: CostTable) -> Floats:
    """Return [n_edges], the mean seconds to send all flows of each edge."""
    number = {edge: index for index, edge in enumerate(table.edges)}
    sends = np.zeros(len(number))
    for flow, seconds in zip(table.flows, mean_sends(table), strict=True):
        for reader in flow.readers:
            sends[number[flow.writer, reader]] += seconds
    return sends


class _Earliest:
    """The greedy choice of the next operator and its device."""

    def __init__(self, table: CostTable, book_transfers: bool, favourites: Favourites) -> None:
        self._plan = ListPlan(table, book_transfers, fill_holes=False)
        self._urgency, self._favourites = upward_rank(table), favourites
        self._last: dict[int, tuple[int, float]] = {}  # device -> the operator that it ran last, and its finish
        self._left = set(range(table.n_ops))
        self._readers, self._missing = successors(table.n_ops, table.edges)

    def schedule(self, budget: Budget) -> ListSchedule | None:
        """Return the whole schedule; None if no ready operator has a device, or time runs out."""
        ready = {op for op in self._left if not self._missing[op]}
        while ready:
            _, op, trial = min((self._first(op) for op in ready), key=lambda choice: choice[:2])
            if trial is None or budget.brake_s <= 0:
                return None
            self._plan.book(op, trial)
            self._last[trial.device] = op, trial.finish_s
            self._left.discard(op)
            ready.discard(op)
            for reader in self._readers[op]:
                self._missing[reader] -= 1
                if not self._missing[reader]:
                    ready.add(reader)
        return self._plan.schedule()

    def _first(self, op: int) -> tuple[tuple[float, ...], int, TentativePlacement | None]:
        """Return cost, operator and trial where an operator can start first; None if it has no device."""
        trials = self._plan.trials(op)
        arrived_s = max((trial.ready_s for trial in trials), default=inf)
        costs = ((*self._cost(op, trial, arrived_s), trial) for trial in trials)
        start_s, waits, finish_s, _, trial = min(costs, default=(inf, 1.0, inf, 0, None), key=lambda cost: cost[:4])
        return (start_s, waits, finish_s, -self._urgency[op]), op, trial

    def _cost(self, op: int, trial: TentativePlacement, arrived_s: float) -> tuple[float, float, float, int]:
        """Start, whether it is no favourite, finish, device; its inputs could be on every device at ``arrived_s``."""
        start_s, last = trial.start_s, self._last.get(trial.device)
        favourite, wait_s = self._favourites.get(last[0], (-1, 0.0)) if last else (-1, 0.0)
        if last and favourite in self._left and favourite != op and arrived_s > start_s:
            start_s = max(start_s, last[1] + wait_s)
        return start_s, float(favourite != op), trial.finish_s, trial.device


HEFT, CPOP, PEFT = ListScheduler("heft", _heft), ListScheduler("cpop", _cpop), ListScheduler("peft", _peft)
M_ETF, M_SCT = ListScheduler("m-etf", _m_etf), ListScheduler("m-sct", _m_sct)
LIST_SCHEDULERS = (HEFT, CPOP, PEFT, M_ETF, M_SCT)
