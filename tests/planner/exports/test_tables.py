"""Tables of positions and masks, which stop no export wherever a plan has them."""

from itertools import combinations

import pytest
import torch
from torch import Tensor, nn

from graphs.importers.from_torch import program_from_module
from planner.exports import export
from planner.exports.device_map import op_devices
from planner.exports.tables import tables
from tests.planner.exports.nets import GPUS, plan_of

TOKENS = torch.zeros(1, 4, dtype=torch.long)


class Attention(nn.Module):
    """One head that slices a mask which it holds, as GPT-2 does."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.register_buffer("mask", torch.ones(6, 6).tril())

    def forward(self, x: Tensor, cos: Tensor) -> Tensor:
        seen = self.mask[:4, :4].log()  # type: ignore[index]  # a tensor
        x = self.fc(x) * cos
        scores: Tensor = (x @ x.transpose(1, 2) + seen).softmax(-1) @ x
        return scores


class Network(nn.Module):
    """Positions and their cosine are computed at the top, and read by both layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 8), nn.Linear(8, 5)
        self.layers = nn.ModuleList([Attention(), Attention()])
        self.register_buffer("frequencies", torch.arange(8.0))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        positions = torch.arange(tokens.shape[1])
        cos = (positions[:, None] * self.frequencies).cos()  # type: ignore[operator]  # a tensor
        for layer in self.layers:
            x = layer(x, cos)
        scores: Tensor = self.head(x)
        return scores


GRAPH = program_from_module(Network(), (TOKENS,)).graph
MODULES = {"embed": 0, "layers.0": 0, "layers.1": 1, "head": 1}


def test_tables_depend_on_no_parameter() -> None:
    found = [GRAPH.ops[number].name for number in sorted(tables(GRAPH))]
    assert {"arange", "cos", "log", "log_1"} <= set(found)
    assert not {"embedding", "linear", "softmax"} & set(found)


def test_what_is_computed_of_an_image_is_no_table() -> None:
    module = nn.Sequential(nn.ReLU(), nn.Linear(4, 4))
    assert tables(program_from_module(module, (torch.ones(1, 4),)).graph) == frozenset()


@pytest.mark.parametrize("target", ["hf-device-map", "torch-split-spec"])
def test_tables_on_any_device_stop_no_export(target: str) -> None:
    usual, apart = op_devices(GRAPH, MODULES), tables(GRAPH)
    wanted = export(plan_of(GRAPH, usual, GPUS), target)
    for moved in (*combinations(apart, 1), *combinations(apart, 2), apart):
        homes = tuple(1 - home if number in moved else home for number, home in enumerate(usual))
        assert export(plan_of(GRAPH, homes, GPUS), target) == wanted
    if target == "hf-device-map":
        assert wanted.document == MODULES | {"frequencies": 0}  # read at the top, where the embedding is
    else:
        assert wanted.document == {"split_spec": {"layers.1": "BEGINNING"}, "devices": [0, 1]}
