"""Networks of many equal layers are imported as if each layer was traced."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphs.files import graph_to_dict
from graphs.importers import from_torch, repeated_layers
from graphs.importers.from_torch import program_from_module
from graphs.importers.repeated_layers import ShortModule, shortened
from graphs.program.arguments import Arguments
from graphs.program.files import program_to_dict
from graphs.program.program import Program

N = 12
X = torch.arange(12.0).reshape(3, 4) / 12


@pytest.fixture(autouse=True)
def _few_layers_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network with half of the layers that it would need is shortened too, and traced as a whole in half the time."""
    monkeypatch.setattr(repeated_layers, "LEAST", 6)


class Block(nn.Module):
    """A layer that knows its number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.fc = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu_(self.fc(self.norm(x)))


class Stack(nn.Module):
    """Layers between a beginning and an end; ``walk`` runs them."""

    def __init__(self, layers: list[nn.Module], walk: Callable[["Stack", Tensor], Any] | None = None) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(4, 2)
        self.walk = walk or plain
        self.calls = 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        return self.walk(self, x)


def plain(net: Stack, x: Tensor) -> Tensor:
    x = torch.relu(net.stem(x))
    for layer in net.layers:
        x = layer(x)
    return torch.relu(net.head(x))


def first_again(net: Stack, x: Tensor) -> Tensor:
    """Every layer reads what the stem and the first layer gave; between layers, a sum."""
    x = first = net.layers[0](net.stem(x))
    for layer in net.layers[1:]:
        x = layer(x + first)
    return x


def two_back(net: Stack, x: Tensor) -> Tensor:
    """Every layer reads the two before it."""
    before = x
    for layer in net.layers:
        x, before = layer(x) + before, x
    return x


def tapped(net: Stack, x: Tensor) -> tuple[Tensor, ...]:
    """The outputs of two layers in the middle are results, too."""
    taken = []
    for number, layer in enumerate(net.layers):
        x = layer(x)
        if number in (5, len(net.layers) - 2):
            taken.append(x)
    return (x, *taken)


def scaled(net: Stack, x: Tensor) -> Tensor:
    """What a layer gives is divided by its number."""
    for layer in net.layers:
        assert isinstance(layer, Block)
        x = layer(x) / (layer.number + 1)
    return x


def every_third(net: Stack, x: Tensor) -> Tensor:
    for number, layer in enumerate(net.layers):
        x = torch.tanh(layer(x)) if number % 3 == 0 else layer(x)
    return x


def two_scales(net: Stack, x: Tensor) -> Tensor:
    """Layers add two tensors in turns, which were computed before."""
    scales = (x.exp(), x.sin())
    for number, layer in enumerate(net.layers):
        x = layer(x + scales[number % 2])
    return x


def backwards(net: Stack, x: Tensor) -> Tensor:
    for layer in reversed(net.layers):
        x = layer(x)
    return x


def blocks(n: int = N) -> list[nn.Module]:
    return [Block(number) for number in range(n)]


def alternating() -> list[nn.Module]:
    return [Block(i) if i % 2 else nn.Sequential(nn.Linear(4, 4), nn.GELU()) for i in range(N + 6)]


def frozen() -> list[nn.Module]:
    made = blocks(2 * N)
    for layer in made[:N]:
        layer.requires_grad_(False)
    return made


def shared() -> list[nn.Module]:
    made = blocks()
    for layer in made:
        layer.fc.weight = made[0].fc.weight  # type: ignore[union-attr]  # a Linear
    return made


def normalised() -> list[nn.Module]:
    return [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.1)) for _ in range(N)]


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: Stack(blocks()),
    "sequential": lambda: nn.Sequential(
        *(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(N)), nn.Linear(4, 2)
    ),
    "alternating": lambda: Stack(alternating()),
    "two kinds": lambda: Stack([*blocks(), *(nn.Linear(4, 4) for _ in range(N)), Block(0)]),
    "two lists": lambda: nn.Sequential(Stack(blocks()), nn.Linear(2, 4), Stack(blocks())),
    "first again": lambda: Stack(blocks(), first_again),
    "two back": lambda: Stack(blocks(), two_back),
    "tapped": lambda: Stack(blocks(), tapped),
    "scaled": lambda: Stack(blocks(), scaled),
    "every third": lambda: Stack(blocks(2 * N), every_third),
    "two scales": lambda: Stack(blocks(N + 6), two_scales),
    "backwards": lambda: Stack(blocks(), backwards),
    "frozen": lambda: Stack(frozen()),
    "shared": lambda: Stack(shared()),
    "normalised": lambda: Stack(normalised()),
}
SHORTENED = NETWORKS.keys() - {"two back", "tapped", "scaled", "backwards", "shared"}
"""Networks whose layers are not all traced."""


def document(program: Program) -> str:
    """All that a program's files hold."""
    return json.dumps([graph_to_dict(program.graph), program_to_dict(program)])


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_an_import_is_that_of_all_layers(name: str, training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = NETWORKS[name]()
    program = program_from_module(module, (X,), training=training)
    own = dict(module.named_parameters()) | dict(module.named_buffers())
    assert program.module is module
    assert all(tensor is own[path] for path, tensor in program.state.items())
    assert all(update.tensor is own[path] for path, update in program.updates.items())
    monkeypatch.setattr(from_torch, "shortened", lambda *_: None)
    assert document(program) == document(program_from_module(module, (X,), training=training))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_operators_compute_what_the_module_computes(name: str) -> None:
    module = NETWORKS[name]().eval()
    program = program_from_module(module, (X,))
    env = {**program.state, **dict(zip(program.graph.inputs, (X,), strict=True))}
    for op in program.graph.ops:
        env |= zip(op.outputs, program.execute(op, env), strict=True)
    want = module(X)
    for name_of_result, result in zip(program.graph.outputs, want if isinstance(want, tuple) else (want,), strict=True):
        assert torch.equal(env[name_of_result], result)


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_are_left_out_where_they_are_equal(name: str) -> None:
    short = shortened(NETWORKS[name]().eval(), Arguments((X,), {}), training=False)
    assert (short is not None) == (name in SHORTENED)


def test_of_fifty_layers_five_are_traced() -> None:
    """The first one reads the stem; of the others, which read each other, four stand for all."""
    short = shortened(Stack(blocks(50)), Arguments((X,), {}), training=False)
    assert isinstance(short, ShortModule)
    assert len(short.module.layers) == 5  # type: ignore[arg-type]  # a list of modules


def test_the_comparison_does_not_change_the_module() -> None:
    module = Stack(blocks())
    assert shortened(module, Arguments((X,), {}), training=False) is not None
    assert module.calls == 0
    assert len(module.layers) == N
    assert not module.layers[0]._forward_hooks


def test_a_frozen_layer_in_the_middle_is_traced() -> None:
    module = Stack(blocks())
    module.layers[7].requires_grad_(False)
    program = program_from_module(module, (X,), training=True)
    assert {name for name, tensor in program.state.items() if not tensor.requires_grad} == {
        f"layers.7.{name}" for name in ("fc.weight", "fc.bias", "norm.weight", "norm.bias")
    }


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("way", ["script", "trace"])
def test_scripted_parts_have_no_layers(way: str) -> None:
    """Their mapping of parts iterates over numbers."""
    jit: Any = torch.jit  # without types
    layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    made = jit.script(layers) if way == "script" else jit.trace(layers, torch.ones(2, 4))
    program = program_from_module(nn.Sequential(made, nn.ReLU()), (torch.ones(2, 4),))
    assert torch.equal(program.run(torch.ones(2, 4)), layers(torch.ones(2, 4)))
