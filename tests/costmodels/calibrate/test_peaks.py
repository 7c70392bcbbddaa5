"""Peaks of the host that the tests run on: that they are there, not how high."""

from math import isfinite

import pytest

from costmodels.calibrate import peaks
from costmodels.calibrate.peaks import DTYPES, measure_peaks
from tests.costmodels.calibrate.hosts import device


def test_every_peak_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "COPY_BYTES", 2**16)
    found = measure_peaks(device(), limit_s=0.01)
    assert tuple(found.flops_per_s) == DTYPES
    numbers = [*found.flops_per_s.values(), found.memory_bytes_per_s, found.launch_s]
    assert all(number > 0 and isfinite(number) for number in numbers)
