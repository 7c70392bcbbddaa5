"""Portfolio: every solver by name, and the sequence of solvers that ``auto`` runs for each goal."""

from collections.abc import Mapping
from functools import singledispatch
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from costmodels.table import CostTable
from graphs.common import checks
from graphs.common.errors import InputError, nearest
from planner.problem.problem import Goal, Problem
from planner.solvers.base import Solver
from planner.solvers.dp.chains.chain_dp import ChainDP
from planner.solvers.dp.chains.pipeline import Pipeline
from planner.solvers.dp.downsets.downset_dp import DownsetDP
from planner.solvers.exhaustive import UNTIMED, Exhaustive, count_placements, tries_everything
from planner.solvers.latency.branch_and_bound import BranchAndBound
from planner.solvers.latency.latency_search import LatencySearch
from planner.solvers.list_scheduling.heft import LIST_SCHEDULERS
from planner.solvers.local_search.local_search import LocalSearch
from planner.solvers.milp.ilp import ILP


def named_solvers(*solvers: Solver) -> Mapping[str, Solver]:
    """Return solvers by their names."""
    return MappingProxyType({solver.name: solver for solver in solvers})


SOLVERS = named_solvers(
    Exhaustive(),
    ChainDP(),
    DownsetDP(),
    LocalSearch(),
    ILP(),
    *LIST_SCHEDULERS,
    LatencySearch(),
    BranchAndBound(),
    Pipeline(),
)
"""Every solver by the name that users write; ``auto`` is not among them."""

AUTO = "auto"
OPENING_S, OPENING_OP_S = 2.5, 2.7e-3  # of the first local search at least, and for an operator: two full cycles
FEW_PLACEMENTS = UNTIMED  # trying this many takes less time than any other solver


class SolverTurn(NamedTuple):
    """A turn with its solvers, see `Turn`."""

    solver: Solver
    share: float = 1.0
    most_s: float = inf
    meanwhile: Solver | None = None


class Turn(NamedTuple):
    """A solver and its share of the time that the solvers before it leave, see `Answer.spent`."""

    solver: str
    share: float = 1.0
    most_s: float = inf  # whatever the share
    opening: bool = False  # whether it takes `opening_s`, however much time there is
    meanwhile: str = ""  # a solver that searches in turns with it, unless it refuses the problem

    def with_solvers(self, known: Mapping[str, Solver], problem: Problem) -> SolverTurn:
        """Return the turn with the known solvers of its names."""
        other = known.get(self.meanwhile)
        alone = other is None or other.refuses(problem)
        most_s = opening_s(problem) if self.opening else self.most_s
        return SolverTurn(known[self.solver], self.share, most_s, None if alone else other)


def opening_s(problem: Problem) -> float:
    """Return the seconds of the first local search."""
    return max(OPENING_S, OPENING_OP_S * problem.table.n_ops)


PORTFOLIO: Mapping[Goal, tuple[Turn, ...]] = MappingProxyType(
    {
        Goal.THROUGHPUT: (
            Turn("chain-dp", 0.1, most_s=0.5),
            Turn("local-search", opening=True),
            Turn("ilp", meanwhile="local-search"),
        ),
        Goal.LATENCY: (
            Turn("latency-search", opening=True),
            Turn("branch-and-bound", 0.3),
            Turn("ilp", meanwhile="latency-search"),
        ),
        Goal.COST: (Turn("local-search", opening=True), Turn("ilp", meanwhile="local-search")),
        Goal.TRAINING: (Turn("pipeline", 1.0),),
    }
)
"""The solvers that ``auto`` runs in sequence, without those that refuse, until the gap is closed or time runs out.

The first one runs even if there is no time, so that there always is a contiguous placement, or a list schedule. Limits
that do not depend on the time let a longer search begin as a shorter one."""

CONTIGUOUS = (Turn("chain-dp", 0.2), Turn("downset-dp", 1.0))
"""The solvers that ``auto`` runs if operators must be contiguous."""


class Portfolio(NamedTuple):
    """The solvers of a kind of cost table."""

    solvers: Mapping[str, Solver]  # by name
    turns: Mapping[Goal, tuple[Turn, ...]]  # of ``auto``, as `PORTFOLIO`
    contiguous: tuple[Turn, ...]  # of ``auto`` if operators must be contiguous


@singledispatch
def portfolio_of(table: CostTable) -> Portfolio:  # noqa: ARG001  # kinds of tables dispatch on it
    """Return the solvers for a table; a kind of table with other transfers registers a portfolio of its own."""
    return Portfolio(SOLVERS, PORTFOLIO, CONTIGUOUS)


def turns(problem: Problem, solver: str | Solver) -> list[SolverTurn]:
    """Return the solvers to run in sequence, each with its share of the time that is left.

    Raises:
        InputError: for an unknown solver, or a solver that cannot solve the problem.
    """
    checks.instance(problem, Problem, "the problem", "a Problem")
    if not hasattr(solver, "search"):
        checks.instance(solver, str, "the solver", "the name of one, or a Solver")
    known: Portfolio = portfolio_of(problem.table)
    if not isinstance(solver, str):
        return [SolverTurn(_able(solver, problem, known.solvers))]
    if solver == AUTO:
        few = count_placements(problem, FEW_PLACEMENTS) < FEW_PLACEMENTS
        if few and tries_everything(problem):
            return [SolverTurn(known.solvers["exhaustive"])]
        portfolio = (Turn("exhaustive", 1.0),) * few + known.turns[problem.goal]
        if problem.contiguous and problem.goal is not Goal.TRAINING:
            portfolio = tuple(turn for turn in known.contiguous if problem.goal in known.solvers[turn.solver].goals)
        return [
            turn.with_solvers(known.solvers, problem)
            for turn in portfolio
            if not known.solvers[turn.solver].refuses(problem)
        ]
    if solver not in known.solvers:
        names = [AUTO, *known.solvers]
        raise InputError(f"there is no solver '{solver}'; known: {', '.join(names)}{nearest(solver, names)}")
    return [SolverTurn(_able(known.solvers[solver], problem, known.solvers))]


def _able(solver: Solver, problem: Problem, solvers: Mapping[str, Solver]) -> Solver:
    """Return the solver, if it can solve the problem."""
    able = [name for name, candidate in solvers.items() if problem.goal in candidate.goals]
    if problem.goal not in solver.goals:
        raise InputError(
            f"the solver '{solver.name}' cannot minimise {problem.goal}; these can: {', '.join([AUTO, *able])}"
        )
    if reason := solver.refuses(problem):
        able = [name for name in able if not solvers[name].refuses(problem)]
        raise InputError(f"the solver '{solver.name}' cannot handle {reason}; these can: {', '.join([AUTO, *able])}")
    return solver
