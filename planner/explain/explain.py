"""explain: which operator runs where, and why: the bottleneck, the cuts, what would help, and how good the plan is."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from costmodels.table import Source
from costmodels.tabulate import guessed_kinds
from costmodels.views import operation
from graphs.brief import brief
from planner.explain.bottleneck import Bottleneck, bottleneck
from planner.explain.cuts import Cut, cuts
from planner.explain.regions import Region, regions
from planner.explain.replanned import Replanned, replanned
from planner.explain.what_if import CutMove, Remedy, helps
from planner.planning.make_plan import Search
from planner.plans.plan import Plan
from planner.problem.bounds import lower_bound, path_bound
from planner.problem.problem import Goal
from planner.problem.reach import out_of_reach
from planner.problem.result import Interrupted
from planner.solvers.single_device import best_single_device

MOVED_CUTS = 8
SEARCH = Search(time_limit_s=10.0, gap=0.01)  # the time of all searches together; a smaller gap is not worth a word
EQUAL = 1e-6  # relative; two ways to compute one bound


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """What one device does.

    Attributes:
        name: of the device.
        kind: of the device.
        n_ops: operators on it.
        load_s: seconds that one micro-batch occupies it.
        share: of the load of all devices, 0 to 1.
        memory_bytes: what it needs.
        capacity_bytes: what it has.
        holds: its operators by module.
    """

    name: str
    kind: str
    n_ops: int
    load_s: float
    share: float
    memory_bytes: float
    capacity_bytes: float
    holds: tuple[Region, ...]


@dataclass(frozen=True, slots=True)
class SingleDevice:
    """The best device with all operators on it."""

    device: str
    objective_s: float


@dataclass(frozen=True, slots=True)
class Proof:
    """How good the plan is and how that is known.

    Attributes:
        status: how the search ended.
        solver: who found the placement.
        bound_s: no placement can be better.
        gap: how much better one could be at most, 0 to 1.
        because: how that is known; goes on from "none is below the bound, ".
    """

    status: str
    solver: str
    bound_s: float
    gap: float
    because: str


@dataclass(frozen=True, slots=True)
class KindShare:
    """Operators of one kind whose time was estimated.

    Attributes:
        kind: without its overload.
        share: of the time of all operators, 0 to 1.
        n_ops: how many.
        guessed: whether even what they have to do is a guess, for want of a formula.
    """

    kind: str
    share: float
    n_ops: int
    guessed: bool


@dataclass(frozen=True)
class Explanation:
    """A plan in words and figures.

    Attributes:
        model: name of the network.
        cluster: name of the cluster.
        goal: what was minimised.
        batch: samples in a micro-batch.
        in_flight: micro-batches on their way at once.
        micro_batches: of one training step.
        overlap: whether devices compute while they send.
        objective_s: what the plan is worth.
        period_s: simulated seconds from one micro-batch to the next in a steady stream.
        latency_s: simulated seconds of one micro-batch alone.
        bottleneck: what limits.
        isolated: what one device would reach; None if none can run and hold everything.
        out_of_reach: which devices no link leads to, one sentence; else empty.
        devices: in the order of the cluster.
        cuts: those that limit first, then those that take longest.
        replanned: what searching once more brought: what each constraint costs, what other means would bring.
        helps: what other means would bring to this placement as it is.
        proof: how good it is.
        sources: shares of the operators' time, where they run, by source; without those of 0.
        estimated: the kinds that were estimated, the largest share first.
    """

    model: str
    cluster: str
    goal: Goal
    batch: int
    in_flight: int
    micro_batches: int
    overlap: bool
    objective_s: float
    period_s: float
    latency_s: float
    bottleneck: Bottleneck
    isolated: SingleDevice | None
    out_of_reach: str
    devices: tuple[DeviceShare, ...]
    cuts: tuple[Cut, ...]
    replanned: Replanned
    helps: tuple[Remedy, ...]
    proof: Proof
    sources: Mapping[Source, float]
    estimated: tuple[KindShare, ...]

    __repr__ = brief

    @property
    def now_s(self) -> float:
        """What counts, simulated, as `Plan.predicted_s` has it."""
        return self.period_s if self.goal is Goal.THROUGHPUT else self.objective_s

    @property
    def moves(self) -> Iterator[CutMove]:
        """Every move that was judged."""
        return (moved for cut in self.cuts for moved in cut.moves)


def explain(plan: Plan, n_moved: int = MOVED_CUTS, search: Search = SEARCH) -> Explanation:
    """Say why a plan is as it is.

    Args:
        plan: the plan.
        n_moved: for how many cuts it is judged what moving their ends would do; those that limit come first, then
            those that take longest.
        search: how to look for what plans would be without a constraint, or with more devices, bandwidth or memory.

    Raises:
        Interrupted: on Ctrl-C while it searches, with the explanation until then.
    """
    limit = bottleneck(plan)
    found = cuts(plan, limit, n_moved)
    moves = [moved for cut in found for moved in cut.moves]
    try:
        return _explained(plan, limit, found, replanned(plan, moves, search))
    except Interrupted as stopped:
        raise Interrupted(_explained(plan, limit, found, stopped.best)) from stopped


def _explained(plan: Plan, limit: Bottleneck, found: tuple[Cut, ...], again: Replanned) -> Explanation:
    moves = [moved for cut in found for moved in cut.moves]
    return Explanation(
        model=plan.graph.name,
        cluster=plan.cluster.name,
        goal=plan.goal,
        batch=plan.workload.batch,
        in_flight=plan.workload.in_flight,
        micro_batches=plan.workload.micro_batches,
        overlap=plan.table.overlap,
        objective_s=plan.objective_s,
        period_s=plan.period_s,
        latency_s=plan.latency_s,
        bottleneck=limit,
        isolated=_alone(plan),
        out_of_reach=out_of_reach(plan.table, plan.placement),
        devices=_devices(plan),
        cuts=found,
        replanned=again,
        helps=helps(plan, moves),
        proof=_proof(plan),
        sources=_sources(plan),
        estimated=_estimated(plan),
    )


def _alone(plan: Plan) -> SingleDevice | None:
    best = best_single_device(plan.problem)
    return SingleDevice(plan.table.devices[best[0].device[0]], best[1]) if best else None


def _devices(plan: Plan) -> tuple[DeviceShare, ...]:
    judged = plan.evaluation
    total_s = float(judged.load_s.sum())
    found = []
    for number, device in enumerate(plan.cluster.devices):
        ops = [op for op, there in enumerate(plan.placement.device) if there == number]
        load_s = float(judged.load_s[number])
        found.append(
            DeviceShare(
                name=device.name,
                kind=device.kind,
                n_ops=len(ops),
                load_s=load_s,
                share=load_s / total_s if total_s else 0.0,
                memory_bytes=float(judged.memory_bytes[number]),
                capacity_bytes=float(plan.table.capacity_bytes[number]),
                holds=regions(plan.graph, ops),
            )
        )
    return tuple(found)


def _proof(plan: Plan) -> Proof:
    simple_s = lower_bound(plan.problem)
    if plan.bound_s > simple_s * (1 + EQUAL):
        because = "which the search has proved"
    elif plan.goal is Goal.LATENCY and path_bound(plan.table.contended) >= simple_s * (1 - EQUAL):
        because = "for the longest path takes that long even on the fastest devices with free transfers"
    else:
        because = "for all operators take that long even if divided at will with free transfers"
    return Proof(plan.status, plan.solver, plan.bound_s, plan.gap, because)


def _placed_s(plan: Plan) -> list[float]:
    """[n_ops], seconds of each operator where it runs."""
    return [float(plan.costs.forward_s[op, device]) for op, device in enumerate(plan.placement.device)]


def _sources(plan: Plan) -> dict[Source, float]:
    seconds = _placed_s(plan)
    spent = dict.fromkeys(Source, 0.0)
    for op, device in enumerate(plan.placement.device):
        spent[Source(plan.table.source[op, device])] += seconds[op]
    total_s = sum(seconds)
    return {source: part_s / total_s for source, part_s in spent.items() if part_s > 0}


def _estimated(plan: Plan) -> tuple[KindShare, ...]:
    seconds = _placed_s(plan)
    spent: dict[str, list[float]] = {}
    for op, device in enumerate(plan.placement.device):
        if plan.table.source[op, device] == Source.ROOFLINE:
            spent.setdefault(operation(plan.graph.ops[op].kind), []).append(seconds[op])
    guessed = {operation(kind) for kind in guessed_kinds(plan.graph)} if spent else set()
    total_s = sum(seconds) or 1.0
    found = [KindShare(kind, sum(each) / total_s, len(each), kind in guessed) for kind, each in spent.items()]
    return tuple(sorted(found, key=lambda kind: -kind.share))
