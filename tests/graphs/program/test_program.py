"""A Program runs as its module does, operator by operator, and checks what it is called with."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program, as_held
from tests.graphs.importers.modules import Function, Returned, Structured, X, assert_same


class Attention(nn.Module):
    """Keyword arguments, of which one is left out and one is no tensor."""

    def forward(
        self, query: Tensor, *, key: Tensor, value: Tensor, mask: Tensor | None = None, scale: float = 1.0
    ) -> Tensor:
        scores = query @ key * scale
        return (scores if mask is None else scores + mask) @ value


KEY, VALUE = X.flip(0), X.flip(1)


@pytest.fixture(scope="module")
def attention() -> Program:
    return program_from_module(Attention(), (X,), {"key": KEY, "value": VALUE, "mask": None, "scale": 0.5})


@pytest.fixture(scope="module")
def lstm() -> Program:
    return program_from_module(nn.LSTM(4, 3), (X[None],))


class TestCalls:
    def test_arguments_in_their_places(self, attention: Program) -> None:
        (first, scaled, last) = attention.graph.ops
        assert attention.arguments(first, str.upper) == (("QUERY", "KEY"), {})
        assert attention.arguments(scaled, str.upper) == (("MATMUL", 0.5), {})
        assert attention.arguments(last, str.upper) == (("MUL", "VALUE"), {})

    def test_arguments_in_lists_and_by_keyword(self) -> None:
        module = Function(lambda x: torch.full_like(torch.cat([x, x, x[:1]]), 2.0, dtype=torch.float64))
        program = program_from_module(module, (X,))
        (part, joined, filled) = program.graph.ops
        assert program.arguments(part, str) == (("args_0", 0, 0, 1), {})
        assert program.arguments(joined, str) == ((["args_0", "args_0", part.name],), {})
        assert program.arguments(filled, str)[1]["dtype"] == torch.float64

    def test_execute_one_tensor(self, attention: Program) -> None:
        assert_same(attention.execute(attention.graph.ops[0], {"query": X, "key": KEY}), (X @ KEY,))

    def test_execute_several(self, lstm: Program) -> None:
        op = lstm.graph.ops[-1]
        env = dict(lstm.state) | {"input": X[None]}
        for other in lstm.graph.ops[:-1]:
            env |= zip(other.outputs, lstm.execute(other, env), strict=True)
        written = lstm.execute(op, env)
        assert op.outputs == ("lstm.0", "lstm.1", "lstm.2")
        assert [t.shape for t in written] == [lstm.graph.tensor[name].shape for name in op.outputs]
        y, (hidden, cell) = lstm.module(X[None])
        assert_same(written, (y, hidden, cell))

    def test_shapes_and_dtypes_are_those_of_the_graph(self, lstm: Program, attention: Program) -> None:
        for program in (lstm, attention):
            env = dict(program.state) | dict(zip(program.graph.inputs, program.example_inputs, strict=True))
            for op in program.graph.ops:
                env |= zip(op.outputs, program.execute(op, env), strict=True)
            for tensor in program.graph.tensors:
                assert tuple(env[tensor.name].shape) == tensor.shape
                assert str(env[tensor.name].dtype) == f"torch.{tensor.dtype}"


class TestArguments:
    def test_example_inputs_are_the_tensors_among_the_arguments(self, attention: Program) -> None:
        assert attention.graph.inputs == ("query", "key", "value")
        assert all(got is want for got, want in zip(attention.example_inputs, (X, KEY, VALUE), strict=True))

    def test_example_arguments(self, attention: Program) -> None:
        args, kwargs = attention.example_arguments
        assert args == (X,)
        assert list(kwargs) == ["key", "value", "mask", "scale"]
        assert kwargs["mask"] is None
        assert kwargs["scale"] == 0.5
        assert_same(attention.run(*args, **kwargs), Attention()(X, key=KEY, value=VALUE, scale=0.5))

    def test_example_arguments_in_containers(self) -> None:
        given = ({"pair": [X, X.t()], "flag": True}, 3)
        program = program_from_module(Structured(), given, {"mode": "sum"})
        assert_same(tuple(program.example_arguments), (given, {"mode": "sum"}))

    def test_keywords_in_any_order(self, attention: Program) -> None:
        want = attention.run(X, key=KEY, value=VALUE, mask=None, scale=0.5)
        assert_same(attention.run(X, scale=0.5, mask=None, value=VALUE, key=KEY), want)

    def test_unflatten(self) -> None:
        program = program_from_module(Structured(), ({"pair": [X, X.t()], "flag": True}, 3))
        returned = program.unflatten({name: torch.tensor(i) for i, name in enumerate(program.graph.outputs)})
        assert returned["n"] == 3
        assert returned["nothing"] is None
        assert returned["again"][1] is True
        assert returned["scores"].best is returned["again"][0]

    def test_outputs_that_no_operator_wrote(self) -> None:
        program = program_from_module(Returned(), (X, KEY))
        assert program.graph.inputs == ("x", "ignored")
        assert program.graph.outputs == ("x", "mul", "weight", "ignored")
        assert program.out_leaves == ("x", "mul", "weight", "mul", "ignored")


KEYS = "'key': *, 'value': *, 'mask': *, 'scale': *"
FORM = f"the model was imported with arguments of the form ((*,), {{{KEYS}}}), called with "
SAME = "; pass the same arguments, or import the model again"
KEYWORDS: dict[str, Any] = {"key": KEY, "value": VALUE, "mask": None, "scale": 0.5}


class TestFlatten:
    def test_in_the_order_of_the_graph(self, attention: Program) -> None:
        flat = attention.flatten((X,), KEYWORDS)
        assert all(got is want for got, want in zip(flat, (X, KEY, VALUE), strict=True))

    @pytest.mark.parametrize(
        ("args", "changed", "text"),
        [
            ((X, X), {}, f"{FORM}((*, *), {{{KEYS}}}){SAME}"),
            (([X],), {}, f"{FORM}(([*],), {{{KEYS}}}){SAME}"),
            ((X,), {"more": X}, f"{FORM}((*,), {{{KEYS}, 'more': *}}){SAME}"),
            ((X,), {"scale": 2.0}, "the model was imported with the argument 0.5, called with 2.0; plan again"),
            ((X,), {"mask": X}, "the model was imported with the argument None, called with a tensor; plan again"),
            ((X,), {"scale": X}, "the model was imported with the argument 0.5, called with a tensor; plan again"),
            ((None,), {}, "input 'query' is a NoneType; pass a tensor [4, 4] float32"),
            ((3,), {}, "input 'query' is a int; pass a tensor [4, 4] float32"),
            (
                (X[:3],), {},
                "input 'query' is [3, 4] float32, the model was imported for [4, 4] float32; plan again for this input",
            ),
            (
                (X,), {"key": X.double()},
                "input 'key' is [4, 4] float64, the model was imported for [4, 4] float32; plan again for this input",
            ),
            (
                (torch.tensor(1),), {},
                "input 'query' is [] int64, the model was imported for [4, 4] float32; plan again for this input",
            ),
        ],
    )  # fmt: skip
    def test_refused(self, attention: Program, args: tuple[Any, ...], changed: dict[str, Any], text: str) -> None:
        kwargs = KEYWORDS | changed
        calls: list[Callable[..., Any]] = [
            lambda: attention.flatten(args, kwargs),
            lambda: attention.run(*args, **kwargs),
        ]
        for call in calls:
            with pytest.raises(InputError) as error:
                call()
            assert str(error.value) == text

    def test_a_keyword_left_out(self, attention: Program) -> None:
        with pytest.raises(InputError) as error:
            attention.run(X, key=KEY)
        assert str(error.value) == f"{FORM}((*,), {{'key': *}}){SAME}"


def test_an_expanded_tensor_is_held_as_it_lies() -> None:
    given = torch.arange(3.0).expand(4, 2, 3)
    held = as_held(given, torch.device("cpu"), copied=True)
    assert held.stride() == given.stride() == (0, 0, 1)
    assert torch.equal(held, given)
    assert held.untyped_storage().nbytes() == 12
    assert held.data_ptr() != given.data_ptr()


def test_run_needs_no_gradients() -> None:
    module = nn.Linear(4, 4)
    program = program_from_module(module, (X,))
    assert program.run(X).grad_fn is None
    assert module(X).grad_fn is not None


class TestHeld:
    """State as a device holds it."""

    def test_it_asks_for_gradients_as_the_models_own_does(self) -> None:
        module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4).requires_grad_(False)).eval()
        program = program_from_module(module, (X,))
        assert program.asking == {"0.weight", "0.bias"}
        for name, tensor in program.state.items():
            held = as_held(tensor, torch.device("cpu"))
            assert (held.requires_grad, held.grad_fn) == (name in program.asking, None)

    def test_it_shares_values_and_no_gradient(self) -> None:
        weight = nn.Parameter(torch.ones(3))
        shared, copied = (as_held(weight, torch.device("cpu"), copied) for copied in (False, True))
        weight.grad = torch.ones(3)
        assert (shared.grad, copied.grad) == (None, None)
        weight.data.add_(1)
        assert (shared.tolist(), copied.tolist()) == ([2.0] * 3, [1.0] * 3)

    def test_a_product_across_has_the_bits_of_a_weight_that_asks(self) -> None:
        weight, x = nn.Parameter(torch.randn(33, 16)), torch.randn(3, 2, 16).transpose(0, 1)
        with torch.no_grad():
            expected = nn.functional.linear(x, weight)
            assert torch.equal(nn.functional.linear(x, as_held(weight, torch.device("cpu"))), expected)
