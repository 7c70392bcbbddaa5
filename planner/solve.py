"""solve: the front door. It picks solvers, judges every answer again and puts the proofs together."""

import time
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from types import MappingProxyType

from graphs.errors import InputError
from planner.bounds import infeasible_because, lower_bound
from planner.problem import Goal, Problem
from planner.reporter import SILENT, Reporter
from planner.result import Result, Status
from planner.solvers.base import Budget, Solver
from planner.solvers.chain_dp import ChainDP
from planner.solvers.exhaustive import Exhaustive, count_placements
from planner.solvers.ilp import ILP
from planner.solvers.incumbent import judge
from planner.solvers.list_schedule import Heft
from planner.solvers.pipeline import Pipeline
from simulator.placement import Placement

SOLVERS: Mapping[str, Solver] = MappingProxyType(
    {solver.name: solver for solver in (Exhaustive(), ChainDP(), Heft(), ILP(), Pipeline())}
)
"""Every solver by the name that users write; besides, there is ``auto``."""

AUTO = "auto"
PORTFOLIO: Mapping[Goal, tuple[str, ...]] = MappingProxyType(
    {Goal.THROUGHPUT: ("chain-dp", "ilp"), Goal.LATENCY: ("heft", "ilp"), Goal.COST: (), Goal.TRAINING: ("pipeline",)}
)
"""What ``auto`` runs one after the other, until the gap is closed or time is out."""

DEFAULT_GAP = 0.005
PROOF_TOLERANCE = 1e-5  # relative; an objective this close to a bound is optimal
FEW_PLACEMENTS = 2_000  # that are quicker tried than reasoned about

NO_PLACEMENT = "no placement keeps the memory, the links and the groups at once; add memory, links or devices"
NOT_FOUND = "no placement was found, nor a proof that there is none; allow more time, or give the devices more memory"


def solve(
    problem: Problem,
    solver: str = AUTO,
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
        solver: one of `SOLVERS`, or ``auto``.
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
    names = _stages(problem, solver)
    if not time_limit_s > 0:
        raise InputError(f"the time limit is {time_limit_s} s; give more than 0")
    if not 0 <= gap < 1:
        raise InputError(f"the gap is {gap}; give a number from 0 to below 1, such as 0.01 for 1 %")
    bound_s = lower_bound(problem)
    search = _Search(problem, Budget(time_limit_s, gap, start_s, bound_s=bound_s, seed=seed, reporter=reporter))
    advice = infeasible_because(problem.table, bound_s)
    if advice:
        return search.nothing(Status.INFEASIBLE, solver, advice)
    for device in range(problem.table.n_devices):
        search.offer("one device", Placement((device,) * problem.table.n_ops), tell=True)
    for name in names:
        if solver == AUTO and search.good_enough:
            break
        search.run(SOLVERS[name])
    return search.result(solver)


class _Search:
    """What is known so far: the best placement, who found it, and the best bound."""

    def __init__(self, problem: Problem, budget: Budget) -> None:
        self._problem, self._budget = problem, budget
        self._placement: Placement | None = None
        self._objective_s, self._bound_s = inf, budget.bound_s
        self._finder = ""
        self._complete = False

    def offer(self, finder: str, placement: Placement, tell: bool) -> None:
        """Take a placement if it is feasible and better than what is there, whatever its finder says of it."""
        objective_s = judge(self._problem, placement)
        if objective_s < self._objective_s:
            self._placement, self._objective_s, self._finder = placement, objective_s, finder
            if tell:
                self._budget.reporter.on_incumbent(finder, objective_s, self._bound_s, self._budget.wall_s)

    def run(self, solver: Solver) -> None:
        """Let a solver go on from here."""
        answer = solver.search(self._problem, replace(self._budget, incumbent=self._placement, bound_s=self._bound_s))
        if answer.placement is not None:
            self.offer(solver.name, answer.placement, tell=False)  # the solver has told already
        self._bound_s = max(self._bound_s, answer.bound_s)
        self._complete = self._complete or answer.complete

    @property
    def good_enough(self) -> bool:
        """Whether to stop: within the gap, all tried, or out of time."""
        near = self._objective_s * (1 - self._budget.gap) <= self._bound_s and self._placement is not None
        return near or self._complete or self._budget.left_s <= 0

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


def _stages(problem: Problem, solver: str) -> list[str]:
    """The names of the solvers to run, one after the other."""
    if solver == AUTO:
        if count_placements(problem, FEW_PLACEMENTS) < FEW_PLACEMENTS:
            return ["exhaustive"]
        portfolio = PORTFOLIO[problem.goal]
        return [name for name in portfolio if not SOLVERS[name].refuses(problem)]
    if solver not in SOLVERS:
        raise InputError(f"there is no solver '{solver}'; known: {', '.join([AUTO, *SOLVERS])}")
    if problem.goal not in SOLVERS[solver].goals:
        able = [name for name, known in SOLVERS.items() if problem.goal in known.goals]
        raise InputError(f"the solver '{solver}' cannot minimise {problem.goal}; these can: {', '.join([AUTO, *able])}")
    if reason := SOLVERS[solver].refuses(problem):
        able = [name for name, known in SOLVERS.items() if problem.goal in known.goals and not known.refuses(problem)]
        raise InputError(f"the solver '{solver}' cannot handle {reason}; these can: {', '.join([AUTO, *able])}")
    return [solver]
