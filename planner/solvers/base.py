"""Solver: the protocol of all solvers, with the budget, the best placement so far, and the answer of a search."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Protocol

from graphs.common.brief import Brief
from graphs.common.errors import InputError
from planner.problem import deadline
from planner.problem.deadline import now_s
from planner.problem.evaluate import evaluate, step_bounds
from planner.problem.problem import Goal, Problem
from planner.problem.reporter import SILENT, Reporter
from simulator.placement import Placement

JUDGED_S, ITEM_S, PASS_S = 3e-4, 1.5e-6, 3e-6
"""To judge a placement, for each operator and flow of it, and for each device and micro-batch of a training step, on
one core of 2.5 GHz."""
FEWEST_MOVES = 16  # that are judged whatever the time limit


@dataclass(frozen=True)
class Budget(Brief):
    """The limits and the starting point of a search.

    A search that counts its work does what the usual machine does in a share of ``time_limit_s``, and looks at the
    clock as a brake alone (`brake_s`), so that its answer does not depend on how busy the machine is.
    """

    time_limit_s: float  # seconds from ``start_s``
    gap: float = 1e-4  # a relative gap that is good enough
    start_s: float = field(default_factory=now_s)  # `now_s` when the search began
    incumbent: Placement | None = None  # a feasible placement to start from, if there is one
    incumbent_s: float = inf  # the incumbent's objective, if known; without contention where one device does it all
    bound_s: float = 0.0  # a lower bound that is known already
    seed: int = 0  # of all random choices
    reporter: Reporter = SILENT  # hears of progress
    before_s: float = 0.0  # seconds that earlier searches took
    end_s: float = inf  # `now_s` when all searches must end; by default, when this one does
    last: bool = False  # whether no search follows, so that this one uses all of its time instead of giving up early
    planned_s: float = 0.0  # what it plans with if ``time_limit_s`` cuts it off: it begins as the longer search would
    meanwhile: Callable[[float], None] = field(default=lambda _: None, repr=False, compare=False)
    """Hears of the seconds that the search has spent since, by its own count, so that another one may take its turn."""
    prove: Callable[[float], None] = field(default=lambda _: None, repr=False, compare=False)
    """Hears of each lower bound as soon as it is proved, which an interrupted search so keeps."""

    @property
    def unheard(self) -> "Budget":
        """The same budget for a search whose bounds are no bounds of the problem."""
        return replace(self, prove=lambda _: None)

    @property
    def wall_s(self) -> float:
        """Seconds since the start."""
        return now_s() - self.start_s

    @property
    def left_s(self) -> float:
        """Seconds that are left of the time limit, 0 or more, for a search that does not count its work."""
        return max(0.0, min(self._limit_s, self.end_s) - now_s())

    @property
    def brake_s(self) -> float:
        """Seconds until the clock stops a search that counts its work, 0 or more."""
        return max(0.0, (self.end_s if self.end_s < inf else self._limit_s) - now_s())

    @property
    def _limit_s(self) -> float:
        return self.start_s + deadline.BRAKE * self.time_limit_s

    def part(self, share: float) -> "Budget":
        """This budget with a share of its time limit; the clock stops it when it would stop this one."""
        return replace(self, time_limit_s=share * self.time_limit_s, end_s=min(self.end_s, now_s() + self.brake_s))

    def share(self, seconds: float) -> float:
        """These seconds as a share of the time limit, 1 at most."""
        return min(1.0, seconds / self.time_limit_s) if self.time_limit_s > 0 else 1.0


@dataclass(frozen=True)
class Answer(Brief):
    """The answer of a search; `planner.solve` evaluates it again.

    ``spent`` does not depend on the clock, so that other solvers can get the rest.
    """

    placement: Placement | None  # the best placement found, or None
    bound_s: float = 0.0  # a lower bound that the search proved; 0 if it proved none
    complete: bool = False  # whether this is a proof: the placement is optimal, or without one none is feasible
    spent: float = 0.0  # share of the time limit that its steps take on the usual machine; 0 if it counts none
    by_clock: bool = False  # whether the clock stopped it, and not its own count


class Solver(Protocol):
    """The protocol of a solver. It raises nothing for a hard problem, but returns its best answer within the budget."""

    @property
    def name(self) -> str:
        """The name that users write."""
        ...

    @property
    def goals(self) -> frozenset[Goal]:
        """The goals that it can minimise."""
        ...

    def refuses(self, problem: Problem) -> str:
        """Return what the solver cannot handle in a problem, in a few words; empty if it can solve the problem."""
        ...

    def search(self, problem: Problem, budget: Budget) -> Answer:
        """Search for the best placement within the budget."""
        ...


class Incumbent:
    """The best placement so far, at first the budget's; among equals the first one stays.

    Attributes:
        placement: the best placement, or None.
        objective_s: its value by `evaluate`; infinite without one.
    """

    def __init__(self, problem: Problem, budget: Budget, solver: str) -> None:
        self._problem, self._budget, self._solver = problem, budget, solver
        self.placement: Placement | None = None
        self.objective_s = inf
        if budget.incumbent is not None:
            self.placement = budget.incumbent
            self.objective_s = min(budget.incumbent_s, objective_of(problem, budget.incumbent))

    def value(self, placement: Placement, below_s: float = inf) -> float:
        """Return the objective of a placement, see `objective_of`."""
        return objective_of(self._problem, placement, below_s)

    def offer(self, placement: Placement, objective_s: float | None = None) -> None:
        """Take a placement if it is feasible and better, and tell the reporter; its objective may be known."""
        if objective_s is None:
            objective_s = self.value(placement, self.objective_s)
        if objective_s < self.objective_s:
            self.placement, self.objective_s = placement, objective_s
            budget = self._budget
            budget.reporter.on_incumbent(self._solver, objective_s, budget.bound_s, budget.before_s + budget.wall_s)
            budget.reporter.on_placement(placement)


def objective_of(problem: Problem, placement: Placement, below_s: float = inf) -> float:
    """Return the objective in seconds; infinite if a constraint is broken, a link is missing or an operator cannot run.

    One that is not below ``below_s`` need not be exact, see `evaluate`.
    """
    if problem.goal is Goal.TRAINING and below_s < inf:
        for least_s in step_bounds(problem, placement):
            if least_s >= below_s:
                return least_s
    try:
        evaluation = evaluate(problem, placement, below_s)
    except InputError:
        return inf
    return evaluation.objective_s if evaluation.feasible else inf


def judging_s(problem: Problem) -> float:
    """Return seconds to judge a placement on the usual machine."""
    table, passes = problem.table, problem.step.micro_batches if problem.goal is Goal.TRAINING else 0
    return JUDGED_S + ITEM_S * (table.n_ops + len(table.flows)) + PASS_S * table.n_devices * passes


def moves_within(time_limit_s: float, problem: Problem) -> int:
    """Return how many moves the usual machine judges within a time limit."""
    return max(FEWEST_MOVES, int(time_limit_s / judging_s(problem)))
