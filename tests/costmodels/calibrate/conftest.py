"""What the tests of measuring share: a program with a bit of everything."""

import pytest
import torch
from torch import nn

from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program


class Twice(nn.Module):
    """Two equal layers, an operator with several outputs of which one is not read, and one that makes a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        head, _, tail = self.second(self.first(x)).split(2, dim=1)
        return torch.cat([head + tail, torch.ones(4, 2)], dim=1)


@pytest.fixture(scope="module")
def program() -> Program:
    return program_from_module(Twice(), (torch.ones(4, 6),))
