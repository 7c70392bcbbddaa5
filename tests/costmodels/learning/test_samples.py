"""The file of a sweep."""

import json
from pathlib import Path

import pytest

from costmodels.measured import Measurement, TrainingMeasurement
from costmodels.profilefile import ProbeMeasurement, Sweep, read_sweep, sweep_path, write_sweep
from graphs.common.errors import InputError

RELU = "aten.relu.default(float32[2])->float32[2]"
STEP = TrainingMeasurement(Measurement(2e-6, 0.1, 3), Measurement(3e-6, 0.2, 3))
SWEEP = Sweep(
    "abc123",
    {
        "stack": ProbeMeasurement(2.0**20, {RELU: Measurement(1e-6, 0.1, 7)}),
        "trained": ProbeMeasurement(1.0, {RELU: Measurement(1e-6, 0.1, 7)}, {RELU.replace("])", "]+grad)"): STEP}),
    },
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "cache"  # made when it is needed
    assert read_sweep(folder, "abc123") is None
    assert write_sweep(folder, SWEEP) == sweep_path(folder, "abc123") == folder / "abc123.sweep.json"
    assert read_sweep(folder, "abc123") == SWEEP


def test_one_more_network() -> None:
    more = SWEEP.extended("other", ProbeMeasurement(1.0, {}))
    assert list(more.probes) == ["stack", "trained", "other"]
    assert list(SWEEP.probes) == ["stack", "trained"]


def test_a_sweep_of_another_version_is_measured_again(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, SWEEP)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 2}))
    assert read_sweep(tmp_path, "abc123") is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"fingerprint": "fff"}, "fingerprint 'fff'"),
        ({"probes": {"stack": {}}}, "'pass_bytes'"),
        ({"probes": {"stack": {"pass_bytes": 1, "ops": {"k": [-1, 0, 1]}}}}, "Measurement(seconds=-1"),
        ({"probes": {"stack": {"pass_bytes": 1, "ops": {}, "training": {"k": [[1, 0, 1]]}}}}, "not enough values"),
        ({"probes": 1}, "'int' object has no attribute 'items'"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, change: dict[str, object], why: str) -> None:
    path = write_sweep(tmp_path, SWEEP)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError) as error:
        read_sweep(tmp_path, "abc123")
    assert str(error.value).startswith(f"the sweep '{path}' is damaged or foreign ({why}")
    assert str(error.value).endswith("; delete it and sweep again")
