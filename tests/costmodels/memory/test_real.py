"""Predicted memory against what PyTorch really allocates, for small networks of every kind."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from costmodels.memory.device import LOOSE_BYTES
from costmodels.workload import Workload
from graphs.importers.from_torch import program_from_module
from tests.benchmarks.hollow import Hollow
from tests.benchmarks.plain import Plain
from tests.benchmarks.steps import inference_peak_bytes, training_peak_bytes
from tests.costmodels.memory.exact import device_bytes
from tests.costmodels.sketches import unrecorded


class Residual(nn.Module):
    """A branch around two convolutions, and one that ends in a view."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8 * 12 * 12, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Pictures [batch, 3, 12, 12] to [batch, 5]."""
        x = self.first(x)
        x = x + self.second(self.norm(x).relu())
        y: Tensor = self.head(x.flatten(1))
        return y


class Tied(nn.Module):
    """Words to scores of words, by one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(500, 16)
        self.mix = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 500, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        """Words [batch, length] to [batch, length, 500]."""
        x: Tensor = self.head(self.mix(self.embedding(words)))
        return x


class Branches(nn.Module):
    """Branches that are concatenated, one of them frozen, and two results."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(4, 6, 1)
        self.b = nn.Conv2d(4, 7, 3, padding=1)
        self.c = nn.Conv2d(13, 9, 1)
        self.b.requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Two pictures of one."""
        a, b = self.a(x).relu(), self.b(x).sigmoid()
        return self.c(torch.cat([a, b], 1)), a * 2


NETWORKS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "residual": lambda: (Residual(), torch.randn(4, 3, 12, 12)),
    "tied": lambda: (Tied(), torch.randint(500, (3, 20))),
    "branches": lambda: (Branches(), torch.randn(5, 4, 16, 16)),
    "lstm": lambda: (nn.LSTM(16, 32, batch_first=True), torch.randn(2, 9, 16)),
    "mlp": lambda: (nn.Sequential(nn.Linear(64, 64), nn.Dropout(), nn.ReLU(), nn.Linear(64, 64)), torch.randn(7, 64)),
    "lrn": lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.LocalResponseNorm(5), nn.MaxPool2d(2)),
        torch.randn(2, 3, 9, 9),
    ),
}


@pytest.mark.parametrize("hollow", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_inference(name: str, hollow: bool) -> None:
    module, inputs = NETWORKS[name]()
    program = program_from_module(module.eval(), (inputs,))
    predicted = device_bytes(program.graph, Workload(in_flight=1))[0]
    assert predicted == inference_peak_bytes(program, hollow)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_training_step(name: str, optimizer: str) -> None:
    module, inputs = NETWORKS[name]()
    graph = program_from_module(module, (inputs,), training=True).graph
    assert unrecorded(graph, training=True) == ()
    predicted = device_bytes(graph, Workload(mode="training", optimizer=optimizer))[0]
    measured = training_peak_bytes(module, (inputs,), optimizer, hollow=False)
    assert measured <= predicted <= 1.03 * measured + LOOSE_BYTES
    assert measured == training_peak_bytes(module, (inputs,), optimizer, hollow=True)


@pytest.mark.parametrize("name", NETWORKS)
def test_micro_batches_add_to_the_gradients_that_are_there(name: str) -> None:
    module, inputs = NETWORKS[name]()
    graph = program_from_module(module, (inputs,), training=True).graph
    predicted = device_bytes(graph, Workload(mode="training", optimizer="momentum", micro_batches=2))[0]
    measured = training_peak_bytes(module, (inputs,), "momentum", hollow=True, micro_batches=2)
    assert measured <= predicted <= 1.03 * measured + LOOSE_BYTES


@pytest.mark.parametrize(
    ("function", "most"),
    [
        (lambda y: y.relu() + y.tanh(), 3),  # both gradients and the one that came; the sum takes nothing
        (lambda y: y.t().relu() + y.t().tanh(), 3),  # through views it does, when the one that came is gone
    ],
)
def test_the_meter_adds_gradients_in_place_where_the_engine_does(
    function: Callable[[Tensor], Tensor], most: int
) -> None:
    x = torch.ones(100, 100, requires_grad=True)
    with Plain() as meter:
        y = x * 2
        (function(y) * 1).sum().backward()  # type: ignore[no-untyped-call]  # torch has no types here
    saved = 2  # results of relu and tanh
    assert meter.peak_bytes == 40_000 * (saved + most) + 4 + 4


def test_without_kernels_nothing_is_computed_but_whole_numbers() -> None:
    with Hollow():
        product = torch.ones(1000, 1000).mm(torch.ones(1000, 1000))
        assert (product.shape, product.dtype, product.device.type) == ((1000, 1000), torch.float32, "cpu")
        assert torch.arange(5).add(1).tolist() == [1, 2, 3, 4, 5]
        assert product.view(10, -1).untyped_storage().data_ptr() == product.untyped_storage().data_ptr()
        assert product.add_(1) is product
