"""What every solver is: a small frozen value with a name, the goals it serves, and a search."""

import time
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from graphs.brief import brief
from planner.problem.problem import Goal, Problem
from planner.problem.reporter import SILENT, Reporter
from simulator.placement import Placement


@dataclass(frozen=True)
class Budget:
    """How long and how far a search may go.

    Attributes:
        time_limit_s: wall-clock seconds from ``start_s``.
        gap: a relative gap that is good enough.
        start_s: `time.perf_counter` when the search began.
        incumbent: a feasible placement to start from, if there is one.
        incumbent_s: what it takes, if known: on one device less than by the problem's table, which counts contention.
        bound_s: a lower bound that holds already.
        seed: of every random choice.
        reporter: hears of progress.
        before_s: seconds that others have searched before.
        end_s: `time.perf_counter` when everything must be over, even if time is left of the limit.
        last: whether no search comes after this one; it then goes on where it would else give up early.
    """

    time_limit_s: float
    gap: float = 1e-4
    start_s: float = field(default_factory=time.perf_counter)
    incumbent: Placement | None = None
    incumbent_s: float = inf
    bound_s: float = 0.0
    seed: int = 0
    reporter: Reporter = SILENT
    before_s: float = 0.0
    end_s: float = inf
    last: bool = False

    __repr__ = brief

    @property
    def wall_s(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.start_s

    @property
    def told_s(self) -> float:
        """Seconds since the first search of all began, as the reporter hears it."""
        return self.before_s + self.wall_s

    @property
    def left_s(self) -> float:
        """Seconds that are left, 0 at least."""
        return max(0.0, min(self.start_s + self.time_limit_s, self.end_s) - time.perf_counter())

    def share(self, seconds: float) -> float:
        """What share of the time limit so many seconds are, 1 at most."""
        return min(1.0, seconds / self.time_limit_s) if self.time_limit_s > 0 else 1.0


@dataclass(frozen=True)
class Answer:
    """What a search returns; `planner.solve` judges it again.

    Attributes:
        placement: the best one found, or None.
        bound_s: a lower bound that the search proved; 0 if none.
        complete: whether it searched everything: a placement is then optimal, and without one there is none.
        spent: what share of the time limit its steps take on the usual machine; 0 if it does not count them. Unlike the
            seconds on the clock it is always the same, so what is left can go to other solvers.
    """

    placement: Placement | None
    bound_s: float = 0.0
    complete: bool = False
    spent: float = 0.0

    __repr__ = brief


class Solver(Protocol):
    """The form of a solver. It never raises for a hard problem: it returns what it has when the budget ends."""

    @property
    def name(self) -> str:
        """As users write it."""
        ...

    @property
    def goals(self) -> frozenset[Goal]:
        """What it can minimise."""
        ...

    def refuses(self, problem: Problem) -> str:
        """What of the problem it cannot handle, in a few words; empty if it can solve it."""
        ...

    def search(self, problem: Problem, budget: Budget) -> Answer:
        """Look for the best placement within the budget."""
        ...
