"""A planned model answers as the model does, however it is divided and however many call it."""

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from graphs.common.errors import InputError
from graphs.common.promises import Promise
from graphs.importers.from_torch import program_from_module
from planner.runtime.inference.engine import Engine
from planner.runtime.inference.runner import Runner
from simulator.placement import Placement
from tests.planner.runtime.bits import differences
from tests.planner.runtime.inference.timelines import check_timeline
from tests.planner.runtime.laws import assert_several_threads_may_call_at_once
from tests.planner.runtime.small import (
    NETWORKS,
    PATIENCE_S,
    Answer,
    alternating,
    device_threads,
    divided,
    fresh_arguments,
    live_tensors,
    make_plan,
    program_of,
    reference,
    settled,
)
from tests.simulator.tables import placements

# The answers


@pytest.mark.parametrize("name", NETWORKS)
@settings(max_examples=12)
@given(data=st.data())
def test_any_placement_in_any_order_gives_the_models_own_bits(name: str, data: st.DataObject) -> None:
    program = program_of(name)
    table = make_plan(program, alternating(program)).table
    placement = data.draw(placements(table, copies=3)) if table.n_ops else Placement(())
    calls = [fresh_arguments(name, seed) for seed in range(3)]
    with Runner(make_plan(program, placement, in_flight=data.draw(st.integers(1, 3))), program) as runner:
        got = [runner(*args, **kwargs) for args, kwargs in calls]
        streamed = list(runner._stream(iter(calls)))
    for call, one, other in zip(calls, got, streamed, strict=True):
        expected = reference(program, call)
        assert differences(expected, one) == []
        assert differences(expected, other) == []


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("device", [0, 2])
def test_everything_on_one_device(name: str, device: int) -> None:
    program = program_of(name)
    plan = make_plan(program, Placement((device,) * len(program.graph.ops)))
    with Runner(plan, program) as runner:
        for seed in range(3):
            args, kwargs = arguments = fresh_arguments(name, seed)
            assert differences(reference(program, arguments), runner(*args, **kwargs)) == []


def test_a_dataclass_comes_back_as_one() -> None:
    args, kwargs = fresh_arguments("options", 0)
    with divided("options") as runner:
        result = runner(*args, **kwargs)
    assert type(result) is Answer
    # x * 2 + shift, [2, 3], times [3, 4], and seen from the other side
    assert (result.scores.shape, result.shape.shape) == ((2, 4), (3, 2))


def test_keywords_come_in_any_order() -> None:
    (x, times, mask), kwargs = fresh_arguments("options", 0)
    with divided("options") as runner:
        one = runner(x, times, mask, shift=kwargs["shift"], pair=kwargs["pair"])
        other = runner(x, times, mask, pair=kwargs["pair"], shift=kwargs["shift"])
    assert differences(one, other) == []


def test_what_no_operator_writes_is_handed_through_untouched() -> None:
    program = program_of("handed")
    (x, y, unused), _ = fresh_arguments("handed", 0)
    with divided("handed") as runner:
        result = runner(x, y, unused)
    assert result["x"] is x
    assert result["again"][1] is x
    assert torch.equal(result["weight"], program.state["weight"])
    assert result["weight"] is not program.state["weight"]  # which may change: the answer is that of the start
    assert result["total"] is result["again"][0]
    assert (result["none"], result["three"]) == (None, 3)


def test_a_result_may_be_written_to() -> None:
    (ids,), _ = fresh_arguments("tied", 0)
    with divided("tied") as runner:
        result = runner(ids)
        result.fill_(7)
        assert not torch.equal(runner(ids), result)
    assert not result.requires_grad


def test_a_model_without_operators_needs_no_thread() -> None:
    x = torch.ones(2)
    with divided("nothing") as runner:
        assert device_threads() == []
        assert runner(x) is x
        assert [y.tolist() for y in runner.stream([x, 2 * x, 3 * x])] == [[1, 1], [2, 2], [3, 3]]
    with pytest.raises(RuntimeError, match="the runner is closed; start a new one"):
        runner(x)


# Many at once


@pytest.mark.parametrize("in_flight", [1, 2, 5])
def test_results_come_in_the_order_of_the_batches(in_flight: int) -> None:
    program = program_of("branches")
    batches = [fresh_arguments("branches", seed)[0][0] for seed in range(30)]
    with divided("branches", in_flight) as runner:
        results = list(runner.stream(batches))
        alone = [runner(batch) for batch in batches]
    assert differences(alone, results) == []
    assert differences([reference(program, ((batch,), {})) for batch in batches], results) == []
    assert not torch.equal(results[0], results[1])


def test_the_forms_of_a_batch() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x - y

    one, two = torch.tensor([1.0]), torch.tensor([2.0])
    by_position = program_from_module(Two(), (one, two))
    with Runner(make_plan(by_position, Placement((0,))), by_position) as runner:
        assert [y.item() for y in runner.stream([(one, two), (two, one)])] == [-1, 1]
        assert [y.item() for y in runner.replay(((one, two), {}), 3)] == [-1, -1, -1]
        assert list(runner.stream([])) == []
    by_name = program_from_module(Two(), (), {"x": one, "y": two})
    with Runner(make_plan(by_name, Placement((0,))), by_name) as runner:
        assert [y.item() for y in runner.stream([{"x": one, "y": two}, {"y": one, "x": two}])] == [-1, 1]


def test_several_threads_call_at_once() -> None:
    with divided("branches", in_flight=3) as runner:
        assert_several_threads_may_call_at_once(runner, "branches")


def test_no_more_are_on_their_way_than_the_plan_says(monkeypatch: pytest.MonkeyPatch) -> None:
    on_way: list[int] = []
    submit = Engine.submit

    def counting(self: Engine, inputs: Any) -> "Promise[Any]":
        done = submit(self, inputs)
        on_way.append(len(self._on_way))
        return done

    monkeypatch.setattr(Engine, "submit", counting)
    (x,), _ = fresh_arguments("branches", 0)
    with divided("branches", in_flight=3) as runner, ThreadPoolExecutor(8) as callers:
        calls = [callers.submit(lambda: list(runner.stream([x] * 10))) for _ in range(8)]
        assert sum(len(call.result(PATIENCE_S)) for call in calls) == 80
    assert len(on_way) == 80
    assert max(on_way) <= 3


def test_a_stream_takes_no_more_batches_than_may_be_on_their_way() -> None:
    taken = 0

    def batches() -> Iterator[torch.Tensor]:
        nonlocal taken
        for _ in range(20):
            taken += 1
            yield torch.zeros(1, 5, dtype=torch.int64)

    with divided("tied", in_flight=3) as runner:
        for given_back, _ in enumerate(runner.stream(batches())):
            assert taken <= given_back + 1 + 3  # one was asked for while the oldest was waited for
    assert taken == 20


def test_a_stream_may_be_left_half_way() -> None:
    batches = [fresh_arguments("branches", seed)[0][0] for seed in range(10)]
    with divided("branches") as runner:
        for _ in range(5):
            left = runner.stream(batches)
            assert len(list(islice(left, 2))) == 2
            assert isinstance(left, Generator)
            left.close()
        kept = runner.stream(batches)  # this one is neither finished nor closed
        next(kept)
        assert len(list(runner.stream(batches))) == 10
    with pytest.raises(RuntimeError, match="closed"):
        list(kept)


# What a device holds


def test_each_device_holds_its_own_parameters_and_no_others() -> None:
    program = program_of("branches")
    plan = make_plan(program, alternating(program))
    with Runner(plan, program, share_weights=True) as runner:
        owned = [dict(runner.owned(device.name)) for device in plan.cluster.devices]
    read = set(program.module.state_dict()) - {"stem.1.num_batches_tracked"}
    assert set().union(*owned) == set(program.state) == read
    assert sum(len(each) for each in owned) == len(program.state)  # so no two have one in common
    for op in program.graph.ops:
        for kept in program.graph.state(op):
            assert kept.name in owned[plan.placement.device[program.graph.index[op.name]]]
    for each in owned:
        for name, tensor in each.items():
            assert tensor.data_ptr() == program.state[name].data_ptr()


def test_tensors_are_handed_over_without_a_copy() -> None:
    class Views(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            y = x + 1
            return y, y.view(6), y.view(3, 2)[1:]

    program = program_from_module(Views(), (torch.ones(2, 3),))
    with Runner(make_plan(program, alternating(program)), program) as runner:
        y, flat, rows = runner(torch.ones(2, 3))
    assert flat.data_ptr() == y.data_ptr()
    assert rows.data_ptr() == y.data_ptr() + 2 * 4


def test_memory_does_not_grow() -> None:
    (ids,), _ = fresh_arguments("tied", 0)
    with divided("tied") as runner:
        runner(ids)
        before, most = live_tensors(), 0
        for i, answer in enumerate(runner.stream(ids for _ in range(200))):
            if i in (20, 199):
                most = max(most, live_tensors() - before)
            del answer
        # 4 on their way and one handed out, none of them with more than a tensor for each of the 4 operators
        assert most <= 5 * 4
        assert settled(before)


# What is recorded


def test_the_timeline_has_every_stage_of_every_micro_batch_in_a_possible_order() -> None:
    (x,), _ = fresh_arguments("branches", 0)
    with divided("branches") as runner:
        runner(x)
        runner.record()
        list(runner.replay(((x,), {}), 7))
        timeline = runner.timeline()
        plan = runner.plan
    check_timeline(plan, timeline, 7)
    assert timeline.makespan_s >= timeline.busy_s.max() > 0


def test_nothing_is_recorded_unasked() -> None:
    with divided("tied") as runner:
        runner(*fresh_arguments("tied", 0)[0])
        assert runner.timeline().spans == ()
        assert runner.timeline().micro_batches == 0


@pytest.mark.attack("first-try")
def test_what_a_runner_is_not_asked_for() -> None:
    program = program_of(next(iter(NETWORKS)))
    plan = make_plan(program, alternating(program))
    wrong: list[Callable[[Runner], object]] = [
        lambda runner: runner.owned("no such device"),
        lambda runner: runner.stream(5),  # type: ignore[arg-type]
        lambda runner: runner.replay(program.example_arguments, -1),
        lambda _: Runner("plan.json", program),  # type: ignore[arg-type]
        lambda _: Runner(plan, program.module),  # type: ignore[arg-type]
        lambda _: Runner(plan, program, seed=0.5),  # type: ignore[arg-type]
    ]
    with Runner(plan, program) as runner:
        for call in wrong:
            with pytest.raises(InputError):
                call(runner)
