"""Plan: an answer with everything that is needed to simulate, run and show it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np

from costmodels.cluster.cluster import Cluster
from costmodels.generation_costs import PhaseCosts
from costmodels.table import CostTable, Source
from costmodels.units import format_bytes, format_seconds
from costmodels.workload import Workload
from graphs.common.arrays import Floats
from graphs.common.brief import brief
from graphs.common.checks import integer
from graphs.common.notebook import repr_html
from graphs.common.visible import visible
from graphs.ir import Graph
from graphs.rewrites.imported_names import number_of
from graphs.rewrites.rewrite import Rewrite
from graphs.rewrites.split import Split
from planner.plans.ranges import Range, Spread, spreads_of
from planner.plans.simplification import Simplification, sent_tensors
from planner.problem.constraints import Constraint, constrained
from planner.problem.evaluate import Evaluation, evaluate
from planner.problem.problem import Goal, Problem
from planner.problem.result import Result, Status
from planner.solvers.fewer_devices import best_single_device
from planner.solvers.robust import Robustness
from simulator.placement import Placement
from simulator.simulate import lower, simulate
from simulator.stages import Stage, split_stages
from simulator.timeline import Timeline
from simulator.training import TrainingRun, TrainingStep, simulate_training
from simulator.usage import Usage, usage

STEADY_ROUNDS = 8  # each of as many micro-batches as may be in flight; the first half fills the devices
STEADY_TASKS = 100_000  # stages and transfers after which a stream counts as steady in any case: one or two seconds
MOST_DEVICES = 6  # that have a line of their own in the text
BY_HAND = "by hand"  # the solver of a placement that no solver made


@dataclass(frozen=True)
class PlacementTask:
    """A network on a cluster with its costs, for which a placement is sought. Its attributes are those of the `Plan`.

    All plans that are made of a task share its problem, and what is worked out of that.
    """

    graph: Graph
    cluster: Cluster
    workload: Workload
    table: CostTable
    goal: Goal
    constraints: tuple[Constraint, ...] = ()
    pace: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    pace_spread: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    rewrites: tuple[Rewrite, ...] = ()
    whole_share: float = 1.0
    network: str = ""
    phases: tuple[PhaseCosts, ...] = ()

    __repr__ = brief

    @property
    def minimised(self) -> Goal:
        """The goal of the problem: for generation, that of the passes of all groups on their way."""
        return self.goal.of_passes(self.workload.in_flight)

    @cached_property
    def problem(self) -> Problem:
        """The problem to solve: the table with its constraints, and the goal."""
        kinds = [device.kind for device in self.cluster.devices]
        problem = constrained(self.table, self.graph, self.minimised, self.constraints, kinds)
        if self.goal is Goal.TRAINING:
            return replace(problem, step=step_of(self.workload))
        return replace(problem, copies=self.goal is Goal.THROUGHPUT)

    def plan(self, placement: Placement, status: Status, solver: str, bound_s: float) -> "Plan":
        """Return the plan with a placement, its status, the name of its solver and its bound."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        return _of_task(self, Plan(**own, placement=placement, status=str(status), solver=solver, bound_s=bound_s))

    def answered(self, result: Result) -> "Plan":
        """Return the plan with a solver's placement, its status and its bound."""
        assert result.placement is not None
        return self.plan(result.placement, result.status, result.solver, result.bound_s)


@dataclass(frozen=True)
class Plan:
    """The device of every operator of a network, with the costs, the bound and the origin of this placement.

    Attributes:
        graph: the network.
        cluster: the devices.
        workload: what the network is used for.
        table: the costs that the plan rests on; it follows from the three above and the operators' times.
        goal: the objective that was minimised.
        constraints: further demands.
        robustness: the loss if costs are wrong; None if it was not asked for.
        placement: the answer.
        status: how the search ended, a word of `planner.problem.result.Status`.
        solver: the name of the solver that found it.
        bound_s: a lower bound of all placements of these operators: for throughput in any number of copies, in training
            under the same schedule.
        pace: by kind of device, the pace of the measured times, see `costmodels.operators.pace`.
        pace_spread: by kind of device, the spread of the pace over time, see `Profile.pace_spread`.
        rewrites: the changes that turned the imported network into the graph, in order.
        whole_share: the time of the network before its split on one device, as a share of the time of its parts there.
        network: the fingerprint of the network before its rewrites; empty if there are none, or it is not known.
        simplification: the time that the plan gave away for fewer tensors between devices; None if it gave nothing.
        phases: for generation, the costs of each phase; ``table`` is their `mean_pass`, and ``graph`` the network for
            one token at the whole context.
    """

    graph: Graph
    cluster: Cluster
    workload: Workload
    table: CostTable
    goal: Goal
    placement: Placement
    status: str
    solver: str
    bound_s: float
    constraints: tuple[Constraint, ...] = ()
    robustness: Robustness | None = None
    pace: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    pace_spread: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    rewrites: tuple[Rewrite, ...] = ()
    whole_share: float = 1.0
    network: str = ""
    simplification: Simplification | None = None
    phases: tuple[PhaseCosts, ...] = ()

    __repr__ = brief
    _repr_html_ = repr_html

    @property
    def is_split(self) -> bool:
        """Whether operators are split into parts, whose sums may add up in another order than the network's."""
        return any(isinstance(rewrite, Split) for rewrite in self.rewrites)

    @property
    def network_fingerprint(self) -> str:
        """The fingerprint of the network as it was imported; empty if it is not known."""
        return self.network if self.rewrites else self.graph.fingerprint

    @property
    def minimised(self) -> Goal:
        """The goal of the problem, as `PlacementTask` has it."""
        return self.task.minimised

    @cached_property
    def task(self) -> PlacementTask:
        """The task that the plan answers."""
        return PlacementTask(**{each.name: getattr(self, each.name) for each in fields(PlacementTask)})

    @property
    def problem(self) -> Problem:
        """The problem that the plan answers: the table with its constraints, and the goal."""
        return self.task.problem

    def placed(self, placement: Placement) -> "Plan":
        """Return the plan with another placement for the same task; nothing else is new."""
        return _of_task(self.task, replace(self, placement=placement))

    @cached_property
    def evaluation(self) -> Evaluation:
        """The evaluation of the placement."""
        return evaluate(self.problem, self.placement)

    @property
    def objective_s(self) -> float:
        """The goal's value in seconds."""
        return self.evaluation.objective_s

    @property
    def gap(self) -> float:
        """The largest share by which another plan could be better, 0 to 1."""
        return max(0.0, 1 - self.bound_s / self.objective_s) if self.objective_s > 0 else 0.0

    @property
    def proved(self) -> str:
        """The proof in words. That of a training plan is for its steps: other schedules, micro-batches and replicas are
        other problems with other bounds, and a faster one of them may have a wider gap."""
        plans = "no plan for these steps" if self.workload.trains else "no plan"
        return f"{plans} can be more than {self.gap:.2%} better"

    @cached_property
    def time_shares(self) -> Mapping[Source, float]:
        """The share of the operators' time that each source of costs gave, without shares of 0."""
        ops = np.arange(self.table.n_ops)
        spent = dict.fromkeys(Source, 0.0)
        for copy in self.placement.copies:
            seconds, source = (each[ops, list(copy.device)] for each in (self.costs.forward_s, self.table.source))
            for name in Source:
                spent[name] += float(seconds[source == name].sum())
        total_s = sum(spent.values()) or 1.0
        return {name: part_s / total_s for name, part_s in spent.items() if part_s > 0}

    @cached_property
    def period_s(self) -> float:
        """Predicted seconds from one micro-batch to the next when they stream.

        Simulated in `steady`, and at least the time of the busiest device or channel. In training, the time of a step
        divided by its micro-batches.
        """
        if self.goal is Goal.TRAINING:
            return self.latency_s / self.workload.micro_batches
        return max(self._streaming.objective_s, self.steady.period_s)

    @property
    def busy_s(self) -> Floats:
        """[n_devices], seconds that each device is busy for each micro-batch of a stream; in training, of a step.

        Where the goal is latency, devices have less contention in a stream than `evaluation` takes them to have.
        """
        return self.evaluation.load_s if self.goal is Goal.TRAINING else self._streaming.load_s

    @cached_property
    def _streaming(self) -> Evaluation:
        return evaluate(Problem(self.costs_of(STEADY_ROUNDS), Goal.THROUGHPUT), self.placement)

    @cached_property
    def steady(self) -> Timeline:
        """A simulated stream that is long enough to become steady, of at most about `STEADY_TASKS` tasks."""
        copies = len(self.placement.copies)
        most = copies * STEADY_TASKS // max(1, len(lower(self.table, self.placement)))
        rounds = min(STEADY_ROUNDS * self.workload.in_flight, max(STEADY_ROUNDS, most))
        return self.simulate(rounds + -rounds % (2 * copies))  # each copy equally often in either half

    @cached_property
    def in_pairs(self) -> bool:
        """Whether each copy of the network runs two micro-batches at once, see `graphs.kernels.pairs`.

        This pays on devices where operators with enough of the time take less in pairs than alone.
        """
        gains = bool(self.table.gains_by_pairs[list(self.placement.used)].all())
        return gains and self.placement.shared_copies(self.table) and self.workload.in_pairs(len(self.placement.copies))

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of inference, as timelines number them."""
        return split_stages(self.table, self.placement)

    def usage_of(self, stream: Timeline) -> Usage | None:
        """Return the use of devices and links in the steady part of a stream; None if the stream is too short."""
        return usage(stream, self.stages, self.workload.in_flight)

    @cached_property
    def latency_s(self) -> float:
        """Predicted seconds of one micro-batch alone; in training, of one step."""
        if self.goal is Goal.TRAINING:
            return self.objective_s
        return self.simulate(1).makespan_s

    @cached_property
    def spreads(self) -> Mapping[bool, Spread]:
        """The spread of runs around the prediction: of a micro-batch alone (True), and of those that stream (False)."""
        first = self.cluster.devices[min(self.placement.used, default=0)]
        return spreads_of(self.graph, self.table, self.placement, self.pace_spread.get(first.kind, {}))

    def spread(self, alone: bool = False) -> Spread:
        """Return the spread of runs around the prediction, for a micro-batch alone or for those that stream."""
        return self.spreads[alone]

    @property
    def period_range(self) -> Range:
        """The range around `period_s` in which 80 % of runs are expected."""
        return self.spread().range(self.period_s)

    @property
    def latency_range(self) -> Range:
        """The range around `latency_s` in which 80 % of runs are expected."""
        return self.spread(alone=self.goal is not Goal.TRAINING).range(self.latency_s)

    @property
    def predicted_s(self) -> float:
        """The prediction for the goal, in seconds: the simulated period for throughput, otherwise the objective."""
        return self.period_s if self.minimised is Goal.THROUGHPUT else self.objective_s

    @cached_property
    def one_device(self) -> "Plan | None":
        """Return the plan with all operators on the best single device; None if no device can run and hold all."""
        best = best_single_device(self.problem)
        whole = replace(self.table, forward_s=self.table.forward_s * self.whole_share)
        return replace(self, placement=best[0], table=whole) if best else None

    @property
    def times_one_device(self) -> float | None:
        """The speed of all replicas over that of the best single device; None if no device can run the network."""
        if self.one_device is None:
            return None
        return self.replicas * self.one_device.predicted_s / self.predicted_s if self.predicted_s > 0 else 1.0

    def surely_differs(self, other: "Plan") -> bool:
        """Return whether the times that both plans predict for the goal differ by more than their uncertainty.

        Both plans run on one machine at one pace, whose uncertainty does not count.
        """
        own, others = (each.spread(each.minimised is Goal.LATENCY) for each in (self, other))
        return other.predicted_s not in own.beside(others).range(self.predicted_s)

    @property
    def simpler(self) -> str:
        """Return what the plan gave away for simplicity, in words; empty if it gave nothing away."""
        record = self.simplification
        return record.compared(sent_tensors(self.table, self.placement)) if record else ""

    @property
    def n_used(self) -> int:
        """The number of devices that have work."""
        return len(self.placement.used)

    @property
    def replicas(self) -> int:
        """Copies of the cluster that train the network together; 1 in inference."""
        return self.cluster.replicas.count if self.cluster.replicas and self.goal is Goal.TRAINING else 1

    @property
    def division(self) -> str:
        """How the devices share the work, in words: "8 replicas × 8 devices", "2 copies × 4 devices", "4 devices"."""
        copies = [set(copy.device) for copy in self.placement.copies]
        apart = sum(map(len, copies)) == self.n_used and len({len(copy) for copy in copies}) == 1
        n_devices = len(copies[0]) if apart else self.n_used
        words = [f"{n_devices} device{'s' * (n_devices != 1)}"]
        if copies[1:]:
            words.insert(0, f"{len(copies)} copies")
        if self.replicas > 1:
            words.insert(0, f"{self.replicas} replicas")
        return (" × " if apart else " on ").join(words)

    @property
    def samples_per_s(self) -> float:
        """Predicted throughput; in training, of all replicas together."""
        return self.replicas * self.workload.batch / self.period_s if self.period_s > 0 else float("inf")

    def simulate(self, micro_batches: int = 8) -> Timeline:
        """Return the simulated timeline of a stream of this many micro-batches; in training, of one step."""
        integer(micro_batches, "the number of micro-batches", 1)
        if self.goal is Goal.TRAINING:
            return self.training_run.pipeline.timeline
        return simulate(self.costs_of(micro_batches), self.placement, micro_batches, self.workload.in_flight)

    @cached_property
    def training_run(self) -> TrainingRun:
        """The simulated step of a training plan, with its stages and its schedule.

        Raises:
            InputError: if the schedule cannot run these stages.
        """
        return simulate_training(self.costs, self.placement, self.problem.step)

    @cached_property
    def costs(self) -> CostTable:
        """The costs while the plan runs, with contention, see `Placement.costs`."""
        return Problem(self.table, self.minimised).costs(self.placement)

    def costs_of(self, micro_batches: int) -> CostTable:
        """Return the costs for a stream of this many micro-batches; one alone has no contention unless divided."""
        if micro_batches > 1:
            return self.placement.costs(self.table, streaming=True)
        return self.costs if self.minimised is Goal.LATENCY else self.table

    def __str__(self) -> str:
        """Return a summary in about ten lines: the goal, how good the plan is, and the load of the busiest devices.

        Nothing is simulated for it.
        """
        table, judged, copies = self.table, self.evaluation, self.placement.copies
        used = sorted(self.placement.used, key=lambda number: (-judged.load_s[number], number))
        sent_bytes = sum(float(table.flow_bytes[flow]) for flow, _, _ in self.placement.all_cuts(table))
        work = self.workload
        through = f"{' in pairs' * self.in_pairs} through {len(copies)} copies" if copies[1:] else ""
        streams = f"micro-batches of {work.batch}{through}, {work.in_flight} in flight"
        if work.generates:
            streams = (
                f"{work.sequences} sequences in {work.in_flight} groups, prompts of {work.prompt:,} tokens and "
                f"{work.output:,} after them"
            )
        if work.trains:
            streams = f"steps of {work.micro_batches} micro-batches of {work.batch} by {work.schedule}"
        lines = [
            f"{self.graph.name} for {self.goal}: {table.n_ops:,} operators on {len(used)} of {table.n_devices} "
            f"devices of {self.cluster.name}",
            f"  {streams}, {format_bytes(sent_bytes / len(copies))} between devices for each",
            f"  {format_seconds(self.objective_s)} by {self.solver}; {self.proved} ({self.status})",
        ]
        for number in used[:MOST_DEVICES]:
            load, n_bytes = format_seconds(judged.load_s[number]), format_bytes(judged.memory_bytes[number])
            room = format_bytes(table.capacity_bytes[number])
            n_ops = len(self.placement.operators(number))
            lines.append(f"  {table.devices[number]}: {n_ops:,} operators, {load}, {n_bytes} of {room}")
        if used[MOST_DEVICES:]:
            lines.append(f"  and {len(used) - MOST_DEVICES} more devices, none of them busier")
        return "\n".join(map(visible, lines))

    def device_of(self, op: str) -> str:
        """Name of the device of an operator, by its name here or as imported, in the first copy of the network.

        Raises:
            InputError: if there is none of that name, or it is split into several.
        """
        return self.cluster.devices[self.placement.device[number_of(self.graph, op)]].name


def _of_task(task: PlacementTask, plan: Plan) -> Plan:
    """Return the plan, which shares a task with others."""
    plan.__dict__["task"] = task  # a cached property
    return plan


def plan_by_hand(found: Plan, placement: Placement) -> Plan:
    """Return a plan with another placement for the same problem, evaluated as any other.

    Its status is "feasible", or "unknown" if it breaks a limit of the plan (memory, parameters shared between devices).

    Args:
        found: a solver's plan; its bound holds for every placement.
        placement: of the same operators.

    Raises:
        InputError: if an operator cannot run where it is placed, or a tensor has no link to take.
    """
    placement.check(found.table)
    plan = replace(found, placement=placement, solver=BY_HAND, status=str(Status.FEASIBLE))
    plan = replace(plan, robustness=None, simplification=None)
    return plan if plan.evaluation.feasible else replace(plan, status=str(Status.UNKNOWN))


def step_of(workload: Workload) -> TrainingStep:
    """Return the schedule, micro-batches and recomputation of a training step."""
    return TrainingStep(workload.schedule, workload.micro_batches, workload.recompute)
