"""Softmax in one pass against PyTorch's in double precision, as an operator and with a scale and a mask."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from graphs.common.compiled import compiled_kernel
from graphs.importers.from_torch import program_from_module
from graphs.kernels import norms
from graphs.kernels.quick import quick_kernel

OFF = 5e-7  # of 1

pytestmark = pytest.mark.usefixtures("one_thread")


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 70), rows=st.integers(1, 5), large=st.sampled_from([0.0, 1.0, 1e2, 1e30]), seed=st.integers(0, 9)
)
def test_softmax_of_rows(n: int, rows: int, large: float, seed: int) -> None:
    """Of equal elements too, of one that is larger than all, and of some that count nothing."""
    torch.manual_seed(seed)
    x = large * torch.randn(2, rows, n)
    x[:, :, 1::3] = -torch.inf
    given_x = x.clone()
    got = norms.softmax((2, rows, n))(x)
    assert (got - x.double().softmax(-1)).abs().max() <= OFF
    assert torch.equal(x, given_x)


def test_what_pytorch_has_no_number_for_has_none() -> None:
    x = torch.full((3, 20), -torch.inf)
    x[1] = 1.0
    got = norms.softmax((3, 20))(x)
    assert got.isnan().all(-1).tolist() == [True, False, True]


@settings(max_examples=40, deadline=None)
@given(
    heads=st.integers(1, 3),
    rows=st.integers(1, 4),
    n=st.integers(1, 40),
    scale=st.sampled_from([0.1, 1.0, 7.0]),
    wide=st.tuples(st.booleans(), st.booleans()),
)
def test_scaled_and_masked(heads: int, rows: int, n: int, scale: float, wide: tuple[bool, bool]) -> None:
    torch.manual_seed(0)
    x = torch.randn(heads, rows, n)
    plain = x.clone()
    form = np.array([heads, rows, n, 0, 0], np.int64)
    compiled_kernel(norms.soften, "pcx")(plain.data_ptr(), form.ctypes.data, scale)
    assert (plain - (scale * x.double()).softmax(-1)).abs().max() <= OFF
    mask = torch.randn(heads if wide[0] else 1, rows if wide[1] else 1, n)
    mask[..., 1::4] = -torch.inf
    form[3:] = [step if size > 1 else 0 for size, step in zip(mask.shape[:2], mask.stride()[:2], strict=True)]
    masked = x.clone()
    compiled_kernel(norms.soften_masked, "pcxp")(masked.data_ptr(), form.ctypes.data, scale, mask.data_ptr())
    assert (masked - (scale * x.double() + mask).softmax(-1)).abs().max() <= OFF


@pytest.mark.parametrize(("axis", "known"), [(-1, True), (2, True), (1, False), (0, False)])
def test_the_operator_has_a_kernel_over_the_last_axis(axis: int, known: bool) -> None:
    program = program_from_module(nn.Softmax(axis), (torch.randn(2, 3, 4),))
    (op,) = program.graph.ops
    assert (quick_kernel(program, op) is not None) is known
