"""Streams through copies of a network, of which each runs two micro-batches at once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.kernels import rows
from graphs.program.program import Program
from planner.cli.explain_ import explanation_lines
from planner.explanations.explain import explain
from planner.plans.plan import Plan
from planner.runtime.benchmark.check import compare_outputs
from planner.runtime.inference.engine import Engine
from planner.runtime.inference.runner import Runner
from planner.runtime.verification.verify import verify
from simulator.placement import Placement
from tests.costmodels.parts import table_with
from tests.planner.runtime.small import desk, make_plan

X = torch.linspace(-1, 1, 40)[None]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.setattr("graphs.kernels.products.PAIR_BYTES", 0)  # small weights are enough
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 3))
    return program_from_module(module.eval(), (X,))


def plan_of(program: Program, in_flight: int = 4, gain: float = 0.4) -> Plan:
    """Two copies on devices that share a cache, in which operators take less time by a share."""
    cluster = desk(2)
    cluster = replace(cluster, devices=tuple(replace(device, kernels="quick") for device in cluster.devices))
    n = len(program.graph.ops)
    plan = make_plan(program, Placement((0,) * n, others=(Placement((1,) * n),)), cluster, in_flight)
    copies, group = np.full((n, 2), -gain), np.zeros(2, int)
    return replace(plan, table=table_with(plan.table, copies_slowdown=copies, contention_group=group))


@pytest.fixture
def pairs_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many micro-batches were submitted together, each time."""
    seen: list[int] = []
    submit = Engine.submit_together

    def spied(self: Engine, several: list[dict[str, torch.Tensor]], copy: int | None = None) -> object:
        seen.append(len(several))
        return submit(self, several, copy)

    monkeypatch.setattr(Engine, "submit_together", spied)
    return seen


def expected(program: Program, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = program.run(x)
    return result


@pytest.mark.parametrize("count", [1, 2, 7, 12])
def test_a_stream_runs_pairs_and_answers_in_order(program: Program, pairs_of: list[int], count: int) -> None:
    with Runner(plan_of(program), program) as runner:
        assert runner.in_pairs
        found = list(runner.stream(i * X for i in range(count)))
        single = runner(X)
    assert pairs_of == [2] * (count // 2) + [1] * (count % 2) + [1]
    for i, got in enumerate(found):
        torch.testing.assert_close(got, expected(program, i * X), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(single, expected(program, X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("in_flight", "gain"), [(3, 0.4), (4, 0.0)])
def test_fewer_in_flight_or_nothing_to_gain_run_one_by_one(
    program: Program, pairs_of: list[int], in_flight: int, gain: float
) -> None:
    with Runner(plan_of(program, in_flight, gain), program) as runner:
        assert not runner.in_pairs
        assert len(list(runner.stream([X] * 5))) == 5
    assert pairs_of == [1] * 5


@pytest.mark.parametrize(("late_s", "waiting"), [(0.0, 0), (1.0, 8)])
def test_no_more_are_on_their_way_than_are_in_flight_and_prefetched(
    program: Program, monkeypatch: pytest.MonkeyPatch, late_s: float, waiting: int
) -> None:
    monkeypatch.setattr("planner.runtime.inference.prefetch.LATE_S", late_s)
    taken: list[int] = []

    def source() -> Iterator[torch.Tensor]:
        for i in range(20):
            taken.append(i)
            yield i * X

    with Runner(plan_of(program, in_flight=5), program) as runner:
        for number, _ in enumerate(runner.stream(source())):
            assert len(taken) <= number + 5 + waiting


@pytest.mark.parametrize("good", [2, 3])
def test_what_fails_to_be_taken_comes_behind_all_earlier_results(program: Program, good: int) -> None:
    def failing() -> Iterator[torch.Tensor]:
        for i in range(good):
            yield i * X
        raise KeyError("no more")

    def odd() -> Iterator[torch.Tensor]:
        yield from [X] * good
        yield torch.ones(3)

    with Runner(plan_of(program), program) as runner:
        for source, error in ((failing, KeyError), (odd, InputError)):
            assert _results_before(runner, source, error) == good


def _results_before(runner: Runner, source: Callable[[], Iterator[torch.Tensor]], error: type[Exception]) -> int:
    stream, found = runner.stream(source()), list[torch.Tensor]()
    with pytest.raises(error):
        found.extend(stream)
    return len(found)


def test_wrong_answers_of_pairs_are_seen(program: Program) -> None:
    with Runner(plan_of(program), program) as runner:
        right = compare_outputs(runner)
        assert not right.wrong
        assert 0 < right.rounding < 1e-5
        assert isinstance(runner._engine, Engine)
        stages = runner._engine._stages
        for copy in runner._engine._copies:
            for tasks in copy.tasks.values():
                (task,) = tasks
                broken = replace(stages[task.number], pair=lambda *_: (torch.zeros(1, 3), torch.zeros(1, 3)))
                tasks[0] = replace(task, stage=broken)
        assert compare_outputs(runner).wrong


def test_the_plan_says_so(program: Program) -> None:
    assert "micro-batches of 2 in pairs through 2 copies, 4 in flight" in str(plan_of(program))
    assert "micro-batches of 2 through 2 copies, 3 in flight" in str(plan_of(program, in_flight=3))
    for in_flight, pairs in ((4, " in pairs, which read large weights once"), (3, "")):
        text = "\n".join(explanation_lines(explain(plan_of(program, in_flight)), 3))
        assert f"2 copies × 1 device: micro-batches take turns{pairs}.\n" in text


def test_it_is_verified_alone_and_in_pairs(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    found = verify(plan_of(program), program)
    assert found.equal
    assert found.n_tensors == 2 * 3  # of each copy the result alone, and twice in a pair
    products = rows.row_products

    def wrong(calls: Sequence[Sequence[Any]]) -> Sequence[torch.Tensor]:
        one, other = products(calls)
        return one, other * 1.01

    monkeypatch.setattr("graphs.kernels.products.row_products", wrong)
    assert not verify(plan_of(program), program).equal
