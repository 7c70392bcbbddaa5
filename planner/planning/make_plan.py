"""plan: from a model and a cluster to a Plan, in one call."""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from os import PathLike
from typing import TYPE_CHECKING, Any

from costmodels.cluster import Cluster
from costmodels.table import CostTable
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs import checks
from graphs.errors import InputError
from graphs.ir import Graph
from planner.planning.autotune import tried
from planner.planning.cache import cached_profiles, learned_costs
from planner.planning.cpu_partitions import choose
from planner.plans.given import Named, given_cluster, given_clusters, given_model
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

if TYPE_CHECKING:  # torch takes seconds to load, and a plan for a graph does not need it
    from torch import nn

    from graphs.program.program import Program


CONTIGUOUS = "chain-dp"
ASIDE = 0.1  # of the time of a search, which the best contiguous placement may take besides
NOMINAL = 0.5  # of the time of a robust search: for the costs as they were measured
SCENARIOS = 0.8  # of the rest: for placements of other costs; in what is left, all of them are judged
MICRO_BATCHES = 8  # of a training step, where nobody says
SCATTER_MARGIN = 0.05
"""How much faster, simulated, a placement must stream than the best contiguous one. Where a micro-batch goes to and fro
between devices, they wait for each other as soon as the times are not quite as predicted."""


@dataclass(frozen=True)
class Search:
    """How to look for a plan.

    Attributes:
        solver: a name from `planner.solvers.portfolio.SOLVERS`, or "auto".
        time_limit_s: of the search.
        gap: the relative gap that is good enough; costs are hardly known to 5 %.
        seed: of every random choice.
        robust: how many times to draw errors of the costs, as far as the time allows, to find the placement that loses
            least; 0 to believe them.
        reporter: hears of progress.
        autotuning: of several clusters, let their plans take turns on this host and take the quickest; False to believe
            the predictions, so that nothing runs and the same input gives the same plan.

    Raises:
        InputError: for an unknown solver, or a limit, gap, seed or number that is none.
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
        """The same with a share of the time."""
        return replace(self, time_limit_s=self.time_limit_s * share)

    def solve(self, problem: Problem) -> Result:
        """The best placement that is found."""
        return solve(problem, self.solver, self.time_limit_s, gap=self.gap, seed=self.seed, reporter=self.reporter)


def plan(
    model: nn.Module | Program | Graph | Named,
    example_inputs: Any = None,
    *,
    cluster: Cluster | Named | Sequence[Cluster | Named],
    goal: Goal | str = Goal.THROUGHPUT,
    workload: Workload | None = None,
    constraints: Sequence[Constraint] = (),
    search: Search | None = None,
) -> Plan:
    """Find where every operator runs.

    Args:
        model: a module with ``example_inputs``, what an importer made of one, or a model as on the command line: a
            path, or "package.module:factory". For the goal "training" a module is imported as it is trained.
        example_inputs: of one micro-batch, whose shapes the plan is for: a tensor, a tuple or list of positional
            arguments, a dict of keyword arguments, or a pair (tuple, dict) of both.
        cluster: from `planner.calibrate`, made by hand, or the path of a cluster.toml. Operators that were
            measured on it are looked up in the cache, the others follow from its peaks. Of several, as
            `planner.divisions` returns them, the one with the best plan is taken (see
            `planner.planning.cpu_partitions`), after some seconds of autotuning if they are this host's and the model
            can run (see `planner.planning.autotune`).
        goal: "throughput", "latency", "cost" or "training".
        workload: if left out, the batch is the first dimension of the first input, and a training step has
            `MICRO_BATCHES` of it under 1F1B, with SGD.
        constraints: what is asked besides, made by `planner.problem.constraints.pin`, ``forbid``, ``together``,
            ``contiguous``.
        search: how to look.

    Raises:
        InputError: if something is not of its type, the model cannot be imported, the cluster cannot run one of its
            operators, or a constraint names what does not exist.
        NoPlanError: if no placement keeps the constraints, or none was found in time.
        StageError: if an operator fails in autotuning.
        Interrupted: on Ctrl-C, with the best plan until then.
    """
    checks.instance(search := search or Search(), Search, "the search", "a Search")
    checks.instance(workload, (Workload, types.NoneType), "the workload", "a Workload, or None")
    for constraint in checks.instance(constraints, (tuple, list), "the constraints", "a tuple of Constraint each"):
        checks.instance(constraint, Constraint, "a constraint", "what pin, forbid, together, whole or contiguous make")
    wanted, trains = tuple(constraints), Goal(goal) is Goal.TRAINING
    clusters = [given_cluster(cluster)] if isinstance(cluster, Cluster | str | PathLike) else given_clusters(cluster)
    imported = _imported(model, example_inputs, trains)
    graph = imported if isinstance(imported, Graph) else imported.graph
    share = search.part(1 / len(clusters))

    def make(one: Cluster) -> Plan:
        work = workload or default_workload(graph, len(one.devices), trains)
        return _planned(graph, one, Goal(goal), work, wanted, share)

    if len(clusters) == 1:
        return make(clusters[0])
    choice = choose(clusters, make, wanted)
    return (tried(choice, imported, search.reporter) if search.autotuning else choice).plan


def _planned(
    graph: Graph, cluster: Cluster, goal: Goal, workload: Workload, constraints: tuple[Constraint, ...], search: Search
) -> Plan:
    """The best plan for one cluster.

    Raises:
        InputError: for a workload of another goal, or what cannot be run.
        NoPlanError: if there is none.
        Interrupted: on Ctrl-C, with the best until then.
    """
    if workload.trains != (goal is Goal.TRAINING):
        raise InputError(f"the goal '{goal}' does not go with a workload for {workload.mode}; make both 'training'")
    table = tabulate(graph, cluster, workload, cached_profiles(cluster), learned_costs)
    asked = _Asked(graph, cluster, workload, table, goal, constraints)
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
        return _calm(asked, problem, result, search)
    except KeyboardInterrupt as stopped:
        raise Interrupted(asked.plan(result)) from stopped


def default_workload(graph: Graph, n_devices: int, training: bool) -> Workload:
    """What a network is used for where nobody says: enough micro-batches to keep every device busy."""
    if training:
        return Workload("training", batch_of(graph), micro_batches=MICRO_BATCHES)
    return Workload(batch=batch_of(graph), in_flight=2 * n_devices)


def _calm(asked: _Asked, problem: Problem, result: Result, search: Search) -> Plan:
    """The plan of an answer, or the best contiguous one where the answer is scattered and hardly faster."""
    assert result.placement is not None
    found = asked.plan(result)
    if problem.goal is Goal.THROUGHPUT and search.solver == AUTO and _scattered(problem, result.placement):
        contiguous = replace(search.part(ASIDE), solver=CONTIGUOUS).solve(problem)
        if contiguous.placement is not None:
            other = asked.plan(replace(contiguous, bound_s=result.bound_s))
            return found if found.period_s < other.period_s * (1 - SCATTER_MARGIN) else other
    return found


def _robust(asked: _Asked, problem: Problem, nominal: Result, search: Search, deadline: Deadline) -> Plan:
    """The plan that loses least when costs are wrong, as far as the time allows to judge."""
    quick = search.part((1 - NOMINAL) * SCENARIOS / SOLVED)
    draws = Draws(search.robust, search.seed, deadline, search.reporter)
    placement, robustness = harden(problem, nominal, draws, quick.solve)
    return replace(asked.plan(replace(nominal, placement=placement)), status="feasible", robustness=robustness)


def _scattered(problem: Problem, placement: Placement) -> bool:
    """Whether a micro-batch goes to and fro between devices."""
    everything = replace(problem, contiguous=frozenset(range(problem.table.n_ops)))
    return backward_edge(everything, placement) is not None


@dataclass(frozen=True)
class _Asked:
    """Everything that a plan is asked for."""

    graph: Graph
    cluster: Cluster
    workload: Workload
    table: CostTable
    goal: Goal
    constraints: tuple[Constraint, ...]

    @property
    def _kinds(self) -> list[str]:
        return [device.kind for device in self.cluster.devices]

    def problem(self) -> Problem:
        """What the solvers see.

        Raises:
            InputError: if a constraint names what does not exist.
            NoPlanError: if the constraints leave an operator without a device.
        """
        try:
            problem = constrained(self.table, self.graph, self.goal, self.constraints, self._kinds)
            return replace(problem, step=step_of(self.workload)) if self.workload.trains else problem
        except CollisionError as collision:
            nothing = Result(Status.INFEASIBLE, None, inf, inf, 0.0, "constraints", str(collision))
            raise self.no_plan(nothing) from collision

    def plan(self, result: Result) -> Plan:
        """The plan of an answer."""
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
        )

    def no_plan(self, result: Result) -> NoPlanError:
        """Why there is no plan; with constraints, the smallest set of demands that collide."""
        if self.constraints and result.status is Status.INFEASIBLE:
            step = step_of(self.workload) if self.workload.trains else None
            conflict = find_conflict(self.table, self.graph, self.goal, self.constraints, self._kinds, step)
            result = replace(result, advice=str(conflict or result.advice))
        return NoPlanError(result)


def batch_of(graph: Graph) -> int:
    """First dimension of the first input that has one; 1 otherwise."""
    shapes = (graph.tensor[name].shape for name in graph.inputs)
    return next((shape[0] for shape in shapes if shape), 1)


def _imported(model: nn.Module | Program | Graph | Named, example_inputs: Any, training: bool) -> Program | Graph:
    model = given_model(model, None, training)
    if isinstance(model, Graph):
        return model
    from graphs.importers.from_torch import imported

    program = imported(model, example_inputs, training=training)
    if program.training and not training:
        raise InputError(
            f"'{program.graph.name}' was imported as it is trained, which only the goal 'training' is for; "
            "import it without training=True"
        )
    return program
