"""Layers and tensor-parallel styles by rules on the graph."""

import pytest
import torch
from torch import nn

from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.ir import Graph
from planner.parallelism.network.layers import NetworkLayers
from planner.parallelism.network.tensor_styles import Style, tensor_styles


class Attention(nn.Module):
    """Queries, keys and values of four heads, a residual, a norm, two products."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.other = nn.LayerNorm(8), nn.LayerNorm(8)
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        q, k, v = (each(y).view(2, 6, 4, 2).transpose(1, 2) for each in (self.q, self.k, self.v))
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(heads.transpose(1, 2).reshape(2, 6, 8))
        result: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.other(x))))
        return result


class Words(nn.Module):
    """An embedding, two equal blocks, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.blocks = nn.Embedding(10, 8), nn.ModuleList([Attention(), Attention()])
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.words(x)
        for block in self.blocks:
            x = block(x)
        result: torch.Tensor = self.head(x)
        return result


@pytest.fixture(scope="module")
def graph() -> Graph:
    return program_from_module(Words(), (torch.randint(0, 10, (2, 6)),), training=True).graph


def styles_of(graph: Graph, parts: int, counts: tuple[int, ...] = (2,)) -> dict[str, Style]:
    stages = [sum(blocks, ()) for blocks in NetworkLayers.of(graph).stages(counts)]
    found = tensor_styles(graph, stages, parts)
    return {graph.ops[graph.index[op]].module: style for each in found for op, style in each.style.items()}


def test_a_stack_is_found_with_what_stands_before_and_behind_it(graph: Graph) -> None:
    layers = NetworkLayers.of(graph)
    assert [graph.ops[number].module for number in layers.stem] == ["words"]
    assert [graph.ops[number].module for number in layers.head] == ["head"]
    assert len(layers.layers) == 2
    assert all(graph.ops[number].module.startswith("blocks.1") for number in layers.layers[1])


def test_columns_then_rows_are_found_unprompted(graph: Graph) -> None:
    column, row = Style.COLUMN, Style.ROW
    block = {"q": column, "k": column, "v": column, "o": row, "up": column, "down": row}
    blocks = {f"blocks.{number}.{name}": style for number in range(2) for name, style in block.items()}
    assert styles_of(graph, 2) == blocks | {"words": Style.VOCABULARY, "head": Style.GATHERED}
    assert styles_of(graph, 2, (1, 1)) == styles_of(graph, 2)


def test_heads_that_do_not_divide_stay_whole(graph: Graph) -> None:
    """Three devices share twelve features, but neither four heads nor ten words."""
    assert {name.rpartition(".")[2] for name in styles_of(graph, 3)} == {"up", "down"}


def test_between_rows_and_columns_tokens_are_divided(graph: Graph) -> None:
    stages = [sum(blocks, ()) for blocks in NetworkLayers.of(graph).stages((2,))]
    (found,) = tensor_styles(graph, stages, 2)
    norms = [op.outputs[0] for op in graph.ops if "layer_norm" in op.kind]
    assert [found.axis[name] for name in norms] == [1, 1, 1, 1]


def test_devices_that_can_share_nothing_are_told_how_many_can(graph: Graph) -> None:
    with pytest.raises(InputError, match=r"tensor = 11 divides no layer of 'Words': .* the nearest that works is 10"):
        styles_of(graph, 11)


def test_stages_for_other_layers_are_told_which_work(graph: Graph) -> None:
    with pytest.raises(InputError, match=r"stages of 3, 1 layers do not fit 'Words', which has 2; .* are 1, 1"):
        NetworkLayers.of(graph).stages((3, 1))
