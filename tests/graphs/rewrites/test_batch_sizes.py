"""Graphs for other numbers of samples are those that an import makes."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from graphs.importers.from_torch import program_from_module
from graphs.ir import Graph
from graphs.rewrites.batch_sizes import SizedGraphs, resized
from tests.planner.runtime.hybrid.ranks import Cnn, Mlp, bert, llama


def imported(name: str, samples: int) -> Graph:
    """A small network in training mode."""
    networks: dict[str, Callable[[], nn.Module]] = {"mlp": Mlp, "cnn": Cnn, "bert": bert, "llama": llama}
    image, words = torch.ones(samples, 3, 8, 8), torch.zeros(samples, 8, dtype=torch.int64)
    given = {"mlp": torch.ones(samples, 12), "cnn": image}.get(name, words)
    return program_from_module(networks[name]().train(), (given,), training=True).graph


@pytest.mark.parametrize("name", ["mlp", "cnn", "bert", "llama"])
def test_it_is_what_an_import_makes(name: str) -> None:
    """Operators, shapes, arguments and footprints, for more and for fewer samples."""
    four, six = imported(name, 4), imported(name, 6)
    for samples in (2, 12):
        assert resized((4, four), (6, six), samples) == imported(name, samples)


class Turned(nn.Module):
    """Samples become features: their number is squared."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ x.T).reshape(-1)


class Other(nn.Module):
    """Another network for large batches."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu() if len(x) > 4 else x


@pytest.mark.parametrize("module", [Turned(), Other()])
def test_what_does_not_follow_is_imported(module: nn.Module) -> None:
    asked: list[int] = []

    def graph_of(samples: int) -> Graph:
        asked.append(samples)
        return program_from_module(nn.Sequential(nn.Linear(3, 3), module), (torch.ones(samples, 3),)).graph

    graphs = SizedGraphs(graph_of)
    for samples in (4, 8, 16):
        graphs(samples)
    assert asked == [4, 8, 16]


def test_two_sizes_and_one_sample_are_imported() -> None:
    asked: list[int] = []

    def graph_of(samples: int) -> Graph:
        asked.append(samples)
        return imported("mlp", samples)

    graphs = SizedGraphs(graph_of)
    for samples in (2, 4, 8, 1, 8, 16):
        graph = graphs(samples)
        assert graph.tensor[graph.inputs[0]].shape[0] == samples
    assert asked == [2, 4, 1]
    assert graphs.imported(8) == graphs(8)
    assert asked == [2, 4, 1, 8]
