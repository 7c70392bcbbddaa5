"""Which results have to lie as in the trace, and how they lay there."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # its usual name

from graphs.importers.from_torch import program_from_module
from graphs.ir import unfused
from graphs.program.files import program_from_dict, program_to_dict
from graphs.program.traced_strides import laying, lying_as_traced
from tests.planner.runtime.small import NETWORKS, program_of


class Net(nn.Module):
    """A convolution, and what a function makes of its result."""

    def __init__(self, after: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.after = nn.Conv2d(3, 4, 3), after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.conv(x))


def found(after: Callable[[Tensor], Tensor]) -> dict[str, tuple[int, ...]]:
    return lying_as_traced(program_from_module(Net(after).eval(), (torch.randn(2, 3, 6, 6),)))


def test_the_result_alone() -> None:
    assert found(lambda x: F.relu(x)) == {"relu": (64, 16, 4, 1)}


def test_what_the_result_is_a_view_of() -> None:
    strides = {"conv2d": (64, 16, 4, 1), "slice_1": (64, 16, 4, 1), "m_t": (64, 16, 1, 4)}
    assert found(lambda x: x[:, 1:].mT) == strides


def test_what_is_looked_at() -> None:
    looked = found(lambda x: F.relu(torch.as_strided(F.silu(x)[0], (2, 2), (3, 1), 5).clone()))
    assert looked["silu"] == (64, 16, 4, 1)
    assert "conv2d" not in looked


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "options"])  # whose result no file has
def test_fake_tensors_say_what_the_trace_says(name: str) -> None:
    program = program_of(name)
    of_file = program_from_dict(program_to_dict(program), program.graph, program.example_inputs)
    assert lying_as_traced(of_file) == lying_as_traced(program)
    assert set(lying_as_traced(program)) >= set(program.graph.outputs) & {
        name for op in unfused(program.graph.ops) for name in op.outputs
    }


def test_a_tensor_is_laid_once() -> None:
    x = torch.randn(2, 3, 4)
    assert laying(x.stride())(x) is x
    y = laying((12, 1, 3))(x)
    assert y.stride() == (12, 1, 3)
    assert torch.equal(y, x)
    assert laying((0, 4, 1))(x) is x, "elements that share memory cannot be written apart"
