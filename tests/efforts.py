"""Measurements whose numbers nobody looks at."""

from functools import partial
from math import inf

import pytest

from costmodels.calibrate.ops import MeasurementEffort


def measure_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let operators be measured in a few passes, contenders take short turns, and overhead and pace seldom."""
    monkeypatch.setattr(
        "costmodels.calibrate.MeasurementEffort", partial(MeasurementEffort, passes=2, least_s=0.1, patience=1)
    )
    monkeypatch.setattr("planner.planning.calibrate.ERROR", inf)
    monkeypatch.setattr("planner.runtime.benchmark.load.TURN_S", 0.1)
    monkeypatch.setattr("planner.runtime.benchmark.measure.SINGLES", 1)
    monkeypatch.setattr("planner.planning.autotune.TURN_S", 0.05)
    monkeypatch.setattr("costmodels.calibrate.pace.REPEATS", 1)
    monkeypatch.setattr("planner.runtime.benchmark.overheads.ROUNDS", 3)
