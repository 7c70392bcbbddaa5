"""When a tensor is there that one device of a process hands to another; times by hand."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from planner.runtime.inference.recorder import Recorder, StageRun, in_order
from planner.runtime.stages.compile import CompiledStage
from simulator.stages import Stage
from simulator.timeline import Span
from tests.planner.runtime.small import cpu

# stage 0 on device 0 sends flow 7 to device 1, stage 1 on device 2 sends flow 8 there; stage 2 on device 1 needs both
STAGES = (
    Stage(0, (0,), (), ((7, 1),), ()),
    Stage(2, (1,), (), ((8, 1),), ()),
    Stage(1, (2,), ((7, 0), (8, 2)), (), (0, 1)),
)


@dataclass
class Event:
    """Over at a second by the clock of its GPU, which began to count when this process's clock said 8."""

    over_s: float
    waited_for: bool = False

    def synchronize(self) -> None:
        self.waited_for = True

    def elapsed_time(self, later: "Event") -> float:
        return (later.over_s - self.over_s) * 1e3


@pytest.fixture
def gpu_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    def mark(device: torch.device, timed: bool) -> Event:
        assert (device, timed) == (torch.device("cuda", 0), True)
        return Event(0.0)

    monkeypatch.setattr("planner.runtime.inference.recorder.mark", mark)
    monkeypatch.setattr("planner.runtime.inference.recorder.time.perf_counter", lambda: 8.0)


def on_gpu(slept: bool, *seconds: float) -> tuple[StageRun[Any], list[Event]]:
    """A stage on a GPU, whose clock is 8 seconds behind, with its events: taken, ready, ended."""
    events: Any = [Event(second - 8.0) for second in seconds]
    return StageRun(slept, *events), events


def recorder(gpu: bool = False) -> Recorder:
    """Of devices a, b and c, of which b may be a GPU."""
    devices = [cpu(name) for name in "abc"]
    if gpu:
        devices[1] = replace(devices[1], cores=(), cuda=0)
    compiled = {number: CompiledStage(stage, (), (), tuple, f"stage {number}") for number, stage in enumerate(STAGES)}
    return Recorder(devices, compiled)


def run(made: Recorder, ran: StageRun[Any], micro_batch: int = 5) -> dict[str, tuple[float, float]]:
    """Stages 0 and 1 end at 11 and 12, stage 2 at 20; seconds count from 10, and micro-batches from 4."""
    made.start(4, 10.0)
    made.add(0, micro_batch, StageRun(True, 10.0, 10.0, 11.0))
    made.add(1, micro_batch, StageRun(True, 10.5, 10.5, 12.0))
    made.add(2, micro_batch, ran)
    spans = made.spans()
    assert made.spans() == ()
    assert not made.on
    assert all(span.micro_batch == 1 for span in spans)
    assert {(span.resource, span.index, span.label) for span in spans if span.kind == "transfer"} == {
        ("a → b", 7, ""),
        ("c → b", 8, ""),
    }
    return {span.resource: (span.start_s, span.end_s) for span in spans}


def test_by_reference_it_is_there_at_once() -> None:
    assert run(recorder(), StageRun(False, 15.0, 15.0, 20.0)) == {
        "a": (0.0, 1.0),
        "c": (0.5, 2.0),
        "a → b": (1.0, 1.0),
        "c → b": (2.0, 2.0),
        "b": (5.0, 10.0),
    }


def test_the_last_one_wakes_a_reader_that_sleeps() -> None:
    found = run(recorder(), StageRun(True, 12.25, 12.25, 20.0))
    assert (found["a → b"], found["c → b"], found["b"]) == ((1.0, 1.0), (2.0, 2.25), (2.25, 10.0))


@pytest.mark.usefixtures("gpu_clock")
def test_a_reader_copies_when_it_has_time() -> None:
    """No event is waited for while stages run."""
    ran, events = on_gpu(False, 15.0, 15.5, 20.0)
    made = recorder(gpu=True)
    made.start(0, 10.0)
    made.add(2, 0, ran)
    assert not any(event.waited_for for event in events)
    found = run(made, ran)
    assert all(event.waited_for for event in events)
    assert (found["a → b"], found["c → b"], found["b"]) == ((5.0, 5.5), (5.0, 5.5), (5.5, 10.0))


@pytest.mark.usefixtures("gpu_clock")
def test_a_reader_takes_what_a_gpu_still_computes() -> None:
    """The copy begins when the GPU is done, not when the reader's thread was."""
    devices = [replace(cpu("a"), cores=(), cuda=0), cpu("b"), cpu("c")]
    compiled = {number: CompiledStage(stage, (), (), tuple, f"stage {number}") for number, stage in enumerate(STAGES)}
    made = Recorder(devices, compiled)
    made.start(0, 10.0)
    made.add(0, 0, on_gpu(True, 10.0, 10.0, 14.0)[0])
    made.add(1, 0, StageRun(True, 10.5, 10.5, 11.0))
    made.add(2, 0, StageRun(False, 11.5, 14.5, 20.0))
    spans = {span.resource: (span.start_s, span.end_s) for span in made.spans() if span.kind == "transfer"}
    assert spans == {"a → b": (4.0, 4.5), "c → b": (1.0, 1.0)}


@pytest.mark.usefixtures("gpu_clock")
def test_a_reader_that_sleeps_wakes_and_copies() -> None:
    found = run(recorder(gpu=True), on_gpu(True, 12.25, 12.5, 20.0)[0])
    assert (found["a → b"], found["c → b"], found["b"]) == ((2.25, 2.5), (2.0, 2.5), (2.5, 10.0))


@pytest.mark.parametrize("started", [False, True])
def test_micro_batches_before_recording_began_are_not_kept(started: bool) -> None:
    made = recorder()
    if started:
        made.start(4, 10.0)
    assert made.on is started
    made.add(0, 3, StageRun(False, 10.0, 10.0, 11.0))
    assert made.spans() == ()


def test_what_others_send_is_not_recorded_here() -> None:
    made = Recorder([cpu(name) for name in "abc"], {2: CompiledStage(STAGES[2], (), (), tuple, "stage 2")})
    made.start(0, 0.0)
    made.add(2, 0, StageRun(True, 1.0, 1.0, 2.0, 0.5))
    assert made.spans() == (Span("compute", "b", "stage 2", 0, 2, 1.0, 2.0, 0.5),)


def test_order() -> None:
    spans = [Span("compute", name, "", 0, 0, start_s, 9.0) for name, start_s in (("b", 1.0), ("a", 1.0), ("c", 0.5))]
    assert [span.resource for span in in_order(spans)] == ["c", "a", "b"]
