"""Splits of networks: any choice computes the same, neighbours that agree need nothing between them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from graphs.common.errors import InputError
from graphs.files import graph_from_dict, graph_to_dict
from graphs.importers.from_torch import program_from_module
from graphs.ir import Graph
from graphs.program.program import Program
from graphs.program.rewritten import rewritten_program
from graphs.rewrites.fuse import find_fusions
from graphs.rewrites.network_shardings import network_shardings
from graphs.rewrites.rewrite import rewrite_from_dict, rewrite_to_dict
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
        result: Tensor = self.norm(x + self.out(y.transpose(1, 2).reshape(x.shape)))
        return result


class Recurrent(nn.Module):
    """An LSTM, which nobody can split, and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.lstm(x)[0])
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


SUM = "input features"
NETS: Mapping[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "convolutional": (Convolutional, torch.randn(2, 3, 12, 12, dtype=torch.float64)),
    "separate": (lambda: Attention(joint=False), torch.randn(2, 5, 24, dtype=torch.float64)),
    "joint": (lambda: Attention(joint=True), torch.randn(2, 5, 24, dtype=torch.float64)),
    "recurrent": (Recurrent, torch.randn(3, 2, 4, dtype=torch.float64)),
    "gated": (Gated, torch.arange(10).reshape(2, 5)),
}


@cache
def imported(name: str) -> Program:
    """A network in float64, so that an error differs from another order of sums."""
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
    assert rewrite_from_dict(json.loads(json.dumps(rewrite_to_dict(split)))) == split
    assert divided.graph.fingerprint == split(program.graph).fingerprint
    return divided.graph


def between(program: Program, graph: Graph) -> list[str]:
    """The kinds of what stands between layouts."""
    own = {op.name for op in program.graph.ops}
    whole = {op.name: op.kind for op in program.graph.ops}
    parts = (op for op in graph.ops if op.name.rpartition("[")[0] not in own)
    return [op.kind.split(".")[1] for op in parts if whole.get(op.name) != op.kind]


def followed(graph: Graph, anchors: Mapping[str, str], parts: int) -> dict[str, tuple[str, int]]:
    """Anchors by their shardings, and all that can go on with what they have divided."""
    own = network_shardings(graph)
    found: dict[str, tuple[str, int]] = {}
    lies: dict[str, Any] = {}
    for op in graph.ops:
        chosen = next((one for one in own[op.name] if one.name == anchors.get(op.name)), None)
        for one in own[op.name] if op.name not in anchors else ():
            read = [
                shard for name, shard in zip(op.inputs, one.inputs, strict=True) if name in lies and lies[name] == shard
            ]
            if read and not one.summed:
                chosen = one
                break
        if chosen:
            found[op.name] = (chosen.name, parts)
            lies |= {n: shard for n, shard in zip(op.outputs, chosen.outputs, strict=True) if shard}
    return found


@given(name=st.sampled_from(sorted(NETS)), data=st.data())
def test_any_choice_computes_the_same(name: str, data: st.DataObject) -> None:
    program = imported(name)
    choices = {}
    for op, own in network_shardings(program.graph).items():
        one = data.draw(st.sampled_from([None, *own]), op)
        if one is not None and one.units > 1:
            choices[op] = (one.name, data.draw(st.integers(2, min(4, one.units)), "parts"))
    assume(choices)
    check(program, choices)


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize(
    ("name", "anchors"),
    [
        ("separate", dict.fromkeys(["linear", "linear_1", "linear_2"], "output features") | {"linear_3": SUM}),
        ("joint", {"linear": "output features in 3 runs", "linear_1": SUM}),
        ("gated", {"linear": "output features", "linear_1": "output features", "linear_2": SUM}),
    ],
)
def test_column_then_row_needs_one_sum(name: str, anchors: Mapping[str, str], parts: int) -> None:
    program = imported(name)
    graph = check(program, followed(program.graph, anchors, parts))
    assert between(program, graph) == ["add"] * (parts - 1)
    *_, last = (op for op in program.graph.ops if op.kind == "aten.linear.default")
    assert graph.ops[graph.index[last.name]].kind == "aten.add.Tensor"


def test_an_image_is_padded_for_each_reader_with_its_own_constant() -> None:
    class Both(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            h = -x.abs() - 1
            return functional.max_pool2d(h, 3, 1, 1) + functional.avg_pool2d(h, 3, 1, 1)

    program = program_from_module(Both(), torch.randn(1, 2, 8, 8, dtype=torch.float64), name="both")
    for own in ("replicated", "axis 1", "axis 2"):
        graph = check(program, {"sub": (own, 2), "max_pool2d": ("rows", 2), "avg_pool2d": ("rows", 2)})
        assert sum(op.kind == "aten.pad.default" for op in graph.ops) == 4


def test_neighbours_divide_where_heads_end() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 3, 20, dtype=torch.float64)
    program = program_from_module(Attention(False, heads=5, width=20).double().eval(), x, name="five heads")
    anchors = dict.fromkeys(["linear", "linear_1", "linear_2"], "output features")
    graph = check(program, followed(program.graph, anchors | {"linear_3": SUM}, 2))
    assert graph.tensor["linear[0/2]"].shape == (1, 3, 12)  # three heads of four
    assert between(program, graph) == ["add"]


def test_parts_have_slices_of_the_models_own_parameters() -> None:
    program = imported("gated")
    split = Split({"linear": ("output features", 2), "linear_2": ("input features", 2)})
    divided = rewritten_program(program, [split])
    named = {"gate.weight[0:6]", "gate.weight[6:12]", "gate.bias[0:6]", "gate.bias[6:12]"}
    named |= {"down.weight[:, 0:6]", "down.weight[:, 6:12]", "down.bias", "up.weight", "words.weight"}
    assert divided.state.keys() == named
    own = {tensor.untyped_storage().data_ptr() for tensor in program.state.values()}
    assert {tensor.untyped_storage().data_ptr() for tensor in divided.state.values()} == own
    names = "embedding linear[0/2] linear[1/2] linear silu linear_1 mul mul[:,:,0:6] linear_2[0/2] mul[:,:,6:12]"
    assert [op.name.replace(" ", "") for op in divided.graph.ops] == [*names.split(), "linear_2[1/2]", "linear_2"]
    assert divided.graph.outputs == program.graph.outputs


def test_equal_parts_hold_parameters_of_their_own_unless_they_are_shared() -> None:
    program = imported("separate")
    choices = {"layer_norm": ("replicated", 2)}
    apart, together = (rewritten_program(program, [Split(choices, shared)]) for shared in (False, True))
    assert apart.state.keys() - program.state.keys() == {"norm.weight@1/2", "norm.bias@1/2"}
    assert together.state.keys() == program.state.keys()


def test_another_dtype_is_no_other_shape() -> None:
    class Bits(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.relu().view(torch.int32).view(torch.bfloat16)

    program = program_from_module(Bits(), (x := torch.randn(2, 4, 6).bfloat16(),))
    divided = rewritten_program(program, [Split({"relu": ("axis 0", 2)})])
    assert torch.equal(divided.run(x), x.relu())


def test_what_is_split_can_be_fused() -> None:
    program = imported("convolutional")
    choices = followed(program.graph, {"conv2d": "output channels"}, 2)
    split = Split(choices)
    divided = rewritten_program(program, [split])
    fusions = find_fusions(
        replace(divided.graph, tensors=tuple(replace(t, dtype="float32") for t in divided.graph.tensors))
    )
    assert ("conv2d[1/2]", "batch_norm[1/2]", "relu[1/2]") in fusions.groups
    with pytest.raises(InputError, match=r"operator 'conv2d.*' is fused; split the network before it is fused"):
        split(fusions(divided.graph))


@pytest.mark.parametrize(
    ("name", "choices", "message"),
    [
        ("gated", {"nothing": ("batch", 2)}, "operator 'nothing' is to be split, and 'gated' has none"),
        ("gated", {}, "a split of no operator changes nothing in 'gated'; leave it out"),
        ("gated", {"linear": ("heads", 2)}, "cannot be split by heads; it can by batch, sequence, output features"),
        ("gated", {"linear": ("batch", 3)}, "can be divided by batch into 2 to 2 parts, not 3"),
        ("gated", {"linear": ("output features", 1)}, "can be divided by output features into 2 to 12 parts, not 1"),
        ("gated", {"linear": ("output features in 5 runs", 2)}, "cannot be split by output features in 5 runs"),
        ("recurrent", {"lstm": ("batch", 2)}, "'lstm' .* cannot be split; the nearest that can be is 'linear' .*, by"),
    ],
)
def test_refuses_what_does_not_divide(name: str, choices: dict[str, tuple[str, int]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Split(choices)(imported(name).graph)
