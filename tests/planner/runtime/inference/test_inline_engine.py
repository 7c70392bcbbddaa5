"""A plan for one device of all cores runs on the thread that calls it, and is a runner like any other."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeAlias

import pytest
import torch
from torch import nn

from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from planner.plans.plan import Plan
from planner.runtime.benchmark.check import compare_outputs
from planner.runtime.errors import StageError
from planner.runtime.inference.engine import Engine
from planner.runtime.inference.inline_engine import InlineEngine
from planner.runtime.inference.runner import Runner
from simulator.placement import Placement
from tests.costmodels.calibrate.hosts import CORE, OTHER
from tests.planner.runtime.bits import differences
from tests.planner.runtime.small import NETWORKS, PATIENCE_S, cpu, desk, device_threads, make_plan, program_of

pytestmark = pytest.mark.skipif(CORE == OTHER, reason="this host has one core")


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    """As many as the device has cores, whatever this host has."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def plan_here(program: Program, in_flight: int = 4) -> Plan:
    cluster = replace(desk(1), devices=(replace(cpu("cpu0"), cores=(CORE, OTHER)),))
    return make_plan(program, Placement((0,) * len(program.graph.ops)), cluster, in_flight)


Call: TypeAlias = Callable[..., tuple[torch.Tensor, ...]]


def replaced(runner: Runner, call: Call) -> Call:
    """Let the only stage call something else; what it called before."""
    assert isinstance(runner._engine, InlineEngine)
    stage = runner._engine._stages[0]
    before = stage.call
    object.__setattr__(stage, "call", call)
    return before


def tanh() -> Program:
    return program_from_module(nn.Tanh(), (torch.ones(3),))


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "nothing"])
def test_answers_are_the_models_and_nobody_else_works(name: str) -> None:
    program = program_of(name)
    with Runner(plan_here(program), program) as runner:
        assert isinstance(runner._engine, InlineEngine)
        assert not compare_outputs(runner).wrong
        args, kwargs = program.example_arguments
        assert len(list(runner.replay((args, kwargs), 9))) == 9
        assert device_threads() == []


def test_who_has_other_threads_or_several_devices_gets_them() -> None:
    program = tanh()
    torch.set_num_threads(1)
    with Runner(plan_here(program), program) as runner:
        assert type(runner._engine) is Engine
        assert device_threads() == ["device-cpu0"]
    torch.set_num_threads(2)
    with Runner(make_plan(program, Placement((0,))), program) as runner:  # a device of one core
        assert type(runner._engine) is Engine


def test_the_calling_thread_is_left_as_it_was() -> None:
    program, seen = tanh(), []
    with Runner(plan_here(program), program) as runner:

        def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            seen.append((threading.current_thread(), torch.get_num_threads(), torch.is_grad_enabled()))
            return (x + 1,)

        replaced(runner, call)
        y = runner(torch.ones(3))
    assert seen == [(threading.current_thread(), 2, False)]
    assert not y.requires_grad
    assert torch.is_grad_enabled()


def test_callers_take_turns() -> None:
    program, inside, alone = tanh(), threading.Lock(), []
    with Runner(plan_here(program, in_flight=8), program) as runner, ThreadPoolExecutor(4) as callers:

        def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            alone.append(inside.acquire(blocking=False))
            result = (x * 2,)
            inside.release()
            return result

        replaced(runner, call)
        xs = [torch.full((3,), float(i)) for i in range(40)]
        answers = [callers.submit(runner, x) for x in xs]
        assert differences([x * 2 for x in xs], [answer.result(PATIENCE_S) for answer in answers]) == []
    assert alone == [True] * 40


def test_an_error_names_the_stage_and_the_runner_goes_on() -> None:
    program = tanh()
    with Runner(plan_here(program), program) as runner:

        def call(_: torch.Tensor) -> tuple[torch.Tensor, ...]:
            raise ValueError("no")

        original = replaced(runner, call)
        with pytest.raises(StageError, match="stage 0 on 'cpu0' failed in micro-batch 0: ValueError: no"):
            runner(torch.ones(3))
        replaced(runner, original)
        assert torch.equal(runner(torch.zeros(3)), torch.zeros(3))


def test_an_interrupt_leaves_the_call_as_it_leaves_the_model() -> None:
    program = tanh()
    with Runner(plan_here(program, in_flight=1), program) as runner:

        def call(_: torch.Tensor) -> tuple[torch.Tensor, ...]:
            raise KeyboardInterrupt

        original = replaced(runner, call)
        for _ in range(3):  # whoever is interrupted gives the place back that it had
            with pytest.raises(KeyboardInterrupt):
                runner(torch.ones(3))
        replaced(runner, original)
        assert torch.equal(runner(torch.zeros(3)), torch.zeros(3))


def test_closing_fails_what_waits_for_its_turn() -> None:
    program, entered, go_on = tanh(), threading.Event(), threading.Event()
    with Runner(plan_here(program), program) as runner, ThreadPoolExecutor(2) as callers:

        def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            entered.set()
            assert go_on.wait(PATIENCE_S)
            return (x,)

        replaced(runner, call)
        answers = [callers.submit(runner, torch.ones(3)) for _ in range(2)]
        assert entered.wait(PATIENCE_S)
        runner.close()
        go_on.set()
        for answer in answers:
            with pytest.raises(RuntimeError, match="closed"):
                answer.result(PATIENCE_S)
        runner.close()


def test_a_recording_has_every_micro_batch() -> None:
    program = program_of("branches")
    with Runner(plan_here(program), program) as runner:
        runner.record()
        list(runner.replay(program.example_arguments, 5))
        timeline = runner.timeline()
    assert [span.micro_batch for span in timeline.spans] == [0, 1, 2, 3, 4]
    assert {span.resource for span in timeline.spans} == {"cpu0"}
