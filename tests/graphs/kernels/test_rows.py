"""Products of one row, and of two with one weight, against PyTorch's in double precision."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs.kernels.rows import row_product, row_products

ROUNDING = 3e-7  # of a sum, as a share of the sum of its absolute values

pytestmark = pytest.mark.usefixtures("one_thread")


def check(got: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    exact = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    sizes = torch.nn.functional.linear(x.double().abs(), weight.double().abs()) + (0 if bias is None else bias.abs())
    assert got.shape == exact.shape
    assert ((got - exact).abs() <= ROUNDING * sizes).all()


@settings(max_examples=40, deadline=None)
@given(
    outputs=st.integers(1, 70),
    inputs=st.integers(1, 70),
    biased=st.booleans(),
    before=st.sampled_from([(), (1,), (1, 1)]),
    seed=st.integers(0, 9),
)
def test_one_row_and_two(outputs: int, inputs: int, biased: bool, before: tuple[int, ...], seed: int) -> None:
    torch.manual_seed(seed)
    x, other, weight = torch.randn(*before, inputs), torch.randn(*before, inputs), torch.randn(outputs, inputs)
    bias = torch.randn(outputs) if biased else None
    check(row_product(x, weight, bias), x, weight, bias)
    one, two = row_products([(x, weight, bias), (other, weight, bias)])
    check(one, x, weight, bias)
    check(two, other, weight, bias)


def test_rows_that_are_not_dense() -> None:
    wide, weight = torch.randn(2, 1, 14), torch.randn(5, 7)
    x, other = wide[0, :, ::2], wide[1, :, 1::2]
    for got, row in zip(row_products([(x, weight), (other, weight)]), (x, other), strict=True):
        check(got, row, weight, None)
    check(row_product(x, weight), x, weight, None)
