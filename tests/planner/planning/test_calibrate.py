"""calibrate: what is measured, what comes from the cache, what is told. Peaks and links are made up."""

import json
from dataclasses import replace
from functools import partial
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import costmodels.calibrate
import planner
from costmodels.calibrate import Host, MeasurementEffort
from costmodels.cluster.cluster import Cluster, Device, Link
from costmodels.host.fingerprint import fingerprint_of, machine_of
from costmodels.measured import Measurement, Noise
from costmodels.operators.keys import op_keys, training_keys
from costmodels.profile_cache import cache_folder
from costmodels.profilefile import read_profile
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from planner.planning.calibrate import (
    Calibration,
    CalibrationOptions,
    Operators,
    calibrate,
    divisions,
    profile,
    read_host,
    surveys,
    write_host,
)
from planner.problem.reporter import Reporter
from planner.runtime.benchmark import overheads
from tests.costmodels.calibrate.hosts import CORE, OTHER, device

MODULE = import_module("planner.planning.calibrate")  # `planner.calibrate` is the function


def survey(*given: Any, **more: Any) -> Calibration:
    """The calibration of the division with the most devices."""
    return surveys(*given, **more)[-1]


def core(name: str = "cpu0") -> Device:
    """The core that the tests run on, as calibration would describe it."""
    made_up = device(name)
    return device(name, profile=fingerprint_of(machine_of(made_up)))


HOST = Host(
    Cluster(
        "made up",
        (core("cpu0"), replace(core("cpu1"), host="beside")),  # as this host may have one core
        (Link("cpu0", "cpu1", 1e9, points=((0.0, 1e-5),), via="threads"),),
    ),
    {"cpu launch": 0.3, "cpu float32 peak": 0.01, "cpu0 → cpu1 at 4 MiB": 0.4, "cpu0 → cpu1 latency": 0.6},
)


def wide() -> Device:
    """All cores of this host as one device; the test's own where there is one."""
    made_up = device("cpu0", CORE, OTHER) if CORE != OTHER else device("cpu0")
    return replace(made_up, profile=fingerprint_of(machine_of(made_up)))


WIDE = Host(Cluster("made up", (wide(),)), {"cpu launch": 0.1})


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_CACHE", str(tmp_path))
    monkeypatch.setattr(costmodels.calibrate, "MeasurementEffort", partial(MeasurementEffort, passes=3, least_s=0.0))
    monkeypatch.setattr("planner.planning.calibrate.ERROR", inf)


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The channels for which the host was measured, with the cores of each device if several, and "overhead"."""
    seen: list[str] = []

    def calibrate_host(cores_per_device: int, channel: str, on_step: Any) -> Host:
        on_step("measuring", 0, 1)
        seen.append(channel if cores_per_device == 1 else f"{channel}, {cores_per_device} cores")
        return HOST if cores_per_device == 1 else WIDE

    def measure_overhead(_: object) -> float:
        seen.append("overhead")
        return 2e-5

    monkeypatch.setattr(costmodels.calibrate, "host_divisions", lambda: {1: 2, 2: 1})
    monkeypatch.setattr(costmodels.calibrate, "host_fingerprint", lambda cores, channel: f"{channel}{cores}")
    monkeypatch.setattr(costmodels.calibrate, "calibrate_host", calibrate_host)
    monkeypatch.setattr(overheads, "measure_overhead", measure_overhead)
    monkeypatch.setattr(overheads, "measure_request", lambda _: 1e-4)
    return seen


class Small(nn.Module):
    """Two equal layers and one that differs."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # type: ignore[no-any-return]  # a tensor


def program(width: int = 8) -> Program:
    return program_from_module(Small(width), (torch.ones(2, 8),))


def test_the_host_is_measured_once(measured: list[str], tmp_path: Path) -> None:
    first = survey()
    assert measured == ["threads", "overhead"]
    assert (first.found, first.operators, first.guessed) == (False, (), ())
    assert {found.overhead_s for found in first.cluster.devices} == {2e-5}
    again = survey()
    assert (again.found, again.cluster, again.spread) == (True, first.cluster, first.spread)
    assert len(measured) == 2
    assert (tmp_path / "hosts" / "threads1.json").exists()


def test_another_channel_is_another_measurement_and_again_measures_anew(measured: list[str]) -> None:
    survey()
    survey(calibration_options=CalibrationOptions(channel="gloo"))
    survey(calibration_options=CalibrationOptions(again=True))
    assert measured[::2] == ["threads", "gloo", "threads"]


def test_every_division_of_the_cpu_is_measured_once(measured: list[str]) -> None:
    found = surveys(program(), calibration_options=CalibrationOptions(split_cpu="auto"))
    assert measured == ["threads, 2 cores", "overhead", "threads", "overhead"]
    assert [len(one.cluster.devices) for one in found] == [1, 2]
    kinds = [one.operators[0].kind for one in found]
    assert kinds == ["cpu of 2 cores" if CORE != OTHER else "cpu", "cpu"]
    assert survey(calibration_options=CalibrationOptions(split_cpu="auto")).cluster == found[-1].cluster
    assert survey(calibration_options=CalibrationOptions(split_cpu=1)).cluster == found[0].cluster
    assert survey(calibration_options=CalibrationOptions(split_cpu=2)).cluster == survey().cluster == found[-1].cluster
    assert divisions() == tuple(one.cluster for one in found)
    assert divisions(2) == (found[-1].cluster,)
    assert len(measured) == 4


def test_a_division_that_was_not_measured_is_told() -> None:
    survey()
    assert len(divisions(2)) == 1
    for split, asked in (("auto", "auto"), (1, "1")):
        with pytest.raises(InputError) as error:
            divisions(split)  # type: ignore[arg-type]  # one or the other
        assert str(error.value) == (
            f"this host was not measured with 2 cores in each device; run `planner calibrate MODEL --split-cpu {asked}`"
        )
    with pytest.raises(InputError, match="the CPU cannot be divided into 3 equal devices; it can be into 1, 2, or "):
        surveys(calibration_options=CalibrationOptions(split_cpu=3))
    with pytest.raises(InputError, match="with 1 core in each device; "):
        divisions(2, channel="gloo")


def test_quick_kernels_are_measured_beside_exact_ones(measured: list[str]) -> None:
    exact, quick = survey(program(), calibration_options=CalibrationOptions(kernels="exact")), survey(program())
    assert measured == ["threads", "overhead"]  # peaks and links are the same
    assert [one.operators[0].measured for one in (exact, quick)] == [1, 1]
    assert [device.kernels for device in quick.cluster.devices] == ["quick", "quick"]
    profiles = {device.profile for one in (exact, quick) for device in one.cluster.devices}
    assert len(profiles) == 2
    known = read_profile(cache_folder(), quick.cluster.devices[0].profile)
    assert known is not None
    assert known.ops.keys() == set(op_keys(program().graph))
    assert divisions(2) == divisions(2, kernels="quick") == (quick.cluster,)
    assert divisions(2, kernels="exact") == (exact.cluster,)


def test_exact_kernels_are_the_default_where_there_are_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("costmodels.calibrate.cluster.onednn", lambda: False)
    assert {device.kernels for device in survey().cluster.devices} == {"exact"}


def test_operators_are_measured_once_for_all_networks_that_have_them() -> None:
    first = survey(program()).operators
    assert [(found.kind, found.measured, found.found) for found in first] == [("cpu", 1, 0)]
    again = survey(program())
    profile = again.cluster.devices[0].profile
    assert [(found.measured, found.found) for found in again.operators] == [(0, 1)]
    wider = survey(program(width=9)).operators[0]
    assert (wider.measured, wider.found) == (1, 1)
    known = read_profile(cache_folder(), profile)
    assert known is not None
    keys = op_keys(program(width=9).graph)
    assert wider.seconds == pytest.approx(sum(known.ops[key].seconds for key in keys))
    assert known.ops.keys() == set(keys)


def test_training_is_measured_beside_inference() -> None:
    survey(program())
    (operators,) = survey(program(), calibration_options=CalibrationOptions(training=True)).operators
    assert (operators.measured, operators.found) == (2, 0)  # the first layer needs no gradient of its input
    assert len(set(training_keys(program().graph))) == 2
    assert survey(program(), calibration_options=CalibrationOptions(training=True)).operators[0].found == 2


def test_a_module_is_imported_and_the_cluster_returned() -> None:
    cluster = calibrate(Small(), (torch.ones(2, 8),))
    assert cluster.name == "made up"
    assert planner.calibrate is calibrate


def test_progress_reaches_the_reporter() -> None:
    heard: list[str] = []

    class Listener(Reporter):
        def on_step(self, name: str, *_: int) -> None:
            heard.append(name)

    survey(program(), reporter=Listener())
    assert list(dict.fromkeys(heard)) == [
        *("measuring", "measuring the overhead between devices", "measuring the overhead of a request"),
        *("measuring Small on cpu0", "measuring Small on 2 devices at once"),
    ]


def test_a_device_of_another_machine_is_refused() -> None:
    with pytest.raises(InputError, match=r"device 'cpu0' has the profile 'abc', this host and its software are '.*'; "):
        profile(program(), [device(profile="abc")])


def test_what_is_unsure_has_a_large_spread() -> None:
    assert Calibration(HOST.cluster, HOST.spread, False).unsure == {"cpu launch": 0.3, "cpu0 → cpu1 latency": 0.6}


def test_noise_is_told_with_the_names_of_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = Noise(op_keys(program().graph)[0], 0.5, 1.0)
    monkeypatch.setattr(MODULE, "noisy", lambda *_: (noise,))
    operators = profile(program(), [core()])
    assert operators.noise == (noise,)
    assert operators.named == {noise.key: ("linear", "linear_1", "linear_2")}


def test_devices_of_one_kind_are_measured_together_too() -> None:
    pair = [core(), core("cpu1")]
    together = profile(program(), pair)
    assert together.slowdown is not None
    assert together.slowdown > -1
    assert profile(program(), pair[:1]).slowdown is None
    trained = profile(program(), pair, calibration_options=CalibrationOptions(training=True))
    assert trained.slowdown is not None
    assert trained.slowdown > -1
    assert (
        profile(program(), pair[:1], calibration_options=CalibrationOptions(training=True)).measured == 0
    )  # it is known already


def test_kinds_without_a_formula_are_told() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.zeta(x, x)  # type: ignore[no-any-return]  # a tensor

    assert survey(program_from_module(Odd(), (torch.ones(3),))).guessed == ("aten.special_zeta.default",)


def test_a_host_comes_back_from_its_file(tmp_path: Path) -> None:
    write_host(HOST, tmp_path / "deep" / "h.json")
    assert read_host(tmp_path / "deep" / "h.json") == HOST
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["h.json"]


@pytest.mark.parametrize("change", [{"version": 2}, {"cluster": {"version": 2}}])
def test_a_host_of_another_version_counts_as_none(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "h.json"
    write_host(HOST, path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert read_host(path) is None
    write_host(HOST, path)
    assert read_host(path) == HOST


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"version": 1', "the calibrated host '"),
        ('{"version": 1, "spread": {"a": "x"}, "cluster": {"version": 1}}', "could not convert string to float: 'x'"),
        ('{"version": 1, "spread": {}, "cluster": {"version": 1}}', "the cluster is damaged: KeyError('name')"),
    ],
)
def test_a_damaged_host_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "h.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_host(path)
    assert str(error.value).startswith(f"the calibrated host '{path}' is damaged or foreign ({reason}")
    assert str(error.value).endswith("; delete it and calibrate again")


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "h.json"
    with pytest.raises(InputError) as error:
        write_host(HOST, path)
    assert str(error.value) == f"cannot write '{path}' into the cache: File exists; set PLANNER_CACHE to another folder"


def test_records_are_what_json_can_hold() -> None:
    operators = Operators("cpu", 1, 0, (Noise("k", 0.5, 1.0),), {"k": ("a",)}, 1.0)
    from planner.cli.calibrate_ import calibration_document

    told = calibration_document(Calibration(HOST.cluster, HOST.spread, False, (operators,), ("odd",)))
    assert json.loads(json.dumps(told))["calibration"]["operators"][0]["noise"] == [
        {"key": "k", "spread": 0.5, "share": 1.0}
    ]
    assert Measurement(1.0, 0.0, 1).seconds == 1
