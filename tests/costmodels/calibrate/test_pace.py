"""The reference computations of a device: measured on its thread, and what they are good for in a calibration."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from costmodels.calibrate import MeasurementEffort, ops, pace, profile_contended, profile_program
from costmodels.calibrate.ops import SessionPace
from costmodels.calibrate.pace import PaceMeter
from costmodels.calibrate.runs import Inference, Pass
from costmodels.cluster.cluster import Device
from costmodels.host.affinity import run_on
from costmodels.operators.pace import PACE_NAMES
from costmodels.profilefile import add_profile, read_profile
from graphs.common.errors import InputError
from graphs.ir import Graph
from graphs.program.program import Program
from tests.costmodels.calibrate.hosts import device

QUICK = MeasurementEffort(passes=3, least_s=0)


def test_every_kind_is_measured() -> None:
    meter = PaceMeter((device(),))
    assert meter.figures == {}
    meter.sample()
    assert list(meter.figures) == list(PACE_NAMES)
    assert 0 < meter.figures["computing"] < 1 < meter.figures["memory"]


def test_devices_are_measured_alone_and_at_once() -> None:
    meter = PaceMeter((device(), device()))
    meter.sample()
    assert list(meter.figures) == [*PACE_NAMES, "computing on 2", "memory on 2"]


def test_no_device_waits_for_one_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "MEET_S", 3600.0)
    meter = PaceMeter((device(), replace(device(), cores=(4096,))))
    with pytest.raises(InputError, match="core 4096"):
        meter.sample()


def test_contended_times_are_those_at_the_pace_of_devices_that_compute_at_once(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, devices = program.graph, (device(), device())
    isolated: dict[str, float] = dict.fromkeys(PACE_NAMES, 1.0)

    def at(pace: dict[str, float], reference: Mapping[str, float]) -> SessionPace:
        found = SessionPace(graph, devices, reference, here=False)
        monkeypatch.setattr(PaceMeter, "sample", lambda meter: meter.samples.append(pace))
        assert found.sample(Inert())
        assert not found.sample(Inert()), "too soon"
        return found

    first = at(isolated | {"computing on 2": 3.0}, isolated)
    assert first.reference == isolated | {"computing on 2": 3.0}
    assert first.paces.tolist() == [1.0] * len(graph.ops)
    later = at(isolated | {"computing on 2": 3.9}, first.reference)
    assert later.reference == first.reference
    assert later.paces.tolist() == pytest.approx([1.3] * len(graph.ops), rel=0.005)


class Inert(Pass):
    """A network that takes no time."""

    def one_pass(self) -> list[list[float]]:
        return [[]]


class Ticking:
    """A clock whose marks are the times given."""

    def __init__(self, times: Iterable[float]) -> None:
        self.mark = iter(times).__next__

    def settle(self) -> None:
        """Nothing is on its way."""

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


def test_the_mean_of_a_sample_without_stalls_and_the_mean_of_samples_count(monkeypatch: pytest.MonkeyPatch) -> None:
    took_s = [[1.0, 2.0, 3.0, 2.0], [6.0, 6.0, 6.0, 99.0], [50.0, 60.0, 70.0, 60.0]]  # 99 counts as 12
    both_s = [(times, [10 * second for second in times]) for times in took_s]
    marks = [mark for both in both_s for times in both for second in times for mark in (0.0, second)]
    ticking = Ticking(marks)
    monkeypatch.setattr(pace, "clock_of", lambda _: ticking)
    meter = PaceMeter((device(),))
    for _ in took_s:
        meter.sample_here()
    assert meter.figures == {"computing": 23.17, "memory": 10.0}  # of 2, 7.5 and 60


def test_a_thread_is_watched_for_a_hundredth_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    meter, now_s = PaceMeter((device(), device())), [0.0]
    monkeypatch.setattr(pace, "clock_of", lambda _: Ticking((0.0, 2e-4) * 9))
    monkeypatch.setattr(pace, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    for now_s[0], known in ((0.0, 1), (0.039, 1), (0.041, 2), (0.06, 2)):  # two calls of 0.2 ms in 40 ms
        meter.watch(2)
        assert meter.samples == [{"computing on 2": 2e-4}] * known
    run_on(device(), partial(meter.watch, 1))
    assert meter.samples[-1] == {"computing": 2e-4}, "another thread"


def test_a_clock_that_stands_still_tells_no_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = PaceMeter((device(),))
    monkeypatch.setattr(pace, "clock_of", lambda _: Ticking((7.0,) * 2))
    meter.watch()
    assert not meter.samples
    second = [7.0, 7.0, *(float(n) for n in range(2 * pace.REPEATS))]
    ticking = Ticking(second * 2)
    monkeypatch.setattr(pace, "clock_of", lambda _: ticking)
    meter.sample_here()
    assert meter.figures == {"computing": 1.0, "memory": 1.0}


def test_a_gpu_is_not_watched() -> None:
    meter = PaceMeter((replace(device(), kind="cuda", cores=(), cuda=0),))
    meter.watch()
    assert not meter.samples


def test_all_meters_of_a_process_compute_in_the_same_memory() -> None:
    assert PaceMeter((device(),))._works is PaceMeter((device(), device()))._works


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What every operator and every reference computation takes."""
    takes = {"operator": 2.0, "reference": 1.0}

    def one_pass(run: Inference) -> list[list[float]]:
        return [[takes["operator"]] * len(run.ops)]

    def figures(_: PaceMeter, __: object = None) -> dict[str, float]:
        assert threading.current_thread() is not threading.main_thread()
        return {"computing": takes["reference"], "memory": 1.0}

    monkeypatch.setattr(Inference, "one_pass", one_pass)
    monkeypatch.setattr(pace.PaceMeter, "_figures", figures)
    monkeypatch.setattr(pace.PaceMeter, "watch", lambda *_: None)
    monkeypatch.setattr(ops, "noisy", lambda *_: ())
    return takes


def test_times_are_those_at_the_pace_of_the_first_measurement(
    program: Program, tmp_path: Path, seconds: dict[str, float]
) -> None:
    first = profile_program(program, device(), QUICK, cache=tmp_path)
    assert first.pace == dict.fromkeys(PACE_NAMES, 1.0)
    assert {measured.seconds for measured in first.ops.values()} == {2.0}
    seconds |= {"operator": 3.0, "reference": 1.5}  # the machine has slowed down by 50 %, of which 0.1 % may be chance
    again = profile_program(program, device(), MeasurementEffort(passes=3, least_s=0, again=True), cache=tmp_path)
    assert again.pace == first.pace
    assert {measured.seconds for measured in again.ops.values()} == {2.002}
    kept = read_profile(tmp_path, first.fingerprint)
    assert kept is not None
    assert kept.pace == first.pace


def test_parts_and_copies_are_timed_at_one_pace(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Mapping[str, float]] = []

    class Spied(SessionPace):
        def __init__(self, graph: Graph, devices: Sequence[Device], reference: Mapping[str, float], here: bool) -> None:
            super().__init__(graph, devices, reference, here)
            given.append(reference)

    monkeypatch.setattr(ops, "SessionPace", Spied)
    monkeypatch.setattr(ops, "noisy", lambda *_: ())
    profile = profile_contended(program, (device(), device()), QUICK)
    alone, parts, copies = given
    assert not alone
    assert list(parts) == list(PACE_NAMES)
    assert copies == profile.pace
    assert copies.keys() > parts.keys()  # those at once as well


def test_a_profile_from_before_paces_gets_one_with_its_next_measurement(
    program: Program, tmp_path: Path, seconds: dict[str, float]
) -> None:
    assert seconds["operator"] == 2.0
    first = profile_program(program, device(), QUICK)
    add_profile(tmp_path, type(first)(first.fingerprint, first.machine, {}))
    before = read_profile(tmp_path, first.fingerprint)
    assert before is not None
    assert before.pace == {}
    profile_program(program, device(), QUICK, cache=tmp_path)
    after = read_profile(tmp_path, first.fingerprint)
    assert after is not None
    assert after.pace == dict.fromkeys(PACE_NAMES, 1.0)
