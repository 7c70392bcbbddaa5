"""plan: from a model and a cluster to a Plan, in one call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodels.cluster import Cluster
from costmodels.measured import Profile, read_profile
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs.ir import Graph
from planner.plans import Plan
from planner.problem import Goal, Problem
from planner.reporter import SILENT, Reporter
from planner.result import Result
from planner.solve import AUTO, solve

if TYPE_CHECKING:  # torch takes seconds to load, and a plan for a graph does not need it
    from torch import nn

    from graphs.importers.program import Program


CONTIGUOUS = "chain-dp"
SCATTER_MARGIN = 0.05
"""How much faster, simulated, a placement must stream than the best contiguous one. Where a micro-batch goes to and fro
between devices, they wait for each other as soon as the times are not quite as predicted."""


class NoPlanError(RuntimeError):
    """There is no plan: the message says why and what to change; ``result`` is the solver's answer."""

    def __init__(self, result: Result) -> None:
        super().__init__(f"no plan ({result.status}): {result.advice}")
        self.result = result


@dataclass(frozen=True)
class Search:
    """How to look for a plan.

    Attributes:
        solver: a name from `planner.solve.SOLVERS`, or "auto".
        time_limit_s: of the search.
        gap: the relative gap that is good enough; costs are hardly known to 5 %.
        seed: of every random choice.
        reporter: hears of progress.
    """

    solver: str = "auto"
    time_limit_s: float = 10.0
    gap: float = 0.05
    seed: int = 0
    reporter: Reporter = SILENT


def plan(
    model: nn.Module | Program | Graph,
    example_inputs: tuple[Any, ...] | None = None,
    *,
    cluster: Cluster,
    goal: Goal | str = Goal.THROUGHPUT,
    workload: Workload | None = None,
    search: Search | None = None,
) -> Plan:
    """Find where every operator runs.

    Args:
        model: a module with ``example_inputs``, or what an importer made of one.
        example_inputs: positional arguments of one micro-batch; the plan is for their shapes.
        cluster: from `planner.calibrate`, `costmodels.clusterfile.read_cluster` or made by hand. Operators that were
            measured on it are looked up in the cache, the others follow from its peaks.
        goal: "throughput" or "latency".
        workload: the batch is the first dimension of the first input if left out.
        search: how to look.

    Raises:
        InputError: if the model cannot be imported or the cluster cannot run one of its operators.
        NoPlanError: if no placement keeps the constraints, or none was found in time.
    """
    graph = _graph(model, example_inputs)
    search = search or Search()
    workload = workload or Workload(batch=batch_of(graph), in_flight=2 * len(cluster.devices))
    table = tabulate(graph, cluster, workload, cached_profiles(cluster))
    problem = Problem(table, Goal(goal))
    result = _solve(problem, search.solver, search)
    if result.placement is None:
        raise NoPlanError(result)
    found = _plan(graph, cluster, workload, problem, result)
    if problem.goal is Goal.THROUGHPUT and search.solver == AUTO and result.solver != CONTIGUOUS:
        contiguous = _solve(problem, CONTIGUOUS, search)
        if contiguous.placement is not None:
            other = _plan(graph, cluster, workload, problem, replace(contiguous, bound_s=result.bound_s))
            return found if found.period_s < other.period_s * (1 - SCATTER_MARGIN) else other
    return found


def _solve(problem: Problem, solver: str, search: Search) -> Result:
    return solve(problem, solver, search.time_limit_s, gap=search.gap, seed=search.seed, reporter=search.reporter)


def _plan(graph: Graph, cluster: Cluster, workload: Workload, problem: Problem, result: Result) -> Plan:
    assert result.placement is not None
    return Plan(
        graph=graph,
        cluster=cluster,
        workload=workload,
        table=problem.table,
        goal=problem.goal,
        placement=result.placement,
        status=str(result.status),
        solver=result.solver,
        bound_s=result.bound_s,
    )


def cache_folder() -> Path:
    """Where measured operators are kept: ``$PLANNER_CACHE``, or a folder of the user's cache."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("PLANNER_CACHE") or home / "placement-planner")


def cached_profiles(cluster: Cluster) -> Mapping[str, Profile]:
    """What was measured on the devices of a cluster, by the fingerprint of the profile."""
    names = {device.profile for device in cluster.devices if device.profile}
    found = {name: read_profile(cache_folder(), name) for name in sorted(names)}
    return {name: profile for name, profile in found.items() if profile is not None}


def batch_of(graph: Graph) -> int:
    """First dimension of the first input that has one; 1 otherwise."""
    shapes = (graph.tensor[name].shape for name in graph.inputs)
    return next((shape[0] for shape in shapes if shape), 1)


def _graph(model: nn.Module | Program | Graph, example_inputs: tuple[Any, ...] | None) -> Graph:
    if isinstance(model, Graph):
        return model
    from graphs.errors import InputError
    from graphs.importers.from_torch import program_from_module
    from graphs.importers.program import Program

    if isinstance(model, Program):
        return model.graph
    if example_inputs is None:
        raise InputError(f"planning for a '{type(model).__name__}' needs example_inputs: one micro-batch, as a tuple")
    return program_from_module(model, example_inputs).graph
