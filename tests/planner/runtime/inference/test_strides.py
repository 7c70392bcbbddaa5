"""Operators that look at memory, and the caller, meet the strides of the model, whatever layout kernels prefer."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # its usual name
from torch.utils import _pytree as pytree

from costmodels.cluster.cluster import Cluster
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from graphs.program.rewritten import rewritten_program
from graphs.rewrites.fuse import find_fusions
from planner.runtime.distributed.inference.launcher import start_processes
from planner.runtime.inference.runner import Runner
from simulator.placement import Placement
from tests.planner.runtime.small import alternating, desk, make_plan


@torch.library.custom_op("planner_tests::strides_of", mutates_args=())
def strides_of(x: Tensor) -> Tensor:
    return torch.tensor(x.stride())


@strides_of.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty(x.dim(), dtype=torch.int64)


class Net(nn.Module):
    """Layers, and what a function makes of their result."""

    def __init__(self, layer: nn.Module, after: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.after = layer, after

    def forward(self, x: Tensor) -> Any:
        return self.after(self.layer(x))


def conv(kernel: int | tuple[int, int] = 3) -> nn.Module:
    return nn.Conv2d(4, 4, kernel)


IMAGES, SEQUENCES = (2, 4, 8, 8), (2, 4, 9)

NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "as_strided": (lambda: Net(conv(), lambda x: x.as_strided((2, 4, 5, 5), (144, 36, 6, 1))), IMAGES),
    "as_strided, further on": (lambda: Net(conv(), lambda x: x.as_strided((2, 4, 5), (144, 36, 1), 7)), IMAGES),
    "as_strided of a cut": (lambda: Net(conv(), lambda x: x[:, 1:].as_strided((2, 9), (100, 3), 2)), IMAGES),
    "as_strided within": (
        lambda: Net(nn.Sequential(conv(), nn.SiLU(), conv(1)), lambda x: F.gelu(x.as_strided((9, 8), (8, 1)))),
        IMAGES,
    ),
    "complex numbers": (lambda: Net(conv((1, 5)), lambda x: torch.view_as_complex(x[..., :2]).abs()), IMAGES),
    "another dtype": (lambda: Net(conv(), lambda x: x.view(torch.int16)), IMAGES),
    "another dtype within": (lambda: Net(conv(), lambda x: x.relu().view(torch.int32) + 1), IMAGES),
    "view as": (lambda: Net(conv(), lambda x: x.view_as(x.reshape(2, -1))), IMAGES),
    "windows": (lambda: Net(conv(), lambda x: x.unfold(2, 3, 2).unfold(3, 3, 1)), IMAGES),
    "an operator of somebody": (lambda: Net(conv(), lambda x: strides_of(x) + 0), IMAGES),
    "an operator of somebody, of a view": (lambda: Net(conv(), lambda x: strides_of(x[:, ::2].mT) + 0), IMAGES),
    "images": (lambda: Net(conv(), lambda x: x), IMAGES),
    "an activation": (lambda: Net(conv(), F.silu), IMAGES),
    "a sum": (lambda: Net(conv(), lambda x: x + x.flip(1)), IMAGES),
    "pooled": (lambda: Net(conv(), lambda x: F.max_pool2d(x, 2)), IMAGES),
    "a mean": (lambda: Net(conv(), lambda x: x.mean((2, 3), keepdim=True)), IMAGES),
    "one image": (lambda: Net(conv(), lambda x: x), (1, 4, 8, 8)),
    "one pixel": (lambda: Net(conv(8), lambda x: x), IMAGES),
    "larger": (lambda: Net(conv(), lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear")), IMAGES),
    "joined": (lambda: Net(conv(), lambda x: torch.cat([x, x.relu()], 1)), IMAGES),
    "shuffled": (lambda: Net(conv(), lambda x: F.pixel_shuffle(x, 2)), IMAGES),
    "views of each other": (lambda: Net(conv(), lambda x: (x, x[:, :3], x.mT, x.view(2, -1), x[0])), IMAGES),
    "channels last on purpose": (lambda: Net(conv(), lambda x: x.to(memory_format=torch.channels_last)), IMAGES),
    "sequences": (lambda: Net(nn.Conv1d(4, 6, 3, padding=1), lambda x: x), SEQUENCES),
    "sequences, turned": (lambda: Net(nn.Conv1d(4, 6, 3), lambda x: x.mT), SEQUENCES),
    "transposed convolution": (lambda: Net(nn.ConvTranspose2d(4, 4, 3), lambda x: x), IMAGES),
    "normalised": (lambda: Net(nn.Sequential(conv(), nn.BatchNorm2d(4)), lambda x: F.instance_norm(x)), IMAGES),
    "attention": (lambda: Net(conv(), lambda x: F.scaled_dot_product_attention(x, x, x)), IMAGES),
    "linear": (lambda: Net(nn.Linear(8, 6), lambda x: x.transpose(1, 2)), IMAGES),
    "rounded down": (lambda: Net(conv(), lambda x: torch.div(x.mT, torch.tensor(0.5), rounding_mode="floor")), IMAGES),
    "signs of a number": (lambda: Net(conv(), lambda x: x.mT.copysign(torch.tensor(-1.0))), IMAGES),
    "a negative view": (lambda: Net(nn.Linear(8, 8), lambda x: torch.complex(x, x).conj().imag @ torch.eye(8)), IMAGES),
}


def program_of(name: str) -> Program:
    make, shape = NETS[name]
    torch.manual_seed(0)
    whole = program_from_module(make().eval(), (torch.randn(shape),))
    return rewritten_program(whole, (find_fusions(whole.graph),))


def quick(n_devices: int = 2) -> Cluster:
    cluster = desk(n_devices)
    return replace(cluster, devices=tuple(replace(each, kernels="quick") for each in cluster.devices))


def check(found: Any, expected: Any) -> None:
    """Compare results, whose elements have the same values at the same places of memory."""
    for got, want in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        assert got.stride() == want.stride()


@pytest.mark.parametrize("name", NETS)
def test_results_lie_as_the_model_s(name: str) -> None:
    program = program_of(name)
    (x,) = program.example_inputs
    n = len(program.graph.ops)
    expected = program.module(x)
    for placement in (Placement((0,) * n), alternating(program, 2)):
        with Runner(make_plan(program, placement, quick()), program) as runner:
            check(runner(x), expected)
            for result in runner.stream([(x,)] * 3):
                check(result, expected)


@pytest.mark.slow
def test_results_of_processes_lie_as_the_model_s() -> None:
    program = program_of("views of each other")
    (x,) = program.example_inputs
    plan = make_plan(program, Placement((1,) * len(program.graph.ops)), quick())
    with Runner(plan, program, start_processes(plan, program)) as runner:
        check(runner(x), program.module(x))


def test_random_numbers_are_drawn_in_the_order_of_the_model_s_memory() -> None:
    torch.manual_seed(0)
    program = program_from_module(Net(conv(), torch.rand_like).eval(), (torch.randn(IMAGES),))
    placement, found = Placement((0,) * len(program.graph.ops)), []
    for cluster in (desk(1), quick(1)):
        with Runner(make_plan(program, placement, cluster), program, seed=3) as runner:
            found.append(runner(*program.example_inputs))
    assert torch.equal(*found)


@pytest.mark.parametrize("streams", [False, True])
def test_inputs_that_stand_for_other_numbers(streams: bool) -> None:
    torch.manual_seed(0)
    program = program_from_module(nn.Linear(16, 8).eval(), (torch.randn(4, 16),))
    plan = make_plan(program, Placement((0,)), quick(1))
    conjugate = torch.randn(4, 16, dtype=torch.complex64).conj().imag
    with Runner(plan, program) as runner:
        for x in (torch._neg_view(torch.randn(4, 16)), conjugate, torch._neg_view(torch.randn(16, 4)).T):
            assert x.is_neg()
            (y,) = runner.stream([(x,)]) if streams else (runner(x),)
            torch.testing.assert_close(y, program.module(x))


def test_a_weight_that_stands_for_other_numbers() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(16, 8)
    linear.weight = nn.Parameter(torch._neg_view(torch.randn(8, 16)))
    program = program_from_module(linear.eval(), (torch.randn(4, 16),))
    (x,) = program.example_inputs
    with Runner(make_plan(program, Placement((0,)), quick(1)), program) as runner:
        torch.testing.assert_close(runner(x), linear(x))
