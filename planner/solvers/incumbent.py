"""Incumbent: the best placement that a search has found so far."""

from math import inf

from graphs.errors import InputError
from planner.problem.evaluate import evaluate
from planner.problem.problem import Problem
from planner.solvers.base import Budget
from simulator.placement import Placement


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

    def value(self, placement: Placement) -> float:
        """The objective of a placement, see `objective_of`."""
        return objective_of(self._problem, placement)

    def offer(self, placement: Placement) -> None:
        """Take a placement if it is feasible and better, and tell the reporter."""
        objective_s = objective_of(self._problem, placement)
        if objective_s < self.objective_s:
            self.placement, self.objective_s = placement, objective_s
            budget = self._budget
            budget.reporter.on_incumbent(self._solver, objective_s, budget.bound_s, budget.told_s)
            budget.reporter.on_placement(placement)


def objective_of(problem: Problem, placement: Placement) -> float:
    """The objective in seconds; infinite if a constraint is broken, a link is missing or an operator cannot run."""
    try:
        evaluation = evaluate(problem, placement)
    except InputError:
        return inf
    return evaluation.objective_s if evaluation.feasible else inf
