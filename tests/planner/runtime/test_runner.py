"""A planned model answers as the model does: however it is divided, however many call it, and whatever goes wrong."""

import gc
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from costmodels.cluster import Cluster, Device
from graphs.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.importers.program import Program
from planner.plans import Plan
from planner.runtime.check import differences
from planner.runtime.engine import Engine, StageError
from planner.runtime.measure import Eager, on_device
from planner.runtime.runner import Runner, start
from simulator.placement import Placement
from simulator.stages import split_stages
from tests.planner.runtime.small import (
    CORE,
    NETWORKS,
    PATIENCE_S,
    Answer,
    Arguments,
    Tied,
    alternating,
    begin,
    cpu,
    desk,
    device_threads,
    fresh_arguments,
    make_plan,
    program_of,
)
from tests.simulator.tables import placements

CLOSED = "the runner was closed while this micro-batch was on its way"


@pytest.fixture(autouse=True, scope="module")
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert device_threads() == []


def divided(name: str, in_flight: int = 4) -> Runner:
    """A runner of a network of which every operator is on another device than the one before."""
    program = program_of(name)
    return Runner(make_plan(program, alternating(program), in_flight=in_flight), program)


def unsplit(program: Program, arguments: Arguments) -> Any:
    """What the model itself returns, on one core."""
    args, kwargs = arguments
    return on_device(cpu("reference"), lambda: program.module(*args, **kwargs))


# The answers


@pytest.mark.parametrize("name", NETWORKS)
@settings(max_examples=12)
@given(data=st.data())
def test_any_placement_in_any_order_gives_the_models_own_bits(name: str, data: st.DataObject) -> None:
    program = program_of(name)
    table = make_plan(program, alternating(program)).table
    placement = data.draw(placements(table)) if table.n_ops else Placement(())
    calls = [fresh_arguments(name, seed) for seed in range(3)]
    with Runner(make_plan(program, placement, in_flight=data.draw(st.integers(1, 3))), program) as runner:
        got = [runner(*args, **kwargs) for args, kwargs in calls]
        streamed = list(runner._stream(iter(calls)))
    for call, one, other in zip(calls, got, streamed, strict=True):
        expected = unsplit(program, call)
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
            assert differences(unsplit(program, arguments), runner(*args, **kwargs)) == []


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
    assert result["weight"] is program.state["weight"]
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
    assert differences([unsplit(program, ((batch,), {})) for batch in batches], results) == []
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
    program = program_of("branches")

    def work(runner: Runner, caller: int) -> list[str]:
        wrong = []
        for turn in range(5):
            (x,), _ = arguments = fresh[caller, turn]
            wrong += differences(unsplit(program, arguments), runner(x))
        xs = [fresh[caller, turn][0][0] for turn in range(5)]
        for x, y in zip(xs, runner.stream(xs), strict=True):
            wrong += differences(unsplit(program, ((x,), {})), y)
        return wrong

    fresh = {(i, j): fresh_arguments("branches", 5 * i + j) for i in range(6) for j in range(5)}
    with divided("branches", in_flight=3) as runner, ThreadPoolExecutor(6) as callers:
        answers = [callers.submit(work, runner, caller) for caller in range(6)]
        assert [answer.result(PATIENCE_S) for answer in answers] == [[]] * 6


def test_no_more_are_on_their_way_than_the_plan_says(monkeypatch: pytest.MonkeyPatch) -> None:
    on_way: list[int] = []
    submit = Engine.submit

    def counting(self: Engine, inputs: Any) -> "Future[Any]":
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
    with Runner(plan, program) as runner:
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
    def live() -> int:
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    (ids,), _ = fresh_arguments("tied", 0)
    with divided("tied") as runner:
        runner(ids)
        before, most = live(), 0
        for i, _ in enumerate(runner.stream(ids for _ in range(200))):
            if i in (20, 199):
                most = max(most, live() - before)
        # 4 on their way and one handed out, none of them with more than a tensor for each of the 4 operators
        assert most <= 5 * 4
        pause = threading.Event()
        for _ in range(100):
            if live() <= before:
                break
            pause.wait(0.01)  # a device is still putting its last tensors away
        assert live() <= before


# What goes wrong


def test_an_error_reaches_its_caller_alone() -> None:
    # the third operator reads the embedding; 6 words are known
    good, bad = torch.zeros(1, 5, dtype=torch.int64), torch.full((1, 5), 6)
    program = program_of("tied")
    with Runner(make_plan(program, Placement((1, 2, 0, 2))), program) as runner, ThreadPoolExecutor(8) as callers:
        expected = runner(good)
        answers = [callers.submit(runner, bad if i == 4 else good) for i in range(8)]
        with pytest.raises(StageError) as failure:
            answers[4].result(PATIENCE_S)
        for i, answer in enumerate(answers):
            assert i == 4 or torch.equal(answer.result(PATIENCE_S), expected)
        text = str(failure.value)
        assert text.startswith("stage 0 on 'cpu1' failed in micro-batch ")
        assert text.endswith(": IndexError: index out of range in self")
        assert isinstance(failure.value.__cause__, IndexError)

        results = runner.stream([good, good, bad, good])
        assert torch.equal(next(results), expected)
        assert torch.equal(next(results), expected)
        with pytest.raises(StageError, match="in micro-batch 11: IndexError"):  # after 1 + 8 and two of the stream
            next(results)
        for _ in range(10):  # and its place is free again
            assert torch.equal(runner(good), expected)


class Gate:
    """Holds the stages of one device until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, device: int) -> None:
        self.reached, self._go = threading.Event(), threading.Event()
        run = Engine._run

        def gated(engine: Engine, number: int, *rest: Any) -> tuple[torch.Tensor, ...]:
            if engine._stages[number].stage.device == device:
                self.reached.set()
                assert self._go.wait(PATIENCE_S)
            return run(engine, number, *rest)

        monkeypatch.setattr(Engine, "_run", gated)

    def open(self) -> None:
        self._go.set()


def closing(runner: Runner) -> "Future[None]":
    """Close it from another thread, which is on it when this returns."""
    begun = begin(runner.close)
    while not runner._engine._closing:
        threading.Event().wait(0.001)
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


# Arguments that do not fit


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        (
            (torch.ones(1, 3, 4, 4),),
            {},
            "input 'x' is [1, 3, 4, 4] float32, the model was imported for [2, 3, 4, 4] float32; "
            "plan again for this input",
        ),
        (
            (torch.ones(2, 3, 4, 4).half(),),
            {},
            "input 'x' is [2, 3, 4, 4] float16, the model was imported for [2, 3, 4, 4] float32; "
            "plan again for this input",
        ),
        ((3,), {}, "input 'x' is a int; pass a tensor [2, 3, 4, 4] float32"),
        ((), {}, "the model was imported with arguments of the form "),
        ((torch.ones(1), torch.ones(1)), {}, "the model was imported with arguments of the form "),
        ((), {"x": torch.ones(2, 3, 4, 4)}, "the model was imported with arguments of the form "),
    ],
)
def test_arguments_of_another_form(args: tuple[Any, ...], kwargs: dict[str, Any], text: str) -> None:
    (x,), _ = fresh_arguments("branches", 0)
    with divided("branches", in_flight=1) as runner:
        for _ in range(3):  # none of them takes the one place there is
            with pytest.raises(InputError) as error:
                runner(*args, **kwargs)
            assert str(error.value).startswith(text)
        runner(x)


def test_a_constant_argument_that_differs() -> None:
    (x, _, mask), kwargs = fresh_arguments("options", 0)
    with divided("options") as runner, pytest.raises(InputError) as error:
        runner(x, 3, mask, **kwargs)
    assert str(error.value) == "the model was imported with the argument 2, called with 3; plan again"


# Starting


def linear(width: int) -> Program:
    return program_from_module(nn.Linear(3, width), (torch.ones(2, 3),), name="linear")


class Leaky(nn.Module):
    """An operator with an attribute."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.leaky_relu(x, self.slope)


@pytest.mark.parametrize(
    ("planned", "given", "where"),
    [
        (linear(3), linear(4), "tensor 'weight' [3, 3] float32 of the plan meets 'weight' [4, 3] float32"),
        (
            program_from_module(nn.ReLU(), (torch.ones(2),)),
            program_from_module(nn.ReLU(), (torch.ones(4),)),
            "tensor 'input_1' [2] float32 of the plan meets 'input_1' [4] float32",
        ),
        (
            program_from_module(Leaky(0.1), (torch.ones(2),)),
            program_from_module(Leaky(0.2), (torch.ones(2),)),
            "operator 'leaky_relu' (aten.leaky_relu.default) of the plan has another kind, input, attribute or module "
            "there",
        ),
    ],
)
def test_a_plan_for_another_model(planned: Program, given: Program, where: str) -> None:
    with pytest.raises(InputError) as error:
        Runner(make_plan(planned, alternating(planned)), given)
    assert str(error.value) == (
        f"the plan is for '{planned.graph.name}' ({planned.graph.fingerprint}), the model is '{given.graph.name}' "
        f"({given.graph.fingerprint}): {where}; plan for this model and batch"
    )
    assert device_threads() == []


def test_a_plan_for_a_part_of_the_model() -> None:
    class Twice(nn.Module):
        def __init__(self, more: bool) -> None:
            super().__init__()
            self.more = more

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.relu()
            return y.exp() if self.more else y

    part, whole = (program_from_module(Twice(more), (torch.ones(2),)) for more in (False, True))
    with pytest.raises(InputError, match=r"the plan has 1 operators, the model 2, or their inputs or outputs differ"):
        Runner(make_plan(part, Placement((0,))), whole)


def with_device(plan: Plan, i: int, device: Device) -> Plan:
    devices = (*plan.cluster.devices[:i], device, *plan.cluster.devices[i + 1 :])
    return replace(plan, cluster=Cluster("odd", devices, plan.cluster.links))


@pytest.mark.parametrize(
    ("device", "text"),
    [
        (cpu("cpu1", cores=()), "device 'cpu1' has neither cores nor cuda in cluster.toml; it can only be simulated"),
        (cpu("cpu1", cores=(CORE + 4096,)), f"device 'cpu1' is bound to core {CORE + 4096}, which this process "),
        (replace(cpu("cpu1", cores=()), cuda=99), "device 'cpu1' is GPU 99, this host has "),
    ],
)
def test_a_device_that_is_not_here(device: Device, text: str) -> None:
    program = program_of("tied")
    plan = with_device(make_plan(program, Placement((0, 1, 0, 1))), 1, device)
    with pytest.raises(InputError) as error:
        Runner(plan, program)
    assert str(error.value).startswith(text)
    assert device_threads() == []


def test_a_device_that_is_not_used_may_be_anywhere() -> None:
    program = program_of("tied")
    plan = with_device(make_plan(program, Placement((0, 2, 0, 2))), 1, cpu("cpu1", cores=()))
    with Runner(plan, program) as runner:
        assert differences(unsplit(program, fresh_arguments("tied", 0)), runner(*fresh_arguments("tied", 0)[0])) == []
        assert runner.owned("cpu1") == {}


def test_weights_without_values_leave_no_thread() -> None:
    with torch.device("meta"):
        program = program_from_module(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), (torch.ones(1, 2),))
    with pytest.raises(InputError, match=r"'0\.weight' has a shape but no values"):
        Runner(make_plan(program, Placement((0, 1))), program)
    assert device_threads() == []


@pytest.mark.parametrize("inputs", [None, (torch.full((1, 5), 3),)])
def test_start_takes_the_module_itself(inputs: tuple[Any, ...] | None) -> None:
    torch.manual_seed(1)
    model = Tied().eval()
    program = program_from_module(model, (torch.zeros(1, 5, dtype=torch.int64),))
    ids = torch.tensor([[0, 1, 2, 3, 5]])
    with start(make_plan(program, alternating(program)), model, inputs) as runner:
        assert torch.equal(runner(ids), on_device(cpu("reference"), lambda: model(ids)))
        assert runner.program.graph.name == "Tied"
    with start(make_plan(program, alternating(program)), program) as runner:
        assert runner.program is program


def test_start_without_arguments_at_all() -> None:
    class Constant(nn.Module):
        def forward(self) -> torch.Tensor:
            return torch.arange(3) + 1

    model = Constant()
    program = program_from_module(model, ())
    with start(make_plan(program, alternating(program)), model) as runner:
        assert runner().tolist() == [1, 2, 3]


def test_a_model_in_training_mode_runs_as_it_was_planned_and_stays_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    x = torch.ones(2, 3)
    program = program_from_module(model, (x,))
    with start(make_plan(program, Placement((0, 1))), model, (x,)) as runner:
        assert torch.equal(runner(x), on_device(cpu("reference"), lambda: model[0](x)))
    assert model.training


# What is recorded


def test_the_timeline_has_every_stage_of_every_micro_batch_in_a_possible_order() -> None:
    (x,), _ = fresh_arguments("branches", 0)
    with divided("branches") as runner:
        runner(x)
        runner.record()
        list(runner.replay(((x,), {}), 7))
        timeline = runner.timeline()
        plan = runner.plan
    stages = split_stages(plan.table, plan.placement)
    assert (timeline.devices, timeline.micro_batches) == (("cpu0", "cpu1", "cpu2"), 7)
    spans = {(span.micro_batch, span.index): span for span in timeline.spans}
    assert len(spans) == len(timeline.spans)
    assert set(spans) == {(m, s) for m in range(7) for s in range(len(stages))}
    for (micro_batch, index), span in spans.items():
        assert span.kind == "compute"
        assert span.resource == plan.cluster.devices[stages[index].device].name
        assert 0 <= span.start_s < span.end_s
        assert all(spans[micro_batch, need].end_s <= span.start_s for need in stages[index].needs)
    for device in timeline.devices:
        own = sorted((span.start_s, span.end_s) for span in timeline.spans if span.resource == device)
        assert all(before[1] <= after[0] for before, after in pairwise(own))
    assert timeline.makespan_s >= timeline.busy_s.max() > 0


def test_nothing_is_recorded_unasked() -> None:
    with divided("tied") as runner:
        runner(*fresh_arguments("tied", 0)[0])
        assert runner.timeline().spans == ()
        assert runner.timeline().micro_batches == 0


# With a GPU


def mixed(program: Program, device: Callable[[int], int]) -> Runner:
    """cpu0 and gpu1; the second is a GPU."""
    plan = make_plan(program, Placement(tuple(device(i) for i in range(len(program.graph.ops)))), desk(2))
    return Runner(with_device(plan, 1, replace(cpu("cpu1", cores=()), cuda=0)), program)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
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
            expected = unsplit(program, call)
            torch.utils._pytree.tree_map(
                lambda a, b: torch.testing.assert_close(b, a, check_device=False, rtol=1e-3, atol=1e-4), expected, got
            )
        assert {tensor.device.type for tensor in runner.owned("cpu1").values()} <= {"cuda"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_waits_for_the_callers_stream_and_leaves_its_results_alone() -> None:
    class Chain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + 1) * 2

    program = program_from_module(Chain(), (torch.zeros(1000, 1000),))
    with mixed(program, lambda _: 1) as runner:
        results = []
        for i in range(50):
            x = torch.zeros(1000, 1000, device="cuda")
            for _ in range(i):
                x = x + 1  # is still under way when the runner is called
            results.append(runner(x) + 0)
        assert [result.unique().tolist() for result in results] == [[2 * (i + 1)] for i in range(50)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_unsplit_model_on_a_gpu() -> None:
    program = program_of("branches")
    eager = Eager(program, replace(cpu("gpu0", cores=()), cuda=0), "one device")
    assert eager.result().is_cuda
    assert eager.stream(2) > 0
    assert {parameter.device.type for parameter in program.module.parameters()} == {"cpu"}
