"""By how much tensors differ, by hand; every bit counts, or a share of the largest element."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planner.runtime.verification.deviation import TOLERANCE, Deviation, deviation, round_alike
from tests.planner.runtime.small import cpu

NAN, INF = float("nan"), float("inf")
T = torch.tensor


@pytest.mark.parametrize(
    ("expected", "got", "tolerance", "found"),
    [
        (T([4.0, 2.0]), T([4.0, 2.5]), 0.0, Deviation(1, 2, 0.5, 0.125)),  # 0.5 of 4
        (T([4.0, 2.0]), T([4.0, 2.5]), 0.125, None),
        (T([4.0, 2.0]), T([4.0, 2.5]), 0.12, Deviation(1, 2, 0.5, 0.125)),
        (T([0.0]), T([-0.0]), 0.0, Deviation(1, 1, 0.0, 0.0)),
        (T([0.0]), T([-0.0]), 0.1, None),
        (T([0.0, 0.0]), T([0.0, 1.0]), 0.1, Deviation(1, 2, 1.0, INF)),
        (T([1e-40, 2e-40]), T([0.0, 2e-40]), 1e-5, None),  # not normal
        (T([2e-38]), T([0.0]), 1e-5, Deviation(1, 1, float(T(2e-38)), 1.0)),
        (T([INF, 1.0]), T([INF, 1.0]), 0.0, None),
        (T([NAN, 1.0]), T([NAN, 1.0]), 0.1, None),
        (T([[4.0, 1.0], [2.0, 1.0]])[:, 0], T([4.0, 2.5]), 0.0, Deviation(1, 2, 0.5, 0.125)),  # with gaps in memory
        (T([4.0, 1.0])[:1], T(4.0).expand(1), 0.0, None),
        (T([[4.0, 1.0]])[:, 0], T(4.0).expand(1), 0.0, None),
        (T([3, 4]), T([3, 5]), 0.5, Deviation(1, 2, 1.0, 0.25)),  # whole numbers have to be the same
        (T([True]), T([False]), 0.5, Deviation(1, 1, 1.0, 1.0)),
        (T([3 + 4j]), T([3 + 4.5j]), 0.0, Deviation(1, 1, 0.5, 0.1)),
        (T([3 + 4j]), T([3 + 4.5j]), 0.1, None),
        (torch.ones(0), torch.ones(0), 0.0, None),
        (T(2.0), T(3.0), 0.0, Deviation(1, 1, 1.0, 0.5)),
        (torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(3, 2).t().reshape(2, 3), 0.0,
         Deviation(4, 6, 2.0, 0.4)),  # 0 2 4 1 3 5 for 0 1 2 3 4 5
        (torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(2, 3).t().contiguous().t(), 0.0, None),
        (T([1.0, 1.0]).bfloat16(), T([1.0, 1.0078125]).bfloat16(), 0.0, Deviation(1, 2, 0.0078125, 0.0078125)),
    ],
)  # fmt: skip
def test_by_hand(expected: torch.Tensor, got: torch.Tensor, tolerance: float, found: Deviation | None) -> None:
    assert deviation(expected, got, tolerance) == found


@pytest.mark.parametrize("tolerance", [0.0, 0.5])
@pytest.mark.parametrize(("a", "b"), [(NAN, 1.0), (1.0, NAN), (INF, 1.0), (1.0, INF), (INF, -INF), (NAN, INF)])
def test_what_is_no_number_is_never_near(a: float, b: float, tolerance: float) -> None:
    found = deviation(T([a, 1.0]), T([b, 1.0]), tolerance)
    assert found is not None
    assert found.n_different == 1
    assert not math.isfinite(found.by)


def test_any_nan_equals_any_other() -> None:
    quiet, other = (T([bits], dtype=torch.int32).view(torch.float32) for bits in (0x7FC00000, 0x7FC00001))
    assert quiet.isnan().all()
    assert other.isnan().all()
    assert deviation(quiet, other) is None


@pytest.mark.parametrize(
    ("got", "text"),
    [
        (torch.ones(3, 2), "[3, 2] float32, not [2, 3] float32"),
        (torch.ones(2, 3).int(), "[2, 3] int32, not [2, 3] float32"),
    ],
)
def test_another_form(got: torch.Tensor, text: str) -> None:
    found = deviation(torch.ones(2, 3), got, 0.5)
    assert found is not None
    assert (str(found), found.n_different, found.n_elements) == (text, 6, 6)


def test_in_words() -> None:
    assert str(Deviation(12, 4096, 0.01, 0.0012)) == "12 of 4,096 elements, by 0.01 at most (0.0012 of the largest)"


@given(st.lists(st.floats(width=32) | st.sampled_from([NAN, INF, 0.0, -0.0])), st.sampled_from([0.0, 0.1]))
def test_a_tensor_equals_its_copy(values: list[float], tolerance: float) -> None:
    assert deviation(T(values), T(values), tolerance) is None


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1), st.floats(1e-3, 0.5), st.data())
def test_what_is_within_is_within(values: list[float], tolerance: float, data: st.DataObject) -> None:
    a = T(values, dtype=torch.float64)
    off = T(data.draw(st.lists(st.floats(-1, 1), min_size=len(values), max_size=len(values))), dtype=torch.float64)
    largest = a.abs().max()
    assert deviation(a, a + 0.99 * tolerance * largest * off, tolerance) is None
    if largest > 0:
        assert deviation(a, a + 1.01 * tolerance * largest, tolerance) is not None


def test_what_devices_are_alike() -> None:
    one, two = cpu("cpu0", (0,)), cpu("cpu1", (1,))
    assert round_alike([one, two], training=False)
    assert round_alike([one], training=False)
    assert not round_alike([one, cpu("wide", (0, 1))], training=False)  # sums depend on how many threads share them
    assert not round_alike([one, replace(two, kind="other")], training=False)
    gpu = replace(cpu("gpu0", ()), cuda=0)
    assert not round_alike([gpu], training=False)  # nor as it did before
    assert not round_alike([gpu], training=True)
    assert not round_alike([one, gpu], training=False)
    quick = [replace(each, kernels="quick") for each in (one, two)]
    assert not round_alike(quick, training=False)
    assert round_alike(quick, training=True)  # gradients have exact kernels


def test_every_floating_type_of_a_graph_has_a_tolerance() -> None:
    assert set(TOLERANCE) == {torch.float64, torch.float32, torch.bfloat16, torch.float16}
    for dtype, tolerance in TOLERANCE.items():
        assert torch.finfo(dtype).eps < tolerance < 0.05
