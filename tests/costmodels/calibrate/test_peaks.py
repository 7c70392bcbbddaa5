"""Peaks of the host that the tests run on: that they are there, not how high."""

from math import isfinite

import pytest

from costmodels.calibrate import peaks
from costmodels.calibrate.peaks import DTYPES, _best, measure_peaks
from tests.costmodels.calibrate.hosts import device


def test_every_peak_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "COPY_BYTES", 2**16)
    found = measure_peaks(device(), limit_s=0.01)
    assert tuple(found.flops_per_s) == DTYPES
    numbers = [*found.flops_per_s.values(), found.memory_bytes_per_s, found.launch_s]
    assert all(number > 0 and isfinite(number) for number in numbers)
    assert found.spread.keys() == {*(f"{dtype} peak" for dtype in DTYPES), "memory bandwidth", "launch"}
    assert all(share >= 0 and isfinite(share) for share in found.spread.values())


def test_the_spread_is_the_way_from_the_best_to_the_median() -> None:
    found = _best([2.0, 3.0, 9.0])
    assert (found.best, found.spread) == (2.0, 0.5)  # 3 / 2 - 1
