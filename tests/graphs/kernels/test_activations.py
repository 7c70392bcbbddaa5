"""Activations of compiled kernels against PyTorch's in double precision, wherever numbers are."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from graphs.common.compiled import compiled_kernel
from graphs.kernels.activations import sigmoid, swish, tanh_gelu

KNOWN: dict[Callable[..., None], Callable[..., torch.Tensor]] = {
    swish: functional.silu,
    sigmoid: torch.sigmoid,
    tanh_gelu: lambda x: functional.gelu(x, approximate="tanh"),
}


@pytest.mark.parametrize("activation", list(KNOWN))
@pytest.mark.parametrize("reach", [1e-3, 3.0, 100.0, 1e30])
def test_numbers_of_every_size(activation: Callable[..., None], reach: float) -> None:
    x = torch.cat([torch.linspace(-reach, reach, 1001), torch.tensor([0.0])])
    expected = KNOWN[activation](x.double())
    for n in (1, 7, 1002):
        got: Any = x[-n:].clone()
        compiled_kernel(activation, "pn")(got.data_ptr(), n)
        torch.testing.assert_close(got.double(), expected[-n:], rtol=3e-6, atol=3e-7)
