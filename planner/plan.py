"""plan: from a model and a cluster to a Plan, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from costmodels.cluster import Cluster
from costmodels.table import CostTable
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs.errors import InputError
from graphs.ir import Graph
from planner.cache import cached_profiles, learned_costs
from planner.conflict import find_conflict
from planner.constraints import CollisionError, Constraint, constrained
from planner.evaluate import backward_edge
from planner.plans import Plan, step_of
from planner.portfolio import AUTO
from planner.problem import Goal, Problem
from planner.reporter import SILENT, Reporter
from planner.result import NoPlanError, Result, Status
from planner.robust import SOLVED, harden
from planner.solve import solve
from planner.split_cpu import choose
from planner.trial import tried
from simulator.placement import Placement

if TYPE_CHECKING:  # torch takes seconds to load, and a plan for a graph does not need it
    from torch import nn

    from graphs.importers.program import Program


CONTIGUOUS = "chain-dp"
MICRO_BATCHES = 8  # of a training step, where nobody says
SCATTER_MARGIN = 0.05
"""How much faster, simulated, a placement must stream than the best contiguous one. Where a micro-batch goes to and fro
between devices, they wait for each other as soon as the times are not quite as predicted."""


@dataclass(frozen=True)
class Search:
    """How to look for a plan.

    Attributes:
        solver: a name from `planner.portfolio.SOLVERS`, or "auto".
        time_limit_s: of the search.
        gap: the relative gap that is good enough; costs are hardly known to 5 %.
        seed: of every random choice.
        robust: how many times to draw errors of the costs, to find the placement that loses least; 0 to believe them.
        reporter: hears of progress.
        trial: of several clusters, let their plans take turns on this host and take the quickest; False to believe the
            predictions, so that nothing runs and the same input gives the same plan.
    """

    solver: str = "auto"
    time_limit_s: float = 10.0
    gap: float = 0.05
    seed: int = 0
    robust: int = 0
    reporter: Reporter = SILENT
    trial: bool = True

    def solve(self, problem: Problem) -> Result:
        """The best placement that is found."""
        return solve(problem, self.solver, self.time_limit_s, gap=self.gap, seed=self.seed, reporter=self.reporter)


def plan(
    model: nn.Module | Program | Graph,
    example_inputs: tuple[Any, ...] | None = None,
    *,
    cluster: Cluster | Sequence[Cluster],
    goal: Goal | str = Goal.THROUGHPUT,
    workload: Workload | None = None,
    constraints: Sequence[Constraint] = (),
    search: Search | None = None,
) -> Plan:
    """Find where every operator runs.

    Args:
        model: a module with ``example_inputs``, or what an importer made of one; for the goal "training" a module is
            imported as it is trained.
        example_inputs: positional arguments of one micro-batch; the plan is for their shapes.
        cluster: from `planner.calibrate`, `costmodels.clusterfile.read_cluster` or made by hand. Operators that were
            measured on it are looked up in the cache, the others follow from its peaks. Of several, as
            `planner.divisions` returns them, the one with the best plan is taken (see `planner.split_cpu`), after
            some seconds of a trial if they are this host's and the model can run (see `planner.trial`).
        goal: "throughput", "latency", "cost" or "training".
        workload: if left out, the batch is the first dimension of the first input, and a training step has
            `MICRO_BATCHES` of it under 1F1B, with SGD.
        constraints: what is asked besides, made by `planner.constraints.pin`, ``forbid``, ``together``, ``contiguous``.
        search: how to look.

    Raises:
        InputError: if the model cannot be imported, the cluster cannot run one of its operators, or a constraint
            names what does not exist.
        NoPlanError: if no placement keeps the constraints, or none was found in time.
        StageError: if an operator fails in a trial.
    """
    search = search or Search()
    trains = Goal(goal) is Goal.TRAINING
    imported = _imported(model, example_inputs, trains)
    if not isinstance(cluster, Cluster):
        same = partial(plan, imported, goal=goal, workload=workload, constraints=constraints, search=search)
        choice = choose(cluster, lambda division: same(cluster=division), constraints)
        return (tried(choice, imported, search.reporter) if search.trial else choice).plan
    graph = imported if isinstance(imported, Graph) else imported.graph
    workload = workload or default_workload(graph, len(cluster.devices), trains)
    if workload.trains != trains:
        raise InputError(f"the goal '{goal}' does not go with a workload for {workload.mode}; make both 'training'")
    table = tabulate(graph, cluster, workload, cached_profiles(cluster), learned_costs)
    asked = _Asked(graph, cluster, workload, table, Goal(goal), tuple(constraints))
    problem = asked.problem()
    result = search.solve(problem)
    if result.placement is None:
        raise asked.no_plan(result)
    if search.robust:
        return _robust(asked, problem, result, search)
    found = asked.plan(result)
    if problem.goal is Goal.THROUGHPUT and search.solver == AUTO and _scattered(problem, result.placement):
        contiguous = replace(search, solver=CONTIGUOUS).solve(problem)
        if contiguous.placement is not None:
            other = asked.plan(replace(contiguous, bound_s=result.bound_s))
            return found if found.period_s < other.period_s * (1 - SCATTER_MARGIN) else other
    return found


def default_workload(graph: Graph, n_devices: int, training: bool) -> Workload:
    """What a network is used for where nobody says: enough micro-batches to keep every device busy."""
    if training:
        return Workload("training", batch_of(graph), micro_batches=MICRO_BATCHES)
    return Workload(batch=batch_of(graph), in_flight=2 * n_devices)


def _robust(asked: _Asked, problem: Problem, nominal: Result, search: Search) -> Plan:
    """The plan that loses least when costs are wrong; scenarios get as much time together as the costs as measured."""
    quick = replace(search, time_limit_s=search.time_limit_s / SOLVED)
    placement, robustness = harden(problem, nominal, search.robust, search.seed, quick.solve)
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


def _imported(
    model: nn.Module | Program | Graph, example_inputs: tuple[Any, ...] | None, training: bool
) -> Program | Graph:
    if isinstance(model, Graph):
        return model
    from graphs.importers.from_torch import program_from_module
    from graphs.importers.program import Program

    if isinstance(model, Program):
        if model.training and not training:
            raise InputError(
                f"'{model.graph.name}' was imported as it is trained, which only the goal 'training' is for; "
                "import it without training=True"
            )
        return model
    if example_inputs is None:
        raise InputError(f"planning for a '{type(model).__name__}' needs example_inputs: one micro-batch, as a tuple")
    return program_from_module(model, example_inputs, training=training)
