"""Two micro-batches at once: the order of their operators, and the function that computes both."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from costmodels.calibrate.runs import gains_by_pairs
from graphs.importers.from_torch import program_from_module
from graphs.kernels import products
from graphs.kernels.functions import DeviceState, Subgraph, compile_operators, inputs_of
from graphs.kernels.kernel import Kernel
from graphs.kernels.kernels import kernels_of
from graphs.kernels.pairs import BOTH, ONE, OTHER, in_turns
from graphs.program.program import Program

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True)
class State(DeviceState):
    """The state of a program on the calling thread."""

    program: Program

    def get(self, name: str) -> torch.Tensor:
        return self.program.state[name]

    def packed(self, kernel: Kernel, name: str) -> torch.Tensor:
        return kernel.packs[name](self.get)


class Mixed(nn.Module):
    """Convolutions, products of a row with views between them, an LSTM, and a result that is a view of an input."""

    def __init__(self) -> None:
        super().__init__()
        self.images = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.rows = nn.Sequential(nn.Linear(72, 40), nn.ReLU(), nn.Linear(40, 40))
        self.lstm = nn.LSTM(8, 6, batch_first=True)
        self.last = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.rows(self.images(x))
        z, (h, _) = self.lstm(y.view(1, 5, 8))
        return self.last(z[:, -1]), h, x.flatten(2)


def quick_kernels(program: Program) -> dict[int, Sequence[Kernel]]:
    return {i: kernels_of(program, op, CPU, "quick") for i, op in enumerate(program.graph.ops)}


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.setattr(products, "PAIR_BYTES", 0)  # small weights are enough
    torch.manual_seed(0)
    return program_from_module(Mixed().eval(), (torch.randn(1, 3, 8, 8),))


def test_kernels_that_read_a_weight_once_run_for_both_and_others_in_runs(program: Program) -> None:
    kernels = quick_kernels(program)
    turns = in_turns(kernels)
    paired = {number for number, each in kernels.items() if any(kernel.pair for kernel in each)}
    kinds = {program.graph.ops[number].kind.split(".")[1] for number in paired}
    assert kinds == {"linear", "lstm"}
    for which in (0, 1):
        assert [number for number, lanes in turns if which in lanes] == list(kernels)
    assert {number for number, lanes in turns if lanes == BOTH} == paired
    first = min(paired)
    assert turns[: 2 * first] == [(number, lane) for lane in (ONE, OTHER) for number in range(first)]


def test_without_such_a_kernel_there_are_no_turns() -> None:
    program = program_from_module(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 4)).eval(), _images(4))
    assert in_turns(quick_kernels(program)) == []  # the weight is small


def _images(size: int) -> tuple[torch.Tensor]:
    return (torch.randn(1, 3, size, size),)


def test_the_function_of_both_computes_what_two_calls_compute(program: Program) -> None:
    kernels, outputs = quick_kernels(program), list(program.graph.outputs)
    calls: list[int] = []
    turns = in_turns(kernels)
    subgraph, state = Subgraph(program, kernels, outputs), State(program)
    alone = compile_operators(subgraph, state)
    both = compile_operators(subgraph, state, behind=lambda: calls.append(1), turns=turns)
    assert inputs_of(program.graph, kernels) == program.graph.inputs
    for seed in range(3):
        torch.manual_seed(seed)
        first, second = torch.randn(1, 3, 8, 8), torch.randn(1, 3, 8, 8)
        calls.clear()
        found = both(first, second)
        assert len(calls) == len(turns)
        expected: list[Any] = [each.clone() for x in (first, second) for each in alone(x)]
        assert len(found) == len(expected) == 2 * len(outputs)
        for got, known in zip(found, expected, strict=True):
            torch.testing.assert_close(got, known, rtol=1e-5, atol=1e-6)


def test_results_of_one_micro_batch_lie_apart_from_those_of_the_other(program: Program) -> None:
    kernels, outputs = quick_kernels(program), list(program.graph.outputs)
    both = compile_operators(Subgraph(program, kernels, outputs), State(program), turns=in_turns(kernels))
    first, second = torch.randn(1, 3, 8, 8), torch.randn(1, 3, 8, 8)
    once = [each.clone() for each in both(first, second)]
    swapped = both(second, first)
    half = len(outputs)
    for got, known in zip((*swapped[half:], *swapped[:half]), once, strict=True):
        torch.testing.assert_close(got, known, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("alone_s", "worth"), [([0.05, 1.0], False), ([0.2, 1.0], True), ([], False), ([0, 0], False)])
def test_pairs_are_for_a_share_of_the_time(program: Program, alone_s: list[float], worth: bool) -> None:
    kernels = list(quick_kernels(program).values())
    paired = next(each for each in kernels if any(kernel.pair for kernel in each))
    plain = next(each for each in kernels if not any(kernel.pair for kernel in each))
    assert gains_by_pairs([paired, plain], alone_s) == worth
