"""diff: the differences of two plans for one network."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from costmodels.cluster import Cluster
from costmodels.table import Source
from costmodels.units import write_bytes, write_bytes_per_s, write_flops_per_s, write_seconds
from graphs.brief import brief
from graphs.errors import InputError
from planner.explain.regions import Region, regions
from planner.plans.plan import Plan
from planner.problem.problem import Goal


@dataclass(frozen=True, slots=True)
class Figures:
    """The predictions of a plan and its proof, as in `Plan`."""

    goal: Goal
    status: str
    solver: str
    objective_s: float
    bound_s: float
    gap: float  # 0 to 1
    period_s: float
    latency_s: float
    samples_per_s: float  # of all replicas together
    measured: float  # share of the time of the operators on their devices that was measured, 0 to 1


@dataclass(frozen=True, slots=True)
class Change:
    """An input that differs between the plans, in words; empty if a plan lacks it."""

    what: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class CostChange:
    """Operators whose time on a device of both plans differs."""

    device: str
    n_ops: int
    before_s: float  # sum of the operators' times
    after_s: float  # infinite if one of the operators cannot run


@dataclass(frozen=True, slots=True)
class Moved:
    """Operators that are on one device in the first plan and on another one in the second plan.

    With several copies of the network, an operator may have several devices, and its seconds are their mean.
    """

    src: str  # names of the devices in the first plan
    dst: str  # names of the devices in the second plan
    n_ops: int
    before_s: float  # on ``src``, by the costs of the first plan
    after_s: float  # on ``dst``, by the costs of the second plan
    what: tuple[Region, ...]  # the operators by module


@dataclass(frozen=True, slots=True)
class CutTensor:
    """A tensor that goes from one device to another."""

    tensor: str
    src: str
    dst: str
    n_bytes: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Cuts:
    """The cuts of two plans."""

    before_bytes: float  # of all cuts of the first plan, for each micro-batch
    after_bytes: float  # of all cuts of the second plan
    gone: tuple[CutTensor, ...]  # cuts of the first plan only, the largest first
    new: tuple[CutTensor, ...]  # cuts of the second plan only
    n_kept: int  # cuts of both plans


@dataclass(frozen=True)
class PlanDifference:
    """Two plans side by side."""

    model: str  # name of the network
    n_ops: int
    before: Figures
    after: Figures
    changes: tuple[Change, ...]  # of goal, workload and cluster
    costs: tuple[CostChange, ...]  # in the order of devices
    moved: tuple[Moved, ...]  # one for each pair of devices
    reordered: bool  # whether the operators run in another order
    cuts: Cuts
    sure: bool  # whether the times for the goal differ by more than is uncertain, see `Plan.surely_differs`

    __repr__ = brief

    @property
    def same_placement(self) -> bool:
        """Whether every operator is on the same device and in the same place of the order."""
        return not self.moved and not self.reordered

    @property
    def same(self) -> bool:
        """Whether the plans do not differ at all."""
        return self.same_placement and not self.changes and not self.costs and self.before == self.after


def diff(before: Plan, after: Plan) -> PlanDifference:
    """Compare two plans for one network; devices are the same if they have the same name.

    Raise InputError if the plans are for different networks.
    """
    if before.graph.fingerprint != after.graph.fingerprint:
        ends = [f"'{plan.graph.name}' (fingerprint {plan.graph.fingerprint})" for plan in (before, after)]
        raise InputError(f"the plans are for different networks, {ends[0]} and {ends[1]}; plan both for the same one")
    return PlanDifference(
        model=after.graph.name,
        n_ops=len(after.graph.ops),
        before=_figures(before),
        after=_figures(after),
        changes=tuple(_changes(before, after)),
        costs=tuple(_costs(before, after)),
        moved=tuple(_moved(before, after)),
        reordered=[c.order for c in before.placement.copies] != [c.order for c in after.placement.copies],
        cuts=_cuts(before, after),
        sure=before.surely_differs(after),
    )


def _figures(plan: Plan) -> Figures:
    own = {field.name: getattr(plan, field.name) for field in fields(Figures) if field.name != "measured"}
    return Figures(**own, measured=plan.time_shares.get(Source.MEASURED, 0.0))


def _changes(before: Plan, after: Plan) -> Iterator[Change]:
    """Changes of the request, then of devices and links: the first plan's, then new ones."""
    yield from _differing(_asked(before), _asked(after))
    first, second = _described(before.cluster), _described(after.cluster)
    for name in dict.fromkeys((*first, *second)):
        if name not in second:
            yield Change(name, next(iter(first[name].values())), "")
        elif name not in first:
            yield Change(name, "", next(iter(second[name].values())))
        else:
            yield from _differing(first[name], second[name], f"{name}: ")


def _differing(before: Mapping[str, str], after: Mapping[str, str], prefix: str = "") -> Iterator[Change]:
    for key in dict.fromkeys((*before, *after)):
        if before.get(key, "") != after.get(key, ""):
            yield Change(f"{prefix}{key}", before.get(key, ""), after.get(key, ""))


def _asked(plan: Plan) -> dict[str, str]:
    work, cluster = plan.workload, plan.cluster
    asked = {"goal": str(plan.goal), "mode": work.mode, "batch": str(work.batch)}
    if work.trains:
        asked |= {
            "micro-batches of a step": str(work.micro_batches),
            "schedule": work.schedule,
            "recomputation": work.recompute,
            "optimizer": work.optimizer,
            "replicas": str(cluster.replicas.count if cluster.replicas else 1),
        }
    else:
        asked["micro-batches in flight"] = str(work.in_flight)
    return asked | {
        "constraints": "; ".join(map(str, plan.constraints)),
        "devices compute while they send": "yes" if cluster.overlap else "no",
        "sharing of channels": cluster.sharing,
    }


def _described(cluster: Cluster) -> dict[str, dict[str, str]]:
    """The properties of devices and links; the first property of each describes it best."""
    described: dict[str, dict[str, str]] = {}
    for device in cluster.devices:
        described[f"device {device.name}"] = {
            "kind": device.kind,
            "memory": write_bytes(device.memory_bytes),
            **{f"{dtype} peak": write_flops_per_s(rate) for dtype, rate in device.flops_per_s.items()},
            "memory bandwidth": write_bytes_per_s(device.memory_bytes_per_s),
            "launch": write_seconds(device.launch_s),
            "overhead": write_seconds(device.overhead_s),
            "cores": ", ".join(map(str, device.cores)),
            "cuda": "" if device.cuda is None else str(device.cuda),
            "profile": device.profile,
            "price": str(device.price or ""),
        }
    for level in cluster.levels:
        described[f"level of {level.size}"] = {
            "bandwidth": write_bytes_per_s(level.bytes_per_s),
            "latency": write_seconds(level.latency_s),
            "cards": str(level.cards),
        }
    for link in cluster.links:
        described[f"link {link.src} → {link.dst}"] = {
            "bandwidth": write_bytes_per_s(link.bytes_per_s),
            "latency": write_seconds(link.latency_s),
            "channel": link.channel,
        }
    return described


def _costs(before: Plan, after: Plan) -> Iterator[CostChange]:
    for name in before.table.devices:
        if name in after.cluster.index:
            first = before.table.contended.forward_s[:, before.cluster.index[name]]
            second = after.table.contended.forward_s[:, after.cluster.index[name]]
            changed = first != second
            if changed.any():
                yield CostChange(name, int(changed.sum()), float(first[changed].sum()), float(second[changed].sum()))


def _moved(before: Plan, after: Plan) -> Iterator[Moved]:
    """The pairs of devices in the order of their first operators."""
    ops: dict[tuple[tuple[str, ...], tuple[str, ...]], list[int]] = {}
    for op, homes in enumerate(zip(before.placement.homes, after.placement.homes, strict=True)):
        src, dst = (
            tuple(plan.table.devices[home] for home in each) for plan, each in zip((before, after), homes, strict=True)
        )
        if set(src) != set(dst):
            ops.setdefault((src, dst), []).append(op)
    for (src, dst), members in ops.items():
        first_s, second_s = (_mean_s(plan, members, on) for plan, on in ((before, src), (after, dst)))
        what = regions(before.graph, members)
        yield Moved(" and ".join(src), " and ".join(dst), len(members), first_s, second_s, what)


def _mean_s(plan: Plan, ops: Sequence[int], devices: Sequence[str]) -> float:
    """The seconds of operators, in the mean of the devices."""
    numbers = [plan.cluster.index[name] for name in devices]
    return float(plan.costs.forward_s[np.ix_(ops, numbers)].sum(axis=0).mean())


def _cuts(before: Plan, after: Plan) -> Cuts:
    first, second = _crossings(before), _crossings(after)
    return Cuts(
        before_bytes=sum(cut.n_bytes for cut in first.values()),
        after_bytes=sum(cut.n_bytes for cut in second.values()),
        gone=_largest(cut for key, cut in first.items() if key not in second),
        new=_largest(cut for key, cut in second.items() if key not in first),
        n_kept=len(first.keys() & second.keys()),
    )


def _crossings(plan: Plan) -> dict[tuple[str, str, str], CutTensor]:
    table, cuts = plan.table, {}
    for flow, src, dst in plan.placement.all_cuts(table):
        key = (table.flows[flow].tensor, table.devices[src], table.devices[dst])
        cuts[key] = CutTensor(*key, float(table.flow_bytes[flow]), table.send_s(flow, src, dst))
    return cuts


def _largest(cuts: Iterable[CutTensor]) -> tuple[CutTensor, ...]:
    return tuple(sorted(cuts, key=lambda cut: -cut.n_bytes))
