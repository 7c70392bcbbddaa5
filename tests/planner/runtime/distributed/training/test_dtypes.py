"""In which dtype tensors are under mixed precision, beside what eager PyTorch makes of them."""

import pytest
import torch
from torch import nn

from graphs.importers.from_torch import program_from_module
from planner.runtime.distributed.training.part import types_of

CPU = torch.device("cpu")


class Mixed(nn.Module):
    """Operators that become narrow, that stay wide, that follow what they get, and a block that is not cast."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        narrow = self.a(x)
        follows = torch.relu(self.norm(narrow))
        with torch.autocast("cpu", enabled=False):
            plain = self.b(x)
            _, indices = plain.topk(2)
        wide = follows + plain
        return narrow, follows, plain, indices, wide, wide.softmax(-1), wide > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, None], ids=str)
def test_as_eager(dtype: torch.dtype | None) -> None:
    x = torch.randn(3, 4)
    program = program_from_module(Mixed(), (x,), training=True)
    before = {name: tensor.clone() for name, tensor in program.state.items()}
    found = types_of(program, CPU, dtype)
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        expected = program.module(x)
    assert [found[name] for name in program.graph.outputs] == [tensor.dtype for tensor in expected]
    assert found["a.weight"] is torch.float32
    assert (torch.float32 in found.values(), dtype in found.values()) == (True, dtype is not None)
    for name in program.state.keys() - program.statistics:
        assert torch.equal(program.state[name], before[name])


def test_without_weights() -> None:
    with torch.device("meta"):
        program = program_from_module(nn.Linear(4, 4), (torch.ones(1, 4),), training=True)
    assert types_of(program, CPU, torch.bfloat16)[program.graph.outputs[0]] is torch.bfloat16
