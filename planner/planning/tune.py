"""tune: plan, run, measure the stages, plan again; of the plans that ran, the fastest is kept.

::

    plan ──► run ──► correct the costs ──► plan again ──► run the first, the best and the new plan in turns
                            ▲                                      │
                            └──────────── keep the fastest ◄───────┘

Every turn of the loop measures the first plan too, so that plans of different turns compare by their ratio to it. The
loop ends when planning gives a plan that has run, when the best one runs as predicted and no faster one is predicted,
after some turns without success, or at its time limit; a turn that cannot be finished is not begun. A plan that was
faster once takes part in one more turn, so that chance does not decide.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from costmodels.cluster.cluster import Cluster
from costmodels.correction import Correction, StageTime, fit_correction
from costmodels.generation_costs import mean_pass
from costmodels.operators.keys import op_keys, training_keys
from costmodels.operators.pace import operator_paces, pace_kinds
from costmodels.profile_cache import correct_profiles
from costmodels.workload import Workload
from graphs.common import checks
from graphs.common.brief import Brief
from graphs.common.errors import InputError
from planner.planning.autotune import (
    AUTOTUNE_S,
    DISTURBED_CORES,
    LEAST_ROUNDS,
    LEAST_STREAMED,
    TIE,
    TURN_S,
    TimedTurn,
    check_here,
    run_generation_turn,
    run_turn,
    try_out,
)
from planner.planning.find_plan import fastest_generation
from planner.planning.make_plan import Search, make_plan, search_plan
from planner.planning.question import OpenWorkload, PlanQuestion
from planner.plans.compare import PaceChange, pace_change, stages_of
from planner.plans.given import ModelName, Named, given_cluster, runnable
from planner.plans.plan import Plan, plan_by_hand
from planner.problem.constraints import Constraint
from planner.problem.deadline import Deadline
from planner.problem.problem import Goal
from planner.problem.result import Interrupted, NoPlanError
from simulator.timeline import Timeline

if TYPE_CHECKING:  # torch takes seconds to load
    from torch import nn

    from graphs.program.generation import GenerationProgram
    from graphs.program.program import Program

SECONDS = 60.0  # of tuning, unless somebody says
START_S = 0.5  # to start and close a plan, until one has run
FIRST_S = 3.0  # for the first plan alone, after which no round begins
FIRST_PLANNING, PLANNING = 0.25, 0.1  # shares of the time that the first search and each further one take at most
LEAST_S = 0.1  # of a search
GAP = 0.01  # of the searches with corrected costs, which are known better than others
PATIENCE = 2  # turns without a faster plan, after which the loop ends
SURE = 0.75  # share of the rounds in which a plan must be faster than the first one to be kept

ONE_DEVICE = "the cluster has one device, so there is nothing to move"
TRIED = "no plan that has not run is predicted to be faster"
AS_PREDICTED = f"the best plan runs as predicted, and none is predicted to be {TIE:.0%} faster"
NO_SUCCESS = f"{PATIENCE} turns have found nothing faster"
NO_PLAN = "planning again found no plan in the time"

RunPlan: TypeAlias = Callable[[Plan], TimedTurn]


@dataclass(frozen=True)
class TuningTurn(Brief):
    """One turn of the loop: a plan that was tried."""

    plan: Plan  # with the costs that it was made from
    seconds: float  # measured, what the goal minimises; the median of the rounds
    speedup: float  # over the first plan, the median of the rounds' ratios
    moved: int  # how many operators are on another device than in the best plan until then
    kept: bool  # whether it is the best plan after the turn


@dataclass(frozen=True)
class Tuned(Brief):
    """The result of tuning.

    Attributes:
        plan: the fastest plan that ran, or the first one; its costs explain what was measured.
        turns: of the loop; the first one is that of the first plan.
        speedup: measured, over the first plan; 1 if that is returned.
        why: the reason for the end in words.
        foreign_cores: processors that other processes used meanwhile, on average.
        learned: whether the corrected times went to the cache; not if others disturbed the measurement.
    """

    plan: Plan
    turns: tuple[TuningTurn, ...] = ()
    speedup: float = 1.0
    why: str = ""
    foreign_cores: float = 0.0
    learned: bool = False


def tune(
    model: nn.Module | Program | GenerationProgram | ModelName,
    example_inputs: Any = None,
    *,
    cluster: Cluster | Named,
    goal: Goal | str = Goal.THROUGHPUT,
    workload: Workload | OpenWorkload | None = None,
    constraints: Sequence[Constraint] = (),
    search: Search | None = None,
    seconds: float = SECONDS,
) -> Tuned:
    """Find a plan by planning and running in turns; it is never slower than the plan that this begins with.

    What was learned of the operators goes to the cache, where `planner.plan` finds it; calibrating them again forgets
    it. Of generation nothing goes there: a stage is measured in the mean of its passes, and the cache knows operators
    of each phase. Its plans keep the rows of the first one.

    Args:
        model, example_inputs, goal, workload, constraints: as for `planner.plan`; the model must be one that runs. What
            the workload leaves open is not searched: a step has `MICRO_BATCHES` micro-batches under 1F1B.
        cluster: of this host, calibrated.
        search: how to search, each time.
        seconds: for everything but the import of the model.

    Raises:
        InputError: as `planner.plan`, or if plans for the cluster cannot run or be timed here.
        NoPlanError: if no placement keeps the constraints, or none was found in time.
        StageError: if an operator fails.
        Interrupted: on Ctrl-C, with the best until then.
    """
    search = checks.instance(search or Search(), Search, "the search", "a Search")
    checks.seconds(seconds, "the time for tuning")
    question = PlanQuestion(
        model=model,
        cluster=given_cluster(cluster),
        example_inputs=example_inputs,
        goal=Goal(goal),
        workload=OpenWorkload() if workload is None else workload,
        constraints=constraints,  # type: ignore[arg-type]  # a list becomes a tuple
        search=search,
    )
    cluster = question.clusters[0]
    runnable(question.imported)
    deadline = Deadline(seconds)
    begin = replace(search, time_limit_s=min(search.time_limit_s, FIRST_PLANNING * seconds))
    check_here(question.goal, cluster.devices)  # before a search, which takes its time
    try:
        first = _first_plan(question, cluster, begin)
    except Interrupted as stopped:
        raise Interrupted(Tuned(stopped.best)) from stopped
    if len(cluster.devices) == 1:
        return Tuned(first, why=ONE_DEVICE)
    loop = TuningLoop(first, _running(question, first), search, deadline)
    tuned = loop.run()
    if tuned.turns and not question.generates and tuned.foreign_cores <= DISTURBED_CORES:
        correct_profiles(cluster, first.table, loop.correction, first.workload.trains)
        tuned = replace(tuned, learned=True)
    return tuned


def _first_plan(question: PlanQuestion, cluster: Cluster, search: Search) -> Plan:
    """Return the plan that tuning begins with."""
    if question.by_layers:
        raise InputError(f"'{question.model}' is divided by layers, which cannot run here; `planner fit` does that")
    if question.generates:
        return fastest_generation(question, cluster, search)
    work = question.workload_on(len(cluster.devices))
    return make_plan(question.graph, cluster, question.goal, work, question.constraints, search)


def _running(question: PlanQuestion, first: Plan) -> RunPlan:
    """Return what runs a plan of a question on this host."""
    if question.generates:
        model = question.generation(first.workload)
        return lambda one: run_generation_turn(one, model)
    program = runnable(question.imported)
    return lambda one: run_turn(one, program)


class TuningLoop:
    """Planning and running in turns."""

    def __init__(self, first: Plan, run_plan: RunPlan, search: Search, deadline: Deadline) -> None:
        """Begin with a plan; ``run_plan`` runs one on this host."""
        self.correction = Correction({}, {})
        self._first, self._run_plan, self._deadline = first, run_plan, deadline
        limit_s = max(LEAST_S, min(search.time_limit_s, PLANNING * deadline.limit_s))
        self._search = replace(search, time_limit_s=limit_s, gap=min(search.gap, GAP))
        self._keys = training_keys(first.graph) if first.workload.trains else op_keys(first.graph)
        self._latest = first  # planned with the corrected costs
        self._plans = [first]  # that ran or will next, each placement once; other attributes know them by number
        self._n_turns: Counter[int] = Counter()  # in which a plan took part
        self._rounds: list[Mapping[int, float]] = []  # seconds of the plans that took part, by their numbers
        self._turns: list[TuningTurn] = []
        self._after_pace_s: dict[int, float] = {}  # measured seconds of plans at the pace of the costs
        self._stages: list[StageTime] = []
        self._foreign_cores: list[float] = []
        self._longest_s = 0.0  # that a plan has taken for its part of a round
        self._planning_s = 0.0

    def run(self) -> Tuned:
        """Take turns until there is a reason to end.

        Raises:
            StageError: if an operator fails.
            Interrupted: on Ctrl-C, with the best until then.
        """
        try:
            return self._result(self._until_the_end())
        except KeyboardInterrupt as stopped:
            raise Interrupted(self._result("interrupted")) from stopped

    def _until_the_end(self) -> str:
        """Take turns; return the reason for the end."""
        candidate, why = 0, ""
        while self._has_time_for(candidate):
            self._take_turn(candidate)
            try:
                self._plan_again()
            except NoPlanError:
                return NO_PLAN
            why, candidate = self._reason_to_end(), self._fastest(surely=False)
            if why and (candidate == 0 or self._n_turns[candidate] > 1):
                return why
            if not why:
                candidate = len(self._plans)
                self._plans.append(self._latest)
        return why or f"the {self._deadline.limit_s:g} s are over"

    def _taking_part(self, candidate: int) -> list[int]:
        """Return the numbers of the first, the best and the new plan."""
        return sorted({0, self._best, candidate})

    @property
    def _run_s(self) -> float:
        """The seconds of one plan's turn in a round: the longest so far, at first a guess."""
        groups, n_passes = self._first.workload.in_flight, sum(each.passes for each in self._first.phases)
        n_least = groups * n_passes if n_passes else 2 * groups + LEAST_STREAMED
        return self._longest_s or START_S + max(TURN_S, n_least * self._first.predicted_s)

    def _has_time_for(self, candidate: int) -> bool:
        """Return whether a turn and the planning after it end in time, if they take as long as the longest so far."""
        n_plans = len(self._taking_part(candidate))
        return self._deadline.left_s > n_plans * LEAST_ROUNDS * self._run_s + self._planning_s

    def _take_turn(self, candidate: int) -> None:
        """Run a plan in turns with the first and the best one, and keep the measurements."""
        from planner.runtime.benchmark.load import Load

        best, numbers = self._best, self._taking_part(candidate)
        plans = [self._plans[number] for number in numbers]
        recorded: dict[int, list[Timeline]] = {id(one): [] for one in plans}
        load = Load(plan=self._first)

        def turn_s(one: Plan) -> float:
            load.sample_pace()
            start_s = time.perf_counter()
            timed = self._run_plan(one)
            self._longest_s = max(self._longest_s, time.perf_counter() - start_s)
            recorded[id(one)] += [timed.recorded] if timed.recorded else []
            return timed.seconds

        limit_s = self._deadline.left_s - self._planning_s - len(plans) * self._run_s
        limit_s = min(limit_s, AUTOTUNE_S if self._turns else FIRST_S)
        found = try_out(plans, turn_s, limit_s, self._search.reporter)
        self._n_turns.update(numbers)
        self._foreign_cores.append(found.foreign_cores)
        for number in range(found.rounds):
            taken = zip(numbers, found.turns_s, strict=True)
            self._rounds.append({plan: times[number] for plan, times in taken if number < len(times)})
        for number, one, seconds in zip(numbers, plans, found.seconds, strict=True):
            based = replace(one, table=self._first.table)
            pace = pace_change(based, load.paces)
            self._after_pace_s[number] = seconds / (pace.of(one.minimised is Goal.LATENCY) if pace else 1.0)
            self._stages += stage_times(based, recorded[id(one)], pace)
        place, tried = numbers.index(candidate), self._plans[candidate]
        devices = zip(self._plans[best].placement.homes, tried.placement.homes, strict=True)
        moved, speedup = sum(a != b for a, b in devices), 1 / found.ratio(place, 0)
        self._turns.append(TuningTurn(tried, found.seconds[place], speedup, moved, candidate == self._best))

    def _plan_again(self) -> None:
        """Plan with the costs that explain all stages until now."""
        shown = "1 turn has" if len(self._turns) == 1 else f"{len(self._turns)} turns have"
        self._search.reporter.on_step(f"planning with what {shown} shown", 0, 0)
        start_s = time.perf_counter()
        table = self._first.table
        self.correction = fit_correction(table, self._keys, self._stages)
        phases = tuple(
            replace(each, table=self.correction.table(each.table, self._keys)) for each in self._first.phases
        )
        corrected = mean_pass(phases) if phases else self.correction.table(table, self._keys)
        task = replace(self._first.task, table=corrected, phases=phases)
        limit_s = max(LEAST_S, min(self._search.time_limit_s, self._deadline.left_s))
        self._latest = search_plan(task, replace(self._search, time_limit_s=limit_s))
        self._planning_s = max(self._planning_s, time.perf_counter() - start_s)

    def _reason_to_end(self) -> str:
        """Why another turn would bring nothing, or nothing."""
        if any(self._latest.placement == one.placement for one in self._plans):
            return TRIED
        best = self._with_latest_costs(self._plans[self._best])
        hopes = self._latest.predicted_s < best.predicted_s * (1 - TIE)
        if not hopes and explained(best, self._after_pace_s[self._best]):
            return AS_PREDICTED
        kept = [number for number, turn in enumerate(self._turns) if turn.kept]
        return NO_SUCCESS if len(self._turns) - 1 - max(kept, default=0) >= PATIENCE else ""

    def _with_latest_costs(self, best: Plan) -> Plan:
        if best.placement == self._latest.placement:
            return self._latest
        return replace(plan_by_hand(self._latest, best.placement), solver=best.solver)

    @property
    def _best(self) -> int:
        """The number of the plan to be kept."""
        return self._fastest(surely=True)

    def _fastest(self, surely: bool) -> int:
        """Return the number of the fastest plan whose median is below the first plan's by `TIE`; 0 if there is none.

        Rounds of a disturbed machine scatter widely: a plan is surely faster if it is faster in a share `SURE` of them.
        """
        faster = []
        for number in range(1, len(self._plans)):
            ratios = self._ratios(number)
            share = sum(ratio < 1 for ratio in ratios) / max(1, len(ratios))
            if ratios and median(ratios) <= 1 - TIE and share >= SURE * surely:
                faster.append((median(ratios), number))
        return min(faster, default=(1.0, 0))[1]

    def _ratios(self, number: int) -> list[float]:
        """Return the times of a plan divided by those of the first one, in their common rounds."""
        return [times[number] / times[0] for times in self._rounds if {0, number} <= times.keys()]

    def _result(self, why: str) -> Tuned:
        best = self._best
        plan = self._with_latest_costs(self._plans[best])
        speedup = 1 / median(self._ratios(best)) if best else 1.0
        foreign_cores = fmean(self._foreign_cores or [0.0])
        return Tuned(plan, tuple(self._turns), speedup, why, foreign_cores)


def explained(plan: Plan, measured_s: float) -> bool:
    """Return whether a measured time, corrected by the machine's pace, is in the range of the predicted one."""
    return measured_s in plan.spread(plan.minimised is Goal.LATENCY).without_pace().range(plan.predicted_s)


def stage_times(plan: Plan, recorded: Sequence[Timeline], pace: PaceChange | None) -> list[StageTime]:
    """Return the measured seconds of a plan's stages for one micro-batch, corrected by the machine's pace.

    Args:
        plan: the plan that ran.
        recorded: its runs, of which the median counts; in a stream, the mean of the steady part.
        pace: of the machine during the runs; None if it is not known.
    """
    table, graph = plan.table, plan.graph
    if plan.goal is Goal.TRAINING:
        stages = [(tuple(ops), plan.placement.device[ops[0]]) for ops in plan.training_run.stages]
        recorded = [stages_of(step, [""] * len(stages)) for step in recorded]
    else:
        stages = [(stage.ops, stage.device) for stage in plan.stages]
    margin = plan.workload.in_flight if plan.goal is Goal.THROUGHPUT else 0
    means_s: dict[int, list[float]] = {}  # of each run
    for timeline in recorded:
        durations_s: dict[int, list[float]] = {}
        for span in timeline.spans:
            if span.kind == "compute" and margin <= span.micro_batch < timeline.micro_batches - margin:
                durations_s.setdefault(span.index, []).append(span.end_s - span.start_s)
        for index, times_s in durations_s.items():
            means_s.setdefault(index, []).append(fmean(times_s))
    paces = np.ones(len(graph.ops))
    if pace:
        at_once = pace.of(plan.minimised is Goal.LATENCY) / pace.network
        paces = at_once * operator_paces(pace_kinds(graph), pace.kinds)
    streams = plan.minimised is Goal.THROUGHPUT
    contention, copies = plan.placement.contention(table, streams), streams and plan.placement.shared_copies(table)
    both_s = table.forward_s + table.backward_s
    ran_s = both_s + table.again_s(plan.workload.recompute)
    found = []
    for index, times_s in sorted(means_s.items()):
        ops, where = stages[index]
        if (expected_s := float(ran_s[list(ops), where] @ paces[list(ops)])) > 0:
            seconds = median(times_s) * float(both_s[list(ops), where].sum()) / expected_s
            found.append(StageTime(ops, where, float(contention[where]), seconds, copies))
    return found
