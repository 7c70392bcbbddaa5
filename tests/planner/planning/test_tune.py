"""Tuning: which plans run, which one is kept, and why it ends. Times are those of a made-up machine, but for the plan
that really runs at the end."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import planner
from costmodels.cluster.cluster import Cluster
from costmodels.correction import fit_correction
from costmodels.generation_costs import mean_pass
from costmodels.host.fingerprint import fingerprint_of, machine_of
from costmodels.measured import Measurement, Profile
from costmodels.operator_times import OperatorTimes
from costmodels.operators.keys import op_keys, training_keys
from costmodels.profile_cache import cache_folder
from costmodels.profilefile import read_profile, write_profile
from costmodels.table import CostTable, Source
from costmodels.tabulate import assemble
from costmodels.workload import Workload
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.ir import Graph, Op, Role, Tensor
from graphs.program.generation import GenerationProgram
from graphs.program.program import Program
from planner.planning import autotune, make_plan
from planner.planning import tune as tuning
from planner.planning.autotune import LEAST_ROUNDS, TimedTurn
from planner.planning.make_plan import Search, search_plan
from planner.planning.tune import (
    AS_PREDICTED,
    NO_PLAN,
    NO_SUCCESS,
    ONE_DEVICE,
    TRIED,
    Tuned,
    TuningLoop,
    explained,
    stage_times,
    tune,
)
from planner.plans.compare import PaceChange
from planner.plans.generation import generation_of
from planner.plans.plan import PlacementTask, Plan, plan_by_hand
from planner.problem.constraints import contiguous
from planner.problem.deadline import Deadline
from planner.problem.problem import Goal
from planner.problem.reporter import Reporter
from planner.problem.result import Interrupted, NoPlanError, Result, Status
from planner.runtime.benchmark.load import Load
from simulator.placement import Placement
from tests.costmodels.parts import table_with
from tests.planner.planning.test_autotune import here
from tests.planner.planning.test_cpu_partitions import division
from tests.planner.runtime.generation.tiny import CONTEXT, imported
from tests.planner.runtime.generation.tiny import module as tiny_model

RUN_S = 0.5  # of one turn of a plan on the made-up machine


def chain(n_ops: int) -> Graph:
    """Operators that feed each other; no two have the same key."""
    names = ["x", *(f"y{i}" for i in range(n_ops))]
    return Graph(
        name="chain",
        ops=tuple(Op(f"op{i}", f"aten.relu{i}.default", (names[i],), (names[i + 1],)) for i in range(n_ops)),
        tensors=tuple(Tensor(n, (1, 2), "float32", Role.ACTIVATION if i else Role.INPUT) for i, n in enumerate(names)),
        inputs=("x",),
        outputs=(names[-1],),
    )


def asked(seconds: Sequence[float], goal: Goal = Goal.THROUGHPUT, slowdown: float = 0.0, **work: Any) -> Plan:
    """A question: a chain of operators of so many seconds, on two devices of a kind."""
    graph, cluster, workload = chain(len(seconds)), division(2), Workload(**{"in_flight": 4, **work})
    forward_s = np.repeat(np.array(seconds, dtype=float)[:, None], 2, axis=1)
    times = OperatorTimes(
        forward_s,
        np.full(forward_s.shape, str(Source.MEASURED)),
        2 * forward_s if workload.trains else np.zeros(0),
        slowdown=np.full(forward_s.shape, slowdown),
    )
    table = table_with(assemble(graph, cluster, workload, times), contention_group=np.zeros(2, dtype=np.int64))
    return Plan(graph, cluster, workload, table, goal, Placement((0,) * len(seconds)), "", "", 0.0, (contiguous(),))


def planned(question: Plan) -> Plan:
    return search_plan(question.task, Search(time_limit_s=1.0, rewrites="none"))


def placed(placements: Iterator[Placement], task: PlacementTask, _: Search) -> Plan:
    """The plan with the next placement."""
    return task.plan(next(placements), Status.FEASIBLE, "by hand", 0.0)


@dataclass
class Machine:
    """Runs plans with the true costs, and has a clock that stands still otherwise."""

    truth: CostTable
    disturb: Callable[[Plan], float] = lambda _: 1.0  # a factor on the time of a plan, but not on its stages
    now_s: float = 0.0
    ran: list[tuple[int, ...]] = field(default_factory=list)  # the placement of each turn

    def run(self, plan: Plan) -> TimedTurn:
        self.now_s += RUN_S
        self.ran.append(plan.placement.device)
        real = replace(plan, table=self.truth)
        recorded = real.simulate(1) if plan.goal is Goal.LATENCY else real.simulate(4 * plan.workload.in_flight)
        return TimedTurn(real.predicted_s * self.disturb(plan), recorded)


@dataclass(frozen=True)
class Limit(Deadline):
    """On the clock of a machine."""

    machine: Machine | None = None

    @property
    def left_s(self) -> float:
        assert self.machine is not None
        return max(0.0, self.limit_s - self.machine.now_s)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Callable[..., TuningLoop]:
    def make(first: Plan, machine: Machine, seconds: float = 60.0) -> TuningLoop:
        clock = SimpleNamespace(perf_counter=lambda: machine.now_s)
        for module in (autotune, tuning):
            monkeypatch.setattr(module, "time", clock)
        return TuningLoop(first, machine.run, Search(time_limit_s=1.0, rewrites="none"), Limit(seconds, 0.0, machine))

    return make


TWO_TURNS = 7 + 2 * 9  # runs in them, with plans that take `RUN_S`
MILLI = 1e-3
EQUAL = [MILLI] * 6
WRONG = [MILLI, 3 * MILLI, *[MILLI] * 4]  # what EQUAL really is: the second operator takes three times as long


class TestLoop:
    def test_a_wrong_cost_is_found_and_a_better_plan_kept(self, loop: Callable[..., TuningLoop]) -> None:
        first = planned(asked(EQUAL))
        machine = Machine(asked(WRONG).table)
        tuned = loop(first, machine).run()
        assert first.placement.device == (0, 0, 0, 1, 1, 1)
        assert tuned.plan.placement.device == (0, 0, 1, 1, 1, 1)
        assert tuned.speedup == pytest.approx(5 / 4)
        assert [(turn.moved, turn.kept) for turn in tuned.turns[:2]] == [(0, True), (1, True)]
        assert [turn.speedup for turn in tuned.turns[:2]] == pytest.approx([1, 5 / 4])
        assert explained(tuned.plan, 4 * MILLI)
        assert tuned.plan.objective_s >= tuned.plan.bound_s
        assert tuned.why in (TRIED, AS_PREDICTED)

    def test_a_winner_takes_part_once_more(self, loop: Callable[..., TuningLoop]) -> None:
        machine = Machine(asked(WRONG).table)
        tuned = loop(planned(asked(EQUAL)), machine).run()
        assert len(tuned.turns) == 3
        assert tuned.turns[2].plan is tuned.turns[1].plan
        assert (tuned.turns[2].moved, tuned.turns[2].kept) == (0, True)

    def test_a_winner_by_chance_is_not_kept(self, loop: Callable[..., TuningLoop]) -> None:
        first = planned(asked(EQUAL))
        machine = Machine(asked(WRONG).table)
        machine.disturb = lambda plan: (
            1.0 if plan.placement == first.placement or len(machine.ran) <= TWO_TURNS else 1.5
        )
        tuned = loop(first, machine).run()
        assert tuned.turns[1].kept
        assert tuned.plan.placement == first.placement

    def test_two_rounds_of_three_are_not_sure_enough(self, loop: Callable[..., TuningLoop]) -> None:
        first, factors = planned(asked(EQUAL)), cycle([1.0, 1.0, 3.0])
        machine = Machine(asked(WRONG).table)
        machine.disturb = lambda plan: 1.0 if plan.placement == first.placement else next(factors)
        tuned = loop(first, machine).run()
        assert tuned.turns[1].speedup == pytest.approx(5 / 4)
        assert not tuned.turns[1].kept
        assert tuned.plan.placement == first.placement

    def test_a_plan_that_is_measured_slower_is_not_returned(self, loop: Callable[..., TuningLoop]) -> None:
        first = planned(asked(EQUAL))
        machine = Machine(asked(WRONG).table)
        machine.disturb = lambda plan: 1.0 if plan.placement == first.placement else 1.5
        tuned = loop(first, machine).run()
        assert [turn.kept for turn in tuned.turns] == [True, *[False] * (len(tuned.turns) - 1)]
        assert tuned.turns[1].speedup == pytest.approx(5 / 6)
        assert (tuned.plan.placement, tuned.speedup) == (first.placement, 1.0)
        assert tuned.plan.solver == first.solver
        assert tuned.plan.predicted_s == pytest.approx(5 * MILLI, rel=0.05)  # by the corrected costs

    def test_right_costs_end_it_after_one_turn(self, loop: Callable[..., TuningLoop]) -> None:
        first = planned(asked(EQUAL))
        tuned = loop(first, Machine(first.table)).run()
        assert (len(tuned.turns), tuned.why) == (1, TRIED)
        assert tuned.plan.placement == first.placement
        assert tuned.plan.predicted_s == pytest.approx(first.predicted_s)

    def test_a_plan_as_predicted_ends_it_where_none_is_predicted_to_be_faster(
        self, loop: Callable[..., TuningLoop], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = planned(asked(EQUAL))
        monkeypatch.setattr(
            tuning, "search_plan", lambda task, _: task.plan(Placement((0, 1) * 3), Status.FEASIBLE, "by hand", 0.0)
        )
        tuned = loop(first, Machine(first.table)).run()
        assert (len(tuned.turns), tuned.why) == (1, AS_PREDICTED)
        assert tuned.plan.placement == first.placement

    def test_turns_without_success_end_it(
        self, loop: Callable[..., TuningLoop], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = planned(asked(EQUAL))
        others = iter([Placement((0, 1, 1, 1, 1, 1)), Placement((1, 0, 0, 0, 0, 0)), Placement((0, 0, 0, 0, 0, 1))] * 9)
        monkeypatch.setattr(
            tuning, "search_plan", lambda task, _: task.plan(next(others), Status.FEASIBLE, "by hand", 0.0)
        )
        machine = Machine(asked(WRONG).table, lambda _: 1.5)  # which stages do not explain
        tuned = loop(first, machine).run()
        assert (len(tuned.turns), tuned.why) == (3, NO_SUCCESS)
        assert tuned.plan.placement == first.placement

    @pytest.mark.parametrize(("seconds", "n_turns"), [(0.0, 0), (1.0, 0), (4.0, 1), (12.0, 2), (30.0, 3)])
    def test_it_ends_on_time(self, seconds: float, n_turns: int, loop: Callable[..., TuningLoop]) -> None:
        first = planned(asked(EQUAL))
        machine = Machine(asked(WRONG).table)
        tuned = loop(first, machine, seconds).run()
        assert machine.now_s <= seconds
        assert len(tuned.turns) == n_turns
        assert tuned.why == (TRIED if n_turns > 1 else f"the {seconds:g} s are over")

    def test_without_time_it_returns_the_first_plan(self, loop: Callable[..., TuningLoop]) -> None:
        first = planned(asked(EQUAL))
        assert loop(first, Machine(first.table), 0.0).run() == Tuned(first, why="the 0 s are over")

    @pytest.mark.parametrize("turn", [1, 8, TWO_TURNS, TWO_TURNS + 1])
    def test_an_interrupt_keeps_the_best(self, turn: int, loop: Callable[..., TuningLoop]) -> None:
        first = planned(asked(EQUAL))

        def interrupted(_: Plan) -> float:
            if len(machine.ran) == turn:
                raise KeyboardInterrupt
            return 1.0

        machine = Machine(asked(WRONG).table, interrupted)
        with pytest.raises(Interrupted) as stopped:
            loop(first, machine).run()
        tuned = stopped.value.best
        assert tuned.why == "interrupted"
        best = (0, 0, 1, 1, 1, 1) if tuned.speedup > 1 else first.placement.device
        assert tuned.plan.placement.device == best
        assert (tuned.speedup > 1) == (turn > TWO_TURNS)
        assert all(turn.plan.evaluation.feasible for turn in tuned.turns)

    def test_no_plan_with_the_corrected_costs_ends_it(
        self, loop: Callable[..., TuningLoop], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = planned(asked(EQUAL))

        def nothing(*_: object) -> Plan:
            raise NoPlanError(Result(Status.UNKNOWN, None, inf, 0.0, 0.0, "none"))

        monkeypatch.setattr(tuning, "search_plan", nothing)
        tuned = loop(first, Machine(first.table)).run()
        assert (tuned.plan, tuned.why, len(tuned.turns)) == (first, NO_PLAN, 1)


class TestStages:
    """A run as predicted has nothing to correct, whatever the goal."""

    @pytest.mark.parametrize(
        ("goal", "work"),
        [
            (Goal.THROUGHPUT, {}),
            (Goal.LATENCY, {}),
            (Goal.TRAINING, {"mode": "training", "micro_batches": 4}),
            (Goal.TRAINING, {"mode": "training", "micro_batches": 4, "recompute": "full"}),
            (Goal.TRAINING, {"mode": "training", "micro_batches": 4, "schedule": "zb-h1"}),
        ],
    )
    @pytest.mark.parametrize("slowdown", [0.0, 0.5])
    def test_as_predicted(self, goal: Goal, work: dict[str, Any], slowdown: float) -> None:
        plan = plan_by_hand(asked([1.0, 2.0, 3.0, 4.0], goal, slowdown, **work), Placement((0, 0, 0, 1)))
        recorded = plan.simulate(1 if goal is Goal.LATENCY else 16)
        stages = stage_times(plan, [recorded], None)
        assert [stage.ops for stage in stages] == [(0, 1, 2), (3,)]
        keys = training_keys(plan.graph) if goal is Goal.TRAINING else op_keys(plan.graph)
        correction = fit_correction(plan.table, keys, stages)
        found = [*correction.isolated.values(), *correction.contended.values()]
        assert found
        assert found == pytest.approx([1.0] * len(found))

    def test_what_the_pace_explains_is_not_learned(self) -> None:
        plan = plan_by_hand(asked([1.0, 3.0]), Placement((0, 1)))
        slow = replace(plan, table=replace(plan.table, forward_s=1.5 * plan.table.forward_s))
        pace = PaceChange(1.5, 1.5, {"computing": 1.5, "streaming": 9.0})
        stages = stage_times(plan, [slow.simulate(16)], pace)
        assert [stage.seconds for stage in stages] == pytest.approx([1.0, 3.0])

    def test_the_middle_of_all_runs_counts(self) -> None:
        plan = plan_by_hand(asked([1.0, 3.0]), Placement((0, 1)))
        slow = replace(plan, table=replace(plan.table, forward_s=9 * plan.table.forward_s))
        runs = [plan.simulate(16), slow.simulate(16), plan.simulate(16)]
        assert [stage.seconds for stage in stage_times(plan, runs, None)] == pytest.approx([1.0, 3.0])


def tables(plan: Plan) -> list[CostTable]:
    return [each.table for each in plan.phases]


class TestDoor:
    """What `planner.tune` does around the loop."""

    @pytest.fixture(autouse=True)
    def _own_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PLANNER_CACHE", str(tmp_path))

    @pytest.fixture
    def program(self) -> Program:
        torch.manual_seed(0)
        layers = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)]
        return program_from_module(nn.Sequential(*layers), (torch.ones(2, 64),))

    @pytest.fixture
    def quickly(self, monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
        """Let turns take no time, and note which plans ran."""
        ran: list[Plan] = []

        def run(plan: Plan, _: Program) -> TimedTurn:
            ran.append(plan)
            return TimedTurn(plan.predicted_s, plan.simulate(16))

        monkeypatch.setattr(tuning, "run_turn", run)
        return ran

    def profiled(self, program: Program, cluster: Cluster, seconds: float) -> str:
        """Measurements of all operators, by the fingerprint of the cluster's devices."""
        device = cluster.devices[0]
        ops = {key: Measurement(seconds, 0.1, 5) for key in op_keys(program.graph)}
        machine = machine_of(device)
        write_profile(cache_folder(), Profile(fingerprint_of(machine), machine, ops))
        return device.profile

    def test_the_profile_learns(self, program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        cluster = here(2)
        fingerprint = self.profiled(program, cluster, 1e-3)

        def run(plan: Plan, _: Program) -> TimedTurn:
            slow = replace(plan, table=replace(plan.table, forward_s=np.full_like(plan.table.forward_s, 2e-3)))
            return TimedTurn(slow.predicted_s, slow.simulate(16))

        monkeypatch.setattr(tuning, "run_turn", run)
        monkeypatch.setattr(Load, "foreign_cores", lambda _: 0.0)
        tuned = tune(program, cluster=cluster)
        assert tuned.learned
        profile = read_profile(tmp_path, fingerprint)
        assert profile is not None
        assert [one.seconds for one in profile.ops.values()] == pytest.approx([2e-3] * len(profile.ops), rel=0.06)
        again = planner.plan(program, cluster=cluster)
        assert again.table.forward_s == pytest.approx(tuned.plan.table.forward_s, rel=1e-3)

    def test_a_disturbed_measurement_is_not_learned(
        self, program: Program, quickly: list[Plan], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        cluster = here(2)
        self.profiled(program, cluster, 1e-3)
        before = sorted((path.name, path.read_bytes()) for path in tmp_path.glob("*.json"))
        monkeypatch.setattr(Load, "foreign_cores", lambda _: 0.5)
        tuned = tune(program, cluster=cluster)
        assert quickly
        assert (tuned.learned, tuned.foreign_cores) == (False, 0.5)
        assert sorted((path.name, path.read_bytes()) for path in tmp_path.glob("*.json")) == before

    def test_one_device_has_nothing_to_tune(self, program: Program, quickly: list[Plan]) -> None:
        tuned = tune(program, cluster=here(1))
        assert (tuned.turns, tuned.speedup, tuned.why, quickly) == ((), 1.0, ONE_DEVICE, [])

    def test_what_cannot_run_is_refused(self, program: Program, quickly: list[Plan]) -> None:
        model: Any = program.graph
        with pytest.raises(InputError, match="'Sequential' is a graph, which cannot run; give the model it came from"):
            tune(model, cluster=here(2))
        with pytest.raises(InputError, match="the goal 'cost' adds up what all devices do, which no clock shows"):
            tune(program, cluster=here(2), goal="cost")
        with pytest.raises(InputError, match="device 'cpu0' was not measured on this host as it is now"):
            tune(program, cluster=replace(here(2), devices=division(2).devices))
        with pytest.raises(InputError, match="the time for tuning is -1"):
            tune(program, cluster=here(2), seconds=-1.0)
        assert quickly == []

    def test_an_interrupt_of_the_first_search_keeps_its_best(
        self, program: Program, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = planner.plan(program, cluster=here(2))

        def interrupted(*_: object) -> Plan:
            raise Interrupted(found)

        monkeypatch.setattr(make_plan, "search_plan", interrupted)
        with pytest.raises(Interrupted) as stopped:
            tune(program, cluster=here(2))
        assert stopped.value.best == Tuned(found)

    def test_generation_learns_from_the_mean_of_its_passes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ran: list[Plan] = []

        def run(plan: Plan, _: GenerationProgram) -> TimedTurn:
            ran.append(plan)
            true = replace(plan, table=replace(plan.table, forward_s=plan.table.forward_s * 3))
            return TimedTurn(true.predicted_s, replace(true, phases=()).simulate(1))

        monkeypatch.setattr(tuning, "run_generation_turn", run)
        monkeypatch.setattr(Load, "foreign_cores", lambda _: 0.0)
        work = planner.OpenWorkload(prompt=8, output=6, sequences=4, rows=2, context=CONTEXT)
        search = Search(rewrites="none", time_limit_s=1.0)
        tuned = tune(imported("llama"), cluster=here(2), goal="generation", workload=work, search=search)
        assert ran
        assert not tuned.learned  # the cache knows operators of each phase, and the mean pass has none
        first = ran[0]
        for table, before in ((tuned.plan.table, first.table), *zip(tables(tuned.plan), tables(first), strict=True)):
            assert table.forward_s.sum() / before.forward_s.sum() == pytest.approx(3.0, rel=0.1)
        assert mean_pass(tuned.plan.phases).forward_s == pytest.approx(tuned.plan.table.forward_s)

    @pytest.mark.slow
    def test_generation_really_runs(self) -> None:
        work = planner.OpenWorkload(prompt=8, output=4, sequences=2, rows=1, context=CONTEXT)
        model = planner.generation_program(tiny_model("llama"), context=CONTEXT, chunks=(8,))
        search = Search(rewrites="none", time_limit_s=0.5)
        tuned = tune(model, cluster=here(2), goal="generation", workload=work, seconds=20.0, search=search)
        assert len(tuned.turns) >= 1
        assert all(turn.seconds > 0 for turn in tuned.turns)
        assert tuned.plan.evaluation.feasible
        assert generation_of(tuned.plan).tokens_per_s > 0

    @pytest.mark.slow
    @pytest.mark.parametrize("goal", ["throughput", "latency"])
    def test_it_really_runs(self, goal: str, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(autotune, "TURN_S", 1e-3)
        monkeypatch.setattr(tuning, "FIRST_S", 0.0)
        monkeypatch.setattr(tuning, "AUTOTUNE_S", 0.0)
        told: list[str] = []

        class Ears(Reporter):
            def on_step(self, name: str, done: int, total: int) -> None:  # noqa: ARG002  # as it is called
                told.append(name)

        search = Search(time_limit_s=0.5, reporter=Ears())
        tuned = tune(program, cluster=here(2), goal=goal, seconds=5.0, search=search)
        assert len(tuned.turns) >= 1
        assert all(turn.seconds > 0 for turn in tuned.turns)
        assert tuned.speedup >= 1
        assert tuned.plan.evaluation.feasible
        assert told.count("running the plan") == LEAST_ROUNDS
        assert "planning with what 1 turn has shown" in told
