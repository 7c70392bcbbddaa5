"""Products of bfloat16 numbers with packed weights, compared with PyTorch's and with sums in float64."""

import pytest
import torch
from torch import nn

from graphs.importers.from_torch import program_from_module
from graphs.kernels.kernels import kernel_of
from graphs.kernels.products import half_product

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this processor's oneDNN computes no bfloat16"
)


@pytest.mark.parametrize("rows", [1, 4, 50])
@pytest.mark.parametrize("bias", [True, False])
def test_a_product_is_as_right_as_the_module(rows: int, bias: bool) -> None:
    module = nn.Linear(96, 40, bias).to(torch.bfloat16).eval()
    x = torch.randn(rows, 96, dtype=torch.bfloat16)
    program = program_from_module(module, x)
    (op,) = program.graph.ops
    kernel = kernel_of(program, op, CPU, "quick")
    assert kernel.target is half_product
    weights = {name: pack(program.state.__getitem__) for name, pack in kernel.packs.items()}
    args, kwargs = kernel.bound(program, lambda name: weights.get(name, program.state.get(name, x)))
    found = kernel.target(*args, **kwargs)
    exact = nn.functional.linear(x.double(), module.weight.double(), module.bias.double() if bias else None)
    off, own = ((y.double() - exact).abs().max().item() for y in (found, module(x)))
    assert found.dtype == torch.bfloat16
    assert off <= max(2 * own, 2**-8 * exact.abs().max().item())


def test_nan_and_infinities_come_out_where_pytorch_has_them() -> None:
    module = nn.Linear(32, 8).to(torch.bfloat16).eval()
    x = torch.randn(40, 32, dtype=torch.bfloat16)
    x[1, 3], x[2, 0], x[3, 2] = float("nan"), float("inf"), 1e38
    program = program_from_module(module, x)
    kernel = kernel_of(program, program.graph.ops[0], CPU, "quick")
    assert kernel.target is half_product
    weights = {name: pack(program.state.__getitem__) for name, pack in kernel.packs.items()}
    args, kwargs = kernel.bound(program, lambda name: weights.get(name, program.state.get(name, x)))
    found, expected = kernel.target(*args, **kwargs), module(x)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.isinf(), expected.isinf())
    assert torch.equal(found[2].sign(), expected[2].sign())


@pytest.mark.parametrize("inputs", [5, 34, 80])
def test_rows_beyond_a_register_of_which_onednn_reads_the_next_one_are_left_to_pytorch(inputs: int) -> None:
    program = program_from_module(
        nn.Linear(inputs, 8).to(torch.bfloat16), torch.zeros(40, inputs, dtype=torch.bfloat16)
    )
    assert kernel_of(program, program.graph.ops[0], CPU, "quick").target is torch.ops.aten.linear.default
