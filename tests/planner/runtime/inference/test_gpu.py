"""The same runtime with a GPU among the devices."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from planner.runtime.benchmark.measure import Eager
from planner.runtime.inference.runner import Runner
from simulator.placement import Placement
from tests.planner.runtime.small import (
    NETWORKS,
    cpu,
    desk,
    fresh_arguments,
    make_plan,
    program_of,
    reference,
    with_device,
)

pytestmark = pytest.mark.usefixtures("gpu")


def mixed(program: Program, device: Callable[[int], int]) -> Runner:
    """cpu0 and gpu1; the second is a GPU."""
    plan = make_plan(program, Placement(tuple(device(i) for i in range(len(program.graph.ops)))), desk(2))
    return Runner(with_device(plan, 1, replace(cpu("cpu1", cores=()), cuda=0)), program)


@pytest.mark.filterwarnings("ignore:RNN module weights")  # cuDNN would like them in one piece
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("device", [lambda i: i % 2, lambda _: 1])
def test_some_operators_on_a_gpu(name: str, device: Callable[[int], int]) -> None:
    program = program_of(name)
    calls = [fresh_arguments(name, seed) for seed in range(8)]
    with mixed(program, device) as runner:
        runner.record()
        results = list(runner._stream(iter(calls)))
        assert runner.timeline().micro_batches == (8 if program.graph.ops else 0)
        for call, got in zip(calls, results, strict=True):
            expected = reference(program, call)
            torch.utils._pytree.tree_map(
                lambda a, b: torch.testing.assert_close(b, a, check_device=False, rtol=1e-3, atol=1e-4), expected, got
            )
        assert {tensor.device.type for tensor in runner.owned("cpu1").values()} <= {"cuda"}


def test_a_gpu_waits_for_the_callers_stream_and_leaves_its_results_alone() -> None:
    class Chain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + 1) * 2

    program = program_from_module(Chain(), (torch.zeros(500, 500),))
    with mixed(program, lambda _: 1) as runner:
        results = []
        for i in range(0, 50, 7):
            x = torch.zeros(500, 500, device="cuda:0")
            for _ in range(i):
                x = x + 1  # is still under way when the runner is called
            results.append(runner(x) + 0)
        assert [result.unique().tolist() for result in results] == [[2 * (i + 1)] for i in range(0, 50, 7)]


def test_the_unsplit_model_on_a_gpu() -> None:
    program = program_of("branches")
    eager = Eager(program, replace(cpu("gpu0", cores=()), cuda=0), "one device")
    assert eager.result().is_cuda
    assert eager.stream(2) > 0
    assert {parameter.device.type for parameter in program.module.parameters()} == {"cpu"}
