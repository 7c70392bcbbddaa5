"""solve: the front door. It picks solvers, judges every answer again and puts the proofs together."""

import time
from dataclasses import replace
from math import inf

import numpy as np

from graphs.errors import InputError
from planner.bounds import lower_bound, streaming_bound
from planner.company import always_in_company, counts_pauses
from planner.infeasible import infeasible_because
from planner.portfolio import AUTO, turns
from planner.problem import Problem
from planner.reporter import SILENT, Reporter
from planner.result import Result, Status
from planner.solvers.base import Answer, Budget, Solver
from planner.solvers.exhaustive import Exhaustive
from planner.solvers.incumbent import judge
from simulator.placement import Placement

DEFAULT_GAP = 0.005
MOST_ALONE = 4  # devices that are tried as the only one
PROOF_TOLERANCE = 1e-5  # relative; an objective this close to a bound is optimal

NO_PLACEMENT = "no placement keeps the memory, the links and the groups at once; add memory, links or devices"
NOT_FOUND = "no placement was found, nor a proof that there is none; allow more time, or give the devices more memory"


def solve(
    problem: Problem,
    solver: str | Solver = AUTO,
    time_limit_s: float = 10.0,
    gap: float = DEFAULT_GAP,
    seed: int = 0,
    reporter: Reporter = SILENT,
) -> Result:
    """Find a placement and say how good it is.

    ``auto`` tries everything if that is little. Else it goes on from the best device alone: for throughput to the best
    contiguous placement, for latency to list scheduling; and, if that is not within the gap, to integer programming.

    Args:
        problem: what to place, and for what.
        solver: one of `planner.portfolio.SOLVERS`, ``auto``, or a solver of your own.
        time_limit_s: wall-clock seconds for everything.
        gap: stop when the answer is at most this far from a bound, relative.
        seed: of every random choice.
        reporter: hears of every better placement.

    Returns:
        The best placement of all that were tried, with the best bound; OPTIMAL only if they meet.

    Raises:
        InputError: for an unknown solver, one that does not serve the goal, or a limit that is no limit.
    """
    start_s = time.perf_counter()
    order = turns(problem, solver)
    asked = solver if isinstance(solver, str) else solver.name
    if not time_limit_s > 0:
        raise InputError(f"the time limit is {time_limit_s} s; give more than 0")
    if not 0 <= gap < 1:
        raise InputError(f"the gap is {gap}; give a number from 0 to below 1, such as 0.01 for 1 %")
    bound_s = lower_bound(problem)
    search = _Search(problem, Budget(time_limit_s, gap, start_s, bound_s=bound_s, seed=seed, reporter=reporter))
    advice = infeasible_because(problem.table, bound_s)
    if advice:
        return search.nothing(Status.INFEASIBLE, asked, advice)
    for device in _alone(problem):
        search.offer("one device", Placement((device,) * problem.table.n_ops), tell=True)
    for turn, share in order:
        if solver == AUTO and search.good_enough:
            break
        search.run(turn, share)
    return search.result(asked)


def _alone(problem: Problem) -> list[int]:
    """The devices that could be the best one for everything; the first of those that look alike.

    A device then takes what its operators take while the others are idle; the judge has the last word.
    """
    table = problem.table.alone
    able = np.flatnonzero(np.isfinite(table.forward_s).all(axis=0) & (table.placed_bytes.sum() <= table.capacity_bytes))
    alike: dict[tuple[float, ...], int] = {}
    for device in able.tolist():
        seconds = float(table.forward_s[:, device].sum()), float(table.backward_s[:, device].sum())
        alike.setdefault((*seconds, float(table.capacity_bytes[device])), device)
    busy_s = (table.forward_s + table.backward_s).sum(axis=0)
    return sorted(alike.values(), key=lambda device: float(busy_s[device]))[:MOST_ALONE]


class _Search:
    """What is known so far: the best placement, who found it, and the best bound."""

    def __init__(self, problem: Problem, budget: Budget) -> None:
        self._problem, self._budget = problem, budget
        self._placement: Placement | None = None
        self._objective_s, self._bound_s = inf, budget.bound_s
        self._finder = ""
        self._complete = False
        self._crowded_s = lower_bound(always_in_company(problem)) if counts_pauses(problem) else 0.0
        self._settled = False

    def offer(self, finder: str, placement: Placement, tell: bool) -> None:
        """Take a placement if it is feasible and better than what is there, whatever its finder says of it."""
        objective_s = judge(self._problem, placement)
        if objective_s < self._objective_s:
            self._placement, self._objective_s, self._finder = placement, objective_s, finder
            if tell:
                self._budget.reporter.on_incumbent(finder, objective_s, self._bound_s, self._budget.wall_s)
                self._budget.reporter.on_placement(placement)

    def run(self, solver: Solver, share: float) -> None:
        """Let a solver go on from here, for a share of all the time."""
        budget = replace(
            self._budget,
            time_limit_s=min(share * self._budget.time_limit_s, self._budget.left_s),
            start_s=time.perf_counter(),
            before_s=self._budget.wall_s,
            incumbent=self._placement,
        )
        answer = self._asked(solver, budget)
        if answer.placement is not None:
            self.offer(solver.name, answer.placement, tell=False)  # the solver has told already
        self._bound_s = max(self._bound_s, answer.bound_s)
        self._complete = self._complete or answer.complete

    def _asked(self, solver: Solver, budget: Budget) -> Answer:
        """What a solver finds and proves; only the exhaustive one can count pauses, see `planner.company`."""
        if not counts_pauses(self._problem) or isinstance(solver, Exhaustive):
            return solver.search(self._problem, replace(budget, bound_s=self._bound_s))
        crowded = always_in_company(self._problem)
        answer = solver.search(crowded, replace(budget, bound_s=self._crowded_s))
        nothing = answer.placement is None
        objective_s = judge(crowded, answer.placement) if answer.placement is not None else inf
        self._crowded_s = max(self._crowded_s, objective_s if answer.complete else answer.bound_s)
        self._settled = self._settled or objective_s * (1 - budget.gap) <= self._crowded_s
        bound_s = streaming_bound(self._problem.table, self._crowded_s)
        return Answer(answer.placement, bound_s, complete=answer.complete and nothing)

    @property
    def good_enough(self) -> bool:
        """Whether to stop: within the gap, all tried, nothing left to find for these solvers, or out of time."""
        near = self._objective_s * (1 - self._budget.gap) <= self._bound_s and self._placement is not None
        return near or self._complete or self._settled or self._budget.left_s <= 0

    def result(self, asked: str) -> Result:
        """The answer."""
        if self._placement is None:
            if self._complete:
                return self.nothing(Status.INFEASIBLE, asked, NO_PLACEMENT)
            return self.nothing(Status.UNKNOWN, asked, NOT_FOUND)
        objective_s = self._objective_s
        proved = self._complete or objective_s <= self._bound_s * (1 + PROOF_TOLERANCE)
        bound_s = objective_s if self._complete else min(objective_s, self._bound_s)
        status = Status.OPTIMAL if proved else Status.FEASIBLE
        return Result(status, self._placement, objective_s, bound_s, self._budget.wall_s, self._finder)

    def nothing(self, status: Status, asked: str, advice: str) -> Result:
        """The answer without a placement."""
        bound_s = inf if status is Status.INFEASIBLE else self._bound_s
        return Result(status, None, inf, bound_s, self._budget.wall_s, asked, advice)
