"""Blocks of layers, without ranks."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # its usual name

from costmodels.memory.recomputation import runs_once
from graphs.importers.from_torch import program_from_module
from planner.parallelism.network.tensor_styles import TensorStyles
from planner.runtime.hybrid.modules import LayerBlock, Runs


class Noisy(nn.Module):
    """Chance in operators that run again, and in one that does not: the recurrent network."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.wide, self.leave = nn.Linear(8, 8), nn.Linear(8, 64), nn.Linear(64, 8)
        self.words = nn.GRU(8, 8, 2, batch_first=True, dropout=0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.words(F.dropout(self.enter(x), 0.5, self.training))
        y = F.dropout(F.scaled_dot_product_attention(y, y, y, dropout_p=0.3), 0.5, self.training)
        y = F.alpha_dropout(F.gelu(self.wide(y)), 0.2, self.training)
        return F.rrelu(self.leave(y), training=self.training)


@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_a_block_that_runs_again_draws_the_same_numbers(recompute: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, 8)
    program = program_from_module(Noisy(), (x,), training=True)
    once = {op.name for op, kept in zip(program.graph.ops, runs_once(program.graph), strict=True) if kept}
    assert {"gru", "linear"} <= once
    assert not {"dropout", "rrelu"} & once

    def run(mode: str) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
        held = {name: nn.Parameter(tensor.detach().clone()) for name, tensor in program.state.items()}
        runs = Runs(program, torch.device("cpu"), TensorStyles(), None)
        block = LayerBlock(runs, range(len(program.graph.ops)), held, mode)
        torch.manual_seed(3)
        with torch.enable_grad():
            (result,) = block(x)
            result.square().mean().backward()
        return result.detach(), {name: parameter.grad for name, parameter in block.named_parameters()}

    (expected, wanted), (result, gradients) = run("none"), run(recompute)
    assert torch.equal(result, expected)
    torch.testing.assert_close(gradients, wanted, rtol=0, atol=0)
