"""explain: why a plan is as it is: its bottleneck, its cuts, what would help, and its proof."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from costmodels.operators.views import operation
from costmodels.table import Source
from costmodels.tabulate import guessed_kinds
from graphs.common import checks
from graphs.common.brief import brief
from planner.explanations.bottleneck import Bottleneck, bottleneck
from planner.explanations.cuts import Cut, CutMove
from planner.explanations.cuts import cuts as cuts_of
from planner.explanations.recomputing import RecomputationEffect, recomputed
from planner.explanations.regions import Region, regions
from planner.explanations.rests import EstimateBasis, estimate_bases
from planner.explanations.rewriting import DividedOperators, FusedOperators, divided, fused
from planner.explanations.what_if import Remedy, SecondSearch, helps, replanned
from planner.planning.make_plan import Search
from planner.plans.generation import GenerationPrediction, generation_of
from planner.plans.given import Named, given_plan
from planner.plans.plan import Plan
from planner.plans.ranges import Spread
from planner.problem.bounds import lower_bound, path_bound
from planner.problem.infeasible import out_of_reach
from planner.problem.problem import Goal
from planner.problem.result import Interrupted

MOVED_CUTS = 8
SEARCH = Search(time_limit_s=10.0, gap=0.01)  # the time limit of all searches together
EQUAL = 1e-6  # relative difference of one bound computed in two ways


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """The work of one device."""

    name: str
    kind: str
    n_ops: int
    load_s: float  # for each micro-batch
    share: float  # of the load of all devices, 0 to 1
    memory_bytes: float  # that the device needs
    capacity_bytes: float  # that the device has
    holds: tuple[Region, ...]  # its operators by module


@dataclass(frozen=True, slots=True)
class SingleDevice:
    """The best single device for all operators."""

    device: str
    objective_s: float


@dataclass(frozen=True, slots=True)
class Proof:
    """How good the plan is, among which plans, and why that is certain."""

    status: str
    solver: str
    bound_s: float
    gap: float  # 0 to 1
    among: str  # the plans that the bound holds for, in words
    because: str  # the reason why the bound holds, a clause


@dataclass(frozen=True, slots=True)
class KindShare:
    """Operators of one kind whose time was estimated."""

    kind: str  # without its overload
    share: float  # of the time of all operators, 0 to 1
    n_ops: int
    guessed: bool  # whether even their FLOP are a guess, for want of a formula


@dataclass(frozen=True)
class Explanation:
    """A plan in words and figures."""

    model: str  # name of the network
    cluster: str  # name of the cluster
    goal: Goal
    batch: int  # samples in a micro-batch
    in_flight: int  # micro-batches
    copies: int  # of the network, among which micro-batches take turns
    in_pairs: bool  # whether a copy runs two micro-batches at once
    replicas: int  # of the cluster, in training
    micro_batches: int  # of one training step
    overlap: bool  # whether devices compute while they send
    objective_s: float
    period_s: float  # simulated
    latency_s: float  # simulated
    spread: Spread  # of the time that the goal minimises
    bottleneck: Bottleneck
    isolated: SingleDevice | None  # None if no device can run and hold everything
    times_one_device: float | None  # how many times as fast the plan is, with all replicas; None without that device
    division: str  # how the devices share the work, in words
    out_of_reach: str  # a sentence about devices to which no link leads; empty if there are none
    devices: tuple[DeviceShare, ...]  # in the order of the cluster
    cuts: tuple[Cut, ...]  # those that limit first, then those that take longest
    replanned: SecondSearch  # results of searching again: prices of constraints, and remedies
    helps: tuple[Remedy, ...]  # remedies for this very placement
    proof: Proof
    sources: Mapping[Source, float]  # shares of the operators' time on their devices, without shares of 0
    estimated: tuple[KindShare, ...]  # the largest share first
    rests: tuple[EstimateBasis, ...]  # what estimates from data sheets rest on, the largest share first
    divided: DividedOperators | None = None  # operators in parts
    fused: tuple[FusedOperators, ...] = ()  # fused operators by the kinds of their members, the longest time first
    simpler: str = ""  # a sentence about the time that the plan gave away for simplicity; empty if it gave nothing
    recomputed: RecomputationEffect | None = None
    generation: GenerationPrediction | None = None  # where a micro-batch is a pass, in the mean of all
    calibrate: str = "MODEL"  # what `planner calibrate` is given to measure what the plan rests on

    __repr__ = brief

    @property
    def now_s(self) -> float:
        """The time that the goal minimises, as `Plan.predicted_s`."""
        return self.period_s if self.goal is Goal.THROUGHPUT else self.objective_s

    @property
    def moves(self) -> Iterator[CutMove]:
        """Every move that was evaluated."""
        return (moved for cut in self.cuts for moved in cut.moves)


def explain(plan: Plan | Named, cuts: int = MOVED_CUTS, search: Search | None = None) -> Explanation:
    """Explain why a plan is as it is; `elsewhere` explains one operator.

    Args:
        plan: a plan, or the path of a plan.json.
        cuts: for how many cuts moves of their ends are evaluated; cuts that limit come first, then the longest.
        search: how to search for plans without a constraint, or with more devices, bandwidth or memory: its time is
            for all of them together, by default `SEARCH`.

    Raises:
        InputError: if something is not of its type, or the file holds no plan.
        Interrupted: on Ctrl-C while it searches, with the explanation so far.
    """
    plan, search = given_plan(plan), SEARCH if search is None else search
    checks.instance(search, Search, "the search", "a Search")
    limit = bottleneck(plan)
    plan_cuts = cuts_of(plan, limit, checks.integer(cuts, "the number of cuts"))
    moves = [moved for cut in plan_cuts for moved in cut.moves]
    try:
        return _explained(plan, limit, plan_cuts, replanned(plan, moves, search))
    except Interrupted as stopped:
        raise Interrupted(_explained(plan, limit, plan_cuts, stopped.best)) from stopped


def _explained(plan: Plan, limit: Bottleneck, plan_cuts: tuple[Cut, ...], again: SecondSearch) -> Explanation:
    moves, one = [moved for cut in plan_cuts for moved in cut.moves], plan.one_device
    estimated = estimated_kinds(plan)
    return Explanation(
        model=plan.graph.name,
        cluster=plan.cluster.name,
        goal=plan.minimised,
        batch=plan.workload.batch,
        in_flight=plan.workload.in_flight,
        copies=len(plan.placement.copies),
        in_pairs=plan.in_pairs,
        replicas=plan.replicas,
        micro_batches=plan.workload.micro_batches,
        overlap=plan.table.overlap,
        objective_s=plan.objective_s,
        period_s=plan.period_s,
        latency_s=plan.latency_s,
        spread=plan.spread(plan.minimised is Goal.LATENCY),
        bottleneck=limit,
        isolated=SingleDevice(plan.table.devices[one.placement.device[0]], one.objective_s) if one else None,
        times_one_device=plan.times_one_device,
        division=plan.division,
        out_of_reach=out_of_reach(plan.table, plan.placement),
        devices=_devices(plan),
        cuts=plan_cuts,
        replanned=again,
        helps=helps(plan, moves),
        proof=_proof(plan),
        sources=plan.time_shares,
        estimated=estimated,
        rests=estimate_bases(plan),
        divided=divided(plan),
        fused=fused(plan),
        simpler=plan.simpler,
        recomputed=recomputed(plan),
        generation=generation_of(plan) if plan.workload.generates else None,
        calibrate=calibrate_options(plan),
    )


def calibrate_options(plan: Plan) -> str:
    """Return what `planner calibrate` is given to measure the operators that a plan rests on."""
    work = plan.workload
    if not work.generates:
        return "MODEL --training" if work.trains else "MODEL"
    sizes = {"prompt": work.prompt, "new-tokens": work.output, "sequences": work.sequences}
    sizes |= {"context": work.context, "rows": work.batch}
    return "MODEL --generation" + "".join(f" --{name} {size}" for name, size in sizes.items())


def _devices(plan: Plan) -> tuple[DeviceShare, ...]:
    evaluation = plan.evaluation
    total_s = float(plan.busy_s.sum())
    shares = []
    for number, device in enumerate(plan.cluster.devices):
        ops = plan.placement.operators(number)
        load_s = float(plan.busy_s[number])
        shares.append(
            DeviceShare(
                name=device.name,
                kind=device.kind,
                n_ops=len(ops),
                load_s=load_s,
                share=load_s / total_s if total_s else 0.0,
                memory_bytes=float(evaluation.memory_bytes[number]),
                capacity_bytes=float(plan.table.capacity_bytes[number]),
                holds=regions(plan.graph, ops),
            )
        )
    return tuple(shares)


def _proof(plan: Plan) -> Proof:
    simple_s = lower_bound(plan.problem)
    if plan.bound_s > simple_s * (1 + EQUAL):
        because = "which the search has proved"
    elif plan.minimised is Goal.LATENCY and path_bound(plan.table.contended) >= simple_s * (1 - EQUAL):
        because = "for the longest path takes that long even on the fastest devices with free transfers"
    else:
        because = "for all operators take that long even if divided at will with free transfers"
    return Proof(plan.status, plan.solver, plan.bound_s, plan.gap, _among(plan), because)


def _among(plan: Plan) -> str:
    """Return words for the plans that the bound holds for: those of the same operators, perhaps fused or split."""
    operators = f"these {plan.table.n_ops:,} operators"
    if plan.minimised is Goal.THROUGHPUT:
        return f"{operators} in any number of copies"
    work = plan.workload
    steps = f"{work.micro_batches} micro-batches of {work.batch} by {work.schedule}"
    return f"{operators} in steps of {steps}" if work.trains else operators


def estimated_kinds(plan: Plan) -> tuple[KindShare, ...]:
    """Return how much of the operators' time is an estimate, by kind of operator, the largest share first."""
    placed = [(op, device) for copy in plan.placement.copies for op, device in enumerate(copy.device)]
    seconds = [float(plan.costs.forward_s[pair]) for pair in placed]
    estimated, total_s = dict[str, dict[int, float]](), sum(seconds) or 1.0
    for (op, device), op_s in zip(placed, seconds, strict=True):
        if plan.table.source[op, device] in (Source.ESTIMATED, Source.ROOFLINE):
            of_kind = estimated.setdefault(operation(plan.graph.ops[op].kind), {})
            of_kind[op] = of_kind.get(op, 0.0) + op_s
    guessed = {operation(kind) for kind in guessed_kinds(plan.graph)} if estimated else set()
    kinds = [
        KindShare(kind, sum(each.values()) / total_s, len(each), kind in guessed) for kind, each in estimated.items()
    ]
    return tuple(sorted(kinds, key=lambda kind: -kind.share))
