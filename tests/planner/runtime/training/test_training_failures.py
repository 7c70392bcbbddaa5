"""A step that fails says where and why, changes nothing, and the next one may follow."""

import random
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
import torch
from torch import nn

from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from planner.runtime.errors import StageError
from planner.runtime.start import train
from planner.runtime.training.any_trainer import AnyTrainer
from planner.runtime.training.device_threads import DeviceThreads
from planner.runtime.training.options import TrainerOptions
from planner.runtime.training.step import StepRun
from planner.runtime.training.trainer import TORN
from tests.interrupts import interrupted
from tests.planner.runtime.small import PATIENCE_S, begin, cpu, device_threads, eventually
from tests.planner.runtime.training.nets import BATCH, Case, main_loss, numbers, plan_for, program_of, samples

T = TypeVar("T")

PIPELINE = Case("skips", "1f1b", 4, 3, 3)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def start(
    loss: Callable[[Any, Any], torch.Tensor] = main_loss, trainer_options: TrainerOptions | None = None
) -> AnyTrainer:
    program = program_of("skips")
    return train(plan_for(program, PIPELINE), program, loss=loss, optimizer=sgd, trainer_options=trainer_options)


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return samples("skips", 4 * BATCH, seed)


def assert_same(state: dict[str, Any], other: dict[str, Any]) -> None:
    assert all(torch.equal(tensor, other["model"][name]) for name, tensor in state["model"].items())
    assert state["steps"] == other["steps"]


class Flaky:
    """A loss that fails in one call, counted from where it is armed."""

    def __init__(self) -> None:
        self.fails_in = 0

    def __call__(self, result: Any, target: Any) -> torch.Tensor:
        self.fails_in -= 1
        if self.fails_in == 0:
            raise ZeroDivisionError("not today")
        return main_loss(result, target)


@pytest.mark.parametrize(
    "trainer_options", [TrainerOptions(), TrainerOptions(recompute="full")], ids=["kept", "recomputed"]
)
def test_a_loss_that_fails(trainer_options: TrainerOptions) -> None:
    with start(trainer_options=trainer_options) as trainer:
        expected = [trainer.step(*batch(seed)) for seed in range(3)]
        state = trainer.state_dict()
    flaky = Flaky()
    with start(flaky, trainer_options) as trainer:
        assert torch.equal(trainer.step(*batch(0)), expected[0])
        before = trainer.state_dict()
        flaky.fails_in = 2
        with pytest.raises(StageError) as failure:
            trainer.step(*batch(1))
        where = "1B0" if trainer_options.recompute else "1F1"
        assert str(failure.value).startswith("stage 2 on 'cpu2' failed in 2")
        assert str(failure.value).endswith(": ZeroDivisionError: not today"), where
        assert isinstance(failure.value.__cause__, ZeroDivisionError)
        assert_same(trainer.state_dict(), before)
        assert [trainer.step(*batch(seed)) for seed in (1, 2)] == expected[1:]
        assert_same(trainer.state_dict(), state)


class Words(nn.Module):
    """A batch norm before words that may be unknown."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.words = nn.Embedding(6, 4)
        self.leave = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        result: torch.Tensor = self.leave(torch.tanh(y + self.words(ids)))
        return result


def test_a_stage_that_fails_leaves_the_statistics_as_they_were() -> None:
    torch.manual_seed(0)
    x, y = batch()
    good, bad = torch.zeros(4 * BATCH, dtype=torch.int64), torch.tensor([0] * 3 * BATCH + [6] * BATCH)
    program = program_from_module(Words().double(), (numbers(BATCH), good[:BATCH]), training=True)
    with train(plan_for(program, Case("words", "gpipe", 4)), program, loss=main_loss, optimizer=sgd) as trainer:
        trainer.step((x, good), y)
        before = trainer.state_dict()
        with pytest.raises(StageError, match=r"stage \d on 'cpu\d' failed in \dF3: IndexError: index out of range"):
            trainer.step((x, bad), y)
        assert_same(trainer.state_dict(), before)
        assert before["model"]["norm.num_batches_tracked"] == 4
        trainer.step((x, good), y)
        assert trainer.state_dict()["model"]["norm.num_batches_tracked"] == 8


def test_a_failed_part_drops_the_gradients_that_waited() -> None:
    with start(trainer_options=TrainerOptions(accumulate=2)) as trainer:
        for seed in (1, 2):
            trainer.step(*batch(seed))
        expected = trainer.model_state_dict()
    flaky = Flaky()
    with start(flaky, TrainerOptions(accumulate=2)) as trainer:
        trainer.step(*batch(0))
        flaky.fails_in = 2
        with pytest.raises(StageError):
            trainer.step(*batch(0))
        for seed in (1, 2):
            trainer.step(*batch(seed))
        assert all(torch.equal(tensor, expected[name]) for name, tensor in trainer.model_state_dict().items())


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (lambda *_: 3.0, "the loss is a float; it must be a tensor of one element"),
        (lambda result, _: result, "the loss is a tensor [2, 3]; it must have one element: take its mean"),
        (lambda _, target: target.sum(), "the loss is of int64; it must be of a floating type"),
        (
            lambda result, target: main_loss(result.detach(), target),
            "the loss has no gradient, so nothing can be trained: compute it from outputs that parameters to train "
            "lead to, without detach(), item() or torch.no_grad()",
        ),
    ],
)
def test_a_loss_that_is_none(loss: Any, text: str) -> None:
    with start(loss) as trainer:
        with pytest.raises(InputError) as error:
            trainer.step(*batch())
        assert str(error.value) == text


def test_batches_that_do_not_fit() -> None:
    x, y = batch()
    with start() as trainer:
        for args, text in (
            (
                (x[:4], y),
                "input 'x' is [4, 4]; a step of this plan takes 4 micro-batches of 2, so 8 samples in the first "
                "dimension: leave a last batch that is short out, by DataLoader(..., drop_last=True), or plan for "
                "another batch",
            ),
            (
                (torch.cat([x, x]), y),
                "input 'x' is [16, 4]; a step of this plan takes 4 micro-batches of 2, so 8 samples in the first "
                "dimension: pass as many, or plan for another batch",
            ),
            (
                (x, y[:6]),
                "a target is [6]; its first dimension does not go into 4 micro-batches: leave a last batch that is "
                "short out, by DataLoader(..., drop_last=True), or pass a target for each sample",
            ),
            (
                (x.float(), y),
                "input 'x' is [2, 4] float32, the model was imported for [2, 4] float64; plan again for this input",
            ),
        ):
            with pytest.raises(InputError) as error:
                trainer.step(*args)
            assert str(error.value) == text
        trainer.step(x, y)


class Stubborn(torch.optim.SGD):
    """Fails when it is told to."""

    fails = False

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if self.fails:
            raise ArithmeticError("no step")
        super().step(closure)


def test_an_optimizer_that_fails() -> None:
    program = program_of("skips")
    make = lambda parameters: Stubborn(parameters, lr=0.1)  # noqa: E731
    with train(plan_for(program, PIPELINE), program, loss=main_loss, optimizer=make) as trainer:
        trainer.step(*batch())
        state = trainer.state_dict()
        second = trainer.optimizers[1]
        assert isinstance(second, Stubborn)
        second.fails = True
        with pytest.raises(StageError, match="the optimizer on 'cpu1' failed: ArithmeticError: no step"):
            trainer.step(*batch())
        second.fails = False
        with pytest.raises(RuntimeError) as error:
            trainer.step(*batch())
        assert str(error.value) == TORN
        with pytest.raises(RuntimeError, match="the last step ended while it changed parameters"):
            trainer.state_dict()
        trainer.load_state_dict(state)
        trainer.step(*batch())


class Gate:
    """Holds an action until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, action: str) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        forward = StepRun._forward

        def gated(step: StepRun, context: Any, stage: Any, now: Any) -> tuple[float, float]:
            if str(now) == action and not self.go.is_set():
                self.reached.set()
                assert self.go.wait(PATIENCE_S)
            return forward(step, context, stage, now)

        monkeypatch.setattr(StepRun, "_forward", gated)


def test_a_second_interrupt_leaves_nothing_that_could_be_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    flaky = Flaky()
    with start(flaky) as trainer:
        state = trainer.state_dict()
        flaky.fails_in = 2
        undo = StepRun.undo
        monkeypatch.setattr(StepRun, "undo", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            trainer.step(*batch())
        monkeypatch.setattr(StepRun, "undo", undo)
        with pytest.raises(RuntimeError, match="the last step ended while it changed parameters"):
            trainer.step(*batch())
        trainer.load_state_dict(state)
        trainer.step(*batch())


def test_closing_while_a_step_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, "1F1")
    trainer = start()
    step = begin(lambda: trainer.step(*batch()))
    assert gate.reached.wait(PATIENCE_S)
    closed = begin(trainer.close)
    eventually(lambda: trainer._loop._closed)  # type: ignore[attr-defined]  # a Trainer
    gate.go.set()
    closed.result(PATIENCE_S)
    with pytest.raises(RuntimeError) as error:
        step.result(PATIENCE_S)
    assert str(error.value) == "the trainer was closed while a step was on its way"


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Let interrupts raise KeyboardInterrupt, also in tests in the background, which a shell starts to ignore them."""
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, earlier)


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupt_ends_the_step_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with start() as trainer:
        expected = [trainer.step(*batch(seed)) for seed in range(2)]
    gate, stop, stopped = Gate(monkeypatch, "2F1"), StepRun.stop, threading.Event()

    def noted_stop(step: StepRun) -> None:
        stop(step)
        stopped.set()

    monkeypatch.setattr(StepRun, "stop", noted_stop)
    with start() as trainer:
        before = trainer.state_dict()

        def interrupt() -> None:
            assert gate.reached.wait(PATIENCE_S)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            assert stopped.wait(PATIENCE_S)
            gate.go.set()

        begin(interrupt)
        with pytest.raises(KeyboardInterrupt):
            trainer.step(*batch(0))
        assert_same(trainer.state_dict(), before)
        assert [trainer.step(*batch(seed)) for seed in range(2)] == expected


class InterruptedOnce(list[T]):
    """A list that an interrupt leaves behind its first element, when somebody first goes through it."""

    times = 0

    def __iter__(self) -> Iterator[T]:
        self.times += 1
        for number, element in enumerate(super().__iter__()):
            if self.times == 1 and number:
                raise KeyboardInterrupt
            yield element


def test_an_interrupt_while_devices_are_told_what_to_do() -> None:
    """All do it nevertheless, and once: an update of half of the parameters would be none."""
    threads, did = DeviceThreads([cpu(f"cpu{number}") for number in range(3)]), []
    threads._jobs = InterruptedOnce(threads._jobs)
    with pytest.raises(KeyboardInterrupt):
        threads.each(lambda context: did.append(context.number))
    assert sorted(did) == [0, 1, 2]
    assert threads.each(lambda context: context.number) == [0, 1, 2]
    threads.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt of a callback
def test_an_interrupt_at_any_moment_leaves_the_threads_at_work() -> None:
    threads, moments = DeviceThreads([cpu("cpu0"), cpu("cpu1")]), random.Random(0)

    def endless() -> None:
        while True:
            assert threads.each(lambda context: context.number) == [0, 1]

    for _ in range(200):
        assert interrupted(endless, moments.uniform(2e-5, 4e-4))
    threads.close()


def test_a_closed_trainer() -> None:
    with start() as trainer:
        trainer.step(*batch())
        assert sorted(device_threads()) == ["device-cpu0", "device-cpu1", "device-cpu2"]
        state = trainer.state_dict()
    trainer.close()
    assert device_threads() == []
    assert_same(trainer.state_dict(), state)  # can still be saved
    for late in (
        lambda: trainer.step(*batch()),
        lambda: trainer.step(*batch()),
        lambda: trainer.load_state_dict(state),
    ):
        with pytest.raises(RuntimeError) as error:
            late()
        assert str(error.value) == "the trainer is closed; make a new one"


def test_an_error_in_the_with_block_closes_it_too() -> None:
    with pytest.raises(ZeroDivisionError), start():
        raise ZeroDivisionError
