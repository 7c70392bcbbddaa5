"""make_plan: the best plan for a graph on one cluster, and the options of its search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from costmodels.cluster import Cluster
from costmodels.table import CostTable
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs import checks
from graphs.errors import InputError
from graphs.ir import Graph
from planner.planning.cache import cached_profiles, learned_costs
from planner.plans.plan import Plan, step_of
from planner.problem.constraints import CollisionError, Constraint, constrained
from planner.problem.deadline import Deadline
from planner.problem.evaluate import backward_edge
from planner.problem.problem import Goal, Problem
from planner.problem.reporter import SILENT, Reporter
from planner.problem.result import Interrupted, NoPlanError, Result, Status
from planner.solvers.conflict import find_conflict
from planner.solvers.portfolio import AUTO, SOLVERS
from planner.solvers.robust import SOLVED, Draws, harden
from planner.solvers.solve import solve
from simulator.placement import Placement

CONTIGUOUS = "chain-dp"
ASIDE = 0.1  # share of a search's time that the search for the best contiguous placement takes on top
NOMINAL = 0.5  # share of a robust search's time for the costs as they were measured
SCENARIOS = 0.8  # share of the remaining time for placements of other costs; the rest evaluates them
SCATTER_MARGIN = 0.05
"""By how much a placement must stream faster, simulated, than the best contiguous one. Where a micro-batch comes back
to a device, devices wait for each other as soon as times differ from the predicted ones."""


@dataclass(frozen=True)
class Search:
    """How to search for a plan.

    Attributes:
        solver: a name from `planner.solvers.portfolio.SOLVERS`, or "auto".
        time_limit_s: of the search.
        gap: the relative gap that is good enough; costs are hardly known to 5 %.
        seed: of every random choice.
        robust: how many times to draw errors of the costs, as far as the time allows, to find the placement that loses
            least; 0 to trust the costs.
        reporter: is told of progress.
        autotuning: given several clusters, run their plans on this host in turns and take the fastest; False to trust
            the predictions, so that nothing runs and the same input gives the same plan.

    Raises:
        InputError: for an unknown solver, or a limit, gap, seed or number out of range.
    """

    solver: str = "auto"
    time_limit_s: float = 10.0
    gap: float = 0.05
    seed: int = 0
    robust: int = 0
    reporter: Reporter = SILENT
    autotuning: bool = True

    def __post_init__(self) -> None:
        checks.check_fields(self, "the search")
        checks.one_of(self.solver, "the solver", (AUTO, *SOLVERS))
        checks.seconds(self.time_limit_s, "the time limit")
        checks.share(self.gap, "the gap")
        checks.whole(self.seed, "the seed")
        checks.whole(self.robust, "the number of draws of a robust search")

    def part(self, share: float) -> Search:
        """This search with a share of its time."""
        return replace(self, time_limit_s=self.time_limit_s * share)

    def solve(self, problem: Problem) -> Result:
        """Solve a problem with these options."""
        return solve(problem, self.solver, self.time_limit_s, gap=self.gap, seed=self.seed, reporter=self.reporter)


def make_plan(
    graph: Graph, cluster: Cluster, goal: Goal, workload: Workload, constraints: tuple[Constraint, ...], search: Search
) -> Plan:
    """Find where every operator of a graph runs on one cluster. Nothing runs for it.

    Raises:
        InputError: if the workload is for another goal, the cluster cannot run an operator, or a constraint names what
            does not exist.
        NoPlanError: if no placement keeps the constraints, or none was found in time.
        Interrupted: on Ctrl-C, with the best plan so far.
    """
    if workload.trains != (goal is Goal.TRAINING):
        raise InputError(f"the goal '{goal}' does not go with a workload for {workload.mode}; make both 'training'")
    profiles = cached_profiles(cluster)
    table = tabulate(graph, cluster, workload, profiles, learned_costs)
    known = {device.kind: profiles[device.profile] for device in cluster.devices if device.profile in profiles}
    pace = {kind: profile.pace for kind, profile in known.items() if profile.pace}
    asked = _Asked(graph, cluster, workload, table, goal, constraints, pace)
    problem = asked.problem()
    deadline = Deadline(search.time_limit_s)
    try:
        result = search.part(NOMINAL if search.robust else 1.0).solve(problem)
    except Interrupted as stopped:
        raise Interrupted(asked.plan(stopped.best)) from stopped
    if result.placement is None:
        raise asked.no_plan(result)
    try:
        if search.robust:
            return _robust(asked, problem, result, search, deadline)
        return _unscattered(asked, problem, result, search)
    except KeyboardInterrupt as stopped:
        raise Interrupted(asked.plan(result)) from stopped


def _unscattered(asked: _Asked, problem: Problem, result: Result, search: Search) -> Plan:
    """The plan of a result, or the best contiguous plan if the result comes back to a device and is hardly faster."""
    assert result.placement is not None
    found = asked.plan(result)
    if problem.goal is Goal.THROUGHPUT and search.solver == AUTO and _scattered(problem, result.placement):
        contiguous = replace(search.part(ASIDE), solver=CONTIGUOUS).solve(problem)
        if contiguous.placement is not None:
            other = asked.plan(replace(contiguous, bound_s=result.bound_s))
            return found if found.period_s < other.period_s * (1 - SCATTER_MARGIN) else other
    return found


def _robust(asked: _Asked, problem: Problem, nominal: Result, search: Search, deadline: Deadline) -> Plan:
    """The plan that loses least when costs are wrong, as far as the time allows to evaluate."""
    quick = search.part((1 - NOMINAL) * SCENARIOS / SOLVED)
    draws = Draws(search.robust, search.seed, deadline, search.reporter)
    placement, robustness = harden(problem, nominal, draws, quick.solve)
    return replace(asked.plan(replace(nominal, placement=placement)), status="feasible", robustness=robustness)


def _scattered(problem: Problem, placement: Placement) -> bool:
    """Whether a micro-batch comes back to a device that it has left."""
    everything = replace(problem, contiguous=frozenset(range(problem.table.n_ops)))
    return backward_edge(everything, placement) is not None


@dataclass(frozen=True)
class _Asked:
    """Everything that a plan is made for."""

    graph: Graph
    cluster: Cluster
    workload: Workload
    table: CostTable
    goal: Goal
    constraints: tuple[Constraint, ...]
    pace: Mapping[str, Mapping[str, float]]

    @property
    def _kinds(self) -> list[str]:
        return [device.kind for device in self.cluster.devices]

    def problem(self) -> Problem:
        """The problem that the solvers get."""
        try:
            problem = constrained(self.table, self.graph, self.goal, self.constraints, self._kinds)
            return replace(problem, step=step_of(self.workload)) if self.workload.trains else problem
        except CollisionError as collision:
            nothing = Result(Status.INFEASIBLE, None, inf, inf, 0.0, "constraints", str(collision))
            raise self.no_plan(nothing) from collision

    def plan(self, result: Result) -> Plan:
        """The plan of a result."""
        assert result.placement is not None
        return Plan(
            graph=self.graph,
            cluster=self.cluster,
            workload=self.workload,
            table=self.table,
            goal=self.goal,
            placement=result.placement,
            status=str(result.status),
            solver=result.solver,
            bound_s=result.bound_s,
            constraints=self.constraints,
            pace=self.pace,
        )

    def no_plan(self, result: Result) -> NoPlanError:
        """The error for a result without a placement; it names the smallest set of constraints that collide."""
        if self.constraints and result.status is Status.INFEASIBLE:
            step = step_of(self.workload) if self.workload.trains else None
            conflict = find_conflict(self.table, self.graph, self.goal, self.constraints, self._kinds, step)
            result = replace(result, advice=str(conflict or result.advice))
        return NoPlanError(result)


def batch_of(graph: Graph) -> int:
    """The first dimension of the first input that has one; else 1."""
    shapes = (graph.tensor[name].shape for name in graph.inputs)
    return next((shape[0] for shape in shapes if shape), 1)
