"""Changes: the same plan on other hardware, or for another workload."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from costmodels.cluster.catalogue import catalogue
from costmodels.cluster.cluster import Cluster
from costmodels.generation_costs import mean_pass, of_pass
from costmodels.operator_times import OperatorTimes, operator_times
from costmodels.operators.flops import Work, roofline_s, work_of
from costmodels.table import CostTable, Source
from costmodels.tabulate import assemble, with_flows
from costmodels.workload import RecomputeMode, Workload
from graphs.common.errors import InputError
from graphs.ir import Graph
from planner.explanations.settings import FLOPS, Setting, add_device, apply_setting
from planner.planning.make_plan import Search, batch_of, search_plan
from planner.plans.plan import Plan
from planner.problem.bounds import lower_bound
from planner.problem.result import Interrupted, NoPlanError


@dataclass(frozen=True)
class Changes:
    """Changes of a plan's cluster and workload; None leaves a figure as it is."""

    added: tuple[tuple[str, str], ...] = ()  # devices as (like, name): `add_device` says what each means
    settings: tuple[Setting, ...] = ()  # applied one after the other
    graph: Graph | None = None  # the same network with another batch
    in_flight: int | None = None  # micro-batches in flight, in inference
    micro_batches: int | None = None  # of a training step
    schedule: str | None = None  # of a training step
    recompute: RecomputeMode | None = None  # what a training step runs again

    @property
    def anything(self) -> bool:
        """Whether anything changes."""
        return self != Changes()


def apply_changes(plan: Plan, changes: Changes) -> Plan:
    """Return the same placement with other costs and nothing on added devices. `obstacle` says if it is infeasible.

    An operator's time on a changed device, or with another batch, is its old time times the ratio of its rooflines. A
    link whose bandwidth or latency is set loses its measurements.

    Raises:
        InputError: for an unknown device, link or value, or a change that does not apply to the plan's goal.
    """
    workload = _workload(plan, changes)
    if not plan.workload.generates:
        cluster, table = _changed_table(plan, changes, workload, plan.table)
        return _with_costs(plan, changes, cluster, workload, table)
    _check_phases(changes)
    cluster, phases, growth = plan.cluster, [], workload.in_flight / plan.workload.in_flight
    for each in plan.phases:
        cluster, table = _changed_table(plan, changes, workload, each.table)
        table = of_pass(with_flows(table, cluster, each.table.flow_bytes), changes.graph or plan.graph, each.phase)
        phases.append(replace(each, table=replace(table, working_bytes=each.table.working_bytes * growth)))
    changed = replace(plan, phases=tuple(phases))
    return _with_costs(changed, changes, cluster, workload, mean_pass(phases))


def _with_costs(plan: Plan, changes: Changes, cluster: Cluster, workload: Workload, table: CostTable) -> Plan:
    """Return a plan with other costs, and what can be proved for them."""
    graph = changes.graph or plan.graph
    changed = replace(plan, graph=graph, cluster=cluster, workload=workload, table=table, status="feasible")
    return replace(changed, bound_s=lower_bound(changed.problem))


def _check_phases(changes: Changes) -> None:
    """Check that changes hold for all phases alike, of which a plan for generation has the times alone."""
    fields = ("memory_bandwidth", "launch")
    speeds = [each for each in changes.settings if each.field in fields or each.field.startswith(FLOPS)]
    new = [like for like, _ in changes.added if like in catalogue("device")]
    if changes.graph is not None or speeds or new:
        what = "another batch" if changes.graph else f"{speeds[0].target}.{speeds[0].field}" if speeds else new[0]
        raise InputError(
            f"{what} changes each phase of generation in another way, and the plan has the operators' work of one "
            "phase alone; plan again for such a cluster"
        )


def _changed_table(plan: Plan, changes: Changes, workload: Workload, table: CostTable) -> tuple[Cluster, CostTable]:
    """Return the cluster after some changes, and the costs of a plan's network on it."""
    cluster, times = plan.cluster, OperatorTimes(*_arrays(table))
    if changes.graph is not None:
        _check_same_operators(plan.graph, changes.graph)
        times = _rescaled(times, work_of(plan.graph), work_of(changes.graph), cluster, cluster)
    graph = changes.graph or plan.graph
    for like, name in changes.added:
        model = cluster
        cluster = add_device(cluster, like, name)
        if like in model.index:
            column = OperatorTimes(*(array[:, [model.index[like]]] for array in _arrays(times)))
        else:
            column = operator_times(graph, Cluster(cluster.name, (cluster.devices[-1],)), workload, {})
        nothing = np.zeros_like(column.forward_s)
        pairs = zip(_arrays(times), _arrays(column), strict=True)
        beside = (np.concatenate([own, more if more.size else nothing], axis=1) for own, more in pairs)
        times = OperatorTimes(*beside)
    work, before = work_of(graph), cluster
    for setting in changes.settings:
        cluster = apply_setting(cluster, setting)
    times = _rescaled(times, work, work, before, cluster)
    return cluster, assemble(graph, cluster, workload, times)


def replan(plan: Plan, search: Search) -> Plan:
    """Return the plan with the best placement for its costs: a new one, or its own if the search finds no better one.

    Raises:
        NoPlanError: if no placement is possible.
        Interrupted: on Ctrl-C, with the best plan so far.
    """
    own = None if obstacle(plan) else plan
    try:
        return _better(own, search_plan(plan.task, search))
    except NoPlanError:
        if own is None:
            raise
        return own
    except Interrupted as stopped:
        raise Interrupted(_better(own, stopped.best)) from stopped


def _better(own: Plan | None, found: Plan) -> Plan:
    """Return the better of two plans, of which one may be missing; the bound of a found plan is the tighter one."""
    if own is None or found.predicted_s < own.predicted_s:
        return found
    return replace(own, bound_s=min(found.bound_s, own.objective_s))


def obstacle(plan: Plan) -> str:
    """Return what the placement of a plan violates, or why it cannot be evaluated; empty if it is feasible."""
    try:
        return "; ".join(plan.evaluation.violations)
    except InputError as error:  # the schedule cannot run these stages
        return str(error)


def _workload(plan: Plan, changes: Changes) -> Workload:
    trains = plan.workload.trains
    for name, only in (("in_flight", False), ("micro_batches", True), ("schedule", True), ("recompute", True)):
        if getattr(changes, name) is not None and trains is not only:
            uses = "training" if only else "inference"
            raise InputError(f"the plan's goal is {plan.goal}; {name.replace('_', '-')} can be changed for {uses} only")
    return replace(
        plan.workload,
        batch=plan.workload.batch if changes.graph is None else batch_of(changes.graph),
        in_flight=changes.in_flight or plan.workload.in_flight,
        micro_batches=changes.micro_batches or plan.workload.micro_batches,
        schedule=changes.schedule or plan.workload.schedule,
        recompute=changes.recompute or plan.workload.recompute,
    )


def _check_same_operators(before: Graph, after: Graph) -> None:
    names = [[op.name for op in graph.ops] for graph in (before, after)]
    if names[0] != names[1]:
        after_names = set(names[1])
        odd = next((name for name in names[0] if name not in after_names), f"{len(names[1])} operators")
        raise InputError(f"the model is not the one of the plan ('{odd}' differs); give the model that it was made for")


def _arrays(times: OperatorTimes | CostTable) -> list[np.ndarray[Any, Any]]:
    """Return [n_ops, n_devices] each, in the order of the fields of `OperatorTimes`."""
    return [getattr(times, field.name) for field in fields(OperatorTimes)]


def _rescaled(times: OperatorTimes, work: Work, after: Work, cluster: Cluster, changed: Cluster) -> OperatorTimes:
    """Estimated times: the old ones times the ratio of the rooflines, plus the new roofline if the old one was 0."""
    old_s = np.column_stack([roofline_s(work, device) for device in cluster.devices])
    new_s = np.column_stack([roofline_s(after, device) for device in changed.devices])
    ratio = np.divide(new_s, old_s, out=np.ones_like(new_s), where=old_s > 0)
    forward_s, backward_s = (np.where(old_s > 0, s * ratio, s + new_s) for s in (times.forward_s, times.backward_s))
    backward_s = np.where(times.backward_s > 0, backward_s, 0.0)
    source = np.where(old_s == new_s, times.source, str(Source.ROOFLINE))
    return replace(times, forward_s=forward_s, source=source, backward_s=backward_s)
