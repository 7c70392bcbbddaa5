"""diff: the differences of two plans for one network."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TypeVar

from costmodels.cluster.cluster import Cluster
from costmodels.table import Source
from costmodels.units import write_bytes, write_bytes_per_s, write_flops_per_s, write_seconds
from graphs.common.brief import brief
from graphs.common.errors import InputError
from graphs.rewrites.split import Split
from planner.explanations.common_ops import CommonOps, NetworkOps
from planner.explanations.regions import Region, regions
from planner.plans.generation import generation_of
from planner.plans.given import Named, given_plan
from planner.plans.plan import Plan
from planner.problem.problem import Goal

T = TypeVar("T")


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
    tokens_per_s: float | None  # of all sequences, in generation
    first_token_s: float | None  # of one sequence alone, in generation


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
class MovedOperators:
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


@dataclass(frozen=True, slots=True)
class ChangedDivision:
    """Operators that the plans divide in different ways.

    Seconds are those of all parts on the device where they take longest.
    """

    before: str  # as "in 2 by output features"; empty for whole operators
    after: str
    n_ops: int  # of the network
    before_s: float
    after_s: float
    what: tuple[Region, ...]  # the operators by module


@dataclass(frozen=True, slots=True)
class JoiningOps:
    """Operators that only one of the plans has: they slice, concatenate and add up parts of others."""

    n_ops: int
    seconds: float  # of all of them, on the device where they take longest


@dataclass(frozen=True)
class PlanDifference:
    """Two plans side by side."""

    model: str  # name of the network
    n_ops: int  # of the network
    before: Figures
    after: Figures
    changes: tuple[Change, ...]  # of goal, workload and cluster
    costs: tuple[CostChange, ...]  # in the order of devices
    divided: tuple[ChangedDivision, ...]  # one for each pair of ways
    between: tuple[JoiningOps, JoiningOps]  # before and after
    moved: tuple[MovedOperators, ...]  # one for each pair of devices, without what is divided anew
    reordered: bool  # whether the operators run in another order
    cuts: Cuts
    sure: bool  # whether the times for the goal differ by more than is uncertain, see `Plan.surely_differs`

    __repr__ = brief

    @property
    def same_placement(self) -> bool:
        """Whether every operator is on the same device and in the same place of the order."""
        return not self.moved and not self.divided and not self.reordered

    @property
    def same(self) -> bool:
        """Whether the plans do not differ at all."""
        return self.same_placement and not self.changes and not self.costs and self.before == self.after


def diff(before: Plan | Named, after: Plan | Named) -> PlanDifference:
    """Compare two plans for one network, which may be rewritten; devices are the same if they have the same name.

    Args:
        before: a plan, or the path of a plan.json.
        after: another one.

    Raises:
        InputError: if the plans are for different networks, or it is not known what a rewritten one is for.
    """
    before, after = given_plan(before), given_plan(after)
    _check_network(before, after)
    common = CommonOps.of(before, after)
    names = common.names
    between = (each.apart(names) for each in common.both)
    first, second = (JoiningOps(len(ops), each.seconds_of(ops)) for each, ops in zip(common.both, between, strict=True))
    return PlanDifference(
        model=after.graph.name,
        n_ops=len(names),
        before=_figures(before),
        after=_figures(after),
        changes=tuple(_changes(before, after)),
        costs=tuple(_costs(before, after)),
        divided=tuple(_divided(common)),
        between=(first, second),
        moved=tuple(_moved(common)),
        reordered=_orders(before, after) != _orders(after, before),
        cuts=_cuts(before, after),
        sure=before.surely_differs(after),
    )


def _check_network(before: Plan, after: Plan) -> None:
    """Check that both plans are for one network."""
    known = [plan.network_fingerprint for plan in (before, after)]
    if before.graph.fingerprint == after.graph.fingerprint or (known[0] == known[1] and all(known)):
        return
    if not all(known):
        name = (before, after)[known.index("")].graph.name
        raise InputError(
            f"the plan for '{name}' has fused or split operators, and does not say of which network (it was made by "
            "hand); plan again"
        )
    ends = [f"'{plan.graph.name}' (fingerprint {own})" for plan, own in zip((before, after), known, strict=True)]
    sizes = "rows and context" if after.workload.generates else "batch"
    raise InputError(
        f"the plans are for different networks, {ends[0]} and {ends[1]}; plan both for the same one, with the same "
        f"{sizes}"
    )


def _figures(plan: Plan) -> Figures:
    found = generation_of(plan) if plan.workload.generates else None
    return Figures(
        **{field.name: getattr(plan, field.name) for field in fields(Figures) if hasattr(plan, field.name)},
        measured=plan.time_shares.get(Source.MEASURED, 0.0),
        tokens_per_s=found.tokens_per_s if found else None,
        first_token_s=found.first_token_s if found else None,
    )


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
    rows = "rows of a group" if work.generates else "batch"
    asked = {"goal": str(plan.goal), "mode": work.mode, rows: str(work.batch), "rewrites": _rewrites(plan)}
    if work.generates:
        asked |= {
            "sequences": str(work.sequences),
            "tokens of a prompt": str(work.prompt),
            "tokens after it": str(work.output),
            "positions of a cache": str(work.context),
        }
    elif work.trains:
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


def _rewrites(plan: Plan) -> str:
    """Return the rewrites of a plan in words."""
    counts = ((len(r.choices), "split") if isinstance(r, Split) else (len(r.groups), "fusion") for r in plan.rewrites)
    return ", ".join(f"{n} {what}{'s' * (n != 1)}" for n, what in counts)


def _orders(plan: Plan, other: Plan) -> list[list[str]]:
    """Return the order of each copy, of operators that both plans' graphs have."""
    ops, shared = plan.graph.ops, other.graph.index
    return [[ops[number].name for number in copy.order if ops[number].name in shared] for copy in plan.placement.copies]


def _described(cluster: Cluster) -> dict[str, dict[str, str]]:
    """Return the properties of devices and links; the first property of each describes it best."""
    described: dict[str, dict[str, str]] = {}
    for device in cluster.devices:
        described[f"device {device.name}"] = {
            "kind": device.kind,
            "memory": write_bytes(device.memory_bytes),
            "reserve": write_bytes(device.reserve_bytes) if device.reserve_bytes else "",
            **{f"{dtype} peak": write_flops_per_s(rate) for dtype, rate in device.flops_per_s.items()},
            "memory bandwidth": write_bytes_per_s(device.memory_bytes_per_s),
            "launch": write_seconds(device.launch_s),
            "overhead": write_seconds(device.overhead_s),
            "request": write_seconds(device.request_s),
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
    """Yield the changes of cost of operators that are equal in both graphs."""
    index = after.graph.index
    pairs = [
        (number, index[op.name])
        for number, op in enumerate(before.graph.ops)
        if op.name in index and op == after.graph.ops[index[op.name]]
    ]
    first_ops, second_ops = [list(numbers) for numbers in zip(*pairs, strict=True)] or ([], [])
    for name in before.table.devices:
        if name in after.cluster.index:
            first = before.table.contended.forward_s[first_ops, before.cluster.index[name]]
            second = after.table.contended.forward_s[second_ops, after.cluster.index[name]]
            changed = first != second
            if changed.any():
                yield CostChange(name, int(changed.sum()), float(first[changed].sum()), float(second[changed].sum()))


def _divided(common: CommonOps) -> Iterator[ChangedDivision]:
    """Yield the pairs of ways to divide operators, in the order of the first ones."""
    for (first, second), names in _grouped(common, lambda ops, name: ops.how(name)).items():
        if first != second:
            before_s, after_s = (each.seconds(names) for each in common.both)
            what = regions(common.graph, common.numbers(names))
            yield ChangedDivision(first, second, len(names), before_s, after_s, what)


def _moved(common: CommonOps) -> Iterator[MovedOperators]:
    """Yield the pairs of devices in the order of their first operators."""
    before, after = common.both
    for (src, dst), grouped in _grouped(common, NetworkOps.devices).items():
        names = [name for name in grouped if before.how(name) == after.how(name)]
        if names and set(src) != set(dst):
            before_s, after_s = (each.seconds(names) for each in common.both)
            what = regions(common.graph, common.numbers(names))
            yield MovedOperators(" and ".join(src), " and ".join(dst), len(names), before_s, after_s, what)


def _grouped(common: CommonOps, key: Callable[[NetworkOps, str], T]) -> dict[tuple[T, T], list[str]]:
    """Return the operators by their descriptions in both plans."""
    groups: dict[tuple[T, T], list[str]] = {}
    for name in common.names:
        groups.setdefault((key(common.before, name), key(common.after, name)), []).append(name)
    return groups


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
