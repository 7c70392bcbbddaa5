"""Plans over several ranks: the answers, many at once, what goes wrong, what is recorded. Ranks are threads here."""

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs.common import errors
from graphs.common.errors import FallbackWarning
from graphs.common.promises import Promise
from graphs.program.program import Program
from planner.runtime.benchmark.check import compare_outputs
from planner.runtime.distributed.inference import rank as rank_module
from planner.runtime.distributed.inference.coordinator import Coordinator
from planner.runtime.distributed.inference.rank import Rank
from planner.runtime.distributed.transport.layout import rank_layout
from planner.runtime.distributed.transport.liveness import Heartbeats, SilentPeer
from planner.runtime.distributed.transport.messages import Kind, Message
from planner.runtime.distributed.transport.rendezvous import peer_info_of
from planner.runtime.errors import RankError, RemoteError, StageError
from planner.runtime.inference.engine import Engine
from planner.runtime.inference.tasks import DeviceTask
from simulator.placement import Placement
from tests.planner.runtime.bits import differences
from tests.planner.runtime.distributed.ranks import joined, scattered
from tests.planner.runtime.inference.timelines import check_timeline
from tests.planner.runtime.laws import (
    assert_an_error_reaches_its_caller_alone,
    assert_several_threads_may_call_at_once,
)
from tests.planner.runtime.small import (
    NETWORKS,
    PATIENCE_S,
    alternating,
    begin,
    desk,
    eventually,
    fresh_arguments,
    live_tensors,
    make_plan,
    program_of,
    reference,
)
from tests.simulator.tables import placements

WORKING = [name for name in NETWORKS if name != "nothing"]
CLOSED = "the runner is closed; start a new one"


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    ours = ("device-", "send-", "receive-", "watch-")
    eventually(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith(ours)])


# The answers


@pytest.mark.parametrize("name", WORKING)
@pytest.mark.parametrize("beside", [False, True])
@settings(max_examples=6)
@given(data=st.data())
def test_any_placement_in_any_order_gives_the_models_own_bits(name: str, beside: bool, data: st.DataObject) -> None:
    program = program_of(name)
    placement = data.draw(placements(make_plan(program, alternating(program)).table, copies=3))
    plan = make_plan(program, placement, in_flight=data.draw(st.integers(1, 3)))
    calls = [fresh_arguments(name, seed) for seed in range(3)]
    with joined(plan, program, beside) as ranks:
        got = [ranks.runner(*args, **kwargs) for args, kwargs in calls]
        streamed = list(ranks.runner._stream(iter(calls)))
    for call, one, other in zip(calls, got, streamed, strict=True):
        expected = reference(program, call)
        assert differences(expected, one) == []
        assert differences(expected, other) == []
    assert [end.result(0) for end in ranks.served] == [True] * len(ranks.served)


def test_a_network_without_operators() -> None:
    with scattered("nothing") as runner:
        x = torch.ones(2)
        assert runner(x) is x


def test_the_check_of_the_answers_works_on_it() -> None:
    with scattered("attention") as runner:
        assert not compare_outputs(runner).wrong


def test_what_lies_unusually_arrives_so() -> None:
    class Layouts(torch.nn.Module):
        """Channels last, a slice, an expanded tensor and a scalar cross; their strides are among the outputs."""

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            last = x.contiguous(memory_format=torch.channels_last)
            wide = x[:, :, 1:3, ::2]
            repeated = x[:1, :1].expand(2, 3, 4, 4)
            return last * 1, wide * 1, repeated + last, x.sum() * wide

    from graphs.importers.from_torch import program_from_module

    x = torch.randn(2, 3, 4, 4)
    program = program_from_module(Layouts(), (x,))
    with joined(make_plan(program, alternating(program)), program) as ranks:
        got = ranks.runner(x)
    expected = reference(program, ((x,), {}))
    assert differences(expected, got) == []
    assert [tensor.stride() for tensor in got] == [tensor.stride() for tensor in expected]


def test_each_rank_holds_its_own_parameters_alone() -> None:
    program = program_of("branches")
    with joined(make_plan(program, alternating(program)), program, beside=True) as ranks:
        held = [set(ranks.runner.owned(f"cpu{i}")) for i in range(3)]  # as far as the coordinator's rank knows
        assert held[0] != set()
        assert held[1:] == [set(), set()]
        for number, worker in enumerate(ranks.workers, start=1):
            owned = [set(worker._rank.state.owned(device)) for device in range(3)]
            assert [bool(names) for names in owned] == [device == number for device in range(3)]


# Many at once


@pytest.mark.parametrize("in_flight", [1, 2, 5])
@pytest.mark.parametrize("beside", [False, True])
def test_results_come_in_the_order_of_the_batches(in_flight: int, beside: bool) -> None:
    program = program_of("branches")
    batches = [fresh_arguments("branches", seed)[0][0] for seed in range(30)]
    with scattered("branches", in_flight, beside) as runner:
        results = list(runner.stream(batches))
    assert differences([reference(program, ((batch,), {})) for batch in batches], results) == []


def test_several_threads_call_at_once() -> None:
    with scattered("attention", in_flight=3) as runner:
        assert_several_threads_may_call_at_once(runner, "attention")


def test_no_rank_has_more_on_its_way_than_the_plan_says(monkeypatch: pytest.MonkeyPatch) -> None:
    on_way: list[int] = []
    submit = Engine.submit

    def counting(self: Engine, inputs: Any, copy: int | None = None) -> "Promise[Any]":
        done = submit(self, inputs, copy)
        on_way.append(len(self.on_way()))
        return done

    monkeypatch.setattr(Engine, "submit", counting)
    (x,), _ = fresh_arguments("branches", 0)
    with scattered("branches", in_flight=3) as runner:
        assert len(list(runner.stream([x] * 30))) == 30
    assert len(on_way) == 30 * 4
    assert max(on_way) <= 3


def test_memory_does_not_grow() -> None:
    (ids,), _ = fresh_arguments("tied", 0)
    with scattered("tied") as runner:
        for _ in runner.stream([ids] * 10):
            pass
        # heartbeats come and go between the ranks, and are tensors too
        before = min(live_tensors() for _ in range(3))
        for number, _ in enumerate(runner.stream(ids for _ in range(100))):
            if number in (20, 99):
                # 5 micro-batches with no more than the 4 operators' tensors and an input, held at both ends of a
                # connection
                assert live_tensors() - before <= 5 * 5 * 2
        eventually(lambda: live_tensors() <= before)


# What goes wrong


def test_an_error_reaches_its_caller_alone_with_the_traceback_of_its_process() -> None:
    program = program_of("tied")
    with joined(make_plan(program, Placement((1, 2, 0, 2))), program) as ranks:
        cause = assert_an_error_reaches_its_caller_alone(ranks.runner).__cause__
        assert isinstance(cause, RemoteError)
        assert "in stage" in str(cause)
        assert str(cause).endswith("IndexError: index out of range in self\n")
        for rank in (ranks.runner._engine, *ranks.workers):
            eventually(lambda rank=rank: rank._rank.engine.on_way() == ())  # type: ignore[misc]
        assert all(worker._early == {} for worker in ranks.workers)


def test_what_gave_way_in_other_ranks_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_warned_of", {})
    said = (("OSError: no", "the kernel of relu fails here (OSError: no)"),)
    monkeypatch.setattr(rank_module, "fallbacks", lambda: said)
    program = program_of("tied")
    with joined(make_plan(program, alternating(program)), program) as ranks:
        (ids,) = program.example_inputs
        ranks.runner(ids)
        front = ranks.runner._engine
        assert isinstance(front, Coordinator)
        eventually(lambda: front._fallbacks == dict(said))
        with pytest.warns(FallbackWarning, match="the kernel of relu fails here"):
            ranks.runner(ids)
        ranks.runner(ids)


def test_an_error_beside_the_front_is_told_to_the_others() -> None:
    bad = torch.full((1, 5), 6)
    program = program_of("tied")
    with joined(make_plan(program, Placement((0, 1, 2, 1))), program, beside=True) as ranks:
        for number in range(3):
            with pytest.raises(StageError, match=f"stage 0 on 'cpu0' failed in micro-batch {number}: IndexError"):
                ranks.runner(bad)
        for worker in ranks.workers:
            eventually(lambda worker=worker: worker._begun == 3 and worker._rank.engine.on_way() == ())  # type: ignore[misc]


def held(monkeypatch: pytest.MonkeyPatch, device: int) -> tuple[threading.Event, threading.Event]:
    """Stages of a device say when they run, and go on when they may."""
    reached, go = threading.Event(), threading.Event()
    run = Engine._run

    def gated(engine: Engine, task: DeviceTask, *rest: Any) -> Any:
        if task.stage.stage.device == device:
            reached.set()
            assert go.wait(PATIENCE_S)
        return run(engine, task, *rest)

    monkeypatch.setattr(Engine, "_run", gated)
    return reached, go


def test_closing_fails_every_call_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    reached, go = held(monkeypatch, 1)
    (x,), _ = fresh_arguments("branches", 0)
    with scattered("branches", in_flight=2) as runner:
        calls = [begin(lambda: runner(x)) for _ in range(5)]  # two on their way, three wait for a place
        assert reached.wait(PATIENCE_S)
        closing = begin(runner.close)
        texts = sorted(str(call.exception(PATIENCE_S)) for call in calls)
        go.set()
        closing.result(PATIENCE_S)
        assert set(texts) <= {CLOSED, "the runner was closed while this micro-batch was on its way"}
        runner.close()
        for refused in (lambda: runner(x), runner.record, runner.timeline):
            with pytest.raises(RuntimeError, match=CLOSED):
                refused()


def lose(ranks: Any, number: int) -> None:
    """The coordinator's connection to a rank breaks."""
    ranks.runner._engine.lose(number, RuntimeError("Connection closed by peer"))


def test_a_rank_that_is_gone_fails_what_is_on_its_way_and_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    reached, go = held(monkeypatch, 1)
    (x,), _ = fresh_arguments("branches", 0)
    program = program_of("branches")
    gone = "rank 2 ('cpu1') is gone: its connection broke; start the runner again"
    with joined(make_plan(program, alternating(program), in_flight=2), program) as ranks:
        calls = [begin(lambda: ranks.runner(x)) for _ in range(5)]
        assert reached.wait(PATIENCE_S)
        lose(ranks, 2)
        for call in calls:
            assert isinstance(call.exception(PATIENCE_S), RankError)
            assert str(call.exception(0)) == gone
        go.set()
        for refused in (lambda: ranks.runner(x), ranks.runner.record, ranks.runner.timeline):
            with pytest.raises(RankError) as error:
                refused()
            assert str(error.value) == gone
        lose(ranks, 3)  # the first one stands
        with pytest.raises(RankError, match="rank 2"):
            ranks.runner(x)


def test_a_rank_of_which_nothing_is_heard() -> None:
    program = program_of("tied")
    with joined(make_plan(program, alternating(program)), program) as ranks:
        ranks.runner._engine.lose(1, SilentPeer("nothing was heard of it for 30 s"))  # type: ignore[union-attr]
        with pytest.raises(RankError) as error:
            ranks.runner(torch.zeros(1, 5, dtype=torch.int64))
        assert str(error.value) == "rank 1 ('cpu0') is gone: nothing was heard of it for 30 s; start the runner again"


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (RuntimeError("Connection closed by peer"), "its connection broke"),
        (SilentPeer("nothing was heard of it for 4 s"), "nothing was heard of it for 4 s"),
    ],
    ids=["broken", "silent"],
)
def test_a_rank_tells_the_front_which_other_one_is_gone_and_why(error: Exception, why: str) -> None:
    program = program_of("branches")
    with joined(make_plan(program, alternating(program)), program) as ranks:
        eventually(lambda: bool(ranks.workers[0]._rank._peers.connections))  # it may still be joining
        ranks.workers[0].lose(3, error)
        eventually(lambda: ranks.runner._engine._broken != "")  # type: ignore[union-attr]
        with pytest.raises(RankError, match=rf"rank 3 \('cpu2'\) is gone: {why}; start"):
            ranks.runner(*fresh_arguments("branches", 0)[0])


def test_a_rank_of_this_host_is_looked_at_and_one_of_another_is_not() -> None:
    program = program_of("tied")
    plan = make_plan(program, alternating(program))
    near, far = Heartbeats(30.0, os.getpid()), Heartbeats(4.0)
    with joined(plan, program, clocks=("here", "here", "there", "")) as ranks:
        assert _heartbeats(ranks.runner._engine._rank) == {1: near, 2: far, 3: far}  # type: ignore[union-attr]
        eventually(lambda: all(worker._rank._peers.connections for worker in ranks.workers))
        assert _heartbeats(ranks.workers[0]._rank)[0] == replace(near, waits=True)  # the coordinator may be paused
        assert ranks.runner.pids == (os.getpid(),)


def _heartbeats(rank: Rank) -> dict[int, Heartbeats]:
    return {peer: connection._heartbeats for peer, connection in rank._peers.connections.items()}


def test_over_a_slow_link_a_piece_of_a_message_may_take_its_time() -> None:
    program = program_of("tied")
    slow = [replace(link, bytes_per_s=1024.0, latency_s=0.5) for link in desk().links]
    plan = make_plan(program, alternating(program), replace(desk(), links=tuple(slow)))
    with joined(plan, program, clocks=("", "", "", "")) as ranks:
        eventually(lambda: all(worker._rank._peers.connections for worker in ranks.workers))
        # buffers have 4096 bytes; with the coordinator, which has no device, no link is known
        assert _heartbeats(ranks.workers[0]._rank) == {
            0: Heartbeats(4.0),
            2: Heartbeats(4 + 0.5 + 4),
            3: Heartbeats(8.5),
        }


def test_how_long_a_rank_of_another_host_may_be_silent_can_be_said() -> None:
    program = program_of("tied")
    plan = make_plan(program, alternating(program))
    rank = Rank(plan, program, rank_layout(plan, 4), 0, silence_s=9.0)
    own = peer_info_of(plan)
    try:
        assert rank._heartbeats(1, (own, replace(own, clock="elsewhere"))) == Heartbeats(9.0)
        assert rank._heartbeats(1, (own, replace(own, pids="a container"))) == Heartbeats(
            9.0
        )  # of which we see no process
        assert rank._heartbeats(1, (own, own)) == Heartbeats(30.0, own.pid)
    finally:
        rank.engine.close()


def test_a_worker_without_a_front_ends() -> None:
    program = program_of("tied")
    with joined(make_plan(program, alternating(program)), program) as ranks:
        ranks.workers[1].lose(0, RuntimeError("Connection closed by peer"))
        assert ranks.served[1].result(PATIENCE_S) is False  # it was not dismissed


def test_a_micro_batch_out_of_turn_is_damage() -> None:
    program = program_of("tied")
    with joined(make_plan(program, alternating(program)), program) as ranks:
        ids = torch.zeros(1, 5, dtype=torch.int64)
        ranks.runner(ids)
        rank = ranks.runner._engine._rank  # type: ignore[union-attr]
        rank.send(1, Message(Kind.TENSORS, 7, -1, (ids,)))
        assert ranks.served[0].result(PATIENCE_S) is False


# What is recorded


@pytest.mark.parametrize("beside", [False, True])
def test_the_timeline_has_every_stage_of_every_micro_batch_in_a_possible_order(beside: bool) -> None:
    (x,), _ = fresh_arguments("branches", 0)
    with scattered("branches", beside=beside) as runner:
        runner(x)
        runner.record()
        list(runner.replay(((x,), {}), 7))
        timeline = runner.timeline()
        plan = runner.plan
        assert runner.timeline().spans == ()  # recording has ended
    check_timeline(plan, timeline, 7)


def ahead(monkeypatch: pytest.MonkeyPatch, ahead_s: float) -> None:
    """Threads of ranks that have other clocks see the time of a clock that is ahead."""
    real = time.perf_counter
    elsewhere = ("receive-1", "receive-2", "receive-3", "device-cpu")

    def now() -> float:
        return real() + ahead_s * threading.current_thread().name.startswith(elsewhere)

    monkeypatch.setattr(time, "perf_counter", now)


def test_times_of_another_host_are_brought_to_our_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead(monkeypatch, 1000.0)
    (x,), _ = fresh_arguments("branches", 0)
    program = program_of("branches")
    plan = make_plan(program, alternating(program))
    with joined(plan, program, clocks=("here", "there", "there", "there")) as ranks:
        ranks.runner.record()
        list(ranks.runner.replay(((x,), {}), 7))
        check_timeline(plan, ranks.runner.timeline(), 7, clock_s=0.005)
        assert ranks.runner.pids == ()  # none of them is on this host


def test_processes_of_this_host_are_known() -> None:
    program = program_of("tied")
    with joined(make_plan(program, alternating(program)), program) as ranks:
        assert len(ranks.runner.pids) == 3


def test_no_rank_waits_for_another_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes from a rank before the coordinator's word of the micro-batch is kept until then."""
    program: Program = program_of("attention")
    from planner.runtime.distributed.inference import rank as module

    begun = module.Worker._begin

    def late(self: Any, message: Message) -> None:
        if self._rank.number == 3:
            time.sleep(0.02)
        begun(self, message)

    monkeypatch.setattr(module.Worker, "_begin", late)
    with joined(make_plan(program, alternating(program)), program) as ranks:
        for seed in range(3):
            (x,), _ = arguments = fresh_arguments("attention", seed)
            assert differences(reference(program, arguments), ranks.runner(x)) == []
