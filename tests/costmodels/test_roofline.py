"""Times from two peaks."""

import numpy as np
import pytest

from costmodels.cluster.cluster import Device
from costmodels.operators.flops import Work, peak_flops_per_s, roofline_s

DEVICE = Device("d", "d", 1e9, {"float32": 100.0, "bfloat16": 400.0}, memory_bytes_per_s=10.0, launch_s=0.5)


def test_the_slower_of_computing_and_moving_and_the_launch() -> None:
    work = Work(
        flop=np.array([1000.0, 1000.0, 1000.0, 0.0]),
        n_bytes=np.array([50.0, 200.0, 50.0, 0.0]),
        dtype=("float32", "float32", "bfloat16", "int64"),
        guessed=(),
    )
    # 1000/100 = 10 against 50/10 = 5;  10 against 20;  1000/400 = 2.5 against 5;  a view
    assert roofline_s(work, DEVICE).tolist() == [10.5, 20.5, 5.5, 0.5]


@pytest.mark.parametrize(
    ("known", "dtype", "peak"),
    [
        ({"float32": 8.0, "bfloat16": 32.0}, "float32", 8),
        ({"float32": 8.0, "bfloat16": 32.0}, "float16", 8),  # not as bfloat16, which is no wider
        ({"float32": 8.0, "float16": 16.0, "bfloat16": 32.0}, "float8_e4m3fn", 32),  # the first of two equally wide
        ({"float32": 8.0}, "bfloat16", 8),
        ({"float32": 8.0}, "float64", 4),  # twice as wide, half as fast
        ({"float32": 8.0}, "complex64", 2),  # four real multiply-adds
        ({"float32": 8.0}, "complex128", 1),
        ({"float32": 8.0, "float16": 32.0, "float64": 0.25}, "complex32", 8),
        ({"float32": 8.0, "float16": 32.0, "float64": 0.25}, "complex64", 2),
        ({"float32": 8.0, "float64": 0.25}, "complex128", 0.0625),
        ({"float32": 8.0, "bfloat16": 32.0, "float8_e4m3fn": 64.0}, "float8_e5m2", 64),
        ({"float32": 8.0, "bfloat16": 32.0, "float8_e4m3fnuz": 64.0}, "float8_e4m3fn", 64),
        ({"float32": 8.0, "int32": 2.0}, "float16", 8),  # integers stand in for no fractions
        ({"float32": 8.0, "int8": 64.0}, "int8", 64),
        ({"float32": 8.0, "int8": 64.0}, "uint16", 8),
        ({"bfloat16": 32.0}, "float16", 32),
        ({"bfloat16": 32.0}, "float32", 16),
        ({"float64": 4.0}, "float32", 4),
        ({"float32": 8.0}, "int64", 8),
        ({"float32": 8.0}, "bool", 8),
        ({"strange": 3.0}, "float32", 3),
    ],
)
def test_the_peak_of_a_dtype_that_may_not_be_named(known: dict[str, float], dtype: str, peak: float) -> None:
    assert peak_flops_per_s(known, dtype) == peak
