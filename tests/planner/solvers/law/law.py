"""The law of solvers: what each of them, and ``auto``, may say of a problem, held against the truth.

- A placement is feasible, and its objective is what the independent evaluator says.
- A bound is not above the least of all placements.
- "optimal" means the least of all placements, "infeasible" that there is none.
- A solver that is exact for a kind of problem proves the least of all placements, or that there is none.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from random import Random
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from costmodels.table import CostTable
from planner.literature.placement.offload import OffloadTable
from planner.problem.bounds import lower_bound
from planner.problem.devices import uniform_links
from planner.problem.infeasible import infeasible_because
from planner.problem.problem import Goal, Problem
from planner.problem.result import PROOF_TOLERANCE, Status
from planner.solvers.base import Budget, Solver, objective_of
from planner.solvers.dp.chains.pipeline import Pipeline
from planner.solvers.latency.branch_and_bound import channels_apart
from planner.solvers.latency.latency_search import LatencySearch
from planner.solvers.portfolio import AUTO, SOLVERS, portfolio_of
from planner.solvers.solve import solve
from simulator.placement import Placement
from tests.planner.solvers.law.random_problems import random_problem
from tests.planner.solvers.law.truth import Truth

ROUNDING = 1e-9  # relative
PLENTY_S = 60.0
MOMENT_S = 0.002  # for what proves nothing and would search for as long as it may
BOUNDS = "bounds"
PROVERS = frozenset({BOUNDS, AUTO, "exhaustive", "downset-dp", "ilp", "branch-and-bound"})
HARDER = 4  # times as often as what proves nothing
ASKED = 2  # of each problem
HEURISTIC = frozenset({"local-search", "offload-latency"})
QUICK: Mapping[str, Solver] = {"latency-search": LatencySearch(steps=300), "pipeline": Pipeline(most_work=30)}
"""Solvers that prove nothing, with less patience."""


class Broken(NamedTuple):
    """A claim that is not true."""

    kind: str
    seed: int
    solver: str
    claim: str

    def __str__(self) -> str:
        return f"{self.solver} on random_problem({self.kind!r}, {self.seed}): {self.claim}"


def break_law(kinds: Iterable[str], seeds: Iterable[int]) -> Iterator[list[Broken]]:
    """What is broken on each problem: seed by seed, of every kind."""
    every = tuple(kinds)
    with _less_effort():
        for seed in seeds:
            for kind in every:
                claims = claims_broken(random_problem(kind, seed), Random(f"{kind} {seed} budget"))
                yield [Broken(kind, seed, *claim) for claim in claims]


@contextmanager
def _less_effort() -> Iterator[None]:
    """Heuristics search for a moment, and ``auto`` leaves nothing to the exhaustive solver."""
    with (
        patch("planner.solvers.portfolio.SOLVERS", {**SOLVERS, **QUICK}),
        patch("planner.solvers.portfolio.FEW_PLACEMENTS", 0),
        patch("planner.solvers.latency.branch_and_bound.FIRST", QUICK["latency-search"]),
        patch("planner.solvers.local_search.local_search.WORK_PER_CELL", 300),
        patch("planner.literature.placement.offload_latency.MOST_ROUNDS", 2),
    ):
        yield


def claims_broken(problem: Problem, random: Random) -> Iterator[tuple[str, str]]:
    """Claims on a problem that are not true, and whose they are; ``random`` draws who is asked, and how."""
    truth = Truth(problem)
    known = portfolio_of(problem.table).solvers
    solvers = {**known, **{name: solver for name, solver in QUICK.items() if name in known}}
    able = [name for name, known in solvers.items() if problem.goal in known.goals and not known.refuses(problem)]
    names = [BOUNDS, AUTO, *able]
    weights = [HARDER if name in PROVERS else 1 for name in names]
    for name in dict.fromkeys(random.choices(names, weights, k=ASKED)):
        if name == BOUNDS:
            yield from ((name, text) for text in _bounds_broken(problem, truth))
        else:
            said = _solved(problem, AUTO, random) if name == AUTO else _asked(problem, truth, solvers[name], random)
            yield from ((name, text) for text in broken(truth, said, is_exact(name, problem)))


def _bounds_broken(problem: Problem, truth: Truth) -> Iterator[str]:
    bound_s = lower_bound(problem)
    yield from broken(truth, Claim(None, inf, bound_s, Status.UNKNOWN))
    if infeasible_because(problem.table, bound_s) and truth.least_s < inf:
        yield f"there is a reason why nothing is feasible, but the least is {truth.least_s}"


def is_exact(name: str, problem: Problem) -> bool:
    """Whether a solver promises to end with a proof."""
    table, direct = problem.table, not isinstance(problem.table, OffloadTable)
    if problem.goal is Goal.TRAINING:
        return name == "exhaustive"
    match name:
        case "exhaustive":
            return True
        case "downset-dp":
            return bool(problem.contiguous) and (not direct or follows_alike(problem))
        case "branch-and-bound":
            return channels_apart(table) and not table.slowdown.any()
        case "ilp":
            nothing_sent = table.overlap and not (table.link_s.any() or table.overhead_s.any())
            return (problem.goal is not Goal.LATENCY or nothing_sent) and not table.slowdown.any()
        case "auto":
            if problem.contiguous:
                return problem.goal is Goal.THROUGHPUT and (not direct or follows_alike(problem))
            return problem.goal is not Goal.LATENCY and not table.slowdown.any()
    return False


def follows_alike(problem: Problem) -> bool:
    """Whether all operators are contiguous, over links of which devices alone pay."""
    return len(problem.contiguous) == problem.table.n_ops and sends_at_devices(problem.table)


def sends_at_devices(table: CostTable) -> bool:
    """Whether all links are alike, and no channel is busier than the devices at its ends, which nobody slows down."""
    channels = table.channel[table.channel >= 0]
    apart = table.sharing == "unlimited" or len(np.unique(channels)) == len(channels)
    return uniform_links(table) and not table.overlap and apart and not table.slowdown.any()


class Claim(NamedTuple):
    """What somebody says of a problem.

    Attributes:
        placement: the answer, or None.
        objective_s: what it is said to be worth.
        bound_s: no placement is said to be better.
        status: how it is said to have ended.
    """

    placement: Placement | None
    objective_s: float
    bound_s: float
    status: str


def _asked(problem: Problem, truth: Truth, solver: Solver, random: Random) -> Claim:
    """Ask a solver itself, from nothing, from a bound, or from any feasible placement; or through the front door.

    What it proves on its way counts as its answer does. What it proves of devices under contention is put right at the
    front door.
    """
    bound_s = lower_bound(problem) if random.random() < 0.5 else 0.0
    if random.random() < 0.3 or problem.table.slowdown.any() or bound_s == inf:
        return _solved(problem, solver, random)
    start = None
    if random.random() < 0.4:
        some = (tuple(random.randrange(problem.table.n_devices) for _ in problem.table.ops) for _ in range(10))
        start = next((Placement(device) for device in some if truth.seconds(device) < inf), None)
    limit_s = MOMENT_S if solver.name in HEURISTIC else PLENTY_S
    told = [0.0]
    budget = Budget(limit_s, gap=0.0, incumbent=start, bound_s=bound_s, seed=random.randrange(100), prove=told.append)
    answer = solver.search(problem, budget)
    if answer.placement is None:
        status = Status.INFEASIBLE if answer.complete else Status.UNKNOWN
        return Claim(None, inf, max(answer.bound_s, *told), status)
    objective_s = objective_of(problem, answer.placement)
    bound_s = max(answer.bound_s, min(objective_s, max(told)))
    proved = answer.complete or objective_s <= bound_s * (1 + PROOF_TOLERANCE)
    return Claim(answer.placement, objective_s, bound_s, Status.OPTIMAL if proved else Status.FEASIBLE)


def _solved(problem: Problem, solver: str | Solver, random: Random) -> Claim:
    limit_s = MOMENT_S if not isinstance(solver, str) and solver.name in HEURISTIC else PLENTY_S
    found = solve(problem, solver, time_limit_s=limit_s, gap=0.0, seed=random.randrange(100))
    return Claim(found.placement, found.objective_s, found.bound_s, found.status)


def broken(truth: Truth, said: Claim, exact: bool = False) -> Iterator[str]:
    """What of it is not true."""
    least_s = truth.least_s
    if said.bound_s > least_s * (1 + ROUNDING):
        yield f"the bound is {said.bound_s}, the least is {least_s}"
    if said.placement is not None:
        worth_s = truth.seconds(said.placement.device, said.placement.order)
        if worth_s == inf or abs(worth_s - said.objective_s) > ROUNDING * max(1.0, worth_s):
            yield f"{said.placement} is worth {worth_s}, not {said.objective_s}"
    elif said.objective_s < inf:
        yield f"the objective is {said.objective_s} without a placement"
    if said.status == Status.OPTIMAL and not said.objective_s <= least_s * (1 + PROOF_TOLERANCE):
        yield f"{said.objective_s} is called optimal, the least is {least_s}"
    if said.status == Status.INFEASIBLE and least_s < inf:
        yield f"it is called infeasible, the least is {least_s}"
    if exact and said.status not in (Status.OPTIMAL, Status.INFEASIBLE):
        yield f"it ends {said.status} with {said.objective_s} and bound {said.bound_s}, the least is {least_s}"
