"""LSTMs of one sequence, and of two in a pair, against PyTorch's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from costmodels.host.kernels import kernel_of
from costmodels.host.recurrent import SequenceLstm
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("one_thread")


class Begun(nn.Module):
    """An LSTM that begins with given states."""

    def __init__(self, *sizes: int, **modes: bool) -> None:
        super().__init__()
        self.lstm = nn.LSTM(*sizes, **modes)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, states = self.lstm(x, (h, c))
        return y, *states


def began(n: int, steps: int, sizes: tuple[int, int, int], both: bool, first: bool) -> Program:
    """A program of sizes: width of the inputs, size of the states, layers."""
    directions = sizes[2] * (2 if both else 1)
    x = torch.randn(n, steps, sizes[0]) if first else torch.randn(steps, n, sizes[0])
    states = [torch.randn(directions, n, sizes[1]) for _ in range(2)]
    module = Begun(*sizes, bidirectional=both, batch_first=first).eval()
    return program_from_module(module, (x, *states))


@settings(max_examples=20, deadline=None)
@given(
    steps=st.integers(1, 9),
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 3)),
    both=st.booleans(),
    first=st.booleans(),
    large=st.sampled_from([1.0, 100.0]),
)
def test_one_sequence_of_any_form(
    steps: int, sizes: tuple[int, int, int], both: bool, first: bool, large: float
) -> None:
    """Also where gates are closed or wide open; given states stay as they are."""
    torch.manual_seed(0)
    program = began(1, steps, sizes, both, first)
    (op,) = (each for each in program.graph.ops if each.kind.startswith("aten.lstm"))
    kernel = kernel_of(program, op, CPU, "quick")
    assert isinstance(kernel.target, SequenceLstm)
    packed = {name: pack(program.state.__getitem__) for name, pack in kernel.packs.items()}
    inputs = [large * each for each in program.example_inputs]
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


def test_several_sequences_are_the_library_s() -> None:
    program = began(2, 3, (4, 5, 1), False, False)
    (op,) = (each for each in program.graph.ops if each.kind.startswith("aten.lstm"))
    assert not isinstance(kernel_of(program, op, CPU, "quick").target, SequenceLstm)
