"""Models that ask for values of constants, and models that ask whether they are traced: the trace is that of a call."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from graphs.common.errors import InputError
from graphs.importers.constant_values import ConstantValues
from graphs.importers.from_config import read_config
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from tests.graphs.importers.modules import Function
from tests.graphs.importers.test_from_config import write

hf = pytest.importorskip("transformers")


def kinds(program: Program) -> list[str]:
    return [op.kind for op in program.graph.ops]


def positions_jump(x: Tensor) -> Tensor:
    positions = torch.arange(x.shape[0])
    return x * 0 if (positions.diff() != 1).any() else x + positions[-1].item()


def written_alike(x: Tensor) -> Tensor:
    seen = torch.ones(4)
    part = seen[:2]
    seen.mul_(2)
    seen[3] = 7
    return x + 1 if part.sum() == 4 and seen.tolist() == [2, 2, 2, 7] else x


@pytest.mark.parametrize("function", [positions_jump, written_alike])
def test_answers_that_follow_from_constants_are_known(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.rand(4)
    program = program_from_module(Function(function), (x,))
    assert "aten.where.self" not in kinds(program)
    for each in (x, -x):
        assert torch.equal(program.run(each), function(each))


def in_place(x: Tensor, seen: Tensor) -> None:
    seen += x > 0


def element(x: Tensor, seen: Tensor) -> None:
    seen[0] = x[0]


def view(x: Tensor, seen: Tensor) -> None:
    seen[1:].copy_(x[1:])


def of_the_base(x: Tensor, seen: Tensor) -> None:
    seen._base.copy_(x)  # type: ignore[union-attr]


def out(x: Tensor, seen: Tensor) -> None:
    torch.add(x, x, out=seen)


def of_a_list(x: Tensor, seen: Tensor) -> None:
    torch._foreach_add_([seen], [x])


def within_data(x: Tensor, seen: Tensor) -> None:
    seen.data[0] = x[0]


def function_in_place(x: Tensor, seen: Tensor) -> None:
    functional.relu(seen.sub_(x), inplace=True)


def at_random(_: Tensor, seen: Tensor) -> None:
    seen.uniform_()


@pytest.mark.parametrize(
    "write_to",
    [in_place, element, view, of_the_base, out, of_a_list, within_data, function_in_place, at_random],
)
@pytest.mark.parametrize("written_first", [False, True])
def test_what_something_unknown_was_written_to_is_unknown(
    write_to: Callable[[Tensor, Tensor], None], written_first: bool
) -> None:
    def asked(x: Tensor) -> Tensor:
        seen = torch.zeros(4)[:]
        same = seen.view(2, 2)
        if written_first:
            seen.add_(0)
        write_to(x, seen)
        return x * 2 if same.any() else x

    state = torch.get_rng_state()
    for example, other in ((torch.zeros(4), torch.ones(4)), (torch.ones(4), torch.zeros(4))):
        try:
            program = program_from_module(Function(asked), (example,))
            answer = program.run(other)
        except InputError:  # refused at the import, or in a run that the example's values do not hold for
            continue
        assert torch.equal(answer, asked(other))
    torch.set_rng_state(state)


def test_memory_that_nobody_wrote_is_unknown() -> None:
    with pytest.raises(InputError, match="cannot be traced"):
        program_from_module(Function(lambda x: x if torch.empty(4).any() else x + 1), (torch.ones(4),))


def test_large_constants_are_not_computed() -> None:
    values, side = ConstantValues(), 2**13
    with values:
        small, large = torch.ones(4, device="meta"), torch.ones(side, side, device="meta")
    known = values.value(small)
    assert known is not None
    assert known.tolist() == [1, 1, 1, 1]
    assert values.value(large) is None


def test_attention_of_a_language_model_is_that_of_a_call(tmp_path: Path) -> None:
    """Positions that the model makes are in order, so that a call leaves the mask out."""
    config = hf.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    program = read_config(write(config, tmp_path), weights=True)
    (attention,) = [op for op in program.graph.ops if "scaled_dot_product_attention" in op.kind]
    assert len(attention.inputs) == 3
    assert attention.attrs["is_causal"] is True
    assert attention.attrs["enable_gqa"] is True
    (tokens,) = program.example_inputs
    assert torch.equal(program.run(tokens)["last_hidden_state"], program.module(tokens)[0])


def test_a_mask_that_is_an_input_stays() -> None:
    """Whether a mask hides anything depends on the call, and the trace holds for each."""
    module = hf.BertModel(
        hf.BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    ).eval()
    tokens, mask = torch.ones(1, 6, dtype=torch.long), torch.ones(1, 6, dtype=torch.long)
    program = program_from_module(module, (), {"input_ids": tokens, "attention_mask": mask})
    hidden = torch.tensor([[1, 1, 1, 1, 0, 0]])
    want = module(tokens, hidden)[0]
    torch.testing.assert_close(program.run(input_ids=tokens, attention_mask=hidden)["last_hidden_state"], want)


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of transformers that asks whether it is exported."""
    made = ModuleType("transformers.models.asking")
    made.is_torchdynamo_exporting = torch.compiler.is_exporting  # type: ignore[attr-defined]
    made.is_torchdynamo_compiling = torch.compiler.is_compiling  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def test_code_for_calls_is_traced(asking: Any) -> None:
    def forward(x: Tensor) -> Tensor:
        exported, compiled = asking.is_torchdynamo_exporting(), asking.is_torchdynamo_compiling()
        return x.sin() if exported or compiled else x.cos()

    program = program_from_module(Function(forward), (torch.ones(2),))
    assert kinds(program) == ["aten.cos.default"]
    assert asking.is_torchdynamo_exporting is torch.compiler.is_exporting


def test_code_for_traces_is_traced_where_code_for_calls_cannot_be(asking: Any) -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            if not asking.is_torchdynamo_exporting() and (x * self.weight).sum() < 0:
                return x
            return x.sin()

    program = program_from_module(Picky(), (torch.ones(2),))
    assert kinds(program) == ["aten.sin.default"]


def test_operators_whose_results_nobody_reads_are_left_out_unless_they_draw() -> None:
    def forward(x: Tensor) -> Tensor:
        x.exp()
        torch.rand(3)
        return x + torch.rand(2)

    x = torch.zeros(2)
    program = program_from_module(Function(forward), (x,))
    assert kinds(program).count("aten.exp.default") == 0
    torch.manual_seed(3)
    answer = program.run(x)
    torch.manual_seed(3)
    assert torch.equal(answer, forward(x))


@functools.lru_cache
def mask(n: int) -> Tensor:
    return torch.ones(n, n).tril()


@functools.cache
def pair(n: int) -> tuple[Tensor, Tensor]:
    return torch.arange(float(n)), torch.ones(n)


TABLES: dict[int, Tensor] = {}
ROWS: list[Tensor] = []


def tables(n: int) -> Tensor:
    if n not in TABLES:
        TABLES[n] = torch.arange(float(n))
    return TABLES[n]


def rows(n: int) -> Tensor:
    if not ROWS:
        ROWS.append(torch.arange(float(n)))
    return ROWS[0]


class Cached(nn.Module):
    """Layers that read a constant from a cache, and ask it."""

    def __init__(self, cached: Callable[[int], Tensor], layers: int) -> None:
        super().__init__()
        self.cached = cached
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) * self.cached(4)
        return x if self.cached(4).any() else -x


@pytest.mark.parametrize("layers", [1, 40])
@pytest.mark.parametrize("cached", [mask, lambda n: pair(n)[0], tables, rows], ids=["lru", "pair", "dict", "list"])
def test_caches_of_code_hold_values_after_a_trace(cached: Callable[[int], Tensor], layers: int) -> None:
    """They held tensors of the trace, with which each later call failed, and each later import."""
    for cache in (mask, pair):
        cache.cache_clear()
    TABLES.clear()
    ROWS.clear()
    module, x = Cached(cached, layers), torch.rand(4, 4)
    first, again = (program_from_module(module, (x,), footprints=False) for _ in range(2))
    with torch.no_grad():
        want = module(x)
    assert type(want) is Tensor
    assert torch.equal(first.run(x), want)
    assert torch.equal(again.run(x), want)
    assert type(cached(4)) is Tensor


class Attribute(nn.Module):
    """Asks a tensor that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.tensor(2.0)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale.item() if self.scale > 1 else x


def test_tensors_that_are_plain_attributes_are_constants() -> None:
    module, x = Attribute(), torch.rand(3)
    assert torch.equal(program_from_module(module, (x,)).run(x), module(x))
    assert module.scale == 2


def test_memory_that_numpy_writes_to_is_unknown() -> None:
    def forward(x: Tensor) -> Tensor:
        numbers = np.zeros(3)
        shared = torch.from_numpy(numbers)
        numbers[:] = 2
        return x if shared.any() else -x

    with pytest.raises(InputError, match="what comes next depends on the values of tensors"):
        program_from_module(Function(forward), (torch.ones(3),))


def test_tensors_without_versions_are_unknown() -> None:
    def forward(x: Tensor) -> Tensor:
        with torch.inference_mode():
            order = torch.arange(3)
        return x[order]

    x = torch.rand(3)
    assert torch.equal(program_from_module(Function(forward), (x,)).run(x), x)
