"""The parts of a trainer, each alone."""

import threading
from typing import Any

import pytest
import torch
from torch import nn

from costmodels.host.affinity import Stopped
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from planner.runtime.inference.recorder import MessageEnd, StepRecorder
from planner.runtime.training.any_trainer import divide
from planner.runtime.training.device_threads import DeviceContext, DeviceThreads
from planner.runtime.training.optimizers import clip_factor
from planner.runtime.training.options import TrainerOptions
from planner.runtime.training.stages import fork
from planner.runtime.training.step import Mailbox, SentTensor
from simulator.schedule import Action, Schedule
from simulator.timeline import Span
from tests.planner.runtime.small import PATIENCE_S, begin, cpu, fresh_arguments
from tests.planner.runtime.small import program_of as inference_program
from tests.planner.runtime.training.nets import BATCH, program_of


def test_mail_is_taken_once_and_by_its_name() -> None:
    mail, one, two = Mailbox(), torch.ones(1), torch.zeros(2)
    mail.post({"one": SentTensor(one), "two": SentTensor(two), "none": SentTensor(None)})
    assert mail.take(["two", "none"]) == [SentTensor(two), SentTensor(None)]
    late = begin(lambda: mail.take(["one", "two"]))
    mail.post({"two": SentTensor(one)})
    assert late.result(PATIENCE_S) == [SentTensor(one), SentTensor(one)]


def test_who_waits_for_mail_is_let_go() -> None:
    mail = Mailbox()
    waiting = begin(lambda: mail.take(["never"]))
    mail.stop()
    with pytest.raises(Stopped):
        waiting.result(PATIENCE_S)
    mail.post({"late": SentTensor(None)})
    with pytest.raises(Stopped):
        mail.take(["late"])


def test_a_crew_works_side_by_side_on_bound_threads_with_gradients() -> None:
    meeting = threading.Barrier(2)

    def work(context: DeviceContext) -> tuple[int, str, int, bool]:
        meeting.wait(PATIENCE_S)
        return context.number, threading.current_thread().name, torch.get_num_threads(), torch.is_grad_enabled()

    threads = DeviceThreads([cpu("a"), cpu("b")])
    assert threads.each(work) == [(0, "device-a", 1, True), (1, "device-b", 1, True)]
    threads.close()
    threads.close()
    with pytest.raises(RuntimeError, match="the trainer is closed; make a new one"):
        threads.each(work)


def test_one_of_a_crew_fails_and_the_others_are_told() -> None:
    told = threading.Event()

    def work(context: DeviceContext) -> None:
        if context.number == 1:
            raise ZeroDivisionError("here")
        assert told.wait(PATIENCE_S)
        raise Stopped

    threads = DeviceThreads([cpu("a"), cpu("b"), cpu("c")])
    with pytest.raises(ZeroDivisionError, match="here"):
        threads.each(work, told.set)
    assert threads.each(lambda context: context.number) == [0, 1, 2]
    with pytest.raises(Stopped):
        threads.each(lambda _: (_ for _ in ()).throw(Stopped()))
    threads.close()


def test_a_thread_that_cannot_be_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: Any, ends: bool) -> Any:  # noqa: ARG001  # as it is called
        raise OSError(f"no core for {device.name}")

    monkeypatch.setattr("planner.runtime.training.device_threads.bound", refuse)
    threads = DeviceThreads([cpu("a")])
    for _ in range(2):
        with pytest.raises(OSError, match="no core for a"):
            threads.each(lambda context: context.number)
    threads.close()


def test_a_crew_without_its_device_starts_no_thread() -> None:
    with pytest.raises(InputError, match="'far' has neither cores nor cuda"):
        DeviceThreads([cpu("a"), cpu("far", cores=())])


def test_a_fork_adds_up_from_the_first_to_the_last() -> None:
    x = torch.zeros(1, requires_grad=True)
    copies = fork(x, 4)
    assert [copy.data_ptr() for copy in copies] == [x.data_ptr()] * 4
    big, small = torch.tensor([1e8]), torch.tensor([1.0])  # in float32, 1e8 + 1 is 1e8
    torch.autograd.backward(copies[:3], [big, -big, small])  # the last one has none
    assert x.grad is not None
    assert x.grad.item() == 1.0
    y = torch.zeros(1, requires_grad=True)
    torch.autograd.backward(fork(y, 3), [small, big, -big])
    assert y.grad is not None
    assert y.grad.item() == 0.0
    assert not any(copy.requires_grad for copy in fork(torch.ones(1), 2))


def test_a_batch_is_cut() -> None:
    program = program_of("skips")
    x, y = torch.randn(3 * BATCH, 4, dtype=torch.float64), {"a": torch.arange(6), "b": torch.tensor(7), "c": "text"}
    parts = divide(program, BATCH, 3, x, y)
    assert torch.equal(torch.cat([part.inputs["x"] for part in parts]), x)
    assert [part.target["a"].tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]]
    assert [(part.target["b"].item(), part.target["c"]) for part in parts] == [(7, "text")] * 3
    again = divide(program, BATCH, 3, (x,), None)
    assert [part.target for part in again] == [None] * 3
    assert torch.equal(torch.cat([part.inputs["x"] for part in again]), x)
    assert torch.equal(torch.cat([part.inputs["x"] for part in divide(program, BATCH, 3, {"x": x}, None)]), x)
    with pytest.raises(InputError, match="called with"):
        divide(program, BATCH, 3, {"z": x}, None)


def test_what_has_another_first_dimension_goes_whole_to_every_micro_batch() -> None:
    program = inference_program("handed")  # x is [2, 3], y [3], and a number
    (x, y, unused), _ = fresh_arguments("handed", 0)
    parts = divide(program, 2, 2, (torch.cat([x, x + 1]), y, unused), None)
    assert [torch.equal(part.inputs["x"], x + i) for i, part in enumerate(parts)] == [True, True]
    assert all(torch.equal(part.inputs["y"], y) for part in parts)


def test_there_must_be_something_to_cut() -> None:
    with pytest.raises(InputError) as error:
        divide(program_of("skips"), 3, 2, torch.randn(6, 4, dtype=torch.float64), None)
    assert str(error.value) == (
        "no input of 'skips' has the plan's batch 3 as its first dimension, so nothing can be divided into 2 "
        "micro-batches; plan with the batch that the inputs have"
    )


def test_a_mask_may_have_as_many_rows_as_the_batch_has_samples() -> None:
    class Masked(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return x @ mask

    mask, x = torch.randn(4, 4), torch.randn(4, 4)
    program = program_from_module(Masked(), (x[:1], mask))
    parts = divide(program, 1, 4, (x, mask), None)
    assert [part.inputs["x"].tolist() for part in parts] == [[row] for row in x.tolist()]
    assert all(torch.equal(part.inputs["mask"], mask) for part in parts)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"accumulate": 0}, "the gradients of 0 steps are to be added up; it must be 1 or more"),
        ({"clip_norm": 0.0}, "the largest norm of the gradients is 0.0; it must be a number above 0"),
        ({"clip_norm": float("nan")}, "the largest norm of the gradients is nan; it must be a number above 0"),
        (
            {"autocast": torch.float64},
            "there is no mixed precision with float64; use torch.bfloat16 or torch.float16",
        ),
        ({"seed": -1}, "the seed is -1; it must be 0 or more, and less than 2**63"),
        ({"seed": 2**63}, "the seed is 9223372036854775808; it must be 0 or more, and less than 2**63"),
    ],
)
def test_recipes_that_cannot_be_followed(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as error:
        TrainerOptions(**fields)
    assert str(error.value) == text


def test_the_factor_is_that_of_torch() -> None:
    norms = [{"b": torch.tensor(3.0)}, {}, {"a": torch.tensor(4.0)}]

    def factor(largest: float) -> float:
        found = clip_factor(norms, ("a", "none of a", "b"), largest)
        assert found is not None
        return found.item()

    assert factor(1.0) == pytest.approx(1 / (5 + 1e-6))
    assert factor(100.0) == 1.0
    assert clip_factor([{}, {}], ("a", "b"), 1.0) is None


def test_a_recorder_numbers_micro_batches_over_the_steps() -> None:
    recorder = StepRecorder(["a", "b"], Schedule.parse(["0F0 0B0", "1F0 1B0"]))
    recorder.add_step([[], []])  # it is off
    recorder.start()
    origin_s = 100.0  # of the clock
    rows = [[(Action(0, "F", 0), origin_s + 1, origin_s + 2)], [(Action(1, "B", 0), origin_s, origin_s + 1)]]
    recorder.add_step(rows)
    recorder.add_update([(origin_s + 3, origin_s + 4)] * 2)
    recorder.add_step(rows)
    run = recorder.timeline()
    assert (run.devices, run.micro_batches, recorder.on) == (("a", "b"), 2, False)
    rounded = [(s.resource, s.label, s.micro_batch, s.index, round(s.start_s, 6)) for s in run.spans]
    assert rounded == [
        ("b", "1B0", 0, 1, 0.0),
        ("b", "1B1", 1, 1, 0.0),
        ("a", "0F0", 0, 0, 1.0),
        ("a", "0F1", 1, 0, 1.0),
        ("a", "optimizer", 0, 0, 3.0),
        ("b", "optimizer", 0, 1, 3.0),
    ]
    assert isinstance(run.spans[0], Span)


def test_a_recorder_knows_when_messages_were_on_their_way() -> None:
    """One behind the other over the same link; with the last of its tensors it is there."""
    recorder = StepRecorder(["a", "b"], Schedule.parse(["0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"]))
    recorder.start()
    origin_s = 100.0  # of the clock
    f0, f1, b0, b1 = Action(0, "F", 0), Action(0, "F", 1), Action(1, "B", 0), Action(1, "B", 1)
    passings = [
        *(MessageEnd(f0, True, 1.0), MessageEnd(f1, True, 2.0), MessageEnd(f0, False, 2.5), MessageEnd(f0, False, 3.0)),
        *(
            MessageEnd(f1, False, 3.5),
            MessageEnd(b0, True, 2.0),
            MessageEnd(b0, False, 1.5),
        ),  # clocks differ
        MessageEnd(b1, True, 5.0),  # from GPU to GPU: nobody saw it come
    ]
    for _ in range(2):
        moved = [passing._replace(at_s=passing.at_s + origin_s) for passing in passings]
        recorder.add_step([[(f0, origin_s, origin_s + 1.0)], []], moved)
    found = [span for span in recorder.timeline().spans if span.kind == "transfer" and span.micro_batch < 2]
    assert [(s.resource, s.label, s.micro_batch, s.index, round(s.start_s, 6), round(s.end_s, 6)) for s in found] == [
        ("a → b", "0SEND_F0", 0, 0, 1.0, 3.0),
        ("b → a", "1SEND_B0", 0, 1, 2.0, 2.0),
        ("a → b", "0SEND_F1", 1, 0, 3.0, 3.5),
    ]
