"""diff: what is different between two plans for one network."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

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
    """What a plan promises.

    Attributes:
        goal: what was minimised.
        status: how the search ended.
        solver: who found the placement.
        objective_s: what it is worth, by its own goal.
        bound_s: no placement can be better.
        gap: how much better one could be at most, 0 to 1.
        period_s: simulated seconds from one micro-batch to the next in a steady stream.
        latency_s: simulated seconds of one micro-batch alone; in training, of one step.
        samples_per_s: simulated, of all replicas together.
        measured: share of the time of all operators on all devices that was measured, 0 to 1.
    """

    goal: Goal
    status: str
    solver: str
    objective_s: float
    bound_s: float
    gap: float
    period_s: float
    latency_s: float
    samples_per_s: float
    measured: float


@dataclass(frozen=True, slots=True)
class Change:
    """Something that was given and is different now, in words; empty where it is not there."""

    what: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class CostChange:
    """Operators that take another time on a device that both plans know.

    Attributes:
        device: its name.
        n_ops: how many.
        before_s: of these operators together.
        after_s: the same; infinite where one cannot run.
    """

    device: str
    n_ops: int
    before_s: float
    after_s: float


@dataclass(frozen=True, slots=True)
class Moved:
    """Operators that went from one device to another.

    Attributes:
        src: name of the device in the first plan.
        dst: name of the device in the second plan.
        n_ops: how many.
        before_s: seconds that they take on the one, by the costs of the first plan.
        after_s: and on the other, by those of the second.
        what: the operators by module.
    """

    src: str
    dst: str
    n_ops: int
    before_s: float
    after_s: float
    what: tuple[Region, ...]


@dataclass(frozen=True, slots=True)
class CutTensor:
    """A tensor on its way from one device to another."""

    tensor: str
    src: str
    dst: str
    n_bytes: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Cuts:
    """What crosses the devices' borders.

    Attributes:
        before_bytes: of all cuts of the first plan, for each micro-batch.
        after_bytes: of the second.
        gone: those of the first plan that the second has not, the largest first.
        new: those of the second that the first has not.
        n_kept: how many both have.
    """

    before_bytes: float
    after_bytes: float
    gone: tuple[CutTensor, ...]
    new: tuple[CutTensor, ...]
    n_kept: int


@dataclass(frozen=True)
class PlanDifference:
    """Two plans side by side.

    Attributes:
        model: name of the network.
        n_ops: how many operators it has.
        before: figures of the first plan.
        after: figures of the second.
        changes: of goal, workload and cluster.
        costs: of operators, by device.
        moved: by device and device.
        reordered: whether the operators run in another order.
        cuts: what is sent.
    """

    model: str
    n_ops: int
    before: Figures
    after: Figures
    changes: tuple[Change, ...]
    costs: tuple[CostChange, ...]
    moved: tuple[Moved, ...]
    reordered: bool
    cuts: Cuts

    __repr__ = brief

    @property
    def same_placement(self) -> bool:
        """Whether every operator is where and when it was."""
        return not self.moved and not self.reordered

    @property
    def same(self) -> bool:
        """Whether nothing is different at all."""
        return self.same_placement and not self.changes and not self.costs and self.before == self.after


def diff(before: Plan, after: Plan) -> PlanDifference:
    """Compare two plans for one network; devices are the same if they have the same name.

    Raises:
        InputError: if the plans are for different networks.
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
        reordered=before.placement.order != after.placement.order,
        cuts=_cuts(before, after),
    )


def _figures(plan: Plan) -> Figures:
    return Figures(
        goal=plan.goal,
        status=plan.status,
        solver=plan.solver,
        objective_s=plan.objective_s,
        bound_s=plan.bound_s,
        gap=plan.gap,
        period_s=plan.period_s,
        latency_s=plan.latency_s,
        samples_per_s=plan.samples_per_s,
        measured=plan.table.share(Source.MEASURED),
    )


def _changes(before: Plan, after: Plan) -> Iterator[Change]:
    """What was asked, then devices and links in the order of the first plan, then those that only the second has."""
    asked, asks = _asked(before), _asked(after)
    yield from _differing(asked, asks)
    first, second = _described(before.cluster), _described(after.cluster)
    for name in dict.fromkeys((*first, *second)):
        if name not in second:
            yield Change(name, next(iter(first[name].values())), "")
        elif name not in first:
            yield Change(name, "", next(iter(second[name].values())))
        else:
            yield from _differing(first[name], second[name], f"{name}: ")


def _differing(before: Mapping[str, str], after: Mapping[str, str], where: str = "") -> Iterator[Change]:
    for what in dict.fromkeys((*before, *after)):
        texts = before.get(what, ""), after.get(what, "")
        if texts[0] != texts[1]:
            yield Change(f"{where}{what}", *texts)


def _asked(plan: Plan) -> dict[str, str]:
    work, cluster = plan.workload, plan.cluster
    asked = {"goal": str(plan.goal), "mode": work.mode, "batch": str(work.batch)}
    if work.trains:
        asked |= {
            "micro-batches of a step": str(work.micro_batches),
            "schedule": work.schedule,
            "recomputation": _yes(work.recompute),
            "optimizer": work.optimizer,
            "replicas": str(cluster.replicas.count if cluster.replicas else 1),
        }
    else:
        asked["micro-batches in flight"] = str(work.in_flight)
    return asked | {
        "constraints": "; ".join(map(str, plan.constraints)),
        "devices compute while they send": _yes(cluster.overlap),
        "sharing of channels": cluster.sharing,
    }


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"


def _described(cluster: Cluster) -> dict[str, dict[str, str]]:
    """Devices and links with their properties; the first one describes them best."""
    found: dict[str, dict[str, str]] = {}
    for device in cluster.devices:
        found[f"device {device.name}"] = {
            "kind": device.kind,
            "memory": write_bytes(device.memory_bytes),
            **{f"{dtype} peak": write_flops_per_s(rate) for dtype, rate in device.flops_per_s.items()},
            "memory bandwidth": write_bytes_per_s(device.memory_bytes_per_s),
            "launch": write_seconds(device.launch_s),
            "overhead": write_seconds(device.overhead_s),
            "cores": ", ".join(map(str, device.cores)),
            "cuda": "" if device.cuda is None else str(device.cuda),
            "profile": device.profile,
        }
    for link in cluster.links:
        found[f"link {link.src} → {link.dst}"] = {
            "bandwidth": write_bytes_per_s(link.bytes_per_s),
            "latency": write_seconds(link.latency_s),
            "channel": link.channel,
        }
    return found


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
    ops: dict[tuple[str, str], list[int]] = {}
    for op in before.graph.ops:
        src, dst = before.device_of(op.name), after.device_of(op.name)
        if src != dst:
            ops.setdefault((src, dst), []).append(before.graph.index[op.name])
    for (src, dst), members in ops.items():
        first = before.costs.forward_s[members, before.cluster.index[src]]
        second = after.costs.forward_s[members, after.cluster.index[dst]]
        what = regions(before.graph, members)
        yield Moved(src, dst, len(members), float(first.sum()), float(second.sum()), what)


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
    table = plan.table
    found: dict[tuple[str, str, str], CutTensor] = {}
    for flow, src, dst in plan.placement.cuts(table):
        key = (table.flows[flow].tensor, table.devices[src], table.devices[dst])
        found[key] = CutTensor(*key, float(table.flow_bytes[flow]), table.send_s(flow, src, dst))
    return found


def _largest(cuts: Iterable[CutTensor]) -> tuple[CutTensor, ...]:
    return tuple(sorted(cuts, key=lambda cut: -cut.n_bytes))
