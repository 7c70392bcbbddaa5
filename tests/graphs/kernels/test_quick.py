"""Kernels of fused operators against their members."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from costmodels.calibrate.clock import clock_of
from costmodels.calibrate.runs import Inference
from costmodels.cluster.cluster import Device
from costmodels.host.affinity import use_threads
from graphs.kernels.kernels import kernels_of
from graphs.kernels.quick import quick_kernel
from graphs.program.program import Program
from graphs.rewrites.fuse import Fuse, find_fusions
from tests.graphs.rewrites.nets import FUSED, Positions, imported

CPU = torch.device("cpu")
TOLERANCE = 1e-5  # of the largest element


def fused(program: Program) -> Program:
    return replace(program, graph=find_fusions(program.graph)(program.graph))


def run_all(program: Program, kernels: str) -> dict[str, torch.Tensor]:
    device = Device("cpu0", "cpu", 1e9, {"float32": 1e11}, 1e10, cores=(0,))
    with torch.no_grad():
        run = Inference(program, CPU, clock_of(device), kernels=kernels)  # type: ignore[arg-type]
        env = dict(run.given)
        run.run(env, 0, len(run.ops))
    return {name: env[name] for name in program.graph.outputs}


@pytest.mark.parametrize("make", [make for make, _ in FUSED.values()], ids=FUSED)
def test_one_kernel_computes_what_the_members_do(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(3)
    program = imported(make())
    together = fused(program)
    assert all(len(kernels_of(together, op, CPU, "quick")) == 1 for op in together.graph.ops)
    (expected,), (got,) = (each.values() for each in (run_all(program, "exact"), run_all(together, "quick")))
    assert got.shape == expected.shape
    assert float((got - expected).abs().max()) <= TOLERANCE * float(expected.abs().max())


@pytest.mark.parametrize("make", [make for make, _ in FUSED.values()], ids=FUSED)
def test_exact_kernels_are_those_of_the_members(make: Callable[[], nn.Module]) -> None:
    program = imported(make())
    (expected,), (got,) = (each.values() for each in (run_all(program, "exact"), run_all(fused(program), "exact")))
    assert torch.equal(got, expected)


@pytest.mark.parametrize(
    ("network", "x"),
    [
        (nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)), torch.randn(2, 8)),
        (nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.Tanh()), torch.randn(2, 3, 4, 4)),
    ],
    ids=["not known", "longer than what is known"],
)
def test_a_group_without_a_kernel_runs_as_its_members(network: nn.Module, x: torch.Tensor) -> None:
    program = imported(network, x)
    names = tuple(op.name for op in program.graph.ops)
    odd = replace(program, graph=Fuse((names,))(program.graph))
    kernels = kernels_of(odd, odd.graph.ops[0], CPU, "quick")
    assert [kernel.op.name for kernel in kernels] == list(names)
    (expected,), (got,) = (each.values() for each in (run_all(program, "exact"), run_all(odd, "quick")))
    assert float((got - expected).abs().max()) <= TOLERANCE


def test_what_never_changes_is_computed_once() -> None:
    program = imported(Positions(), torch.randn(2, 5, 8))
    together = fused(program)
    (once,) = (op for op in together.graph.ops if op.members)
    (kernel,) = kernels_of(together, once, CPU, "quick")
    held = [pack(program.state.__getitem__) for pack in kernel.packs.values()]
    assert [each is given for each, given in zip(kernel.target(*held), held, strict=True)] == [True] * 2
    expected, got = run_all(program, "exact"), run_all(together, "quick")
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("outputs", [1, 3, 4, 10, 33])
@pytest.mark.parametrize("bias", [True, False])
def test_a_product_with_one_row_reads_the_model_s_own_weights(outputs: int, bias: bool) -> None:
    program = imported(nn.Linear(7, outputs, bias=bias), torch.randn(1, 7))
    (kernel,) = kernels_of(program, program.graph.ops[0], CPU, "quick")
    weight = kernel.packs["weight"](program.state.__getitem__)
    assert weight.data_ptr() == program.state["weight"].data_ptr()
    (expected,), (got,) = (run_all(program, kernels).values() for kernels in ("exact", "quick"))
    assert got.shape == expected.shape
    assert float((got - expected).abs().max()) <= TOLERANCE * float(expected.abs().max())


class Squeezed(nn.Module):
    """Images whose channels are weighed by their means, two of which are put together."""

    def __init__(self) -> None:
        super().__init__()
        self.images, self.weights = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.images(x)
        weighed = torch.sigmoid(self.weights(nn.functional.adaptive_avg_pool2d(x, 1))) * x
        again = weighed * torch.cat([x, weighed, x], 1)[:, 4:12].mean((-1, 2), keepdim=True)
        return torch.cat([again, x], 1), again.mean((2, 3))


class Sequences(nn.Module):
    """Convolutions of sequences, with a norm and a sum behind one and a view behind the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv1d(3, 8, 3, padding=2, dilation=2), nn.BatchNorm1d(8)
        self.second, self.norm.running_mean = nn.Conv1d(8, 8, 3, 2, groups=4, bias=False), torch.randn(8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(self.norm(self.first(x)))
        z = self.second(y + x[:, :1].expand(-1, 8, -1).contiguous())
        return y.mean(-1), z.view(z.shape[0], -1), z


class Rows(nn.Module):
    """A layer norm of a sum of rows, with other rows behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8, eps=0.1)
        nn.init.uniform_(self.norm.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.norm(x.sin() + x), x], 1)


@pytest.mark.parametrize(
    ("network", "x", "count"),
    [
        (Squeezed(), torch.randn(2, 3, 7, 6), 9),
        (Rows(), torch.randn(2, 5, 8) + 3, 3),
        (Sequences(), torch.randn(2, 3, 11), 3),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_single_operators(network: nn.Module, x: torch.Tensor, count: int, threads: int) -> None:
    program = imported(network, x)
    assert sum(quick_kernel(program, op) is not None for op in program.graph.ops) == count
    before = use_threads(threads)
    try:
        expected, got = (run_all(program, kernels) for kernels in ("exact", "quick"))
    finally:
        use_threads(before)
    for name, answer in expected.items():
        torch.testing.assert_close(got[name], answer, rtol=1e-4, atol=1e-5)
