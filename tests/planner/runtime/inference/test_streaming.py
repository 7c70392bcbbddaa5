"""Thousands of micro-batches leave nothing behind, whatever happens to some of them."""

import gc
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from costmodels.host.affinity import run_on
from graphs.importers.from_torch import program_from_module
from planner.runtime.errors import StageError
from planner.runtime.inference.engine import Engine
from planner.runtime.inference.runner import Runner
from simulator.placement import Placement
from tests.costmodels.calibrate.hosts import CORE, OTHER
from tests.planner.runtime.bits import differences
from tests.planner.runtime.small import PATIENCE_S, alternating, cpu, desk, live_tensors, make_plan, settled

MANY = 2_000
X = torch.ones(3, 4)


def runner_of(model: nn.Module, in_flight: int = 4) -> Runner:
    program = program_from_module(model, (X,))
    return Runner(make_plan(program, alternating(program), in_flight=in_flight), program)


def chain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)))


class Picky(nn.Module):
    """Refuses some indices, in the middle of the network."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.out(self.table(x + 1)))


def engine_of(runner: Runner) -> Engine:
    assert isinstance(runner._engine, Engine)
    return runner._engine


@pytest.mark.slow
def test_many_micro_batches_leave_no_tensor_and_no_object() -> None:
    with runner_of(chain()) as runner:
        before, kept = 0, 0
        tracemalloc.start()
        try:
            for number, _ in enumerate(runner.stream(X for _ in range(MANY)), 1):
                if number == MANY // 4:
                    gc.collect()
                    before = tracemalloc.get_traced_memory()[0]
            gc.collect()
            kept = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        # a micro-batch takes some kilobytes of Python objects while it is on its way; 1,500 of them left would be seen
        assert kept < 32 * 1024
        assert engine_of(runner).on_way() == ()


def test_what_was_handed_out_is_the_callers_alone() -> None:
    with runner_of(chain()) as runner:
        runner(X)
        before = live_tensors()
        kept = list(runner.stream(X for _ in range(200)))
        assert settled(before + len(kept))
        del kept
        assert settled(before)


def test_failures_leave_nothing_either() -> None:
    program = program_from_module(Picky(), (torch.zeros(1, 3, dtype=torch.int64),))
    good, bad = torch.zeros(1, 3, dtype=torch.int64), torch.full((1, 3), 7)
    with Runner(make_plan(program, alternating(program), in_flight=3), program) as runner:
        expected = runner(good)
        before, failed = live_tensors(), 0
        for number in range(300):
            if number % 3:
                assert torch.equal(runner(good), expected)
                continue
            with pytest.raises(StageError, match="index out of range"):
                runner(bad)
            failed += 1
        assert failed == 100
        assert settled(before)
        assert engine_of(runner).on_way() == ()


def test_callers_share_what_may_be_on_its_way() -> None:
    """More callers than micro-batches in flight: each gets its own answers in its own order."""
    model = chain()
    with runner_of(model, in_flight=2) as runner, ThreadPoolExecutor(6) as callers:
        runner(X)
        before = live_tensors()

        def work(caller: int) -> list[torch.Tensor]:
            return list(runner.stream(X * (caller * 100 + i) for i in range(40)))

        found = [done.result(PATIENCE_S) for done in [callers.submit(work, caller) for caller in range(6)]]
        for caller, results in enumerate(found):
            inputs = [X * (caller * 100 + i) for i in range(40)]
            expected: list[torch.Tensor] = run_on(cpu("alone"), partial(list, map(model, inputs)))
            assert differences(expected, results) == []
        del found, results, expected, inputs
        assert settled(before)


def test_whoever_takes_slowly_is_not_run_ahead_of() -> None:
    """Batches are made when there is room for them, not before."""
    made = 0
    looked = threading.Event()

    def batches() -> Iterator[torch.Tensor]:
        nonlocal made
        for _ in range(50):
            made += 1
            yield X

    with runner_of(chain(), in_flight=3) as runner:
        for taken, _ in enumerate(runner.stream(batches())):
            looked.wait(0.002)  # time enough for the devices to have done all that they were given
            assert made <= taken + 1 + 3
            assert len(engine_of(runner).on_way()) <= 3
    assert made == 50


@pytest.mark.skipif(CORE == OTHER, reason="this host has one core")
def test_a_device_of_several_cores_has_as_many_threads_and_their_bits() -> None:
    seen: list[int] = []

    class Look(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ x

    program = program_from_module(Look(), (torch.randn(300, 300),))
    wide = replace(cpu("cpu0"), cores=(CORE, OTHER))
    cluster = replace(desk(1), devices=(wide,))
    (x,), _ = program.example_arguments
    with Runner(make_plan(program, Placement((0,)), cluster), program) as runner:
        stage = engine_of(runner)._stages[0]
        original = stage.call

        def call(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            seen.append(torch.get_num_threads())
            return original(*inputs)

        object.__setattr__(stage, "call", call)
        result = runner(x)
    assert seen == [2]
    assert torch.equal(result, run_on(wide, lambda: x @ x))
