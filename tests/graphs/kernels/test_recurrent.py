"""LSTMs and GRUs of one sequence, and of two in a pair, against PyTorch's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from graphs.importers.from_torch import program_from_module
from graphs.ir import Op
from graphs.kernels.kernels import kernel_of
from graphs.kernels.recurrent import SequenceGru, SequenceLstm, SequenceRecurrence
from graphs.program.program import Program

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("one_thread")


KINDS: dict[type[SequenceRecurrence], type[nn.LSTM | nn.GRU]] = {SequenceLstm: nn.LSTM, SequenceGru: nn.GRU}


class Begun(nn.Module):
    """An LSTM or a GRU that begins with given states."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU], *sizes: int, **modes: bool) -> None:
        super().__init__()
        self.recurrent = kind(*sizes, **modes)

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, last = self.recurrent(x, states if len(states) > 1 else states[0])
        return y, *([last] if isinstance(last, torch.Tensor) else last)


def began(
    kind: type[SequenceRecurrence], n: int, steps: int, sizes: tuple[int, int, int], both: bool, first: bool
) -> Program:
    """A program of sizes: width of the inputs, size of the states, layers."""
    directions = sizes[2] * (2 if both else 1)
    x = torch.randn(n, steps, sizes[0]) if first else torch.randn(steps, n, sizes[0])
    states = [torch.randn(directions, n, sizes[1]) for _ in range(2 if kind is SequenceLstm else 1)]
    module = Begun(KINDS[kind], *sizes, bidirectional=both, batch_first=first).eval()
    return program_from_module(module, (x, *states))


def recurrent_of(program: Program) -> Op:
    (op,) = (each for each in program.graph.ops if each.kind.startswith(("aten.lstm", "aten.gru")))
    return op


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(list(KINDS)),
    steps=st.integers(1, 9),
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 3)),
    both=st.booleans(),
    first=st.booleans(),
    large=st.sampled_from([1.0, 100.0]),
)
def test_one_sequence_of_any_form(
    kind: type[SequenceRecurrence],
    steps: int,
    sizes: tuple[int, int, int],
    both: bool,
    first: bool,
    large: float,
) -> None:
    """Also where gates are closed or wide open; given states stay as they are."""
    torch.manual_seed(0)
    program = began(kind, 1, steps, sizes, both, first)
    op = recurrent_of(program)
    kernel = kernel_of(program, op, CPU, "quick")
    assert isinstance(kernel.target, kind)
    packed = {name: pack(program.state.__getitem__) for name, pack in kernel.packs.items()}
    x, *states = program.example_inputs
    wide = large if kind is SequenceLstm else 1.0  # what a gate is off by counts a state of a GRU so many times
    inputs = [large * x, *(wide * state for state in states)]
    given = dict(zip(program.graph.inputs, inputs, strict=True))
    args, kwargs = kernel.bound(program, {**program.state, **given, **packed}.__getitem__)
    before = [each.clone() for each in inputs]
    expected = program.run(*inputs)
    for _ in range(2):
        for got, known in zip(kernel.target(*args, **kwargs), expected, strict=True):
            assert got.shape == known.shape
            torch.testing.assert_close(got, known, rtol=1e-5, atol=2e-6 * large)
    assert kernel.pair is not None
    other = [-each for each in inputs]
    read = {**program.state, **dict(zip(program.graph.inputs, other, strict=True)), **packed}
    pair = kernel.pair([args, kernel.bound(program, read.__getitem__)[0]])
    for results, known_ones in zip(pair, (expected, program.run(*other)), strict=True):
        for got, known in zip(results, known_ones, strict=True):
            assert got.shape == known.shape
            assert got.is_contiguous()
            torch.testing.assert_close(got, known, rtol=1e-5, atol=2e-6 * large)
    assert all(torch.equal(a, b) for a, b in zip(before, inputs, strict=True))


@pytest.mark.parametrize("kind", list(KINDS))
def test_several_sequences_are_the_library_s(kind: type[SequenceRecurrence]) -> None:
    program = began(kind, 2, 3, (4, 5, 1), False, False)
    assert not isinstance(kernel_of(program, recurrent_of(program), CPU, "quick").target, SequenceRecurrence)


def test_without_biases_it_is_the_library_s() -> None:
    program = program_from_module(nn.GRU(4, 5, bias=False).eval(), (torch.randn(3, 1, 4),))
    assert not isinstance(kernel_of(program, recurrent_of(program), CPU, "quick").target, SequenceRecurrence)
