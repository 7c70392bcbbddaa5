"""The runtime's overheads: small, measured on the devices that are asked for, and none without a partner."""

from dataclasses import replace

import pytest

from planner.runtime.benchmark import overheads
from planner.runtime.benchmark.overheads import measure_overhead, measure_request
from tests.costmodels.calibrate.hosts import CORE, OTHER, device


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overheads, "ROUNDS", 3)


def test_a_tensor_costs_less_than_a_millisecond_and_nothing_without_another_device() -> None:
    assert measure_overhead((device(),)) == 0
    assert 0 <= measure_overhead((device(), device("cpu1"))) < 1e-3


@pytest.mark.usefixtures("gpu")
def test_beside_a_gpu_cores_are_measured() -> None:
    """Calibration comes first to the GPU, whose waiting threads would count as work."""
    gpu = replace(device("gpu0"), cores=(), cuda=0)
    assert measure_overhead((gpu, device())) == 0  # one core has no partner
    assert 0 < measure_overhead((gpu, device("cpu0", CORE, OTHER))) < 1e-3
    assert 0 <= measure_request((gpu, device())) < 5e-3
    assert measure_request((gpu,)) == 0


def test_a_request_costs_what_its_stage_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 <= measure_request((device(),)) < 5e-3
    monkeypatch.setattr(overheads, "_stream_s", lambda *_: 3.0)
    monkeypatch.setattr(overheads, "_alone_s", lambda call: 1.0 if len(call()) == 1 else 0.0)
    assert measure_request((device(),)) == 2.0
    monkeypatch.setattr(overheads, "_stream_s", lambda *_: 0.5)
    assert measure_request((device(),)) == 0.0
