"""Plan: an answer with everything that is needed to simulate, run and show it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from costmodels.cluster.cluster import Cluster
from costmodels.table import CostTable, Source
from costmodels.units import format_bytes, format_seconds
from costmodels.workload import Workload
from graphs.common.brief import brief
from graphs.common.checks import integer, one_of
from graphs.common.notebook import repr_html
from graphs.common.visible import visible
from graphs.ir import Graph
from graphs.rewrites.rewrite import Rewrite
from graphs.rewrites.split import Split
from planner.plans.ranges import Range, Spread, spreads_of
from planner.problem.constraints import Constraint, constrained
from planner.problem.evaluate import Evaluation, evaluate
from planner.problem.problem import Goal, Problem
from planner.problem.result import Result, Status
from planner.solvers.robust import Robustness
from planner.solvers.solve import best_single_device
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
class Plan:
    """Where every operator of a network runs, and what that is worth.

    Attributes:
        graph: the network.
        cluster: the devices.
        workload: what the network is used for.
        table: the costs that the plan rests on; it follows from the three above and the operators' times.
        goal: what was minimised.
        constraints: what was asked besides.
        robustness: what it loses when costs are wrong; None where nobody asked.
        placement: the answer.
        status: how the search ended, a word of `planner.problem.result.Status`.
        solver: who found it.
        bound_s: no placement of these operators can be better than this: for throughput in any number of copies, in
            training under the same schedule.
        pace: by kind of device, the pace that the measured times are given for, see `costmodels.operators.pace`.
        pace_spread: by kind of device, by how much the pace differs from moment to moment, see `Profile.pace_spread`.
        rewrites: what the graph was made by of the network as it was imported, in their order.
        whole_share: what the network before its split takes on one device, as a share of what the parts take there.
        network: the fingerprint of the network before its rewrites; empty if there are none, or it is not known.
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

    __repr__ = brief
    _repr_html_ = repr_html

    @property
    def is_split(self) -> bool:
        """Whether operators are in parts, which may add up in another order than the network."""
        return any(isinstance(rewrite, Split) for rewrite in self.rewrites)

    @property
    def network_fingerprint(self) -> str:
        """The fingerprint of the network as it was imported; empty if it is not known."""
        return self.network if self.rewrites else self.graph.fingerprint

    @cached_property
    def problem(self) -> Problem:
        """What the plan answers: the table with its constraints, and the goal."""
        kinds = [device.kind for device in self.cluster.devices]
        problem = constrained(self.table, self.graph, self.goal, self.constraints, kinds)
        if self.goal is Goal.TRAINING:
            return replace(problem, step=step_of(self.workload))
        return replace(problem, copies=self.goal is Goal.THROUGHPUT)

    def answered(self, result: Result) -> "Plan":
        """The plan with a solver's placement, its status and its bound."""
        assert result.placement is not None
        status, solver = str(result.status), result.solver
        return replace(self, placement=result.placement, status=status, solver=solver, bound_s=result.bound_s)

    @cached_property
    def evaluation(self) -> Evaluation:
        """The evaluator's word on the placement."""
        return evaluate(self.problem, self.placement)

    @property
    def objective_s(self) -> float:
        """The goal's seconds."""
        return self.evaluation.objective_s

    @property
    def gap(self) -> float:
        """How much better a plan could be at most, 0 to 1."""
        return max(0.0, 1 - self.bound_s / self.objective_s) if self.objective_s > 0 else 0.0

    @cached_property
    def time_shares(self) -> Mapping[Source, float]:
        """The shares of the operators' time on their devices that came from each source, without shares of 0."""
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

        Simulated in `steady`; in the long run it is never less than the busiest device or channel needs. In training, a
        step divided by its micro-batches.
        """
        if self.goal is Goal.TRAINING:
            return self.latency_s / self.workload.micro_batches
        busiest_s = evaluate(Problem(self.costs_of(STEADY_ROUNDS), Goal.THROUGHPUT), self.placement).objective_s
        return max(busiest_s, self.steady.period_s)

    @cached_property
    def steady(self) -> Timeline:
        """A stream that is simulated until it is steady, as far as `STEADY_TASKS` go."""
        copies = len(self.placement.copies)
        most = copies * STEADY_TASKS // max(1, len(lower(self.table, self.placement)))
        rounds = min(STEADY_ROUNDS * self.workload.in_flight, max(STEADY_ROUNDS, most))
        return self.simulate(rounds + -rounds % (2 * copies))  # each copy as often in either half

    @cached_property
    def in_pairs(self) -> bool:
        """Whether each copy of the network runs two micro-batches at once, see `graphs.kernels.pairs`.

        Quick kernels do where operators of some share of the time take less so than alone.
        """
        gains = bool(self.table.gains_by_pairs[list(self.placement.used)].all())
        return gains and self.placement.shared_copies(self.table) and self.workload.in_pairs(len(self.placement.copies))

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of inference, as timelines number them."""
        return split_stages(self.table, self.placement)

    def usage_of(self, stream: Timeline) -> Usage | None:
        """What devices and links do in the steady part of a stream of this plan; None if the stream is too short."""
        return usage(stream, self.stages, self.workload.in_flight)

    @cached_property
    def latency_s(self) -> float:
        """Predicted seconds of one micro-batch alone; in training, of one step."""
        if self.goal is Goal.TRAINING:
            return self.objective_s
        return self.simulate(1).makespan_s

    @cached_property
    def spreads(self) -> Mapping[bool, Spread]:
        """By how much runs differ from what is predicted: micro-batches that stream, and one alone (True)."""
        first = self.cluster.devices[min(self.placement.used, default=0)]
        return spreads_of(self.graph, self.table, self.placement, self.pace_spread.get(first.kind, {}))

    def spread(self, alone: bool = False) -> Spread:
        """By how much runs differ from what is predicted, of a micro-batch alone or of micro-batches that stream."""
        return self.spreads[alone]

    @property
    def period_range(self) -> Range:
        """Where 80 % of runs are expected that `period_s` predicts."""
        return self.spread().range(self.period_s)

    @property
    def latency_range(self) -> Range:
        """Where 80 % of runs are expected that `latency_s` predicts."""
        return self.spread(alone=self.goal is not Goal.TRAINING).range(self.latency_s)

    @property
    def predicted_s(self) -> float:
        """What the goal is about, simulated: from one micro-batch to the next for throughput, else the objective."""
        return self.period_s if self.goal is Goal.THROUGHPUT else self.objective_s

    @cached_property
    def one_device(self) -> "Plan | None":
        """The plan with everything, whole, on the best single device; None if none can run and hold everything."""
        best = best_single_device(self.problem)
        whole = replace(self.table, forward_s=self.table.forward_s * self.whole_share)
        return replace(self, placement=best[0], table=whole) if best else None

    @property
    def times_one_device(self) -> float | None:
        """How many times as fast all replicas are as the best single device; None where no device can do it."""
        if self.one_device is None:
            return None
        return self.replicas * self.one_device.predicted_s / self.predicted_s if self.predicted_s > 0 else 1.0

    def surely_differs(self, other: "Plan") -> bool:
        """Whether the times that both plans predict for the goal differ by more than is uncertain.

        Both run on one machine at one pace.
        """
        own, others = (each.spread(each.goal is Goal.LATENCY) for each in (self, other))
        return other.predicted_s not in own.beside(others).range(self.predicted_s)

    @property
    def n_used(self) -> int:
        """How many devices have anything to do."""
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
        """What will happen when this many micro-batches stream through; in training, in one step."""
        integer(micro_batches, "the number of micro-batches", 1)
        if self.goal is Goal.TRAINING:
            return self.training_run.pipeline.timeline
        return simulate(self.costs_of(micro_batches), self.placement, micro_batches, self.workload.in_flight)

    @cached_property
    def training_run(self) -> TrainingRun:
        """What will happen in a step of a training plan, and the stages and the schedule that it is carried out by.

        Raises:
            InputError: if the schedule cannot run these stages.
        """
        return simulate_training(self.costs, self.placement, self.problem.step)

    @cached_property
    def costs(self) -> CostTable:
        """What everything takes while the plan is at work, see `Placement.costs`."""
        return Problem(self.table, self.goal).costs(self.placement)

    def costs_of(self, micro_batches: int) -> CostTable:
        """What it takes if so many stream through: one alone finds other devices idle, unless the plan divides it."""
        if micro_batches > 1:
            return self.placement.costs(self.table, streaming=True)
        return self.costs if self.goal is Goal.LATENCY else self.table

    def __str__(self) -> str:
        """What `print` shows: what the plan is for, how good it is, and what the busiest devices do, in ten lines.

        Nothing is simulated for it.
        """
        table, judged, copies = self.table, self.evaluation, self.placement.copies
        used = sorted(self.placement.used, key=lambda number: (-judged.load_s[number], number))
        sent_bytes = sum(float(table.flow_bytes[flow]) for flow, _, _ in self.placement.all_cuts(table))
        work = self.workload
        through = f"{' in pairs' * self.in_pairs} through {len(copies)} copies" if copies[1:] else ""
        streams = f"micro-batches of {work.batch}{through}, {work.in_flight} in flight"
        if work.trains:
            streams = f"steps of {work.micro_batches} micro-batches of {work.batch} by {work.schedule}"
        lines = [
            f"{self.graph.name} for {self.goal}: {table.n_ops:,} operators on {len(used)} of {table.n_devices} "
            f"devices of {self.cluster.name}",
            f"  {streams}, {format_bytes(sent_bytes / len(copies))} between devices for each",
            f"  {format_seconds(self.objective_s)} by {self.solver}; no plan can be more than {self.gap:.2%} better "
            f"({self.status})",
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
        """Name of the device of an operator, in the first copy of the network.

        Raises:
            InputError: if there is none of that name.
        """
        if op not in self.graph.index:
            one_of(op, "the operator", self.graph.index)
        return self.cluster.devices[self.placement.device[self.graph.index[op]]].name


def plan_by_hand(found: Plan, placement: Placement) -> Plan:
    """The same question as that of a plan, with another answer, judged as any other.

    Its status is "feasible", or "unknown" if it breaks what the plan keeps (memory, parameters shared between devices).

    Args:
        found: what a solver answered; its bound holds for every placement.
        placement: of the same operators.

    Raises:
        InputError: if an operator cannot run where it is placed, or a tensor has no link to take.
    """
    placement.check(found.table)
    plan = replace(found, placement=placement, solver=BY_HAND, status=str(Status.FEASIBLE), robustness=None)
    return plan if plan.evaluation.feasible else replace(plan, status=str(Status.UNKNOWN))


def step_of(workload: Workload) -> TrainingStep:
    """How a training step is run."""
    return TrainingStep(workload.schedule, workload.micro_batches, workload.recompute)
