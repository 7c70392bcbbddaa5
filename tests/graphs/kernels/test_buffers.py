"""Planned memory: what lies where, what must not, and that answers stay what they are."""

from collections.abc import Callable
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from costmodels.calibrate.clock import clock_of
from costmodels.calibrate.runs import Inference
from costmodels.cluster.cluster import Device
from graphs.importers.from_torch import program_from_module
from graphs.kernels.buffers import LINE, buffers_of
from graphs.kernels.kernel import Kernel
from graphs.kernels.kernels import kernels_of
from graphs.program.program import Program

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("one_thread")
QUICK = Device("cpu0", "cpu", 1e9, {"float32": 1e11}, 1e10, cores=(0,), kernels="quick")


class Drawn(nn.Module):
    """Convolutions in an order of their own: each reads one or two earlier results, and some of them are returned."""

    def __init__(self, reads: list[tuple[int, int]], returned: list[int]) -> None:
        super().__init__()
        self.reads, self.returned = reads, returned
        self.convolutions = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in reads)

    def forward(self, x: Tensor) -> list[Tensor]:
        results = [x]
        for (first, second), convolution in zip(self.reads, self.convolutions, strict=True):
            y = results[first % len(results)] + results[second % len(results)] if first != second else results[first]
            results.append(convolution(y))
        return [results[1 + number] for number in self.returned]


def kernels_in(program: Program) -> list[Kernel]:
    return [kernel for op in program.graph.ops for kernel in kernels_of(program, op, CPU, "quick")]


def span(tensor: Tensor) -> range:
    return range(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)


def together(a: Tensor, b: Tensor) -> bool:
    return span(a).start < span(b).stop and span(b).start < span(a).stop


@settings(max_examples=10)
@given(data=st.data())
def test_results_that_are_needed_at_once_lie_apart_and_answers_stay(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 7), "convolutions")
    reads = [(data.draw(st.integers(0, i)), data.draw(st.integers(0, i))) for i in range(count)]
    returned = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=2, unique=True), "returned")
    torch.manual_seed(0)
    network = Drawn(reads, returned).eval()
    program = program_from_module(network, torch.randn(1, 4, 5, 6))
    kernels, outputs = kernels_in(program), program.graph.outputs
    buffers = buffers_of(program, kernels, outputs)
    assert buffers.keys().isdisjoint(outputs)
    live = {name: [i for i, k in enumerate(kernels) if name in (*k.reads, *k.op.outputs)] for name in buffers}
    for a, b in combinations(buffers, 2):
        if live[a][0] <= live[b][-1] and live[b][0] <= live[a][-1]:
            assert not together(buffers[a], buffers[b])
    assert all(tensor.data_ptr() % (4 * LINE) == 0 for tensor in buffers.values())

    inference = Inference(program, CPU, clock_of(QUICK), kernels="quick")
    given, got = [torch.randn(1, 4, 5, 6) for _ in range(2)], []
    with torch.no_grad():
        expected = [network(x) for x in given]
        for x in given:
            got.append(inference.given | {program.graph.inputs[0]: x})
            inference.run(got[-1], 0, len(kernels))  # the second run overwrites no answer of the first
    for answers, found in zip(expected, got, strict=True):
        for answer, name in zip(answers, outputs, strict=True):
            torch.testing.assert_close(found[name], answer, rtol=1e-4, atol=1e-5)


class Read(nn.Module):
    """A product whose result a function of it is computed of, and then another product."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.first, self.second = function, nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.function(self.first(x))
        return y, self.second(y)


@pytest.mark.parametrize(
    ("function", "planned"),
    [
        (torch.sin, True),
        (lambda y: torch.cat([y, y])[:3], True),
        (lambda y: nn.functional.layer_norm(y, (4,)), True),
        (lambda y: y.reshape(1, 3, 4), False),  # the answer is a view
        (lambda y: y.view(3, 2, 2).sum(0).view(1, 4), True),  # the view is read, the answer is none
        (lambda y: y[:2].to(torch.float32), False),
        (lambda y: nn.functional.dropout(y, training=False), False),  # returns what it reads
        (lambda y: y.type_as(torch.zeros(1)), False),
    ],
)
def test_what_a_result_may_be_kept_by_is_not_planned(function: Callable[[Tensor], Tensor], planned: bool) -> None:
    program = program_from_module(Read(function).eval(), torch.randn(3, 4))
    buffers = buffers_of(program, kernels_in(program), program.graph.outputs)
    assert (program.graph.ops[0].outputs[0] in buffers) is planned


def test_exact_kernels_write_where_they_like() -> None:
    program = program_from_module(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).eval(), torch.randn(3, 4))
    kernels = [kernel for op in program.graph.ops for kernel in kernels_of(program, op, CPU, "exact")]
    assert buffers_of(program, kernels, program.graph.outputs) == {}
