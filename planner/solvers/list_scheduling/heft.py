"""List scheduling: operators one by one, the most urgent first, each on the device that suits it best."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from costmodels.table import CostTable
from planner.solvers.base import Budget
from planner.solvers.list_scheduling.ranks import (
    by_priority,
    critical_path,
    downward_rank,
    optimistic_costs,
    upward_rank,
)
from planner.solvers.list_scheduling.schedule import ListPlan, ListSchedule, ListScheduler, TentativePlacement


@dataclass(frozen=True)
class Heft(ListScheduler):
    """Heterogeneous Earliest Finish Time: urgent is what has the longest way to the end; it goes where it ends first.

    Source: Topcuoglu, Hariri, Wu: Performance-effective and low-complexity task scheduling for heterogeneous
    computing, IEEE TPDS 13(3), 2002.
    """

    name: str = "heft"

    def schedule(self, table: CostTable, book_transfers: bool, budget: Budget) -> ListSchedule | None:
        """One schedule; see `ListScheduler`."""
        plan = ListPlan(table, book_transfers)
        return list_schedule(plan, by_priority(table, upward_rank(table)), lambda _, trial: trial.finish_s, budget)


@dataclass(frozen=True)
class Cpop(ListScheduler):
    """Critical Path On a Processor: the longest path goes to the device that computes it fastest, the rest as in HEFT.

    Urgent is what lies on long paths. An operator of the critical path that cannot run on its device, or finds no
    room there, goes where it ends first.

    Source: as of `Heft`, in the same paper.
    """

    name: str = "cpop"

    def schedule(self, table: CostTable, book_transfers: bool, budget: Budget) -> ListSchedule | None:
        """One schedule; see `ListScheduler`."""
        length_s = [up + down for up, down in zip(upward_rank(table), downward_rank(table), strict=True)]
        path = critical_path(table, length_s)
        home, inside = int(table.forward_s[path].sum(axis=0).argmin()), frozenset(path)

        def cost(op: int, trial: TentativePlacement) -> tuple[bool, float]:
            return op in inside and trial.device != home, trial.finish_s

        return list_schedule(ListPlan(table, book_transfers), by_priority(table, length_s), cost, budget)


@dataclass(frozen=True)
class Peft(ListScheduler):
    """Predict Earliest Finish Time: an operator goes where it and the longest way from there to the end take least.

    Source: Arabnejad, Barbosa: List scheduling algorithm for heterogeneous systems by an optimistic cost table,
    IEEE TPDS 25(3), 2014.
    """

    name: str = "peft"

    def schedule(self, table: CostTable, book_transfers: bool, budget: Budget) -> ListSchedule | None:
        """One schedule; see `ListScheduler`."""
        ahead_s = optimistic_costs(table)
        order = by_priority(table, ahead_s.mean(axis=1).tolist())

        def cost(op: int, trial: TentativePlacement) -> float:
            return trial.finish_s + float(ahead_s[op, trial.device])

        return list_schedule(ListPlan(table, book_transfers), order, cost, budget)


def list_schedule(
    plan: ListPlan, order: Sequence[int], cost: Callable[[int, TentativePlacement], Any], budget: Budget
) -> ListSchedule | None:
    """Schedule the operators in this topological order, each on the device of the least cost, the first among equals.

    Returns:
        None if an operator has nowhere to go, or time is out.
    """
    for op in order:
        trials = plan.trials(op)
        if not trials or budget.left_s <= 0:
            return None
        plan.book(op, min(trials, key=lambda trial: cost(op, trial)))
    return plan.schedule()
