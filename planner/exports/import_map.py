"""import_map: a map made by hand or by another tool as a plan, compared with the planner's own."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING

from costmodels.cluster.cluster import Cluster
from costmodels.workload import Workload
from graphs.common import checks
from graphs.common.brief import Brief
from graphs.ir import Graph
from planner.exports.maps import Map, read_map
from planner.planning.make_plan import Search, make_plan
from planner.planning.question import OpenWorkload, PlanQuestion
from planner.plans.given import ModelName, Named
from planner.plans.plan import Plan, plan_by_hand
from planner.problem.problem import Goal
from planner.problem.result import Interrupted

if TYPE_CHECKING:  # torch takes seconds to load
    from graphs.program.program import Program


@dataclass(frozen=True)
class ImportedMap(Brief):
    """Two plans for one network.

    Attributes:
        by_hand: the plan of the map; what it breaks is in its evaluation.
        planned: the planner's own.
    """

    by_hand: Plan
    planned: Plan


def import_map(
    map: Map | str | PathLike[str],
    model: Program | Graph | ModelName,
    *,
    cluster: Cluster | Named,
    goal: Goal | str = Goal.THROUGHPUT,
    workload: Workload | OpenWorkload | None = None,
    search: Search | None = None,
) -> ImportedMap:
    """Evaluate a device map, split points or a balance made by hand, and compare it with the planner's own plan.

    Args:
        map: from `planner.exports.map_of`, or the path of its JSON.
        model: a path, "package.module:factory" or a `NamedModel`, or what an importer made of one.
        cluster: the devices, or the path of a cluster.toml.
        goal: what counts.
        workload: as for `planner.plan`, but what it leaves open is not searched.
        search: how to search for the planner's own plan.

    Raises:
        InputError: if something is not of its type, or the map names a module or a device that does not exist.
        NoPlanError: if the planner finds no plan.
        Interrupted: on Ctrl-C, with the best plan of the planner until then.
    """
    if not isinstance(map, Map):
        map = read_map(checks.path(map, "the map", "a Map or the path of one"))
    question = PlanQuestion(
        model=model,
        cluster=cluster,
        goal=Goal(goal),
        workload=OpenWorkload() if workload is None else workload,
        search=Search() if search is None else search,
    )
    one, search = question.only_cluster, question.search
    placement = map.placement(question.graph, one)
    work = question.workload_on(len(one.devices))
    search.reporter.on_search(f"planning {question.graph.name} for {question.goal}", search.time_limit_s)
    try:
        planned = make_plan(question.graph, one, question.goal, work, (), search)
    except Interrupted as stopped:
        raise Interrupted(ImportedMap(plan_by_hand(stopped.best, placement), stopped.best)) from stopped
    return ImportedMap(plan_by_hand(planned, placement), planned)
