"""Solve a strategy problem: dominance and elimination; relaxation and an integer program if these prove no optimum."""

import time
from dataclasses import dataclass
from math import inf

from planner.problem.result import PROOF_TOLERANCE, Status
from planner.problem.strategies import StrategyProblem, StrategyResult
from planner.solvers.base import Budget
from planner.solvers.strategies.descent import Descent
from planner.solvers.strategies.dominance import without_dominated
from planner.solvers.strategies.elimination import MOST_CELLS, eliminate
from planner.solvers.strategies.relaxation import relax
from planner.solvers.strategies.strategy_ilp import MOST_CELLS as MOST_VARIABLES
from planner.solvers.strategies.strategy_ilp import StrategyILP

ROUNDING = 1e-12  # relative; sums of costs in another order


def solve_strategies(
    problem: StrategyProblem, time_limit_s: float = 10.0, most_cells: int = MOST_CELLS
) -> StrategyResult:
    """Find the choice of one strategy a node that costs least within the memory limit.

    Args:
        problem: what there is to choose.
        time_limit_s: wall-clock seconds; elimination always runs to its end.
        most_cells: the largest table of elimination; with 1, the integer program has to prove everything.

    Returns:
        The best choice that was found, and a bound. OPTIMAL if they meet.
    """
    budget = Budget(time_limit_s, gap=0.0)
    small = without_dominated(problem)
    done = eliminate(small.problem, most_cells)
    search = _BestChoice(small.problem, done.bound)
    search.offer(done.choice, "elimination")
    if done.exact and search.choice is not None:
        search.bound = search.objective
    if not search.proved and small.problem.limit < inf:
        descent = Descent(small.problem)

        def tell(choice: tuple[int, ...]) -> float:
            search.offer(choice, "relaxation")
            search.offer(descent.improved(choice), "descent")
            return search.objective

        bound = relax(small.problem, most_cells, tell, lambda: search.proved or budget.left_s <= time_limit_s / 2)
        search.bound = max(search.bound, min(bound, search.objective))
    n_variables = sum(cost.size for cost in small.problem.node_cost) + sum(e.cost.size for e in small.problem.edges)
    if not search.proved and n_variables <= MOST_VARIABLES and budget.left_s > 0:
        unit = max(1.0, abs(search.bound)) if search.bound > -inf else 1.0
        program = StrategyILP(small.problem, unit)
        bound = program.solve(budget, search.choice, lambda choice: search.offer(choice, "ilp"))
        search.bound = max(search.bound, min(bound, search.objective))
    choice = None if search.choice is None else small.restored(search.choice)
    bound = min(search.bound, search.objective)
    return StrategyResult(
        search.status, choice, search.objective, bound, time.perf_counter() - budget.start_s, search.finder
    )


@dataclass
class _BestChoice:
    """The best choice so far, and the best bound."""

    problem: StrategyProblem
    bound: float
    choice: tuple[int, ...] | None = None
    objective: float = inf
    finder: str = ""

    def offer(self, choice: tuple[int, ...], finder: str) -> None:
        """Take a choice if it is allowed and better."""
        cost = self.problem.cost(choice)
        if cost < self.objective and self.problem.allows(choice):
            self.choice, self.objective, self.finder = choice, cost, finder

    @property
    def proved(self) -> bool:
        """Whether nothing is left to find."""
        if self.choice is None:
            return self.bound == inf
        return self.objective - self.bound <= ROUNDING * max(1.0, abs(self.objective))

    @property
    def status(self) -> Status:
        """How the search ended."""
        if self.choice is None:
            return Status.INFEASIBLE if self.bound == inf else Status.UNKNOWN
        near = self.objective - self.bound <= PROOF_TOLERANCE * max(1.0, abs(self.objective))
        return Status.OPTIMAL if near else Status.FEASIBLE
