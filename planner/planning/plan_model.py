"""plan: from a model and one or several clusters to a Plan, in one call."""

from __future__ import annotations

import types
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from costmodels.cluster import Cluster
from costmodels.workload import Workload
from graphs import checks
from graphs.errors import InputError
from graphs.ir import Graph
from planner.planning.autotune import tried
from planner.planning.cpu_partitions import choose
from planner.planning.make_plan import Search, batch_of, make_plan
from planner.plans.given import Named, given_cluster, given_clusters, given_model
from planner.plans.plan import Plan
from planner.problem.constraints import Constraint
from planner.problem.problem import Goal

if TYPE_CHECKING:  # torch takes seconds to load, and a plan for a graph does not need it
    from torch import nn

    from graphs.program.program import Program

MICRO_BATCHES = 8  # of a training step, by default


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
        cluster: from `planner.calibrate`, made by hand, or the path of a cluster.toml. Times of operators that were
            measured on it are in the cache, the others follow from its peaks. Of several clusters, as
            `planner.divisions` returns them, `plan` takes the one with the best plan (see
            `planner.planning.cpu_partitions`), after some seconds of autotuning if they are this host's and the model
            can run (see `planner.planning.autotune`).
        goal: "throughput", "latency", "cost" or "training".
        workload: by default, the batch is the first dimension of the first input, and a training step has
            `MICRO_BATCHES` micro-batches under 1F1B, with SGD.
        constraints: made by `planner.problem.constraints.pin`, ``forbid``, ``together``, ``whole``, ``contiguous``.
        search: how to search.

    Raises:
        InputError: if something is not of its type, the model cannot be imported, the cluster cannot run one of its
            operators, or a constraint names what does not exist.
        NoPlanError: if no placement keeps the constraints, or none was found in time.
        StageError: if an operator fails in autotuning.
        Interrupted: on Ctrl-C, with the best plan so far.
    """
    checks.instance(search := search or Search(), Search, "the search", "a Search")
    checks.instance(workload, (Workload, types.NoneType), "the workload", "a Workload, or None")
    for constraint in checks.instance(constraints, (tuple, list), "the constraints", "a tuple of Constraint each"):
        checks.instance(constraint, Constraint, "a constraint", "what pin, forbid, together, whole or contiguous make")
    goal = Goal(goal)
    clusters = [given_cluster(cluster)] if isinstance(cluster, Cluster | str | PathLike) else given_clusters(cluster)
    imported = _imported(model, example_inputs, goal is Goal.TRAINING)
    graph = imported if isinstance(imported, Graph) else imported.graph
    share = search.part(1 / len(clusters))

    def make(one: Cluster) -> Plan:
        work = workload or _default_workload(graph, len(one.devices), goal)
        return make_plan(graph, one, goal, work, tuple(constraints), share)

    if len(clusters) == 1:
        return make(clusters[0])
    choice = choose(clusters, make, constraints)
    return (tried(choice, imported, search.reporter) if search.autotuning else choice).plan


def _default_workload(graph: Graph, n_devices: int, goal: Goal) -> Workload:
    """A training step, or as many micro-batches in flight as keep every device busy."""
    if goal is Goal.TRAINING:
        return Workload("training", batch_of(graph), micro_batches=MICRO_BATCHES)
    return Workload(batch=batch_of(graph), in_flight=2 * n_devices)


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
