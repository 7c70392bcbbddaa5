"""The engine with stages written by hand, so that each moment can be held and looked at."""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import torch

from costmodels.cluster.cluster import Device
from costmodels.host.affinity import bound
from graphs.common.promises import Promise
from graphs.kernels.choice import Kernels
from planner.runtime.errors import StageError
from planner.runtime.inference.engine import Engine
from planner.runtime.stages.compile import CompiledStage
from simulator.stages import Stage
from tests.planner.runtime.small import CORE, PATIENCE_S, begin, cpu, device_threads, eventually

Tensor = torch.Tensor
CLOSED = "the runner was closed while this micro-batch was on its way"


@pytest.fixture
def engines() -> Iterator[Callable[..., Engine]]:
    """Makes engines of three devices, and sees that all their threads end."""
    made: list[Engine] = []

    def make(stages: list[CompiledStage], outputs: tuple[str, ...]) -> Engine:
        made.append(Engine([cpu(f"cpu{i}") for i in range(3)], dict(enumerate(stages)), outputs))
        return made[-1]

    yield make
    for engine in made:
        begin(engine.close).result(PATIENCE_S)
    assert device_threads() == []


def stage(
    device: int, inputs: str, outputs: str, call: Callable[..., Any], needs: tuple[int, ...] = ()
) -> CompiledStage:
    """Reads and writes tensors of one letter; a single result need not be a tuple."""

    def returned(*values: Tensor) -> tuple[Tensor, ...]:
        result = call(*values)
        return result if isinstance(result, tuple) else (result,)

    return CompiledStage(Stage(device, (), (), (), needs), tuple(inputs), tuple(outputs), returned, outputs)


def number(value: float) -> dict[str, Tensor]:
    """The input x of a micro-batch."""
    return {"x": torch.tensor(float(value))}


def value(done: "Promise[dict[str, Tensor]]", name: str = "z") -> float:
    """One output of a micro-batch."""
    return done.result(PATIENCE_S)[name].item()


def wait(event: threading.Event) -> None:
    assert event.wait(PATIENCE_S)


def relay(**calls: Callable[..., Any]) -> list[CompiledStage]:
    """x ─► [y = 2x] 0 ─► [z = y + 1] 1, where a test does not say otherwise."""
    return [
        stage(0, "x", "y", calls.get("first", lambda x: x * 2)),
        stage(1, "y", "z", calls.get("second", lambda y: y + 1), needs=(0,)),
    ]


def test_a_device_calls_what_comes_behind_its_stage_before_its_reader_begins(engines: Callable[..., Engine]) -> None:
    log: list[str] = []

    def second(y: Tensor) -> Tensor:
        log.append("second")
        return y + 1

    engine = engines(relay(second=second), ("z",))
    engine.behind = lambda: log.append(f"behind {threading.current_thread().name}")
    assert value(engine.submit(number(1))) == 3
    eventually(lambda: len(log) == 3)
    assert log == ["behind device-cpu0", "second", "behind device-cpu1"]


def test_a_thread_that_cannot_be_its_device_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def bound_but_for_one(device: Device, **options: Any) -> Any:
        if device.name == "cpu1":
            raise RuntimeError("can't start new thread")
        return bound(device, **options)

    monkeypatch.setattr("planner.runtime.inference.engine.bound", bound_but_for_one)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Engine([cpu(f"cpu{i}") for i in range(2)], dict(enumerate(relay())), ("z",))
    assert device_threads() == []


def test_each_micro_batch_gets_its_own_answer(engines: Callable[..., Engine]) -> None:
    engine = engines(relay(), ("z",))
    assert [value(done) for done in [engine.submit(number(i)) for i in range(20)]] == [2 * i + 1 for i in range(20)]


@pytest.mark.parametrize("kernels", ["exact", "quick"])  # whoever waits for another sleeps, or spins first
def test_micro_batches_that_change_devices_at_each_stage(kernels: Kernels) -> None:
    # x ─► [a] 0 ─► [b] 1 ─► [c] 0 ─► [d] 1, each a sum of all before: 1, 2, 4 and 8 times x
    names = "xabcd"
    stages = {i: stage(i % 2, names[: i + 1], names[i + 1], lambda *v: sum(v), tuple(range(i))) for i in range(4)}
    with closing(Engine([replace(cpu(f"cpu{i}"), kernels=kernels) for i in range(2)], stages, ("d",))) as engine:
        assert [value(done, "d") for done in [engine.submit(number(i)) for i in range(50)]] == [
            8 * i for i in range(50)
        ]
        assert engine.on_way() == ()


def test_without_stages_the_answer_is_there_at_once(engines: Callable[..., Engine]) -> None:
    assert engines([], ()).submit(number(1)).result(0) == {}


def test_a_stage_runs_on_the_thread_of_its_device(engines: Callable[..., Engine]) -> None:
    seen: list[tuple[str, set[int], int, bool]] = []

    def look(x: Tensor) -> Tensor:
        name = threading.current_thread().name
        seen.append((name, os.sched_getaffinity(0), torch.get_num_threads(), torch.is_grad_enabled()))
        return x

    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    engine = engines(relay(first=look, second=look), ("z",))
    value(engine.submit(number(1)))
    assert seen == [("device-cpu0", {CORE}, 1, False), ("device-cpu1", {CORE}, 1, False)]
    assert device_threads() == ["device-cpu0", "device-cpu1"]  # cpu2 has nothing to do
    engine.close()
    assert (os.sched_getaffinity(0), torch.get_num_threads()) == (cores, threads)
    assert begin(torch.get_num_threads).result(PATIENCE_S) == threads


def test_the_older_micro_batch_goes_first(engines: Callable[..., Engine]) -> None:
    # a, c on device 0; b on 1; d on 2:  a ─► b ─► c, b ─► d.  Device 0 has a1 in hand when c0 becomes ready behind a2
    order: list[str] = []
    a1_runs, a2_waits, c0_ready = threading.Event(), threading.Event(), threading.Event()

    def a(x: Tensor) -> Tensor:
        order.append(f"a{x:.0f}")
        if x == 1:
            a1_runs.set()
            wait(a2_waits)
            wait(c0_ready)
        return x.clone()

    def b(x: Tensor) -> Tensor:
        wait(a1_runs)
        return x.clone()

    def c(x: Tensor) -> Tensor:
        order.append(f"c{x:.0f}")
        return x.clone()

    def d(x: Tensor) -> Tensor:
        c0_ready.set()  # c and d are made ready in one go
        return x.clone()

    stages = [
        stage(0, "x", "a", a),
        stage(1, "a", "b", b, needs=(0,)),
        stage(0, "b", "c", c, needs=(0, 1)),
        stage(2, "b", "d", d, needs=(1,)),
    ]
    engine = engines(stages, ("c", "d"))
    answers = [engine.submit(number(i)) for i in range(3)]
    a2_waits.set()
    for done in answers:
        done.result(PATIENCE_S)
    assert order[:3] == ["a0", "a1", "c0"]


def copies(devices: list[Device], calls: list[Callable[[Tensor], Tensor]]) -> Engine:
    """x ─► [y] 0, or x ─► [y] 1: a copy of the network for each device."""
    single = [replace(stage(i, "x", "y", call), stage=Stage(i, (0,), (), (), (), i)) for i, call in enumerate(calls)]
    return Engine(devices, dict(enumerate(single)), ("y",), awaited=((),) * len(calls))


@pytest.mark.parametrize("kernels", ["exact", "quick"])
def test_a_micro_batch_goes_to_the_copy_that_is_idle_first(kernels: Kernels) -> None:
    held, began = threading.Event(), threading.Event()

    def hold(x: Tensor) -> Tensor:
        began.set()
        wait(held)
        return x.clone()

    devices = [cpu("cpu0"), replace(cpu("cpu1"), kernels=kernels)]
    with closing(copies(devices, [hold, torch.neg])) as engine:
        done = [engine.submit(number(i)) for i in range(4)]
        wait(began)
        if kernels == "exact":
            assert [value(each, "y") for each in done[1:]] == [-1, -2, -3]
        else:  # on devices unlike, bits may differ: micro-batches take turns, whoever is idle
            assert [value(each, "y") for each in done[1::2]] == [-1, -3]
            assert not done[2].done()
        held.set()
        assert [value(each, "y") for each in done[::2]] == [0, -2 if kernels == "exact" else 2]


def in_pairs(devices: list[Device], call: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Engine:
    """x ─► [y] 0, or x ─► [y] 1, where y = -x; ``call`` computes two at once."""
    one = {i: stage(i, "x", "y", torch.neg) for i in range(len(devices))}
    both = {i: replace(each, stage=Stage(i, (0,), (), (), (), i), pair=call) for i, each in one.items()}
    return Engine(devices, both, ("y",), awaited=((),) * len(devices))


def test_two_micro_batches_run_at_once_and_each_gets_its_answer() -> None:
    seen: list[tuple[float, float]] = []

    def both(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        seen.append((first.item(), second.item()))
        return -first, -second

    with closing(in_pairs([cpu("cpu0"), cpu("cpu1")], both)) as engine:
        assert engine.pairs
        engine.record()
        done = [*engine.submit_together([number(0), number(1)]), engine.submit(number(2))]
        done += engine.submit_together([number(3), number(4)])
        assert [value(each, "y") for each in done] == [0, -1, -2, -3, -4]
        eventually(lambda: engine.on_way() == ())
        assert sorted(seen) == [(0, 1), (3, 4)]
        assert [engine._idle is not None and sorted(engine._idle)] == [[0, 1]]  # each copy is idle once
        spans = {span.micro_batch: span for span in engine.spans()}
    assert sorted(spans) == [0, 1, 2, 3, 4]
    for first, second in ((0, 1), (3, 4)):  # the time of a pair is divided
        assert spans[first].resource == spans[second].resource
        assert spans[first].end_s == pytest.approx(spans[second].start_s)
        lengths = [spans[each].end_s - spans[each].start_s for each in (first, second)]
        assert lengths[0] == pytest.approx(lengths[1], abs=1e-9)  # of numbers of seconds since the start


def test_a_pair_that_fails_fails_both_and_nothing_else() -> None:
    def both(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        if first < 0:
            raise ZeroDivisionError("below zero")
        return -first, -second

    with closing(in_pairs([cpu("cpu0")], both)) as engine:
        failed, good = engine.submit_together([number(-1), number(1)]), engine.submit_together([number(2), number(3)])
        for each in failed:
            with pytest.raises(StageError, match="below zero"):
                each.result(PATIENCE_S)
        assert [value(each, "y") for each in good] == [-2, -3]
        eventually(lambda: engine.on_way() == ())
        assert engine._idle is not None
        assert list(engine._idle) == [0]


def test_pairs_that_wait_when_the_engine_closes_fail() -> None:
    began, held = threading.Event(), threading.Event()

    def both(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        began.set()
        wait(held)
        return -first, -second

    engine = in_pairs([cpu("cpu0")], both)
    running, waiting = (engine.submit_together([number(i), number(i + 1)]) for i in (0, 2))
    wait(began)
    closed = begin(engine.close)
    eventually(lambda: engine._closing)
    held.set()
    closed.result(PATIENCE_S)
    assert [value(each, "y") for each in running] == [0, -1]
    for each in waiting:
        with pytest.raises(RuntimeError, match=CLOSED):
            each.result(PATIENCE_S)


def test_a_tensor_is_handed_over_without_a_copy(engines: Callable[..., Engine]) -> None:
    places: list[int] = []

    def write(x: Tensor) -> Tensor:
        y = x * 2
        places.append(y.data_ptr())
        return y

    def read(y: Tensor) -> Tensor:
        places.append(y.data_ptr())
        return y.view(1)

    result = engines(relay(first=write, second=read), ("z",)).submit(number(1)).result(PATIENCE_S)
    assert places == [result["z"].data_ptr()] * 2


def test_a_tensor_is_dropped_when_its_last_reader_is_done(engines: Callable[..., Engine]) -> None:
    # x ─► [a] 0 ─► [b] 1 ─► [c] 0 ─► [d] 2;  a is read by b and c
    there: dict[str, Any] = {}
    wanted: dict[str, set[str]] = {"a": set(), "b": {"a"}, "c": {"a", "b"}, "d": {"c"}}

    def alive() -> set[str]:
        return {name for name, tensor in there.items() if tensor() is not None}

    def step(name: str) -> Callable[..., Tensor]:
        def call(*values: Tensor) -> Tensor:
            eventually(lambda: alive() == wanted[name])  # the devices before may not yet have come to wait
            result = sum(values) + torch.ones(1)
            there[name] = weakref.ref(result)
            return result

        return call

    stages = [
        stage(0, "x", "a", step("a")),
        stage(1, "a", "b", step("b"), needs=(0,)),
        stage(0, "ab", "c", step("c"), needs=(0, 1)),
        stage(2, "c", "d", step("d"), needs=(2,)),
    ]
    engine = engines(stages, ("d",))
    assert value(engine.submit(number(0)), "d") == 5  # a = 1, b = a + 1 = 2, c = a + b + 1 = 4, d = c + 1 = 5
    eventually(lambda: not alive())  # idle devices hold nothing


def test_an_input_is_dropped_too(engines: Callable[..., Engine]) -> None:
    given = number(1)
    there = weakref.ref(given["x"])
    gone: list[bool] = []
    go = threading.Event()

    def second(y: Tensor) -> Tensor:
        wait(go)
        gone.append(there() is None)
        return y

    done = engines(relay(second=second), ("z",)).submit(given)
    given.clear()
    go.set()
    value(done)
    assert gone == [True]


def fail_at(bad: float) -> Callable[[Tensor], Tensor]:
    def call(x: Tensor) -> Tensor:
        if x == bad:
            raise IndexError(f"no {x:.0f}")
        return x.clone()

    return call


def test_an_error_reaches_its_micro_batch_alone(engines: Callable[..., Engine]) -> None:
    engine = engines(relay(second=fail_at(6)), ("z",))
    answers = [engine.submit(number(i)) for i in range(6)]
    with pytest.raises(StageError) as failure:
        answers[3].result(PATIENCE_S)
    assert str(failure.value) == "stage 1 on 'cpu1' failed in micro-batch 3: IndexError: no 6"
    assert isinstance(failure.value.__cause__, IndexError)
    assert [value(done) for i, done in enumerate(answers) if i != 3] == [0, 2, 4, 8, 10]
    assert value(engine.submit(number(7))) == 14


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_whatever_is_raised_the_device_lives_on(engines: Callable[..., Engine], error: type[BaseException]) -> None:
    def call(x: Tensor) -> Tensor:
        if x == 0:
            raise error("enough")
        return x

    engine = engines(relay(first=call), ("z",))
    with pytest.raises(StageError, match=f"stage 0 on 'cpu0' failed in micro-batch 0: {error.__name__}: enough"):
        engine.submit(number(0)).result(PATIENCE_S)
    assert value(engine.submit(number(1))) == 2


def test_two_devices_may_fail_at_the_same_time(engines: Callable[..., Engine]) -> None:
    together = threading.Barrier(2)

    def call(x: Tensor) -> Tensor:
        if x < 0:
            together.wait(PATIENCE_S)
            raise ValueError("both")
        return x

    engine = engines([stage(0, "x", "y", call), stage(1, "x", "z", call)], ("y", "z"))
    for _ in range(50):
        with pytest.raises(StageError, match="ValueError: both"):
            engine.submit(number(-1)).result(PATIENCE_S)
    assert value(engine.submit(number(1))) == 1


def test_nothing_more_is_begun_of_a_failed_micro_batch(engines: Callable[..., Engine]) -> None:
    # [y] 0 fails while [z] 1 runs; [w] 1 follows z; v waits in the queue of device 0 behind y
    z_runs, failed, ran = threading.Event(), threading.Event(), []

    def y(x: Tensor) -> Tensor:
        if x == 0:
            wait(z_runs)
            raise ValueError
        return x

    def z(x: Tensor) -> Tensor:
        if x == 0:
            z_runs.set()
            wait(failed)
        return x

    def note(x: Tensor) -> Tensor:
        ran.append(x.item())
        return x

    stages = [
        stage(0, "x", "y", y),
        stage(1, "x", "z", z),
        stage(1, "z", "w", note, needs=(1,)),
        stage(0, "x", "v", note),
    ]
    engine = engines(stages, ("y", "w", "v"))
    first, second = engine.submit(number(0)), engine.submit(number(1))
    assert isinstance(first.exception(PATIENCE_S), StageError)
    failed.set()
    second.result(PATIENCE_S)
    assert ran == [1, 1]


def test_nothing_of_a_failed_micro_batch_is_kept(engines: Callable[..., Engine]) -> None:
    # [y] 0 fails; [z] 1 would read x and y
    def fail(_: Tensor) -> Tensor:
        raise ValueError

    given = number(1)
    there = weakref.ref(given["x"])
    engine = engines([stage(0, "x", "y", fail), stage(1, "xy", "z", torch.add, needs=(0,))], ("z",))
    done = engine.submit(given)
    given.clear()
    assert isinstance(done.exception(PATIENCE_S), StageError)
    done.exception().__cause__.__traceback__ = None  # type: ignore[union-attr]  # its frames hold the input
    eventually(lambda: there() is None)


class Held:
    """A relay whose first stage is held in micro-batch 0."""

    def __init__(self, engines: Callable[..., Engine], stages: Callable[..., list[CompiledStage]] = relay) -> None:
        self.runs, self.go = threading.Event(), threading.Event()
        self.engine = engines(stages(first=self._first), ("z",))

    def _first(self, x: Tensor) -> Tensor:
        self.runs.set()
        wait(self.go)
        return x

    def closing(self) -> "Future[None]":
        """Close it from another thread; it is not closed before it goes."""
        closing = begin(self.engine.close)
        eventually(lambda: self.engine._closing)
        return closing


def test_closing_fails_what_runs_and_what_waits(engines: Callable[..., Engine]) -> None:
    held = Held(engines)
    running, waiting = held.engine.submit(number(1)), held.engine.submit(number(2))
    wait(held.runs)  # of the first micro-batch no stage is in a queue now
    closing = held.closing()
    held.go.set()
    for done in (running, waiting):
        failure = done.exception(PATIENCE_S)
        assert isinstance(failure, RuntimeError)
        assert str(failure) == CLOSED
    closing.result(PATIENCE_S)


def test_closing_lets_a_last_stage_finish(engines: Callable[..., Engine]) -> None:
    held = Held(engines, lambda first: [stage(0, "x", "z", first)])
    done = held.engine.submit(number(1))
    wait(held.runs)
    closing = held.closing()
    held.go.set()
    assert value(done) == 1
    closing.result(PATIENCE_S)


def test_closing_again_and_from_several_threads(engines: Callable[..., Engine]) -> None:
    held = Held(engines)
    done = held.engine.submit(number(1))
    wait(held.runs)
    closing = [held.closing() for _ in range(3)]
    held.go.set()
    for each in closing:
        each.result(PATIENCE_S)
    assert str(done.exception(PATIENCE_S)) == CLOSED
    held.engine.close()
    assert device_threads() == []


def test_a_closed_engine_takes_nothing(engines: Callable[..., Engine]) -> None:
    engine = engines(relay(), ("z",))
    engine.close()
    with pytest.raises(RuntimeError) as error:
        engine.submit(number(1))
    assert str(error.value) == "the runner is closed; start a new one"


def test_spans_are_of_the_micro_batches_that_enter_after_record(engines: Callable[..., Engine]) -> None:
    held = Held(engines)
    early = held.engine.submit(number(1))
    wait(held.runs)
    held.engine.record()
    late = [held.engine.submit(number(i)) for i in range(3)]
    held.go.set()
    for done in (early, *late):
        done.result(PATIENCE_S)
    spans = held.engine.spans()
    assert sorted((span.micro_batch, span.index, span.resource, span.label) for span in spans) == [
        (i, *of_stage) for i in range(3) for of_stage in [(0, "cpu0", "y"), (1, "cpu1", "z")]
    ]
    assert all(0 <= span.start_s <= span.end_s for span in spans)
    assert [span.start_s for span in spans] == sorted(span.start_s for span in spans)
    assert held.engine.spans() == ()  # recording has ended


def test_recording_again_begins_anew(engines: Callable[..., Engine]) -> None:
    engine = engines(relay(), ("z",))
    for _ in range(2):
        engine.record()
        value(engine.submit(number(1)))
        assert [(span.micro_batch, span.index) for span in engine.spans()] == [(0, 0), (0, 1)]


# A part of the stages, the others elsewhere


class Part:
    """Of x ─► [y] elsewhere ─► [z = y + x] 0 ─► [w] elsewhere, and [v = 2x] 1, the stages 1 and 3."""

    def __init__(self, second: Callable[..., Any] = lambda x, y: x + y, awaited: tuple[int, ...] = (0,)) -> None:
        self.told: list[tuple[int, int, dict[str, float]]] = []
        stages = {1: stage(0, "xy", "z", second, needs=(0,)), 3: stage(1, "x", "v", lambda x: 2 * x)}
        self.engine = Engine([cpu(f"cpu{i}") for i in range(2)], stages, ("v",), (awaited,), self._tell)

    def _tell(self, micro_batch: int, number: int, tensors: dict[str, Tensor]) -> None:
        self.told.append((micro_batch, number, {name: tensor.item() for name, tensor in tensors.items()}))


@pytest.fixture
def parts() -> Iterator[Callable[..., Part]]:
    made: list[Part] = []

    def make(*arguments: Any, **more: Any) -> Part:
        made.append(Part(*arguments, **more))
        return made[-1]

    yield make
    for part in made:
        begin(part.engine.close).result(PATIENCE_S)
    assert device_threads() == []


def test_what_arrives_makes_stages_ready_and_what_is_done_is_told(parts: Callable[..., Part]) -> None:
    part = parts()
    first, second = part.engine.submit(number(1)), part.engine.submit(number(10))
    eventually(lambda: len(part.told) == 2)  # v needs nobody
    assert not first.done()
    assert part.engine.on_way() == (0, 1)
    part.engine.arrive(1, 0, {"y": torch.tensor(5.0)})
    assert value(second, "v") == 20
    assert part.engine.on_way() == (0,)
    part.engine.arrive(0, 0, {"y": torch.tensor(7.0)})
    assert value(first, "v") == 2
    assert sorted(part.told) == [(0, 1, {"z": 8}), (0, 3, {"v": 2}), (1, 1, {"z": 15}), (1, 3, {"v": 20})]


def test_the_end_of_a_stage_elsewhere_is_waited_for_though_nobody_here_needs_it(parts: Callable[..., Part]) -> None:
    part = parts(awaited=(0, 2))
    done = part.engine.submit(number(1))
    part.engine.arrive(0, 0, {"y": torch.tensor(5.0)})
    eventually(lambda: len(part.told) == 2)
    assert not done.done()
    part.engine.arrive(0, 2, {})
    assert value(done, "v") == 2


def test_all_stages_may_be_elsewhere() -> None:
    engine = Engine([cpu("cpu0")], {}, ("y",), ((0,),))
    done = engine.submit(number(1))
    assert not done.done()
    engine.arrive(0, 0, {"y": torch.tensor(3.0)})
    assert value(done, "y") == 3
    engine.close()


def test_a_tensor_that_only_others_read_is_not_kept(parts: Callable[..., Part]) -> None:
    kept: list[Any] = []

    def second(x: Tensor, y: Tensor) -> Tensor:
        result = x + y
        kept.append(weakref.ref(result))
        return result

    part = parts(second, awaited=(0, 2))
    part.engine.submit(number(1))
    part.engine.arrive(0, 0, {"y": torch.tensor(5.0)})
    eventually(lambda: len(part.told) == 2)
    eventually(lambda: kept[0]() is None)  # though the micro-batch is still on its way


def test_a_failure_elsewhere_fails_the_micro_batch_and_late_arrivals_are_dropped(parts: Callable[..., Part]) -> None:
    part = parts()
    first, second = part.engine.submit(number(1)), part.engine.submit(number(2))
    part.engine.fail(0, StageError("elsewhere"))
    with pytest.raises(StageError, match="elsewhere"):
        first.result(PATIENCE_S)
    for _ in range(2):
        part.engine.arrive(0, 0, {"y": torch.tensor(5.0)})
        part.engine.fail(0, StageError("again"))
        part.engine.fail(77, StageError("never begun"))
    part.engine.arrive(1, 0, {"y": torch.tensor(5.0)})
    assert value(second, "v") == 4
    assert (0, 1) not in [told[:2] for told in part.told]


def test_what_is_recorded_counts_from_a_given_time(engines: Callable[..., Engine]) -> None:
    engine = engines(relay(), ("z",))
    engine.record(time.perf_counter() - 100)
    value(engine.submit(number(1)))
    assert all(100 <= span.start_s < 100 + PATIENCE_S for span in engine.spans())
