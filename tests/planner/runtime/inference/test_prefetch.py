"""What a stream prefetches for copies of a network: how much, and that answers and their order are the same."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from planner.plans.plan import Plan
from planner.runtime.inference import prefetch
from planner.runtime.inference.engine import Engine
from planner.runtime.inference.prefetch import prefetched
from planner.runtime.inference.runner import Runner
from simulator.placement import Placement
from tests.planner.runtime.small import PATIENCE_S, alternating, desk, live_tensors, make_plan, settled

X = torch.linspace(-1, 1, 12).view(3, 4)


@pytest.fixture
def program() -> Program:
    torch.manual_seed(0)
    return program_from_module(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), (X,))


def copies_of(program: Program, period_s: float = 1e-4) -> Plan:
    """Two copies that are predicted to end a micro-batch each period."""
    n = len(program.graph.ops)
    plan = make_plan(program, Placement((0,) * n, others=(Placement((1,) * n),)), desk(2))
    forward_s = plan.table.forward_s * period_s / plan.period_s
    return replace(plan, table=replace(plan.table, forward_s=forward_s))


@pytest.mark.parametrize(
    ("period_s", "at_once", "count"),
    [(1e-4, 1, 8), (0.0027, 1, 7), (0.006, 1, 3), (0.006, 2, 2), (0.0099, 1, 2), (0.011, 1, 0), (0.011, 2, 0)],
)
def test_as_many_as_a_result_may_be_late(program: Program, period_s: float, at_once: int, count: int) -> None:
    plan = copies_of(program, period_s)
    assert plan.period_s == pytest.approx(period_s, rel=0.05)
    assert prefetched(plan, at_once) == count


def test_as_many_as_fit_into_some_memory(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    each_bytes = 2 * X.numel() * X.element_size()  # an input and a result
    for n_bytes, count in ((8 * each_bytes, 8), (8 * each_bytes - 1, 7), (2 * each_bytes, 2), (2 * each_bytes - 1, 0)):
        monkeypatch.setattr(prefetch, "MOST_BYTES", n_bytes)
        assert prefetched(copies_of(program), 1) == count


def check_taken(plan: Plan, program: Program, count: int) -> None:
    """A stream takes so many batches, and no more, while the devices stand still; then it answers in order."""
    began, go = threading.Event(), threading.Event()
    taken = 0

    def source() -> Iterator[torch.Tensor]:
        nonlocal taken
        for i in range(40):
            taken += 1
            yield i * X

    with Runner(plan, program) as runner:
        assert isinstance(runner._engine, Engine)

        def hold() -> None:
            began.set()
            go.wait(PATIENCE_S)

        runner.watch(hold)  # a device's thread waits behind its first stage
        found = list[torch.Tensor]()
        thread = threading.Thread(target=lambda: found.extend(runner.stream(source())))
        thread.start()
        assert began.wait(PATIENCE_S)
        end_s = time.monotonic() + PATIENCE_S
        while taken < count and time.monotonic() < end_s:
            time.sleep(0.001)
        time.sleep(0.05)  # for one more
        most = taken
        go.set()
        thread.join(PATIENCE_S)
    for i, got in enumerate(found):
        assert torch.equal(got, program.run(i * X))
    assert (most, len(found)) == (count, 40)


def test_a_stream_takes_so_many_more_and_answers_in_order(program: Program) -> None:
    check_taken(copies_of(program), program, 4 + 8)
    check_taken(copies_of(program, period_s=1.0), program, 4)


def test_a_network_that_is_divided_prefetches_none(program: Program) -> None:
    check_taken(make_plan(program, alternating(program), desk(2)), program, 4)


def test_a_result_that_is_there_is_handed_out_before_the_next_batch_is_asked_for(program: Program) -> None:
    """Of a source that is slow, as a camera, results do not wait until the stream is full."""
    handed_out: list[int] = []

    with Runner(copies_of(program), program) as runner:

        def slow() -> Iterator[torch.Tensor]:
            for i in range(5):
                yield i * X
                while runner._on_way:  # all that was taken before is there when the next one is asked for
                    time.sleep(0.001)
                assert len(handed_out) >= i  # this one too, if it was there at once

        for got in runner.stream(slow()):
            handed_out.append(int(got.numel()))
    assert len(handed_out) == 5


def test_nothing_of_a_stream_that_is_left_half_way_stays(program: Program) -> None:
    with Runner(copies_of(program), program) as runner:
        runner(X)
        before = live_tensors()
        for _ in range(20):
            stream = runner.stream(i * X for i in range(30))
            next(stream)
            del stream
        assert torch.equal(runner(X), program.run(X))
        assert settled(before)
