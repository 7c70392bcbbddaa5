"""Recomputation changes no bit: losses, weights and statistics are those of a training that keeps everything."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # its usual name

from costmodels.workload import RecomputeMode
from graphs.importers.from_torch import program_from_module
from planner.runtime.start import train
from planner.runtime.training.options import TrainerOptions
from tests.planner.runtime.training.loops import SGD
from tests.planner.runtime.training.nets import BATCH, Case, plan_for

Inputs = tuple[int, ...]

WORDS, IMAGE, ROW = (3, 8), (4, 6, 6), (8,)


class Read(nn.Module):
    """What a layer returns first."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x)[0]
        return result


class Apply(nn.Module):
    """A function of the tensor alone."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def between(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), *layers, nn.Linear(8, 8))


def convolved(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(4, 4, 3), *layers, nn.Conv2d(4, 4, 3))


def attend(x: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(x, x, x, dropout_p=0.3)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Inputs]] = {
    "dropout": (lambda: between(nn.Dropout(0.5)), ROW),
    "dropout in place": (lambda: between(nn.Dropout(0.5, inplace=True)), ROW),
    "alpha dropout": (lambda: between(nn.AlphaDropout(0.5)), ROW),
    "channels dropped": (lambda: convolved(nn.Dropout2d(0.5), nn.FeatureAlphaDropout(0.3)), IMAGE),
    "rrelu": (lambda: between(nn.RReLU()), ROW),
    "bernoulli": (lambda: between(Apply(lambda x: x * torch.bernoulli(x.sigmoid()))), ROW),
    "noise": (lambda: between(Apply(lambda x: x + torch.randn_like(x))), ROW),
    "attention": (lambda: between(Apply(attend)), WORDS),
    "activations in place": (lambda: between(nn.ReLU(True), nn.Linear(8, 8), nn.SiLU(True), nn.Hardswish(True)), ROW),
    "batch norms": (lambda: convolved(nn.BatchNorm2d(4), nn.ReLU(True), nn.Dropout(0.2)), IMAGE),
    "lstm": (lambda: between(Read(nn.LSTM(8, 8, batch_first=True))), WORDS),
    "lstm, both ways": (
        lambda: between(Read(nn.LSTM(8, 4, 2, batch_first=True, dropout=0.4, bidirectional=True))),
        WORDS,
    ),
    "gru": (lambda: between(Read(nn.GRU(8, 8, batch_first=True))), WORDS),
    "gru, both ways": (
        lambda: between(Read(nn.GRU(8, 4, 2, batch_first=True, dropout=0.4, bidirectional=True))),
        WORDS,
    ),
    "rnn": (lambda: between(Read(nn.RNN(8, 8, batch_first=True))), WORDS),
    "max pool, whose strides depend on gradients": (
        lambda: between(
            Apply(lambda x: nn.functional.max_pool1d(x.mT, 3, 1, 1)), nn.BatchNorm1d(8), Apply(lambda x: x.mT)
        ),
        (5, 8),
    ),
    "max pool without gradients, whose strides a dispatch mode changes": (
        lambda: nn.Sequential(
            *(Apply(lambda x: F.max_pool1d(x.mT, 3, 1, 1)), nn.BatchNorm1d(8), Apply(lambda x: x.mT), nn.Linear(8, 8)),
        ),
        (5, 8),
    ),
    "rnn of relus": (lambda: between(Read(nn.RNN(8, 8, 2, "relu", batch_first=True, dropout=0.4))), WORDS),
}


def mean_square(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (y - target).square().mean()


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_bits(name: str, schedule: str) -> None:
    assert_same_bits(name, schedule, torch.float64)


def test_the_same_bits_of_an_lstm_in_float32() -> None:  # which PyTorch computes by another kernel without gradients
    assert_same_bits("lstm", "gpipe", torch.float32)


def assert_same_bits(name: str, schedule: str, dtype: torch.dtype) -> None:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    program = program_from_module(make().to(dtype), (torch.randn(BATCH, *shape).to(dtype),), training=True)
    batch = torch.randn(4 * BATCH, *shape, dtype=dtype)
    target = torch.randn(4 * BATCH, *program.graph.tensor[program.graph.outputs[0]].shape[1:], dtype=dtype)

    def run(recompute: RecomputeMode) -> tuple[list[float], dict[str, torch.Tensor]]:
        plan = plan_for(program, Case(name, schedule, 4, recompute=recompute))
        with train(plan, program, loss=mean_square, optimizer=SGD, trainer_options=TrainerOptions(seed=5)) as trainer:
            return [trainer.step(batch, target).item() for _ in range(2)], trainer.model_state_dict()

    losses, state = run("none")
    for recompute in ("full", "selective"):
        found, again = run(recompute)
        assert found == losses
        assert all(torch.equal(again[key], tensor) for key, tensor in state.items())
