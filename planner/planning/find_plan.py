"""plan: from a model and one or several clusters to a plan, as the command line makes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

from costmodels.cluster.cluster import Cluster
from costmodels.language_model.model import ModelDescription
from costmodels.workload import Workload
from graphs.ir import Graph
from planner.generation.plan import GenerationPlan
from planner.planning.cpu_partitions import PartitionChoice, choose_partition, tried
from planner.planning.fastest_training import (
    FasterRow,
    FoundTraining,
    OnlyRowError,
    fastest_training,
    row_without_plan,
)
from planner.planning.generation import plan_generation
from planner.planning.layers import divided_layers
from planner.planning.make_plan import Search, make_plan
from planner.planning.question import OpenWorkload, PlanQuestion
from planner.plans.generation import generation_of
from planner.plans.given import ModelName, Named
from planner.plans.plan import Plan
from planner.problem.constraints import Constraint
from planner.problem.problem import Goal
from planner.problem.result import Interrupted, NoPlanError

if TYPE_CHECKING:  # torch takes seconds to load, and a plan for a graph does not need it
    from torch import nn

    from graphs.program.generation import GenerationProgram
    from graphs.program.program import Program


@dataclass(frozen=True)
class FoundPlan:
    """A plan, and the plans and ways to train that it was chosen from.

    Attributes:
        plan: the best one.
        divisions: the plans for all clusters that were given.
        training: the result of the search among ways to train; None for another goal, or several clusters.
    """

    plan: Plan
    divisions: PartitionChoice
    training: FoundTraining | None = None


@overload
def plan(  # type: ignore[overload-overlap]  # of names, only those of language models give a GenerationPlan
    model: ModelDescription | ModelName,
    *,
    cluster: Cluster | Named | Sequence[Cluster | Named],
    goal: Literal["generation", Goal.GENERATION],
    workload: Workload | OpenWorkload | None = None,
    constraints: Sequence[Constraint] = (),
    search: Search | None = None,
) -> Plan | GenerationPlan: ...


@overload
def plan(
    model: nn.Module | Program | GenerationProgram | Graph | ModelName,
    example_inputs: Any = None,
    *,
    cluster: Cluster | Named | Sequence[Cluster | Named],
    goal: Goal | str = Goal.THROUGHPUT,
    workload: Workload | OpenWorkload | None = None,
    constraints: Sequence[Constraint] = (),
    search: Search | None = None,
) -> Plan: ...


def plan(
    model: nn.Module | Program | GenerationProgram | Graph | ModelDescription | ModelName,
    example_inputs: Any = None,
    *,
    cluster: Cluster | Named | Sequence[Cluster | Named],
    goal: Goal | str = Goal.THROUGHPUT,
    workload: Workload | OpenWorkload | None = None,
    constraints: Sequence[Constraint] = (),
    search: Search | None = None,
) -> Plan | GenerationPlan:
    """Find where every operator runs, or every layer of a language model that cannot run here.

    Args:
        model: a module with ``example_inputs``, what an importer made of one, or a model as on the command line: a
            path, "package.module:factory", or a `NamedModel` with a batch. For the goal "training" a module is
            imported as it is trained; for "generation" a language model of transformers with its cache, unless
            `planner.generation_program` has done so. Weights in a .gguf or .safetensors, and a config.json for devices
            that are none of this host, are divided by layers, as `planner.fit` does with the workload's lengths.
        example_inputs: of one micro-batch, whose shapes the plan is for: a tensor, a tuple or list of positional
            arguments, a dict of keyword arguments, or a pair (tuple, dict) of both.
        cluster: from `planner.calibrate`, made by hand, or the path of a cluster.toml. Times of operators that were
            measured on it are in the cache, the others follow from its peaks. Of several clusters, as
            `planner.divisions` returns them, `plan` takes the one with the best plan (see
            `planner.planning.cpu_partitions`), after some seconds of autotuning if they are this host's and the model
            can run.
        goal: "throughput", "latency", "cost", "training" or "generation".
        workload: a `Workload` says everything. By default, and where an `OpenWorkload` leaves it open, the batch is the
            first dimension of the first input, and a training step has the samples of `MICRO_BATCHES` micro-batches:
            on one cluster, without constraints, schedule, micro-batches, recomputation and replicas are then those
            that train them fastest. For "generation" the rows of a group are those of the faster plan.
        constraints: made by `planner.problem.constraints.pin`, ``forbid``, ``together``, ``whole``, ``contiguous``.
        search: how to search.

    Returns:
        The plan; where layers are divided, the `GenerationPlan` of `planner.fit`, which also says what does not fit.

    Raises:
        InputError: if something is not of its type, the model cannot be imported, the cluster cannot run one of its
            operators, or a constraint names what does not exist.
        NoPlanError: if no placement keeps the constraints, or none was found in time.
        StageError: if an operator fails in autotuning.
        Interrupted: on Ctrl-C, with the best plan so far.
    """
    asked = PlanQuestion(
        model=model,
        cluster=cluster,
        example_inputs=example_inputs,
        goal=Goal(goal),
        workload=OpenWorkload() if workload is None else workload,
        constraints=constraints,  # type: ignore[arg-type]  # a list becomes a tuple
        search=Search() if search is None else search,
    )
    return divided_layers(asked) if asked.by_layers else find_plan(asked).plan


def find_plan(question: PlanQuestion) -> FoundPlan:
    """Find the plan of `plan`, with the plans that it was chosen from.

    Raises:
        OnlyRowError: a NoPlanError, where ranks that share layers or states train the batch all the same.
        InputError, NoPlanError, StageError, Interrupted: as `plan`.
    """
    reporter, share = question.search.reporter, question.search.part(1 / len(question.clusters))

    def make(cluster: Cluster) -> Plan:
        number = len(cluster.devices)
        devices = f"{number:,} device{'s'[: number - 1]}"
        reporter.on_search(f"planning {question.graph.name} for {question.goal} on {devices}", share.time_limit_s)
        if question.generates:
            return fastest_generation(question, cluster, share)
        work = question.workload_on(number)
        return make_plan(question.graph, cluster, question.goal, work, question.constraints, share)

    try:
        divisions = choose_partition(question.clusters, make, question.constraints)
    except NoPlanError as error:
        if (row := _row_without_plan(question)) is None:
            raise
        raise OnlyRowError(error.result, row) from error
    if question.search.autotuning and not question.generates:
        divisions = tried(divisions, question.imported, reporter)
    if not question.trains or question.is_divided:
        return FoundPlan(divisions.plan, divisions)
    training = fastest_training(divisions.plan, question)
    return FoundPlan(training.plan, divisions, training)


def fastest_generation(question: PlanQuestion, cluster: Cluster, search: Search) -> Plan:
    """Return the plan with the most tokens a second, of those with other numbers of rows in a group.

    Raises:
        NoPlanError: if there is a plan for no number of rows.
        InputError, Interrupted: as `plan`.
    """
    workloads, plans, refused = question.workloads_on(len(cluster.devices)), [], None
    for work in workloads:
        part = search.part(1 / len(workloads))
        try:
            plans.append(plan_generation(question.generation(work), cluster, work, question.constraints, part))
        except NoPlanError as error:
            refused = error
        except Interrupted as stopped:
            raise Interrupted(max([*plans, stopped.best], key=_tokens_per_s)) from stopped
    if refused and not plans:
        raise refused
    return max(plans, key=_tokens_per_s)


def _tokens_per_s(plan: Plan) -> float:
    return generation_of(plan).tokens_per_s


def _row_without_plan(question: PlanQuestion) -> FasterRow | None:
    """Return `row_without_plan`; on Ctrl-C raise a plain KeyboardInterrupt, since there is no plan to hand out."""
    try:
        return row_without_plan(question)
    except Interrupted as stopped:
        raise KeyboardInterrupt from stopped
