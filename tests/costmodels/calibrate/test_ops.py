"""Measuring operators: which, where and how often; not how long they take."""

import os
import threading
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from costmodels.calibrate import MeasurementEffort, ops, profile_program
from costmodels.calibrate.ops import PATIENCE, MeanPass, UnmeasuredPart, pooled, standard_error, what_is_left
from costmodels.calibrate.runs import Inference
from costmodels.host import affinity as pinned
from costmodels.host.affinity import ThreadResult, check_stopped
from costmodels.host.fingerprint import fingerprint_of, machine_of
from costmodels.measured import Measurement, Profile
from costmodels.operators.keys import op_keys, training_keys
from costmodels.profilefile import add_profile, read_profile
from graphs.common.errors import InputError
from graphs.program.program import Program
from tests.costmodels.calibrate.hosts import CORE, device

QUICK = MeasurementEffort(passes=3, least_s=0)
WARM_UP = 2  # passes that do not count: the first one, and the one behind the first sample of the pace


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators of a microsecond are noisy, and how often they are measured would be a matter of chance."""
    monkeypatch.setattr(ops, "noisy", lambda *_: ())


class Counted:
    """Counts the passes over a program, those that warm up included."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passes = 0
        self.n_ops = 0
        one_pass = Inference.one_pass

        def counted(run: Inference) -> list[list[float]]:
            self.passes += 1
            self.n_ops = len(run.ops)
            return one_pass(run)

        monkeypatch.setattr(Inference, "one_pass", counted)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def test_every_operator_is_measured_and_equal_ones_share(program: Program) -> None:
    profile = profile_program(program, device(), QUICK)
    keys = op_keys(program.graph)
    assert profile.ops.keys() == set(keys)
    assert all(m.seconds > 0 and m.spread >= 0 for m in profile.ops.values())
    assert keys.count(next(key for key in keys if "linear" in key)) == 2
    assert {m.count for m in profile.ops.values()} == {3}


def test_a_device_calibrated_elsewhere_is_refused(program: Program) -> None:
    here = fingerprint_of(machine_of(device()))
    assert profile_program(program, device(profile=here), QUICK).fingerprint == here
    with pytest.raises(InputError) as error:
        profile_program(program, device(profile="abc"), QUICK)
    assert str(error.value) == (
        f"device 'cpu0' has the profile 'abc', this host and its software are '{here}'; calibrate again"
    )


def test_the_work_happens_on_a_bound_thread(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[int, tuple[int, ...], int, bool]] = set()
    run = Inference.run

    def spied(self: Inference, *args: Any) -> Any:
        cores = tuple(os.sched_getaffinity(0))
        seen.add((threading.get_ident(), cores, torch.get_num_threads(), torch.is_grad_enabled()))
        return run(self, *args)

    monkeypatch.setattr(Inference, "run", spied)
    before = os.sched_getaffinity(0), torch.get_num_threads()
    profile_program(program, device(), QUICK)
    ((thread, cores, n_threads, inference),) = seen
    assert thread != threading.get_ident()
    assert (cores, n_threads, inference) == ((CORE,), 1, False)
    assert (os.sched_getaffinity(0), torch.get_num_threads()) == before


class TestCache:
    """What is known is not measured again."""

    def test_a_profile_belongs_to_the_machine_and_is_kept(self, program: Program, tmp_path: Path) -> None:
        profile = profile_program(program, device(), QUICK, cache=tmp_path)
        assert profile.machine == machine_of(device())
        assert profile.fingerprint == fingerprint_of(profile.machine)
        assert read_profile(tmp_path, profile.fingerprint) == profile

    def test_nothing_runs_if_everything_is_known(self, program: Program, tmp_path: Path, counted: Counted) -> None:
        first = profile_program(program, device(), QUICK, cache=tmp_path)
        assert counted.passes == WARM_UP + 3
        heard: list[object] = []
        assert profile_program(program, device(), QUICK, lambda *step: heard.append(step), cache=tmp_path) == first
        assert (counted.passes, heard) == (WARM_UP + 3, [])

    def test_again_measures_anew(self, program: Program, tmp_path: Path, counted: Counted) -> None:
        profile_program(program, device(), QUICK, cache=tmp_path)
        again = profile_program(program, device(), MeasurementEffort(3, 0, again=True), cache=tmp_path)
        assert counted.passes == 2 * (WARM_UP + 3)
        assert {m.count for m in again.ops.values()} == {3}
        assert read_profile(tmp_path, again.fingerprint) == again

    def test_only_what_is_missing_is_measured_and_nothing_behind_it_runs(
        self, program: Program, tmp_path: Path, counted: Counted
    ) -> None:
        profile = profile_program(program, device(), QUICK)
        keys = op_keys(program.graph)
        made_up = {key: Measurement(1.0, 0.0, 9) for key in keys if key != keys[0]}
        add_profile(tmp_path, Profile(profile.fingerprint, profile.machine, made_up))
        counted.passes = 0
        result = profile_program(program, device(), QUICK, cache=tmp_path)
        assert result.ops.keys() == set(keys)
        assert {key: result.ops[key] for key in made_up} == made_up
        assert result.ops[keys[0]].seconds < 1
        assert (counted.passes, counted.n_ops) == (
            WARM_UP + 3,
            1 + max(i for i, key in enumerate(keys) if key == keys[0]),
        )
        assert read_profile(tmp_path, profile.fingerprint) == result

    def test_a_measurement_of_too_few_passes_gets_the_others(
        self, program: Program, tmp_path: Path, counted: Counted
    ) -> None:
        profile_program(program, device(), MeasurementEffort(passes=2, least_s=0), cache=tmp_path)
        counted.passes = 0
        result = profile_program(program, device(), QUICK, cache=tmp_path)
        assert counted.passes == WARM_UP + 1
        assert {m.count for m in result.ops.values()} == {3}

    def test_inference_and_training_are_kept_apart(self, program: Program, tmp_path: Path) -> None:
        inference = profile_program(program, device(), QUICK, cache=tmp_path)
        training = profile_program(program, device(), QUICK, training=True, cache=tmp_path)
        assert training.training.keys() == set(training_keys(program.graph))
        kept = read_profile(tmp_path, inference.fingerprint)
        assert kept is not None
        assert (kept.ops, kept.training) == (inference.ops, training.training)
        assert profile_program(program, device(), QUICK, training=True, cache=tmp_path) == training

    def test_a_damaged_cache_is_told_before_anything_runs(
        self, program: Program, tmp_path: Path, counted: Counted
    ) -> None:
        (tmp_path / f"{fingerprint_of(machine_of(device()))}.json").write_text("{")
        with pytest.raises(InputError, match=r"is damaged or foreign .*; delete it and calibrate again"):
            profile_program(program, device(), QUICK, cache=tmp_path)
        assert counted.passes == 0


def test_an_interrupt_keeps_the_passes_that_are_done_and_the_next_run_does_the_others(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_pass, calls, hangs = Inference.one_pass, iter(range(100)), threading.Event()

    def slow(run: Inference) -> list[list[float]]:
        """The fifth pass hangs until the thread is told to stop, as one with a long operator does."""
        while next(calls) >= WARM_UP + 2:
            hangs.set()
            check_stopped()
        return one_pass(run)

    class Interrupted(ThreadResult[object]):
        """Of somebody who presses Ctrl-C during the fifth pass."""

        def result(self, timeout: float | None = None) -> object:
            hangs.wait(timeout)
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Inference, "one_pass", slow)
        patched.setattr(pinned, "ThreadResult", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            profile_program(program, device(), MeasurementEffort(passes=5, least_s=0), cache=tmp_path)
    kept = read_profile(tmp_path, fingerprint_of(machine_of(device())))
    assert kept is not None
    assert {m.count for m in kept.ops.values()} == {2}
    counted = Counted(monkeypatch)
    result = profile_program(program, device(), MeasurementEffort(passes=5, least_s=0), cache=tmp_path)
    assert counted.passes == WARM_UP + 3
    assert {m.count for m in result.ops.values()} == {5}


def test_rows_are_kept_now_and_then(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "SAVE_S", 0.0)
    seen: list[int] = []

    def spied(folder: Path, profile: Profile) -> None:
        seen.append(next(iter(profile.ops.values())).count)
        add_profile(folder, profile)

    monkeypatch.setattr(ops, "add_profile", spied)
    profile_program(program, device(), QUICK, cache=tmp_path)
    assert seen == [1, 2, 3]


def test_a_failure_keeps_what_was_measured(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_pass, calls = Inference.one_pass, iter(range(100))

    def failing(run: Inference) -> list[list[float]]:
        if next(calls) == WARM_UP + 1:
            raise MemoryError
        return one_pass(run)

    monkeypatch.setattr(Inference, "one_pass", failing)
    with pytest.raises(MemoryError):
        profile_program(program, device(), QUICK, cache=tmp_path)
    kept = read_profile(tmp_path, fingerprint_of(machine_of(device())))
    assert kept is not None
    assert {m.count for m in kept.ops.values()} == {1}


def test_noise_gets_more_passes_but_not_for_ever(
    program: Program, monkeypatch: pytest.MonkeyPatch, counted: Counted
) -> None:
    asked: list[int] = []

    def restless(keys: tuple[str, ...], _: object) -> tuple[object, ...]:
        asked.append(1)
        return (type("Noise", (), {"key": keys[0]}),) if len(asked) < 3 else ()

    monkeypatch.setattr(ops, "noisy", restless)
    profile_program(program, device(), QUICK)
    assert counted.passes == WARM_UP + 3 + 2  # quiet at the third look
    monkeypatch.setattr(ops, "noisy", lambda keys, _: (type("Noise", (), {"key": keys[0]}),))
    counted.passes = 0
    profile_program(program, device(), QUICK)
    assert counted.passes == WARM_UP + 3 * PATIENCE
    counted.passes = 0
    profile_program(program, device(), replace(QUICK, patience=2))
    assert counted.passes == WARM_UP + 3 * 2
    counted.passes = 0
    profile_program(program, device(), replace(QUICK, patience=1))
    assert counted.passes == WARM_UP + 3


def test_what_is_left_is_what_has_too_few_passes() -> None:
    known = {"a": Measurement(1, 0, 3), "b": Measurement(1, 0, 2)}
    keys = ["a", "b", "c", "b"]
    assert what_is_left(keys, [known], MeasurementEffort(7, 1.0)) == UnmeasuredPart((1, 2, 3), 7, 0.75)
    assert what_is_left(keys[:2], [known], MeasurementEffort(7, 1.0)) == UnmeasuredPart((1,), 5, 0.5)
    assert what_is_left(keys[:1], [known], MeasurementEffort(7, 1.0)) == UnmeasuredPart((), 0, 0.0)
    assert what_is_left(keys[:1], [known, {}], MeasurementEffort(7, 1.0)) == UnmeasuredPart(
        (0,), 7, 1.0
    )  # forward is known, backward not
    assert what_is_left([], [{}], MeasurementEffort()) == UnmeasuredPart((), 0, 0.0)
    assert what_is_left(keys[:1], [{}], MeasurementEffort(7, 1.0, patience=1)) == UnmeasuredPart(
        (0,), 7, 1.0, patience=1
    )


@pytest.mark.parametrize(("disturbed", "longer"), [(0.0, 1.0), (3.9, 1.1), (1000.0, 49 / 39)])
def test_equal_operators_have_the_mean_of_their_medians_and_their_share_of_disturbances(
    disturbed: float, longer: float
) -> None:
    # passes (rows) of three operators: medians 2, 6, 5; quartiles 1.5 to 2.5, 5 to 7, 5 to 5 or more
    seconds = np.array([[1.0, 4.0, 5.0], [2.0, 6.0, 5.0], [3.0, 8.0, 5.0 + disturbed]])
    measured = pooled(("same", "same", "other"), seconds)
    assert measured["same"] == Measurement.rounded(4.0 * longer, 1.5, 3)  # (1 + 2) / 2
    assert measured["other"] == Measurement.rounded(5.0 * longer, disturbed / 2, 3)


@pytest.mark.parametrize(
    ("effort", "passes"),
    [
        (MeasurementEffort(passes=3, least_s=0, most_s=60), 3),
        (MeasurementEffort(passes=1, least_s=0, most_s=60), 1),
        (MeasurementEffort(passes=1000, least_s=60, most_s=0), 1),  # no second pass when the time is up
    ],
)
def test_effort_is_passes_within_a_time(program: Program, effort: MeasurementEffort, passes: int) -> None:
    steps: list[tuple[str, int, int]] = []
    profile = profile_program(program, device(), effort, lambda *step: steps.append(step))
    assert {m.count for key, m in profile.ops.items() if "cat" in key} == {passes}
    assert len(steps) == passes
    assert {what for what, _, _ in steps} == {"measuring Twice on cpu0"}
    assert [done for _, done, _ in steps[:-1]] == sorted(done for _, done, _ in steps[:-1])
    assert all(done < total for _, done, total in steps[:-1])
    assert steps[-1][1] == steps[-1][2]


def test_the_error_of_a_mean_counts_that_neighbours_are_alike() -> None:
    noise = np.random.default_rng(0).standard_normal(4000)
    assert standard_error(list(1 + 0.1 * noise)) == pytest.approx(0.1 / 4000**0.5, rel=0.5)
    drift = np.repeat(noise[:40], 100)  # a hundred passes each are as fast or slow
    assert standard_error(list(1 + 0.1 * drift)) == pytest.approx(0.1 / 40**0.5, rel=0.5)
    assert standard_error([1.0]) == inf


def test_passes_are_added_until_their_mean_is_known() -> None:
    mean = MeanPass(0.01)
    for seconds in [1.0, 1.2] * 4:
        mean.add(seconds)
    assert not mean.known
    for _ in range(20):
        for seconds in [1.0, 1.2] * 4:
            mean.add(seconds)
    assert mean.known
    assert MeanPass(inf).known
