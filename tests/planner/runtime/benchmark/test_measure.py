"""Measuring: with contenders whose figures are known, and the real ones without asking how fast they are."""

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from costmodels.calibrate.pace import PaceMeter
from costmodels.operators.pace import PACE_NAMES, mean_pace
from graphs.importers.from_torch import program_from_module
from planner.problem.result import Interrupted
from planner.runtime.benchmark import load
from planner.runtime.benchmark import measure as module
from planner.runtime.benchmark.load import Load
from planner.runtime.benchmark.measure import (
    BenchmarkResult,
    ContenderResult,
    Eager,
    EagerCopies,
    PlannedContender,
    baselines,
    measure,
)
from planner.runtime.inference.runner import Runner
from tests.planner.runtime.small import CORE, NETWORKS, alternating, cpu, make_plan, program_of


class Fake:
    """Says what it was told to, and writes down who was asked for what."""

    recorded = None

    def __init__(self, name: str, periods_s: list[float], log: list[tuple[str, str, int]]) -> None:
        self.name = name
        self._periods_s = iter(periods_s)
        self._log = log

    def stream(self, count: int) -> float:
        self._log.append((self.name, "stream", count))
        return next(self._periods_s)

    def single(self, count: int) -> list[float]:
        self._log.append((self.name, "single", count))
        return [float(i) for i in range(count)]


def test_contenders_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "TURN_S", 1.0)
    monkeypatch.setattr(module, "SINGLES", 3)
    log: list[tuple[str, str, int]] = []
    steps: list[tuple[str, int, int]] = []
    fakes = [Fake("a", [0.125, 4.0, 1.0, 2.0], log), Fake("b", [2.0, 8.0, 1.0, 6.0], log)]
    found = measure(fakes, rounds=3, on_step=lambda *step: steps.append(step))
    # one second's worth: 1 / 0.125 = 8 micro-batches for a; at least 2 for b
    turn = [("a", "stream", 8), ("a", "single", 3), ("b", "stream", 2), ("b", "single", 2)]
    assert log == [("a", "stream", 2), ("b", "stream", 2), *turn * 3]
    assert steps == [(f"measuring {'ab'[i % 2]}", i + 1, 6) for i in range(6)]
    # singles are 0, 1, 2 in each turn of a and 0, 1 of b; those in the middle of (4, 1, 2) and (8, 1, 6)
    assert found.contenders == (
        ContenderResult("a", 2.0, 1.0, (4.0, 1.0, 2.0), (1.0, 1.0, 1.0)),
        ContenderResult("b", 6.0, 0.5, (8.0, 1.0, 6.0), (0.5, 0.5, 0.5)),
    )
    assert found.foreign_cores >= 0


@pytest.mark.attack("process")
def test_ctrl_c_keeps_the_rounds_until_then() -> None:
    def stop(_name: str, done: int, _total: int) -> None:
        if done == 5:  # the second contender has not had its third turn
            raise KeyboardInterrupt

    log: list[tuple[str, str, int]] = []
    contenders = [Fake("plan", [1.0, 2.0, 3.0, 9.0], log), Fake("other", [1.0, 4.0, 5.0, 9.0], log)]
    with pytest.raises(Interrupted) as stopped:
        measure(contenders, 9, stop)
    assert stopped.value.best["plan"].periods_s == (2.0, 3.0)
    assert stopped.value.best["other"].periods_s == (4.0, 5.0)


def test_speedup_is_the_median_of_the_rounds_not_the_ratio_of_medians() -> None:
    a, b = ContenderResult("a", 2.0, 0.0, (4.0, 1.0, 2.0)), ContenderResult("b", 8.0, 0.0, (8.0, 1.0, 16.0))
    measurement = BenchmarkResult((a, b), 0.0)
    assert measurement.speedup("a", over="b") == 2.0  # median of 8/4, 1/1, 16/2; the medians' ratio is 4
    assert measurement.speedup("a", over="a") == 1.0


def test_latencies_compare_round_by_round_too() -> None:
    a = ContenderResult("a", 1.0, 2.0, (1.0,) * 3, (4.0, 1.0, 2.0))
    b = ContenderResult("b", 1.0, 8.0, (1.0,) * 3, (8.0, 1.0, 16.0))
    assert BenchmarkResult((a, b), 0.0).latency_speedup("a", over="b") == 2.0


def test_contenders_are_found_by_name() -> None:
    a = ContenderResult("a", 2.0, 1.0, (2.0,))
    measurement = BenchmarkResult((a,), 0.0)
    assert measurement["a"] is a
    with pytest.raises(KeyError, match="b"):
        measurement["b"]


def test_a_host_that_does_not_say_how_busy_it_is_counts_as_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda _: False)
    assert measure([Fake("a", [1.0] * 2, [])], rounds=1).foreign_cores == 0


@pytest.mark.parametrize(("passed_s", "foreign"), [(4.0, 2.0), (0.0, 0.0)])
def test_foreign_cores_are_busy_minus_own_over_the_clock(
    monkeypatch: pytest.MonkeyPatch, passed_s: float, foreign: float
) -> None:
    # 20 s busy of which 12 s are ours, in 4 s: 8 / 4 = 2 cores
    now: Iterator[tuple[float, float, float]] = iter([(100.0, 10.0, 1.0), (120.0, 22.0, 1.0 + passed_s)])
    monkeypatch.setattr(Load, "_now", staticmethod(lambda: next(now)))
    assert Load().foreign_cores() == foreign


@pytest.mark.parametrize("name", NETWORKS)
def test_the_real_contenders(name: str) -> None:
    program = program_of(name)
    with Runner(make_plan(program, alternating(program), in_flight=3), program) as runner:
        for contender in (PlannedContender(runner), *baselines(program, runner.plan.cluster.devices)):
            assert contender.stream(3) > 0
            singles_s = contender.single(3)
            assert len(singles_s) == 3
            assert min(singles_s) > 0


def test_a_stream_is_recorded_and_its_period_is_that_of_the_recording() -> None:
    program = program_of("tied")
    with Runner(make_plan(program, alternating(program), in_flight=3), program) as runner:
        planned = PlannedContender(runner)
        period_s = planned.stream(4)
        assert planned.recorded is not None
        assert planned.recorded.micro_batches == 4 + 2 * 3
        used = runner.plan.usage_of(planned.recorded)
        assert used is not None
        assert used.period_s == period_s
        ends_s = sorted(planned.recorded.finish_s)
        assert period_s == pytest.approx((ends_s[6] - ends_s[2]) / 4)  # without filling and draining
        for device in used.devices.values():
            assert device.busy_s + device.idle_s == pytest.approx(period_s)
            assert device.processor_s > 0


def test_the_pace_is_that_of_the_stream_in_the_middle_and_of_micro_batches_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meter = PaceMeter((cpu("cpu0"), cpu("cpu1")))

    class Watched(Fake):
        def stream(self, count: int) -> float:
            meter.samples.append({"computing on 2": (period_s := super().stream(count))})
            return period_s

        def single(self, count: int) -> list[float]:
            meter.samples.append({"computing": 7.0})
            return super().single(count)

    sample = {"computing": 8.0, "memory": 9.0}
    monkeypatch.setattr(Load, "sample_pace", lambda _: meter.samples.append(sample))
    load = Load()
    load.meter = meter
    found = measure([Watched("a", [1.0, 4.0, 1.0, 2.0], []), Fake("b", [1.0] * 4, [])], rounds=3, load=load)
    a, b = (mean_pace(found[name].paces) for name in "ab")
    assert a == {"computing on 2": 2.0, "computing": 7.0, "memory": 9.0}
    assert b == mean_pace(found.paces)


def test_devices_measure_their_pace_behind_a_stage_while_there_is_a_meter() -> None:
    program = program_of("tied")
    with Runner(make_plan(program, alternating(program), in_flight=3), program) as runner:
        meter = PaceMeter(runner.plan.cluster.devices)
        planned = PlannedContender(runner, meter=meter)
        planned.stream(4)
        assert {name for sample in meter.samples for name in sample} == {"computing on 3"}
        assert len(meter.samples) >= 3  # each device, at once
        meter = planned._meter = PaceMeter(runner.plan.cluster.devices)
        planned.single(1)
        assert {name for sample in meter.samples for name in sample} == {"computing"}
        n_samples = len(meter.samples)
        runner(*program.example_arguments[0])
        assert len(meter.samples) == n_samples, "only while it is measured"


def test_eager_runs_on_its_device_in_evaluation_mode() -> None:
    seen: list[tuple[str, int, bool, bool]] = []

    class Look(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not torch.compiler.is_compiling():
                name = threading.current_thread().name
                seen.append((name, torch.get_num_threads(), self.training, torch.is_grad_enabled()))
            return x + 1

    model = Look()
    program = program_from_module(model, (torch.ones(2),))
    seen.clear()
    eager = Eager(program, cpu("cpu0"), "one device")
    assert eager.result().tolist() == [2, 2]
    assert len(eager.single(2)) == 2
    assert set(seen) == {("device-cpu0", 1, False, False)}
    assert len(seen) == 1 + 3  # one to warm up
    assert model.training


@pytest.mark.skipif(CORE + 1 not in os.sched_getaffinity(0), reason="one core")
def test_copies_share_the_micro_batches() -> None:
    seen: list[str] = []

    class Look(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not torch.compiler.is_compiling():
                seen.append(threading.current_thread().name)
            return x + 1

    program = program_from_module(Look(), (torch.ones(2),))
    seen.clear()
    copies = EagerCopies(program, (cpu("cpu0"), replace(cpu("cpu1"), cores=(CORE + 1,))))
    assert copies.stream(7) > 0
    assert len(seen) == 2 + 7  # one on each to warm up
    assert {*seen} == {"device-cpu0", "device-cpu1"}
    assert len(copies.single(2)) == 2


def test_baselines() -> None:
    program = program_of("tied")
    other = CORE + 1  # need not be there: nothing is run
    a, b = cpu("cpu0"), cpu("cpu1")

    def names(*devices: Any) -> list[str]:
        return [contender.name for contender in baselines(program, devices)]

    assert names(a) == ["one device"]
    assert names(a, b) == ["one device"]  # they share a core
    assert names(replace(a, cores=(CORE,)), replace(b, cores=())) == ["one device"]  # the other stands on paper
    if other in os.sched_getaffinity(0):
        assert names(a, replace(b, cores=(other,))) == ["one device", "2 threads", "2 copies"]


def test_processes_that_work_for_us_are_not_foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with a name that looks like fields, 250 + 50 ticks of processor time, and one that has ended."""
    ticks = os.sysconf("SC_CLK_TCK")
    folder = tmp_path / "proc" / "17"
    folder.mkdir(parents=True)
    (folder / "stat").write_text("17 (a ) R 1 b) S 1 17 17 0 -1 4194560 100 0 0 0 250 50 7 7 20 0 3 0 12345\n")
    monkeypatch.setattr(load, "Path", lambda path: tmp_path / path.lstrip("/"))
    assert load._processor_s(17) == 300 / ticks
    assert load._processor_s(18) == 0.0


@pytest.mark.parametrize(("spread", "times"), [(0.01, 1.0), (0.06, 1.44), (0.5, 2.0)])
def test_a_host_whose_pace_jumps_is_measured_for_longer(spread: float, times: float) -> None:
    program = program_of("tied")
    plan = make_plan(program, alternating(program))
    kind = plan.cluster.devices[0].kind
    paced = replace(plan, pace={kind: {"small": 1.0}}, pace_spread={kind: dict.fromkeys(PACE_NAMES, spread)})
    assert Load(plan=paced).turn_s == pytest.approx(times * load.TURN_S)
    assert Load(plan=plan).turn_s == load.TURN_S
