"""Small modules for the importers, each for something that real networks do, and bit-for-bit comparison."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program


class Case(NamedTuple):
    """A module and arguments for it."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = {}  # noqa: RUF012  # nobody writes to it


class Function(nn.Module):
    """A module without state from a function of its arguments."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class Residual(nn.Module):
    """Skip connections around one block that is called twice, and in-place activations."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.block(x)
        x += self.block(x)
        scores: Tensor = self.head(x)
        return scores


class Branches(nn.Module):
    """Two branches from one tensor, joined again."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.narrow = nn.Conv2d(4, 2, 1)
        self.wide = nn.Sequential(nn.Conv2d(4, 2, 3, padding=1), nn.ReLU6(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu_(self.stem(x))
        return torch.cat([self.narrow(x), self.wide(x)], 1)


class Tied(nn.Module):
    """One matrix as the embedding and, under a second path, as the projection."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.projection = nn.Linear(4, 7, bias=False)
        self.projection.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        scores: Tensor = self.projection(self.embedding(words))
        return scores


class TiedTransposed(nn.Module):
    """A square matrix and its transpose: one storage of one shape, two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(4, 4, bias=False)
        self.decode = nn.Linear(4, 4, bias=False)
        self.decode.weight = nn.Parameter(self.encode.weight.detach().t())

    def forward(self, x: Tensor) -> Tensor:
        decoded: Tensor = self.decode(torch.relu(self.encode(x)))
        return decoded


class Buffers(nn.Module):
    """Buffers, kept and not, under names that operators and inputs have too; a plain attribute; constants."""

    x: Tensor
    t: Tensor
    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("x", torch.arange(4.0))
        self.register_buffer("t", torch.full((4,), 2.0))
        self.register_buffer("mask", torch.tensor([True, False, True, True]), persistent=False)
        self.scale = torch.full((1,), 3.0)
        self.split = nn.ParameterList([torch.randn(2, 4)])

    def forward(self, x: Tensor) -> Tensor:
        x = (x + self.x).t().masked_fill(self.mask, -1.0) * self.t * self.scale
        first, second = torch.split(x, 2)
        total: Tensor = first * self.split[0] + second + torch.tensor([0.5, 1.0, 1.5, 2.0])
        return total


class GradBlocks(nn.Module):
    """Blocks with and without gradients, several and nested, with state inside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer in (self.first, self.second):
            with torch.enable_grad():
                x = layer(x)
                with torch.no_grad():
                    mean, x = x.mean(), x.sin()
                    with torch.autocast("cpu", enabled=False):
                        x = (x * mean).relu_()
            x = x + 1
        return x, mean


@dataclass
class Scores:
    """What a module may return once its structure is made known."""

    best: Tensor
    rest: list[Tensor]
    loss: Tensor | None = None


torch.export.register_dataclass(Scores, serialized_type_name="tests.graphs.importers.Scores")


class Structured(nn.Module):
    """Containers in and out, with leaves that are no tensors."""

    def forward(self, batch: dict[str, Any], n: int, *, weight: Tensor | None = None, mode: str = "sum") -> Any:
        left, right = batch["pair"]
        x = left * n + right if mode == "sum" else left - right
        if weight is not None:
            x = x * weight
        return {"scores": Scores(x, [left, x]), "n": n, "nothing": None, "mode": mode, "again": (x, batch["flag"])}


class Returned(nn.Module):
    """An input, a parameter and the same tensor twice among what it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.unused = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor, ignored: Tensor) -> tuple[Tensor, ...]:
        y = x * self.weight
        return x, y, self.weight, y, ignored


def recurrent(module: nn.Module) -> Case:
    return Case(module, (torch.randn(5, 2, 4),))


def view_then_write(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    flat = y.view(-1)
    flat.relu_()
    y[0] = 7.0
    return flat, y.sum()


def window_of_storage(x: Tensor) -> Tensor:
    return (x * 2)[:, ::2].relu_().as_strided((2,), (1,))


def writes_of_other_dtypes(x: Tensor) -> tuple[Tensor, ...]:
    half = x.half().mul(2).add_(x)
    return half, (x * 2).gt_(0), torch.zeros(4, 4, dtype=torch.float64).copy_(x), (x > 0).logical_not_()


def lists_then_write(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    torch._foreach_mul_([y], 2.0)
    z = torch.empty_like(x)
    torch.add(x, 1, out=z)
    return y, z


def unpacked(x: Tensor) -> tuple[Any, ...]:
    first, *_, last = x.unbind()
    values, _ = x.topk(2)
    return first, last, *x.chunk(3), values, *torch.max(x, 1), torch.var_mean(x), *torch.split(x, [1, 3], 1)


def indexed(x: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
    return x[:, rows], x[rows], x[..., None, 1:3], x[rows, rows], x[x.shape[0] - 1]


def numbers(x: Tensor) -> tuple[Tensor, ...]:
    return x.clamp(-1), x.masked_fill(x > 0, float("-inf")), x.to(torch.bfloat16), x.sum((0, 1), dtype=torch.float64)


class Turned(nn.Module):
    """Products of a tensor that lies across: with weights that ask for gradients PyTorch rounds otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.learned = nn.Linear(16, 33)
        self.frozen = nn.Linear(16, 33).requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        turned = self.inner(x).transpose(0, 1)
        return self.learned(turned), self.frozen(turned)


X = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
PICTURE = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(0))


def mapped(x: Tensor) -> tuple[Tensor, Tensor]:
    """A mask made by a function of two numbers, as attention has it, and a product for each row."""
    rows = torch.arange(x.shape[0])
    earlier = torch.vmap(torch.vmap(lambda i, j: (i > j) & (j >= 0), in_dims=(None, 0)), in_dims=(0, None))
    return torch.where(earlier(rows, rows), x @ x.T, 0.0), torch.vmap(torch.dot)(x, x)


def checked(x: Tensor) -> Tensor:
    """A number that decides nothing but whether to go on."""
    assert x.argmax().item() < x.numel()
    return x + 1


CASES: dict[str, Callable[[], Case]] = {
    "residual": lambda: Case(Residual(), (PICTURE,)),
    "branches": lambda: Case(Branches(), (PICTURE[:, :3],)),
    "lstm": lambda: recurrent(nn.LSTM(4, 3, 2, bidirectional=True)),
    "gru": lambda: recurrent(nn.GRU(4, 3, batch_first=True)),
    "rnn": lambda: recurrent(nn.RNN(4, 3)),
    "attention": lambda: Case(nn.MultiheadAttention(4, 2), (X[None], X[None], X[None])),
    "tied": lambda: Case(Tied(), (torch.tensor([[1, 2, 6]]),)),
    "tied_transposed": lambda: Case(TiedTransposed(), (X,)),
    "buffers": lambda: Case(Buffers(), (X,)),
    "grad_blocks": lambda: Case(GradBlocks(), (X,)),
    "structured": lambda: Case(Structured(), ({"pair": [X, X.t()], "flag": True}, 3), {"weight": X, "mode": "sum"}),
    "optional": lambda: Case(Structured(), ({"pair": (X, X), "flag": X}, 2), {"weight": None}),
    "returned": lambda: Case(Returned(), (X, X)),
    "identity": lambda: Case(nn.Identity(), (X,)),
    "mapped": lambda: Case(Function(mapped), (X,)),
    "number_in_a_check": lambda: Case(Function(checked), (X,)),
    "constant": lambda: Case(Function(lambda _x: 3), (X,)),
    "scalar": lambda: Case(Function(lambda x: x * 2), (torch.tensor(3.0),)),
    "empty": lambda: Case(Function(lambda x: x[:0] * 2), (X,)),
    "complex": lambda: Case(Function(lambda x: torch.view_as_real(torch.fft.fft(x) * 1j)), (X,)),
    "view_then_write": lambda: Case(Function(view_then_write), (X,)),
    "window_of_storage": lambda: Case(Function(window_of_storage), (X,)),
    "writes_of_other_dtypes": lambda: Case(Function(writes_of_other_dtypes), (X,)),
    "lists_then_write": lambda: Case(Function(lists_then_write), (X,)),
    "unpacked": lambda: Case(Function(unpacked), (X,)),
    "indexed": lambda: Case(Function(indexed), (X, torch.tensor([2, 0]))),
    "numbers": lambda: Case(Function(numbers), (X,)),
}
"""Modules by a name, all of which can be imported; weights are drawn when they are made."""


@cache
def program_of(name: str) -> tuple[Case, Program]:
    """One of the cases, imported."""
    case = CASES[name]()
    return case, program_from_module(case.module.eval(), case.args, case.kwargs)


KEEPS_STATE = (
    "writes to '{}' while it runs; a network that keeps state between calls cannot be divided: switch that off "
    "(model.eval(), use_cache=False) or pass the state in and out; a language model generates from its config.json, "
    "its module or such a .pt2, with the goal generation"
)
"""What is said of a model that writes its own state or an input; {} is its name."""


def assert_same(got: Any, want: Any) -> None:
    """One structure, and in it the same bits."""
    got_leaves, got_spec = pytree.tree_flatten(got)
    want_leaves, want_spec = pytree.tree_flatten(want)
    assert got_spec == want_spec
    for g, w in zip(got_leaves, want_leaves, strict=True):
        assert type(g) is type(w) or {type(g), type(w)} == {nn.Parameter, Tensor}
        if isinstance(w, Tensor):
            torch.testing.assert_close(g, w, rtol=0, atol=0, equal_nan=True)
        else:
            assert g == w


def other_arguments(case: Case) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of the same form with other values, so that nothing of the example can have been kept."""
    args, kwargs = pytree.tree_map_only(
        Tensor, lambda t: (t.flip(0) if t.ndim else t.neg()).clone(), (case[1], case[2])
    )
    return args, kwargs


def clone(arguments: Any) -> Any:
    return pytree.tree_map_only(Tensor, torch.clone, arguments)


def run_eagerly(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The module itself, on copies of its arguments."""
    args, kwargs = clone((args, kwargs))
    with torch.no_grad():
        return module(*args, **kwargs)
