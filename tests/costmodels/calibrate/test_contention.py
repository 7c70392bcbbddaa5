"""Measuring under contention: who runs what, and what happens when one of them fails; not how long it takes."""

import os
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from costmodels.calibrate import MeasurementEffort, ops, profile_contended
from costmodels.calibrate.contention import CoRun, Parts, balanced_parts
from costmodels.calibrate.runs import Inference, Training
from costmodels.cluster.cluster import Device
from costmodels.operators.keys import op_keys, training_keys
from costmodels.profilefile import read_profile
from graphs.importers.from_torch import program_from_module
from graphs.kernels import pairs
from graphs.program.program import Program
from tests.costmodels.calibrate.hosts import CORE, OTHER, device

QUICK = MeasurementEffort(passes=3, least_s=0)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "noisy", lambda *_: ())


def two() -> list[Device]:
    return [device("cpu0", CORE), device("cpu1", OTHER)]


def parts_of(program: Program, n: int = 2) -> Parts:
    return balanced_parts(np.ones(len(program.graph.ops)), n)


class TestCuts:
    def test_by_hand(self) -> None:
        # ends at 1, 3, 6, 7, so each of two parts should take 3.5: the third operator has its middle at 4.5
        assert balanced_parts(np.array([1.0, 2.0, 3.0, 1.0]), 2) == (range(2), range(2, 4))
        assert balanced_parts(np.array([1.0] * 6), 3) == (range(2), range(2, 4), range(4, 6))
        assert balanced_parts(np.array([9.0, 1.0]), 2) == (range(1), range(1, 2))
        assert balanced_parts(np.array([]), 3) == (range(0),) * 3

    @given(st.lists(st.floats(1e-6, 1.0), max_size=30), st.integers(1, 5))
    def test_parts_cover_all_and_none_is_over_by_more_than_its_operators_at_the_ends(
        self, seconds: list[float], n: int
    ) -> None:
        parts = balanced_parts(np.array(seconds), n)
        assert len(parts) == n
        assert [op for part in parts for op in part] == list(range(len(seconds)))
        share_s, most_s = sum(seconds) / n, max(seconds, default=0.0)
        assert all(sum(seconds[a:b]) <= share_s + most_s + 1e-9 for a, b in ((part.start, part.stop) for part in parts))


def test_each_device_runs_its_part_bound_to_its_core_and_all_at_once(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, tuple[int, ...], range]] = []
    run = Inference.run

    def spied(self: Inference, env: dict[str, torch.Tensor], start: int, stop: int) -> Any:
        seen.append((threading.current_thread().name, tuple(os.sched_getaffinity(0)), range(start, stop)))
        return run(self, env, start, stop)

    first, second = parts_of(program)
    with closing(CoRun(program, two(), (first, second))) as one:
        monkeypatch.setattr(Inference, "run", spied)
        (seconds,) = one.one_pass()
    assert len(seconds) == len(program.graph.ops)
    assert all(s >= 0 for s in seconds)
    assert sorted(seen, key=str) == [("device-cpu0", (CORE,), first), ("device-cpu1", (OTHER,), second)]


def test_copies_run_pairs_where_kernels_compute_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a product that reads its weight once counts half for each; all else runs for one after the other."""
    monkeypatch.setattr("graphs.kernels.products.PAIR_BYTES", 0)
    module = nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 3))
    program = program_from_module(module.eval(), (torch.rand(1, 40),))
    quick = [replace(device, kernels="quick") for device in two()]
    everything = range(len(program.graph.ops))
    with closing(CoRun(program, quick, (everything, everything), alone_s=[1.0, 8.0, 1.0])) as both:
        (seconds,) = both.one_pass()
        assert len(seconds) == len(everything)
        assert all(each >= 0 for each in seconds)
        both.pause()
        functions = list(both._run._functions.values())  # type: ignore[union-attr]  # in inference
    turns = [(0, pairs.BOTH), (1, pairs.ONE), (1, pairs.OTHER), (2, pairs.BOTH)]
    assert [each.turns for each in functions if pairs.n_micro_batches(each.turns) == 2] == [
        turns,
        turns,
    ]  # of both threads


def test_copies_run_everything_from_the_same_inputs(program: Program) -> None:
    everything = range(len(program.graph.ops))
    with closing(CoRun(program, two(), (everything, everything))) as both:
        for _ in range(2):
            envs = both._inputs
            (seconds,) = both.one_pass()
            assert len(seconds) == len(everything)
            assert both._inputs is not envs  # the next pass is on its way
            both.pause()
            for name in program.graph.outputs:
                assert envs[0][name] is not envs[1][name]
                torch.testing.assert_close(envs[0][name], envs[1][name])


def test_a_micro_batch_goes_through_all_parts_and_leaves_nothing(program: Program) -> None:
    with closing(CoRun(program, two(), parts_of(program))) as one:
        for _ in range(3):
            last = one._inputs[-1]
            one.one_pass()
            # the outputs, and what an operator without a reader left, are all that is still there
            assert set(last) - set(one._run.given) == set(program.graph.outputs)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("device-")]


def test_who_fails_is_heard_and_nobody_waits(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Inference.run

    def failing(self: Inference, env: dict[str, torch.Tensor], start: int, stop: int) -> Any:
        if threading.current_thread().name == "device-cpu1":
            raise ZeroDivisionError("the second part")
        return run(self, env, start, stop)

    with closing(CoRun(program, two(), parts_of(program))) as one:
        one.one_pass()
        monkeypatch.setattr(Inference, "run", failing)
        with pytest.raises(ZeroDivisionError, match="the second part"):
            one.one_pass()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("device-")]


def test_who_fails_before_the_start_lets_nobody_wait(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(CoRun(program, two(), parts_of(program))) as one:
        wait = one._start.wait

        def failing(timeout: float) -> int:
            if threading.current_thread().name == "device-cpu1":
                raise ZeroDivisionError("too early")
            return wait(timeout)

        monkeypatch.setattr(one._start, "wait", failing)
        with pytest.raises(ZeroDivisionError, match="too early"):
            one.one_pass()


class Drawing(nn.Module):
    """Weights, a batch norm, dropout, and a tensor that skips the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.last(nn.functional.dropout(self.norm(y), 0.5, self.training)) + y  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def trained() -> Program:
    return program_from_module(Drawing(), (torch.rand(4, 6),), training=True)


class TestTraining:
    def test_each_device_goes_back_through_its_part(self, trained: Program, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: dict[str, list[int]] = {}
        back = Training._backward

        def spied(self: Training, number: int, recorded: Any) -> Any:
            seen.setdefault(threading.current_thread().name, []).append(number)
            return back(self, number, recorded)

        n, (first, second) = len(trained.graph.ops), parts_of(trained)
        with closing(CoRun(trained, two(), (first, second), training=True)) as one:
            monkeypatch.setattr(Training, "_backward", spied)
            forward, backward = one.one_pass()
        assert (len(forward), len(backward)) == (n, n)
        assert all(s > 0 for s in forward)
        assert max(backward) > 0 <= min(backward)  # some take no longer than an empty call of the engine
        assert seen == {"device-cpu0": list(first)[::-1], "device-cpu1": list(second)[::-1]}

    def test_a_micro_batch_goes_on_and_leaves_nothing(self, trained: Program) -> None:
        with closing(CoRun(trained, two(), parts_of(trained), training=True)) as one:
            for _ in range(3):
                last = one._inputs[-1]
                one.one_pass()
                assert set(last) - set(one._run.given) == set(trained.graph.outputs)

    def test_generators_and_the_model_stay_as_they_were(self, trained: Program) -> None:
        generator = torch.get_rng_state()
        with closing(CoRun(trained, two(), parts_of(trained), training=True)) as one:
            one.one_pass()
        assert torch.equal(torch.get_rng_state(), generator)
        assert all(tensor.grad is None for tensor in trained.state.values())

    def test_alone_and_beside_others(self, trained: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        profile = profile_contended(trained, two(), QUICK, training=True, cache=tmp_path)
        assert profile.training.keys() == profile.training_contended[2].keys() == set(training_keys(trained.graph))
        assert not profile.ops
        assert not profile.contended
        assert {step.count for step in profile.training_contended[2].values()} == {3}
        assert read_profile(tmp_path, profile.fingerprint) == profile
        monkeypatch.setattr(Training, "_forward", None)  # whoever calls it fails
        assert profile_contended(trained, two(), QUICK, training=True, cache=tmp_path) == profile


class TestProfile:
    def test_alone_and_beside_others(self, program: Program) -> None:
        profile = profile_contended(program, two(), QUICK)
        assert profile.ops.keys() == profile.contended[2].keys() == set(op_keys(program.graph))
        assert profile.copies[2].keys() == profile.ops.keys()
        assert {m.count for way in (profile.contended, profile.copies) for m in way[2].values()} == {3}

    def test_nothing_runs_twice(self, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first = profile_contended(program, two(), QUICK, cache=tmp_path)
        assert read_profile(tmp_path, first.fingerprint) == first
        monkeypatch.setattr(Inference, "run", None)  # whoever calls it fails
        assert profile_contended(program, two(), QUICK, cache=tmp_path) == first

    def test_another_number_of_devices_is_another_measurement(self, program: Program, tmp_path: Path) -> None:
        profile_contended(program, two(), QUICK, cache=tmp_path)
        three = [*two(), device("cpu2", CORE)]
        fingerprint = profile_contended(program, three, QUICK, cache=tmp_path).fingerprint
        kept = read_profile(tmp_path, fingerprint)
        assert kept is not None
        assert list(kept.contended) == [2, 3]
