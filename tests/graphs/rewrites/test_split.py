"""Splits of networks: any choice computes the same, neighbours that agree need nothing between them."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from graphs.errors import InputError
from graphs.files import graph_from_dict, graph_to_dict
from graphs.importers.from_torch import program_from_module
from graphs.ir import Graph
from graphs.program.program import Program
from graphs.program.rewritten import rewritten_program
from graphs.rewrites.fuse import find_fusions
from graphs.rewrites.sharding_rules import network_shardings
from graphs.rewrites.split import Split


class Convolutional(nn.Module):
    """Convolutions in groups and without, batch norms, a shortcut, pooling and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.grouped, self.second = nn.Conv2d(12, 12, 3, padding=1, groups=6), nn.Conv2d(12, 6, 3, stride=2, padding=1)
        self.classifier = nn.Linear(54, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.norm(self.first(x)))
        hidden = self.second(functional.relu(self.grouped(hidden) + hidden))
        y: Tensor = self.classifier(functional.max_pool2d(hidden, 2).flatten(1))
        return y


class Attention(nn.Module):
    """A block of BERT, or of GPT with one product for queries, keys and values; ends with a norm of the sum."""

    def __init__(self, joint: bool, heads: int = 6, width: int = 24) -> None:
        super().__init__()
        self.heads, self.joint = heads, joint
        self.projections = nn.ModuleList(
            nn.Linear(width, width * (3 if joint else 1)) for _ in range(1 if joint else 3)
        )
        self.out, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        if self.joint:
            projected = self.projections[0](x).split(x.shape[-1], dim=2)
        else:
            projected = [projection(x) for projection in self.projections]
        q, k, v = (each.view(*x.shape[:2], self.heads, -1).transpose(1, 2) for each in projected)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.joint)
        y = self.norm(x + self.out(y.transpose(1, 2).reshape(x.shape)))
        return y


class Gated(nn.Module):
    """An embedding, and the gate of LLaMA."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.gate, self.up, self.down = nn.Linear(8, 12), nn.Linear(8, 12, bias=False), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.words(x)
        return self.down(functional.silu(self.gate(h)) * self.up(h)), h


NETS: Mapping[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "convolutional": (Convolutional, torch.randn(2, 3, 12, 12, dtype=torch.float64)),
    "separate": (lambda: Attention(joint=False), torch.randn(2, 5, 24, dtype=torch.float64)),
    "joint": (lambda: Attention(joint=True), torch.randn(2, 5, 24, dtype=torch.float64)),
    "gated": (Gated, torch.arange(10).reshape(2, 5)),
}


@cache
def imported(name: str) -> Program:
    torch.manual_seed(0)
    make, x = NETS[name]
    return program_from_module(make().double().eval(), x, name=name)


def check(program: Program, choices: Mapping[str, tuple[str, int]]) -> Graph:
    """The split graph, which computes the same and has a written form."""
    split = Split(choices)
    divided = rewritten_program(program, [split])
    expected, got = program.run(*program.example_inputs), divided.run(*program.example_inputs)
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)
    assert graph_from_dict(graph_to_dict(divided.graph)) == divided.graph
    assert divided.graph.fingerprint == split(program.graph).fingerprint
    return divided.graph


def kinds(graph: Graph) -> list[str]:
    """The operators that stand between layouts."""
    between = {
        "aten.slice.Tensor": "slice",
        "aten.cat.default": "cat",
        "aten.add.Tensor": "add",
        "aten.pad.default": "pad",
    }
    return [between[op.kind] for op in graph.ops if op.kind in between and "[" not in op.name.removesuffix("]")[-4:-3]]


def followed(graph: Graph, anchors: Mapping[str, str], parts: int) -> dict[str, tuple[str, int]]:
    """Anchors by their shardings, and all that can go on with what they have divided."""
    own = network_shardings(graph)
    found: dict[str, tuple[str, int]] = {}
    lies: dict[str, Any] = {}
    for op in graph.ops:
        chosen = next((one for one in own[op.name] if one.name == anchors.get(op.name)), None)
        for one in own[op.name] if op.name not in anchors else ():
            read = [cut for name, cut in zip(op.inputs, one.inputs, strict=True) if name in lies and lies[name] == cut]
            if read and not one.summed:
                chosen = one
                break
        if chosen:
            found[op.name] = (chosen.name, parts)
            lies |= {n: cut for n, cut in zip(op.outputs, chosen.outputs, strict=True) if cut}
    return found


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(NETS)), data=st.data())
def test_any_choice_computes_the_same(name: str, data: st.DataObject) -> None:
    program = imported(name)
    choices = {}
    for op, own in network_shardings(program.graph).items():
        one = data.draw(st.sampled_from([None, *own]), op)
        if one is not None and one.units > 1:
            choices[op] = (one.name, data.draw(st.integers(2, min(4, one.units)), "parts"))
    check(program, choices)


@pytest.mark.parametrize("parts", [2, 3])
def test_an_attention_by_heads_needs_one_sum(parts: int) -> None:
    for name, anchors in (
        ("separate", dict.fromkeys(["linear", "linear_1", "linear_2"], "output features")),
        ("joint", {"linear": "output features in 3 runs"}),
    ):
        program = imported(name)
        last = [op.name for op in program.graph.ops if op.kind == "aten.linear.default"][-1]
        graph = check(program, followed(program.graph, {**anchors, last: "input features"}, parts))
        between = [op.kind for op in graph.ops if op.name not in program.graph.index and "[" not in op.name[-5:]]
        assert set(between) <= {"aten.add.Tensor"}
        assert len(between) == parts - 2
        assert graph.ops[graph.index[last]].kind == "aten.add.Tensor"
