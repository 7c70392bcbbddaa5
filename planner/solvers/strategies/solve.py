"""Solve a strategy problem: dominance and elimination; if these prove no optimum, relaxation and an integer program.

What these leave of the time goes to neighbourhoods of the best choice.
"""

from dataclasses import dataclass
from math import inf

from planner.problem.result import PROOF_TOLERANCE, Interrupted, Status
from planner.problem.strategies import StrategyProblem, StrategyResult
from planner.solvers.base import Budget
from planner.solvers.strategies.descent import Descent
from planner.solvers.strategies.dominance import ReducedStrategies, without_dominated
from planner.solvers.strategies.elimination import MOST_CELLS, eliminate
from planner.solvers.strategies.neighbourhoods import Neighbourhoods
from planner.solvers.strategies.relaxation import relax
from planner.solvers.strategies.strategy_ilp import MOST_CELLS as MOST_VARIABLES
from planner.solvers.strategies.strategy_ilp import StrategyILP

RELAXATION_SHARE, ILP_SHARE = 0.2, 0.5  # of the time limit; neighbourhoods get the rest
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

    Raises:
        Interrupted: on Ctrl-C, with the best result until then.
    """
    budget = Budget(time_limit_s, gap=0.0)
    small = without_dominated(problem)
    search = _BestChoice(small.problem, -inf)
    try:
        _search(search, budget, most_cells)
    except KeyboardInterrupt as stopped:
        if search.choice is None:
            raise
        raise Interrupted(search.result(small, budget)) from stopped
    return search.result(small, budget)


def _search(search: "_BestChoice", budget: Budget, most_cells: int) -> None:
    """One way after the other, until the best choice is proved or time runs out."""
    problem = search.problem
    done = eliminate(problem, most_cells)
    search.bound = done.bound
    search.offer(done.choice, "elimination")
    if done.exact and search.choice is not None:
        search.bound = search.objective
    elif problem.least_peak > problem.limit:
        search.bound = inf
    if not search.proved:
        _relaxed(search, budget, most_cells, done.exact)
    n_variables = sum(cost.size for cost in problem.node_cost) + sum(e.cost.size for e in problem.edges)
    end_s, share = budget.start_s + budget.time_limit_s, 1 - RELAXATION_SHARE
    if not search.proved and n_variables <= MOST_VARIABLES and budget.left_s > 0:
        unit = max(1.0, abs(search.bound)) if search.bound > -inf else 1.0
        program = StrategyILP(problem.below(search.objective), unit)
        share -= ILP_SHARE
        part = Budget(ILP_SHARE * budget.time_limit_s, gap=0.0, end_s=end_s)
        bound = program.solve(part, search.choice, lambda choice: search.offer(choice, "ilp"))
        search.bound = max(search.bound, min(bound, search.objective))
    if search.choice is not None and search.status is Status.FEASIBLE and budget.left_s > 0:
        around = Neighbourhoods(problem, budget.seed)
        rest = Budget(share * budget.time_limit_s, gap=0.0, end_s=end_s)
        around.search(search.choice, rest, lambda choice: search.offer(choice, "neighbourhoods"))


def _relaxed(search: "_BestChoice", budget: Budget, most_cells: int, exact: bool) -> None:
    """Find choices and a bound with a price of memory instead of its limit; ``exact`` is for `relax`."""
    problem = search.problem
    if problem.limit == inf and exact:
        return
    descent = Descent(problem)

    def tell(choice: tuple[int, ...]) -> float:
        search.offer(choice, "relaxation")
        search.offer(descent.improved(choice), "descent")
        return search.objective

    if search.choice is None:
        tell(eliminate(problem.leanest, most_cells).choice)
    most_s = RELAXATION_SHARE * budget.time_limit_s
    late_s = budget.time_limit_s - 2 * most_s  # the clock stops it on a slow machine only
    bound = relax(problem, most_cells, tell, lambda: search.proved or budget.left_s <= late_s, most_s, exact)
    search.bound = max(search.bound, min(bound, search.objective))


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

    def result(self, small: ReducedStrategies, budget: Budget) -> StrategyResult:
        """Return the answer, in the strategies of the whole problem."""
        choice = None if self.choice is None else small.restored(self.choice)
        bound = min(self.bound, self.objective)
        return StrategyResult(self.status, choice, self.objective, bound, budget.wall_s, self.finder)

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
