"""What goes wrong on the way reaches its caller alone, and nobody waits forever."""

import random
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from itertools import islice
from typing import Any

import pytest
import torch

from graphs.common.errors import InputError
from planner.runtime.errors import StageError
from planner.runtime.inference.engine import Engine
from planner.runtime.inference.runner import Runner
from planner.runtime.inference.tasks import DeviceTask
from simulator.placement import Placement
from tests.interrupts import interrupted
from tests.planner.runtime.bits import differences
from tests.planner.runtime.laws import assert_an_error_reaches_its_caller_alone
from tests.planner.runtime.small import (
    PATIENCE_S,
    begin,
    device_threads,
    divided,
    eventually,
    fresh_arguments,
    make_plan,
    program_of,
    reference,
)

CLOSED = "the runner was closed while this micro-batch was on its way"


def test_an_error_reaches_its_caller_alone() -> None:
    program = program_of("tied")
    with Runner(make_plan(program, Placement((1, 2, 0, 2))), program) as runner:
        assert isinstance(assert_an_error_reaches_its_caller_alone(runner).__cause__, IndexError)


def test_a_stream_ends_where_one_of_its_batches_fails() -> None:
    good, bad = torch.zeros(1, 5, dtype=torch.int64), torch.full((1, 5), 6)  # the embedding knows the words 0 to 5
    program = program_of("tied")
    with Runner(make_plan(program, Placement((1, 2, 0, 2))), program) as runner:
        expected = runner(good)
        results = runner.stream([good, good, bad, good])
        assert torch.equal(next(results), expected)
        assert torch.equal(next(results), expected)
        with pytest.raises(StageError, match="in micro-batch 3: IndexError"):  # after one call and two of the stream
            next(results)
        for _ in range(10):  # and its place is free again
            assert torch.equal(runner(good), expected)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt of a callback
def test_calls_that_are_interrupted_at_any_moment_leave_room_for_the_next_ones() -> None:
    program, moments, good = program_of("tied"), random.Random(0), torch.zeros(1, 5, dtype=torch.int64)
    with Runner(make_plan(program, Placement((1, 2, 0, 2))), program) as runner:
        expected = runner(good)

        def endless() -> None:
            while True:
                assert torch.equal(runner(good), expected)

        for _ in range(300):
            assert interrupted(endless, moments.uniform(1e-4, 1e-3))
        assert torch.equal(runner(good), expected)


@pytest.mark.attack("answer")
@pytest.mark.parametrize("in_flight", [1, 4])
def test_what_was_begun_before_a_source_fails_is_delivered_first(in_flight: int) -> None:
    def source() -> Iterator[torch.Tensor]:
        yield from batches
        raise ZeroDivisionError

    program = program_of("branches")
    batches = [fresh_arguments("branches", seed)[0][0] for seed in range(6)]
    expected = [reference(program, ((batch,), {})) for batch in batches]
    with divided("branches", in_flight) as runner:
        for failing, kind in ((source(), ZeroDivisionError), ([*batches, torch.ones(1)], InputError)):
            stream = runner.stream(failing)
            assert differences(expected, list(islice(stream, 6))) == []
            with pytest.raises(kind):
                next(stream)
        assert differences(expected[0], runner(batches[0])) == []


def test_an_interrupted_source_and_an_error_of_the_consumer_end_a_stream_at_once() -> None:
    def source() -> Iterator[torch.Tensor]:
        yield x
        raise KeyboardInterrupt

    (x,), _ = fresh_arguments("branches", 0)
    with divided("branches") as runner:
        with pytest.raises(KeyboardInterrupt):
            next(runner.stream(source()))
        stream = runner.stream([x] * 5)
        next(stream)
        assert isinstance(stream, Generator)
        with pytest.raises(ZeroDivisionError):
            stream.throw(ZeroDivisionError())


class Gate:
    """Holds the stages of one device until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, device: int) -> None:
        self.reached, self._go = threading.Event(), threading.Event()
        run = Engine._run

        def gated(engine: Engine, task: DeviceTask, *rest: Any) -> Any:
            if task.stage.stage.device == device:
                self.reached.set()
                assert self._go.wait(PATIENCE_S)
            return run(engine, task, *rest)

        monkeypatch.setattr(Engine, "_run", gated)

    def open(self) -> None:
        self._go.set()


def closing(runner: Runner) -> "Future[None]":
    """Close it from another thread, which is on it when this returns."""
    begun = begin(runner.close)
    engine = runner._engine
    assert isinstance(engine, Engine)
    eventually(lambda: engine._closing)
    return begun


def test_closing_fails_every_call_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, 1)
    (x,), _ = fresh_arguments("branches", 0)
    runner = divided("branches", in_flight=2)
    calls = [begin(lambda: runner(x)) for _ in range(5)]  # two on their way, three wait for a place
    assert gate.reached.wait(PATIENCE_S)
    closed = closing(runner)
    gate.open()
    texts = sorted(str(call.exception(PATIENCE_S)) for call in calls)
    assert set(texts) <= {CLOSED, "the runner is closed; start a new one"}
    assert CLOSED in texts
    closed.result(PATIENCE_S)


def test_closing_while_a_stream_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, 2)
    (x,), _ = fresh_arguments("branches", 0)
    runner = divided("branches")
    streaming = begin(lambda: list(runner.stream([x] * 10)))
    assert gate.reached.wait(PATIENCE_S)
    closed = closing(runner)
    gate.open()
    with pytest.raises(RuntimeError, match=CLOSED):
        streaming.result(PATIENCE_S)
    closed.result(PATIENCE_S)


def test_a_closed_runner() -> None:
    (x,), _ = fresh_arguments("branches", 0)
    with divided("branches") as runner:
        runner(x)
        assert sorted(device_threads()) == ["device-cpu0", "device-cpu1", "device-cpu2"]
    assert device_threads() == []
    runner.close()
    with pytest.raises(RuntimeError) as error:
        runner(x)
    assert str(error.value) == "the runner is closed; start a new one"
    with pytest.raises(RuntimeError, match="closed"):
        list(runner.stream([x]))


def test_an_error_in_the_with_block_closes_it_too() -> None:
    with pytest.raises(ZeroDivisionError), divided("tied"):
        raise ZeroDivisionError
    assert device_threads() == []
