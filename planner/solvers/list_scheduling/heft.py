"""HEFT, CPOP and PEFT: operators by falling priority, each on the device of the least cost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from costmodels.table import CostTable
from planner.problem.precedence import by_priority
from planner.solvers.base import Budget
from planner.solvers.list_scheduling.schedule import (
    ListPlan,
    ListSchedule,
    ListScheduler,
    TentativePlacement,
    critical_path,
    downward_rank,
    optimistic_costs,
    upward_rank,
)


@dataclass(frozen=True)
class Heft(ListScheduler):
    """Heterogeneous Earliest Finish Time: the longest path to the end is the priority; the earliest finish decides.

    Source: Topcuoglu, Hariri, Wu: Performance-effective and low-complexity task scheduling for heterogeneous
    computing, IEEE TPDS 13(3), 2002.
    """

    name: str = "heft"

    def schedule(self, table: CostTable, book_transfers: bool, budget: Budget) -> ListSchedule | None:
        """One schedule; see `ListScheduler`."""
        order = by_priority(upward_rank(table), table.edges)
        return list_schedule(ListPlan(table, book_transfers), order, lambda _, trial: trial.finish_s, budget)


@dataclass(frozen=True)
class Cpop(ListScheduler):
    """Critical Path On a Processor: the longest path goes to the device that computes it fastest, the rest as in HEFT.

    The priority of an operator is the length of the longest path through it. An operator of the critical path that
    cannot run on that device, or has no room there, goes where it finishes first.

    Source: the paper of `Heft`.
    """

    name: str = "cpop"

    def schedule(self, table: CostTable, book_transfers: bool, budget: Budget) -> ListSchedule | None:
        """One schedule; see `ListScheduler`."""
        length_s = [up + down for up, down in zip(upward_rank(table), downward_rank(table), strict=True)]
        path = critical_path(table, length_s)
        home, inside = int(table.forward_s[path].sum(axis=0).argmin()), frozenset(path)

        def cost(op: int, trial: TentativePlacement) -> tuple[bool, float]:
            return op in inside and trial.device != home, trial.finish_s

        return list_schedule(ListPlan(table, book_transfers), by_priority(length_s, table.edges), cost, budget)


@dataclass(frozen=True)
class Peft(ListScheduler):
    """Predict Earliest Finish Time: an operator goes where it and the longest path from there to the end take least.

    Source: Arabnejad, Barbosa: List scheduling algorithm for heterogeneous systems by an optimistic cost table,
    IEEE TPDS 25(3), 2014.
    """

    name: str = "peft"

    def schedule(self, table: CostTable, book_transfers: bool, budget: Budget) -> ListSchedule | None:
        """One schedule; see `ListScheduler`."""
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
        if not trials or budget.left_s <= 0:
            return None
        plan.book(op, min(trials, key=lambda trial: cost(op, trial)))
    return plan.schedule()
