"""Trials: who takes turns with whom, for how long, and what keeps plans from running. Times are made up, but for those
of plans that really run, of which nobody asks how fast they are."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import planner
from costmodels.cluster.cluster import Cluster, Device, Link, Replicas
from costmodels.host.fingerprint import fingerprint_of, machine_of
from costmodels.workload import Workload
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from planner.planning import autotune, cpu_partitions
from planner.planning.autotune import (
    AUTOTUNE_S,
    HOPELESS,
    LEAST_ROUNDS,
    MOST_ROUNDS,
    UNSURE_S,
    Autotuning,
    TimedTurn,
    run_turn,
    try_out,
)
from planner.planning.cpu_partitions import PartitionChoice, choose_partition, tried
from planner.plans.plan import Plan
from planner.problem.reporter import SILENT, Reporter
from planner.runtime.benchmark import measure
from planner.runtime.errors import StageError
from tests.costmodels.calibrate.hosts import device
from tests.planner.planning.test_cpu_partitions import plan_of
from tests.planner.runtime.small import device_threads

X = torch.ones(2, 8)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PLANNER_CACHE", str(tmp_path))
    yield
    assert device_threads() == []


def core(name: str = "cpu0", rate: float = 1e9) -> Device:
    """The core that the tests run on, as calibration would describe it; several may share it."""
    made_up = device(name)
    profile = fingerprint_of(machine_of(made_up))
    return replace(made_up, flops_per_s={"float32": rate}, memory_bytes_per_s=1e15, profile=profile)


def here(n_devices: int, rate: float = 1e9) -> Cluster:
    """Devices on this host."""
    devices = tuple(core(f"cpu{i}", rate) for i in range(n_devices))
    return Cluster("here", devices, tuple(Link(a.name, b.name, inf) for a in devices for b in devices if a is not b))


def network() -> Program:
    torch.manual_seed(0)
    return program_from_module(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), (X,))


def choice_of(program: Program, goal: str, *clusters: Cluster, workload: Workload | None = None) -> PartitionChoice:
    return choose_partition(clusters, lambda one: planner.plan(program, cluster=one, goal=goal, workload=workload))


class Turns:
    """Stands for `run_turn`, and for the clock: what each plan takes in its turns, by the number of its devices."""

    def __init__(self, seconds: Mapping[int, Sequence[float]], monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[int] = []
        self._seconds = {count: iter(times) for count, times in seconds.items()}
        self._now_s = 0.0
        monkeypatch.setattr(cpu_partitions, "run_turn", lambda plan, _: TimedTurn(self.turn_s(plan), None))
        monkeypatch.setattr(cpu_partitions, "check_here", lambda *_: None)
        monkeypatch.setattr(autotune, "time", SimpleNamespace(perf_counter=lambda: self._now_s))

    def try_out(self, *plans: Plan, reporter: Reporter = SILENT) -> Autotuning:
        return try_out(plans, self.turn_s, AUTOTUNE_S, reporter)

    def turn_s(self, plan: Plan) -> float:
        count = len(plan.cluster.devices)
        seconds = next(self._seconds[count])
        self.seen.append(count)
        self._now_s += seconds
        return seconds


class TestTurns:
    """What is tried how often, by made-up times."""

    def test_plans_take_turns_until_the_time_is_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        a_third = AUTOTUNE_S / 3 / 1.5  # of a round of 1 + 0.5, so that the fourth ends too late for a fifth
        turns = Turns({1: [a_third] * 9, 2: [0.5 * a_third + 0.01] * 9}, monkeypatch)
        autotuning = turns.try_out(plan_of(1, 1.0), plan_of(2, 1.0))
        assert turns.seen == [1, 2] * 3
        assert autotuning.turns_s == ((a_third,) * 3, (0.5 * a_third + 0.01,) * 3)

    @pytest.mark.parametrize(
        ("seconds", "rounds"),
        [
            ([2.0] * 15, 3),  # each of 2 + 1 seconds: it is sure at once
            ([2.0, 0.7] * 8, 11),  # slower and faster in turns, for 24 seconds
            ([1.0, 1.001] * 8, 4),  # as fast within 1 %
        ],
    )
    def test_rounds_that_contradict_each_other_are_not_the_last(
        self, monkeypatch: pytest.MonkeyPatch, seconds: list[float], rounds: int
    ) -> None:
        turns = Turns({1: seconds, 2: [1.0] * 15}, monkeypatch)
        asked = [plan_of(1, 1.0), plan_of(2, 1.0)]
        assert try_out(asked, turns.turn_s, AUTOTUNE_S, unsure_s=UNSURE_S).rounds == rounds

    def test_slow_plans_have_some_rounds_all_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        turns = Turns({1: [AUTOTUNE_S] * 9, 2: [1.5 * AUTOTUNE_S] * 9}, monkeypatch)
        assert turns.try_out(plan_of(1, 1.0), plan_of(2, 1.0)).rounds == LEAST_ROUNDS
        assert turns.seen == [1, 2] * LEAST_ROUNDS

    def test_quick_ones_have_no_more_than_the_most(self, monkeypatch: pytest.MonkeyPatch) -> None:
        turns = Turns({1: [1e-3] * 99, 2: [1e-3] * 99}, monkeypatch)
        assert turns.try_out(plan_of(1, 1.0), plan_of(2, 1.0)).rounds == MOST_ROUNDS
        assert turns.seen == [1, 2] * MOST_ROUNDS

    def test_the_hopeless_drop_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        times = {1: [1.0, 1.0, 1.1, 9.0], 2: [HOPELESS + 0.1], 4: [1.9, 1.9, 1.2, 9.0]}
        turns = Turns(times, monkeypatch)
        autotuning = turns.try_out(plan_of(1, 1.0), plan_of(2, 1.0), plan_of(4, 1.0))
        assert turns.seen == [1, 2, 4, 1, 4, 1, 4]  # 3.0 + 2 * 2.9 + 2.3 seconds, which is enough
        assert [len(own) for own in autotuning.turns_s] == [3, 1, 3]
        assert autotuning.chosen == 0

    def test_if_one_stays_it_has_won(self, monkeypatch: pytest.MonkeyPatch) -> None:
        turns = Turns({1: [3.0], 2: [1.0]}, monkeypatch)
        choice = tried(PartitionChoice((plan_of(1, 1.0), plan_of(2, 5.0))), network())
        assert turns.seen == [1, 2]
        assert len(choice.plan.cluster.devices) == 2
        assert choice.why == "the fastest in 1 round"

    def test_the_reporter_hears_of_every_turn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        turns = Turns({1: [1e-3] * 99, 2: [1e-3] * 99}, monkeypatch)
        heard: list[tuple[str, int, int]] = []

        class Ears(Reporter):
            def on_step(self, name: str, done: int, total: int) -> None:
                heard.append((name, done, total))

        turns.try_out(plan_of(1, 1.0), plan_of(2, 1.0), reporter=Ears())
        assert heard == [("trying 2 plans in turns", i, 2 * MOST_ROUNDS) for i in range(2 * MOST_ROUNDS)]

    def test_the_trial_decides_what_plan_returns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        program, clusters = network(), (here(1, 1e9), here(2, 9e9))
        asked: dict[str, Any] = {"cluster": clusters, "goal": "latency"}
        believed = planner.Search(autotuning=False)
        Turns({1: [1.0] * 9, 2: [1.5] * 9}, monkeypatch)
        assert len(planner.plan(program, **asked, search=believed).cluster.devices) == 2
        assert len(planner.plan(program, **asked).cluster.devices) == 1
        Turns({1: [1.0] * 9, 2: [1.5] * 9}, monkeypatch)
        assert len(planner.plan(program.module, (X,), **asked).cluster.devices) == 1
        assert len(planner.plan(program.graph, **asked).cluster.devices) == 2  # a graph cannot run


class TestRunning:
    """Plans that really run, on one core of this host."""

    @pytest.fixture(autouse=True)
    def _short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(autotune, "TURN_S", 1e-3)
        monkeypatch.setattr(cpu_partitions, "AUTOTUNE_S", 0.0)
        monkeypatch.setattr(cpu_partitions, "UNSURE_S", 0.0)
        monkeypatch.setattr(autotune, "HOPELESS", inf)

    @pytest.mark.parametrize("goal", ["throughput", "latency"])
    def test_inference(self, goal: str) -> None:
        program = network()
        choice = tried(choice_of(program, goal, here(1), here(2)), program)
        assert choice.untried == ""
        assert choice.autotuning is not None
        assert [len(own) for own in choice.autotuning.turns_s] == [LEAST_ROUNDS] * 2
        assert choice.plan is choice.plans[choice.autotuning.chosen]
        assert all(seconds > 0 for own in choice.autotuning.turns_s for seconds in own)

    @pytest.mark.parametrize("optimizer", ["sgd", "adam"])
    def test_training_leaves_the_model_as_it_is(self, optimizer: str) -> None:
        module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 8))
        program = program_from_module(module, (X,), training=True)
        before = {name: value.clone() for name, value in module.state_dict().items()}
        workload = Workload("training", 2, optimizer=optimizer, micro_batches=4)
        choice = tried(choice_of(program, "training", here(1), here(2), workload=workload), program)
        assert choice.untried == ""
        assert choice.autotuning is not None
        assert choice.autotuning.rounds == LEAST_ROUNDS
        assert all(value.equal(before[name]) for name, value in module.state_dict().items())

    @pytest.mark.parametrize(("goal", "expected"), [("latency", 4.0), ("throughput", 7.0)])
    def test_a_turn_is_about_the_goal(self, goal: str, expected: float, monkeypatch: pytest.MonkeyPatch) -> None:
        program = network()
        (plan,) = choice_of(program, goal, here(2)).plans
        monkeypatch.setattr(autotune, "TURN_S", 3.0)
        counts: list[tuple[str, int]] = []

        def single(_: object, count: int) -> list[float]:
            counts.append(("single", count))
            return [1.0] if count == 1 else [9.0, 4.0, 2.0]  # the first one says how many there is time for

        def stream(_: object, count: int) -> float:
            counts.append(("stream", count))
            return 7.0

        monkeypatch.setattr(measure.PlannedContender, "single", single)
        monkeypatch.setattr(measure.PlannedContender, "stream", stream)
        assert run_turn(plan, program).seconds == expected
        assert counts == [("single", 1), ("single" if goal == "latency" else "stream", 3)]

    def test_a_slow_plan_streams_two_micro_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        program = network()
        (plan,) = choice_of(program, "throughput", here(1)).plans
        monkeypatch.setattr(measure.PlannedContender, "single", lambda *_: [99.0])
        monkeypatch.setattr(measure.PlannedContender, "stream", lambda _, count: float(count))
        assert run_turn(plan, program).seconds == 2.0

    def test_an_interrupt_ends_the_plan_that_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        program = network()
        choice = choice_of(program, "throughput", here(1), here(2))
        running: list[list[str]] = []

        def interrupted(*_: object) -> float:
            running.append(device_threads())
            raise KeyboardInterrupt

        monkeypatch.setattr(measure.PlannedContender, "stream", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tried(choice, program)
        assert running == [["device-cpu0"]]  # and none is left, as the fixture sees

    def test_an_operator_that_fails_is_no_reason_to_believe_predictions(self) -> None:
        program = program_from_module(Picky(), (torch.tensor([[1, 2]]),))
        broken = replace(program, example_inputs=(torch.tensor([[1, 99]]),))
        choice = choice_of(program, "latency", here(1), here(2))
        with pytest.raises(StageError, match="stage 0 on 'cpu0' failed in micro-batch 0"):
            tried(choice, broken)


class Picky(nn.Module):
    """Fails for what is not in its table."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(6, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.words(ids)
        return result


class TestUntried:
    """What keeps plans from running; predictions decide then."""

    @pytest.fixture(autouse=True)
    def _nothing_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(measure.PlannedContender, "single", None)

    def untried(self, choice: PartitionChoice, program: Program) -> str:
        found = tried(choice, program)
        assert found.autotuning is None
        assert found.plan is choice.plan
        return found.untried

    def test_one_plan_is_not_tried_and_needs_no_reason(self) -> None:
        choice = choice_of(network(), "latency", here(1))
        assert tried(choice, network()) is choice

    def test_a_graph(self) -> None:
        choice = choice_of(network(), "latency", here(1), here(2))
        found = tried(choice, network().graph)
        assert found == replace(
            choice, untried="'Sequential' is a graph, which cannot run; give the model it came from"
        )

    def test_a_goal_without_a_time(self) -> None:
        choice = choice_of(network(), "cost", here(1), here(2))
        assert self.untried(choice, network()) == "the goal 'cost' adds up what all devices do, which no clock shows"

    @pytest.mark.parametrize("profile", ["", "0123456789ab"])
    def test_devices_that_were_measured_elsewhere(self, profile: str) -> None:
        foreign = Cluster("foreign", (replace(core(), profile=profile),))
        choice = choice_of(network(), "latency", here(2), foreign)
        assert self.untried(choice, network()) == (
            "device 'cpu0' was not measured on this host as it is now; `planner calibrate` does that"
        )

    def test_devices_on_paper(self) -> None:
        paper = Cluster("paper", (replace(core(), cores=()),))
        assert self.untried(choice_of(network(), "latency", paper, here(2)), network()) == (
            "device 'cpu0' has neither cores nor cuda in cluster.toml; it can be planned for and simulated, "
            "but neither measured nor run"
        )

    def test_a_device_that_has_nothing_to_do_may_be_anything(self, monkeypatch: pytest.MonkeyPatch) -> None:
        spare = replace(core("spare", 1.0), cores=(), profile="")
        contended = Cluster("beside", (core(), spare), (Link("cpu0", "spare", 1.0), Link("spare", "cpu0", 1.0)))
        monkeypatch.setattr(cpu_partitions, "run_turn", lambda *_: TimedTurn(1.0, None))
        autotuning = tried(choice_of(network(), "latency", here(1), contended), network()).autotuning
        assert autotuning is not None
        assert autotuning.turns_s == ((1.0,) * MOST_ROUNDS,) * 2

    @pytest.mark.parametrize("goal", ["latency", "training"])
    def test_weights_without_values(self, goal: str) -> None:
        with torch.device("meta"):
            module, inputs = nn.Linear(8, 8), (torch.ones(2, 8),)
        program = program_from_module(module, inputs, training=goal == "training")
        assert self.untried(choice_of(program, goal, here(1), here(2)), program) == (
            "'weight' has a shape but no values (the model was imported from a config); "
            "give a model with weights, as .pt2 or package.module:factory"
        )

    def test_replicas(self) -> None:
        program = program_from_module(nn.Linear(8, 8), (X,), training=True)
        twice = replace(here(1), replicas=Replicas(2, 1e9, 0.0))
        assert self.untried(choice_of(program, "training", twice, here(2)), program).startswith(
            "the plan is for 2 replicas of its devices, which ranks train; "
        )
