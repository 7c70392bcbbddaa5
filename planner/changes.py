"""Changes: the same plan on other hardware, or for another workload.

::

    gpu1.memory=40GiB               a device by its name, or several by a pattern: 'cpu*.flops.float32=2TFLOP/s'
    link.bandwidth=100Gb/s          all links, or those from and to devices: 'gpu0->*.latency=5us'
    cluster.overlap=false           whether devices compute while they send
    replicas.count=64               and their bandwidth and latency
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any, Self

import numpy as np

from costmodels.catalogue import catalogue
from costmodels.cluster import Cluster, Device
from costmodels.clusterdict import VERSION
from costmodels.clusterfile import cluster_of
from costmodels.flops import Work, work_of
from costmodels.replicas import Replicas
from costmodels.roofline import roofline_s
from costmodels.table import Floats, Source
from costmodels.tabulate import OperatorTimes, assemble, operator_times
from costmodels.units import parse_bytes, parse_bytes_per_s, parse_flops_per_s, parse_seconds
from costmodels.workload import Workload
from graphs.errors import InputError, nearest
from graphs.ir import Graph
from planner.bounds import lower_bound
from planner.plan import CONTIGUOUS, Search, batch_of
from planner.plans import Plan
from planner.problem import Goal
from planner.result import NoPlanError

Parser = Callable[[object, str], float]

DEVICE_FIELDS: dict[str, tuple[str, Parser]] = {
    "memory": ("memory_bytes", parse_bytes),
    "memory_bandwidth": ("memory_bytes_per_s", parse_bytes_per_s),
    "launch": ("launch_s", parse_seconds),
    "handover": ("handover_s", parse_seconds),
}
LINK_FIELDS: dict[str, tuple[str, Parser]] = {
    "bandwidth": ("bytes_per_s", parse_bytes_per_s),
    "latency": ("latency_s", parse_seconds),
}
FLOPS = "flops."
KNOWN = (
    f"{', '.join(DEVICE_FIELDS)} and {FLOPS}float32 of devices, {' and '.join(LINK_FIELDS)} of links and replicas, "
    "replicas.count, cluster.overlap"
)
TRUTH = {"true": True, "false": False}


@dataclass(frozen=True)
class Setting:
    """One figure of a cluster that is to be another one.

    Attributes:
        target: pattern of device names, "link", a pattern such as "gpu0->gpu1", "replicas", or "cluster".
        field: as cluster.toml calls it, for example "memory" or "flops.float32".
        value: as cluster.toml writes it.
    """

    target: str
    field: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read TARGET.FIELD=VALUE.

        Raises:
            InputError: for anything else.
        """
        fields = "|".join([*DEVICE_FIELDS, *LINK_FIELDS, re.escape(FLOPS) + r"\w+", "overlap", "count"])
        match = re.fullmatch(rf"(.+?)\.({fields})=(.*)", text)
        if match is None:
            named = text.partition("=")[0].rpartition(".")[2]
            close = nearest(named, [*DEVICE_FIELDS, *LINK_FIELDS, "overlap", "count"])
            raise InputError(f"'{text}' sets nothing; write for example gpu0.memory=40GiB. Known: {KNOWN}{close}")
        return cls(*match.groups())


@dataclass(frozen=True)
class Changes:
    """What is to be different. What is None stays as it is.

    Attributes:
        added: devices as (like, name): like one of the cluster, or of the catalogue; a name is found if it is empty.
        settings: figures of the cluster, applied one after the other.
        graph: the same network with another batch.
        in_flight: micro-batches on their way at once, in inference.
        micro_batches: of a training step.
        schedule: of a training step.
        recompute: whether a training step recomputes.
    """

    added: tuple[tuple[str, str], ...] = ()
    settings: tuple[Setting, ...] = ()
    graph: Graph | None = None
    in_flight: int | None = None
    micro_batches: int | None = None
    schedule: str | None = None
    recompute: bool | None = None

    @property
    def anything(self) -> bool:
        """Whether anything changes."""
        return self != Changes()


def apply_changes(plan: Plan, changes: Changes) -> Plan:
    """The same placement with other costs; nothing is on an added device. See `obstacle` for whether it still can be.

    An operator's time on a changed device, or with another batch, is what it was, measured or not, times the ratio of
    its rooflines. A link whose bandwidth or latency is set forgets what was measured on it.

    Raises:
        InputError: for a device, a link or a value that there is not, or a change that the goal has no use for.
    """
    workload = _workload(plan, changes)
    cluster, times = plan.cluster, _times(plan)
    if changes.graph is not None:
        times = _rescaled(times, work_of(plan.graph), _same_operators(plan.graph, changes.graph), cluster, cluster)
    graph = changes.graph or plan.graph
    for like, name in changes.added:
        model = cluster
        cluster = add_device(cluster, like, name)
        if like in model.index:
            column = _columns(times, [model.index[like]])
        else:
            alone = Cluster(cluster.name, (cluster.devices[-1],))
            column = operator_times(graph, alone, workload, {})
        times = _beside(times, column)
    work, before = work_of(graph), cluster
    for setting in changes.settings:
        cluster = apply_setting(cluster, setting)
    times = _rescaled(times, work, work, before, cluster)
    table = assemble(graph, cluster, workload, times)
    found = replace(plan, graph=graph, cluster=cluster, workload=workload, table=table, status="feasible")
    return replace(found, bound_s=lower_bound(found.problem))


def replan(plan: Plan, search: Search) -> Plan:
    """The best placement for the plan's own costs: what is found now, or the one that it has.

    Raises:
        NoPlanError: if there is none.
    """
    result = search.solve(plan.problem)
    if result.placement is None:
        if obstacle(plan):
            raise NoPlanError(result)
        return plan
    results = [result]
    if plan.goal is Goal.THROUGHPUT:
        results.append(replace(search, solver=CONTIGUOUS).solve(plan.problem))
    plans = [] if obstacle(plan) else [plan]
    plans += [
        replace(plan, placement=r.placement, status=str(r.status), solver=r.solver, bound_s=result.bound_s)
        for r in results
        if r.placement is not None
    ]
    return min(plans, key=lambda found: found.period_s if plan.goal is Goal.THROUGHPUT else found.objective_s)


def obstacle(plan: Plan) -> str:
    """Why a plan cannot stay as it is: what its placement violates, or why it cannot be judged; empty if it can."""
    try:
        return "; ".join(plan.evaluation.violations)
    except InputError as error:  # the schedule cannot run these stages
        return str(error)


def apply_setting(cluster: Cluster, setting: Setting) -> Cluster:
    """The cluster with another figure.

    Raises:
        InputError: for a target or a field that there is not, or a malformed value.
    """
    target, field, value = setting.target, setting.field, setting.value
    where = f"{target}.{field}"
    if target == "cluster" and field == "overlap":
        if value not in TRUTH:
            raise InputError(f"{where} is '{value}'; it must be true or false")
        return replace(cluster, overlap=TRUTH[value])
    if target == "replicas" and field in ("count", *LINK_FIELDS):
        return replace(cluster, replicas=_set_replicas(cluster.replicas, field, value, where))
    if field in LINK_FIELDS:
        attribute, parse = LINK_FIELDS[field]
        change: dict[str, Any] = {attribute: parse(value, where), "points": ()}
        chosen = _chosen(target, [f"{link.src}->{link.dst}" for link in cluster.links], "link")
        return replace(
            cluster,
            links=tuple(replace(link, **change) if i in chosen else link for i, link in enumerate(cluster.links)),
        )
    chosen = _chosen(target, [device.name for device in cluster.devices], "device")
    devices = tuple(
        _set_field(device, field, value, where) if i in chosen else device for i, device in enumerate(cluster.devices)
    )
    return replace(cluster, devices=devices)


def add_device(cluster: Cluster, like: str, name: str = "") -> Cluster:
    """The cluster with one more device behind the others, on paper only.

    It has the links of the device that it is like, and one more pair between the two; one of the catalogue has those of
    the first device.

    Raises:
        InputError: for a name that neither the cluster nor the catalogue has, or one that is taken.
    """
    name = name or _free_name(cluster, like)
    if name in cluster.index:
        raise InputError(f"there is a device '{name}' already; give the new one another name, as in {like}=NAME")
    if like in cluster.index:
        twin = cluster.devices[cluster.index[like]]
        device = replace(twin, name=name, cores=(), cuda=None)
    elif like in catalogue("device"):
        twin = cluster.devices[0]
        document = {"version": VERSION, "device": [{"name": name, "like": like}]}
        (device,) = cluster_of(document).devices
    else:
        raise InputError(
            f"there is no device '{like}' to add another one of; "
            f"the cluster has {', '.join(cluster.index)}, the catalogue {', '.join(catalogue('device'))}"
        )
    own = [link for link in cluster.links if twin.name in (link.src, link.dst)]
    copies = [replace(link, src=name) if link.src == twin.name else replace(link, dst=name) for link in own]
    pair = [replace(own[0], src=src, dst=dst) for src, dst in ((twin.name, name), (name, twin.name))] if own else []
    return replace(cluster, devices=(*cluster.devices, device), links=(*cluster.links, *copies, *pair))


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
        recompute=plan.workload.recompute if changes.recompute is None else changes.recompute,
    )


def _same_operators(before: Graph, after: Graph) -> Work:
    names = [[op.name for op in graph.ops] for graph in (before, after)]
    if names[0] != names[1]:
        odd = next((name for name in names[0] if name not in set(names[1])), f"{len(names[1])} operators")
        raise InputError(f"the model is not the one of the plan ('{odd}' differs); give the model that it was made for")
    return work_of(after)


def _set_replicas(replicas: Replicas | None, field: str, value: str, where: str) -> Replicas | None:
    """Replicas with another figure; a count of 1 leaves none."""
    if replicas is None:
        raise InputError(f"{where} cannot be set: the cluster has no replicas; add [replicas] to cluster.toml")
    if field != "count":
        attribute, parse = LINK_FIELDS[field]
        change: dict[str, Any] = {attribute: parse(value, where)}
        return replace(replicas, **change)
    if not value.isdecimal() or value == "0":
        raise InputError(f"{where} is '{value}'; it must be a whole number of 1 or more")
    return None if value == "1" else replace(replicas, count=int(value))


def _set_field(device: Device, field: str, value: str, where: str) -> Device:
    if field.startswith(FLOPS):
        dtype = field.removeprefix(FLOPS)
        return replace(device, flops_per_s={**device.flops_per_s, dtype: parse_flops_per_s(value, where)})
    if field not in DEVICE_FIELDS:
        raise InputError(f"{where} cannot be set; known: {KNOWN}")
    attribute, parse = DEVICE_FIELDS[field]
    change: dict[str, Any] = {attribute: parse(value, where)}
    return replace(device, **change)


def _chosen(pattern: str, names: Sequence[str], what: str) -> frozenset[int]:
    """Which names a pattern means; "link" means all links.

    Raises:
        InputError: if it means none.
    """
    every = pattern == what == "link"
    found = frozenset(i for i, name in enumerate(names) if every or fnmatchcase(name, pattern))
    if not found:
        known = f"{', '.join(names) or 'none'}{nearest(pattern, names)}"
        raise InputError(f"there is no {what} '{pattern}'; known: {known}")
    return found


def _free_name(cluster: Cluster, like: str) -> str:
    return next(name for n in range(2, len(cluster.devices) + 3) if (name := f"{like}-{n}") not in cluster.index)


def _times(plan: Plan) -> OperatorTimes:
    table = plan.table
    return OperatorTimes(table.forward_s, table.source, table.backward_s, table.spread, table.slowdown)


def _columns(times: OperatorTimes, index: Sequence[int]) -> OperatorTimes:
    return OperatorTimes(*(getattr(times, field.name)[:, index] for field in fields(OperatorTimes)))


def _beside(times: OperatorTimes, column: OperatorTimes) -> OperatorTimes:
    """One more device; what is left out of its times is zeros."""
    pairs = ((getattr(times, field.name), getattr(column, field.name)) for field in fields(OperatorTimes))
    nothing = np.zeros_like(column.forward_s)
    return OperatorTimes(*(np.concatenate([own, more if more.size else nothing], axis=1) for own, more in pairs))


def _rescaled(times: OperatorTimes, work: Work, after: Work, cluster: Cluster, changed: Cluster) -> OperatorTimes:
    """Times the ratio of the rooflines; plus the new one where there was nothing to do. No longer measured."""
    columns = zip(cluster.devices, changed.devices, strict=True)
    old_s, new_s = (
        np.column_stack(column)
        for column in zip(*((roofline_s(work, a), roofline_s(after, b)) for a, b in columns), strict=True)
    )
    forward_s, backward_s = (_scale(s, old_s, new_s) for s in (times.forward_s, times.backward_s))
    backward_s = np.where(times.backward_s > 0, backward_s, 0.0)
    source = np.where(old_s == new_s, times.source, str(Source.ROOFLINE))
    return OperatorTimes(forward_s, source, backward_s, times.spread, times.slowdown)


def _scale(seconds: Floats, old_s: Floats, new_s: Floats) -> Floats:
    ratio = np.divide(new_s, old_s, out=np.ones_like(new_s), where=old_s > 0)
    return np.where(old_s > 0, seconds * ratio, seconds + new_s)
