"""Training in processes of this host: as on threads, they fail, they are killed, and nothing of them is left."""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import planner
from graphs.common.errors import InputError
from planner.plans.plan import Plan
from planner.runtime.distributed.training import hosted_trainer as training_front
from planner.runtime.distributed.training import worker
from planner.runtime.distributed.training.hosted_trainer import BROKEN, HostedTrainer
from planner.runtime.distributed.training.worker import RankSetup
from planner.runtime.errors import RankError, RemoteError, StageError
from planner.runtime.training.check import differing, example_batches, mean_square, reference_gradients
from planner.runtime.training.options import TrainerOptions
from planner.runtime.training.prepare import stage_layout
from tests.planner.runtime.distributed.inference.test_launcher import SOON_S
from tests.planner.runtime.distributed.leftovers import left, processes
from tests.planner.runtime.distributed.pipelines import (
    Case,
    data_of,
    loss_of,
    model_of,
    no_loss,
    on_threads,
    plan_for,
    program_for,
    sgd,
    sum_of_squares,
)
from tests.planner.runtime.forks import in_fork, refusal
from tests.planner.runtime.small import CORE, PATIENCE_S, begin, cpu, eventually, with_device

HALVES = Case("transformer", ("layers.1.first",), 2, steps=3)
PROGRAM = program_for(HALVES)
PLAN = plan_for(HALVES, PROGRAM)
TOOLS = RankSetup(mean_square, sgd, TrainerOptions())
BATCHES = example_batches(PROGRAM, 2)


@pytest.fixture(autouse=True)
def _nothing_is_left(apart: None) -> Iterator[None]:  # noqa: ARG001  # makes what is ours known
    before = left()
    yield
    assert processes() == set()
    assert left() == before


def started(case: Case = HALVES, **options: Any) -> HostedTrainer:
    """The case in processes, as a user would have it."""
    program = program_for(case)
    found = planner.train(
        plan_for(case, program),
        program,
        loss=loss_of,
        optimizer=sgd,
        trainer_options=case.trainer_options,
        processes=True,
        **options,
    )
    assert isinstance(found, HostedTrainer)
    return found


def begun_to_train(ranks: HostedTrainer) -> "Future[None]":
    """Steps without end, of which one has been taken."""
    one = threading.Event()

    def train() -> None:
        for _ in range(1_000_000):
            ranks.step_through(BATCHES)
            one.set()

    waiting = begin(train)
    assert one.wait(PATIENCE_S)
    return waiting


@pytest.mark.slow
@pytest.mark.usefixtures("afresh")
def test_the_whole_life() -> None:
    with HostedTrainer(PLAN, PROGRAM, TOOLS) as ranks:
        assert len(processes() & set(ranks.pids)) == 2
        expected = reference_gradients(PROGRAM, stage_layout(PLAN), mean_square, BATCHES)
        found = ranks.gradients(BATCHES)
        assert expected.keys() == found.keys()
        assert all(one.share < one.allowed for one in differing(expected, found))
        assert ranks.step_s(BATCHES) > 0
        ranks.record()
        ranks.step_through(BATCHES)
        run = ranks.timeline()
        assert (run.devices, run.micro_batches) == (("cpu0", "cpu1"), 2)
        assert {(span.resource, span.label) for span in run.spans if span.kind == "compute"} == {
            (f"cpu{s}", label) for s in range(2) for label in ("optimizer", *(f"{s}{c}{i}" for c in "FB" for i in "01"))
        }
        assert {(span.resource, span.label, span.index) for span in run.spans if span.kind == "transfer"} == {
            *(("cpu0 → cpu1", f"0SEND_F{i}", 0) for i in range(2)),
            *(("cpu1 → cpu0", f"1SEND_B{i}", 1) for i in range(2)),
        }
        at = {span.label: span for span in run.spans}
        for sent, way, read in (("0F", "0SEND_F", "1F"), ("1B", "1SEND_B", "0B")):
            for i in range(2):
                assert at[f"{sent}{i}"].end_s <= at[f"{way}{i}"].start_s < at[f"{way}{i}"].end_s
                assert at[f"{way}{i}"].end_s <= at[f"{read}{i}"].start_s
        assert not list(ranks._folder.glob("*.pt"))
        closing_s = time.monotonic()
    assert time.monotonic() - closing_s < SOON_S
    ranks.close()
    with pytest.raises(RuntimeError, match="the trainer is closed; make a new one"):
        ranks.step_through(BATCHES)


@pytest.mark.slow
@pytest.mark.attack("process")
def test_a_trainer_that_nobody_closes_is_no_forks_and_ends_with_the_last_reference() -> None:
    ranks = HostedTrainer(PLAN, PROGRAM, TOOLS)
    assert in_fork(partial(ranks.step_through, BATCHES)) == refusal("trainer")
    assert in_fork(ranks.close) == "None"
    ranks.step_through(BATCHES)
    folder = ranks._folder
    del ranks
    eventually(lambda: not processes() and not folder.exists())


@pytest.mark.slow
def test_one_micro_batch_has_the_bits_of_threads_and_a_state_goes_there_and_back() -> None:
    """Dropout, clipping, and what is refused on the way: it changes nothing."""
    case = replace(HALVES, network="dropout", micro_batches=1, trainer_options=TrainerOptions(seed=3, clip_norm=0.1))
    expected = on_threads(case)
    with started(case) as trainer:
        losses = [trainer.step(*data_of(case, number)).item() for number in range(2)]
        saved = trainer.state_dict()
        with pytest.raises(InputError, match="no option 'momemtum'; it has dampening, "):
            trainer.change_options(momemtum=0.0)
        with pytest.raises(InputError, match="the state was saved with the seed 4; make the trainer with that seed"):
            trainer.load_state_dict({**saved, "seed": 4})
        lacking = {name: value for name, value in saved["model"].items() if name != "head.weight"}
        with pytest.raises(InputError, match=r"the state has no 'head.weight', which the model 'Transformer' has"):
            trainer.load_state_dict({**saved, "model": lacking})  # the other rank has all of its own
        with pytest.raises(
            InputError,
            match=r"so 2 samples in the first dimension: leave a last batch that is short out, by DataLoader",
        ):
            trainer.step(data_of(case, 0)[0][:1])
        trainer.change_options(lr=1e9)
        trainer.step(*data_of(case, 7))
        trainer.load_state_dict(saved)  # with the learning rate
        losses += [trainer.step(*data_of(case, number)).item() for number in (2, 3)]
        assert losses == list(expected.losses)
        model = trainer.model_state_dict()
        assert model.keys() == expected.state.keys() == model_of(case).state_dict().keys()
        assert all(torch.equal(model[name], tensor) for name, tensor in expected.state.items())
        model_of(case).load_state_dict(model)
    other = replace(case, cuts=("layers.0.second", "layers.2.first"))  # on threads, and on another plan
    program = program_for(other)
    with planner.train(
        plan_for(other, program), program, loss=loss_of, optimizer=sgd, trainer_options=case.trainer_options
    ) as threads:
        threads.load_state_dict(saved)
        assert [threads.step(*data_of(case, number)).item() for number in (2, 3)] == losses[2:]


@pytest.mark.slow
def test_many_micro_batches_of_a_batch_in_strange_memory() -> None:
    """Their gradients are added up, and wait for those of the next step."""
    case = replace(HALVES, network="skipping", cuts=("norm",), trainer_options=TrainerOptions(accumulate=2))
    expected = on_threads(case)
    with started(case) as trainer:
        losses = []
        for number in range(4):
            batch, target = data_of(case, number)
            wide = torch.zeros(2, *batch.shape[:-1], 3 * batch.shape[-1], dtype=batch.dtype)
            wide[1, ..., ::3] = batch
            losses.append(trainer.step(wide[1, ..., ::3], target).item())
            if number == 2:
                with pytest.raises(InputError, match="the gradients of 1 of 2 steps wait for the optimizer; save"):
                    trainer.state_dict()
        assert losses == pytest.approx(list(expected.losses), rel=1e-12)
        model = trainer.model_state_dict()
    assert model.keys() == expected.state.keys()
    for name, tensor in expected.state.items():
        torch.testing.assert_close(model[name], tensor, rtol=1e-6, atol=1e-12)


@pytest.mark.slow
def test_a_stage_that_fails_is_told_with_its_traceback() -> None:
    """The other rank, whose connection breaks, says less."""
    (words,) = PROGRAM.example_inputs
    bad = example_batches(replace(PROGRAM, example_inputs=(torch.full_like(words, 11),)), 2)
    with HostedTrainer(PLAN, PROGRAM, TOOLS) as ranks:
        with pytest.raises(StageError) as error:
            ranks.step_through(bad)
        with pytest.raises(RankError) as afterwards:
            ranks.step_through(BATCHES)
    assert str(error.value) == "stage 0 on 'cpu0' failed in 0F0: IndexError: index out of range in self"
    assert isinstance(error.value.__cause__, RemoteError)
    assert str(error.value.__cause__).endswith("IndexError: index out of range in self\n")
    assert str(afterwards.value) == BROKEN


def patch_isend(sent: Callable[[torch.Tensor], Sequence[torch.Tensor]]) -> None:
    """Let torch's engine send some tensors instead of one; it waits until the first of them has been taken."""
    send, on_way = dist.isend, []

    def isend(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        works = [send(each, *args, **options) for each in sent(tensor)]
        on_way.extend(works)  # else gloo drops them
        return works[0]

    for module in (dist, dist.distributed_c10d):
        vars(module)["isend"] = isend


def short_gradients() -> None:
    """Send gradients without their last bytes."""
    patch_isend(lambda tensor: [tensor.reshape(-1)[:-1] if tensor.is_floating_point() else tensor])


def two_seals() -> None:
    """Send each seal twice."""
    patch_isend(lambda tensor: [tensor] if tensor.is_floating_point() else [tensor, tensor])


def another_loss() -> None:
    """Send twice the loss."""
    broadcast = dist.broadcast
    vars(dist)["broadcast"] = lambda tensor, **options: broadcast(tensor.mul_(torch.tensor([2, 1, 1, 1, 1])), **options)


def other_times() -> None:
    """Send objects of which a byte is another one."""
    written = vars(dist.distributed_c10d)["_object_to_tensor"]

    def damaged(*args: Any) -> Any:
        row, length = written(*args)
        row[len(row) // 2] += 1
        return row, length

    vars(dist.distributed_c10d)["_object_to_tensor"] = damaged


LIES: Mapping[Callable[[], None], str] = {
    short_gradients: r"what stage 1 sent after 1B0 in step 0 came damaged",
    two_seals: r"rank 1 \('cpu0'\) is gone: killed by SIGABRT",  # what comes next is longer than a seal
    another_loss: r"rank 1 \('cpu1'\) has sent numbers that are damaged",
    other_times: r"rank 1 \('cpu1'\) has sent bytes that are damaged",
}


@cache
def once(lie: Callable[[], None]) -> None:
    """Begin to lie."""
    lie()


def lying_loss(lie: Callable[[], None], result: Any, target: Any) -> torch.Tensor:
    """The loss, after which the last rank lies."""
    once(lie)
    return loss_of(result, target)


@pytest.mark.attack("process")
@pytest.mark.parametrize("lie", LIES)
def test_what_comes_damaged_in_a_step_is_an_error(lie: Callable[[], None]) -> None:
    loss = partial(lying_loss, lie)
    with planner.train(PLAN, PROGRAM, loss=loss, optimizer=sgd, processes=True) as ranks:
        ranks.record()

        def train() -> None:
            for _ in range(2):
                ranks.step(*data_of(HALVES, 0))

        with pytest.raises((StageError, RankError), match=LIES[lie]):
            train()


class DamagesFiles(torch.optim.SGD):
    """Damages every file that its process has written from its first step on."""

    def step(self, closure: Any = None) -> Any:
        """Begin to damage files."""
        written = worker.write_out

        def damaged(content: Any, path: Path) -> Any:
            said = written(content, path)
            row = bytearray(path.read_bytes())
            row[len(row) // 2] ^= 1
            path.write_bytes(row)
            return said

        vars(worker)["write_out"] = damaged
        return super().step(closure)


class WritesNoFiles(torch.optim.SGD):
    """Writes files that nobody can read from its first step on."""

    def step(self, closure: Any = None) -> Any:
        """Begin to write them."""
        vars(torch)["save"] = lambda _, path: path.write_bytes(b"PK")
        return super().step(closure)


class DamagesAnswers(torch.optim.SGD):
    """Answers another command than was given from its first step on."""

    def step(self, closure: Any = None) -> Any:
        """Begin to give other answers."""
        written = worker.answer_to_text
        vars(worker)["answer_to_text"] = lambda number, answer: written(number - 1, answer)
        return super().step(closure)


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (DamagesFiles, "has sent a file that is damaged"),
        (WritesNoFiles, "has sent a file that cannot be read"),
        (DamagesAnswers, "has sent an answer to command"),
    ],
)
def test_a_result_that_comes_damaged_is_an_error(optimizer: type[torch.optim.SGD], said: str) -> None:
    with planner.train(PLAN, PROGRAM, loss=mean_square, optimizer=partial(optimizer, lr=0.1), processes=True) as ranks:
        with pytest.raises(RankError, match=said):
            ranks.gradients(BATCHES)
        with pytest.raises(RankError, match=re.escape(BROKEN)):
            ranks.state_dict()


def test_a_loss_that_is_a_sum_is_refused_in_the_caller_too() -> None:
    with (
        HostedTrainer(PLAN, PROGRAM, replace(TOOLS, loss=sum_of_squares)) as ranks,
        pytest.raises(
            InputError, match=r"^the loss of .* micro-batches together is .*, so it is no plain mean over samp"
        ),
    ):
        ranks.step_through(BATCHES)


@pytest.mark.slow
def test_a_loss_that_is_none() -> None:
    with HostedTrainer(PLAN, PROGRAM, replace(TOOLS, loss=no_loss)) as ranks:
        with pytest.raises(InputError, match="the loss is a NoneType; it must be a tensor of one element"):
            ranks.step_through(BATCHES)
        with pytest.raises(RankError, match="the ranks of this trainer have failed; make a new one"):
            ranks.record()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "why"), [(signal.SIGKILL, "killed by SIGKILL"), (signal.SIGSTOP, "it is stopped")], ids=str
)
def test_a_rank_that_is_gone_is_told_soon(sent: signal.Signals, why: str) -> None:
    with HostedTrainer(PLAN, PROGRAM, TOOLS) as ranks:
        waiting = begun_to_train(ranks)
        os.kill(ranks.pids[1], sent)
        sent_s = time.monotonic()
        error = waiting.exception(PATIENCE_S)
        assert time.monotonic() - sent_s < SOON_S
        assert isinstance(error, RankError)
        assert str(error) == f"rank 2 ('cpu1') is gone: {why}; start again"


@pytest.mark.slow
def test_it_can_be_closed_while_a_step_is_on_its_way() -> None:
    with HostedTrainer(PLAN, PROGRAM, TOOLS) as ranks:
        waiting = begun_to_train(ranks)
    error = waiting.exception(PATIENCE_S)
    assert isinstance(error, RuntimeError)
    assert str(error) in ("the trainer was closed while a step was on its way", "the trainer is closed; make a new one")


@pytest.mark.slow
def test_a_device_that_is_not_here() -> None:
    far = with_device(PLAN, 1, cpu("cpu1", cores=(CORE + 4096,)))
    with pytest.raises(InputError, match=rf"device 'cpu1' is bound to core {CORE + 4096}, which this process may not"):
        HostedTrainer(far, PROGRAM, TOOLS)


def test_what_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_front, "LocalLauncher", None)
    inference: Plan = replace(PLAN, workload=replace(PLAN.workload, mode="inference"))
    with pytest.raises(InputError, match="the plan is for inference; to train, plan with the goal 'training'"):
        HostedTrainer(inference, PROGRAM, TOOLS)
    case = replace(HALVES, replicas=2)
    with pytest.raises(InputError, match="the plan is for 2 replicas of its devices, which ranks train"):
        HostedTrainer(plan_for(case, PROGRAM), PROGRAM, TOOLS)
    with pytest.raises(InputError, match=r"the plan is for 'Transformer' .*, the model is 'Skipping'"):
        HostedTrainer(PLAN, program_for(Case("skipping", ("norm",))), TOOLS)
    frozen = replace(PROGRAM, state={name: tensor.detach() for name, tensor in PROGRAM.state.items()})
    with pytest.raises(InputError, match="model 'Transformer' has no parameter that asks for a gradient: nothing to"):
        HostedTrainer(PLAN, frozen, TOOLS)
    with pytest.raises(InputError, match=r"the optimizer 'test_what_starts_no_process.<locals>.<lambda>' cannot be"):
        planner.train(PLAN, PROGRAM, loss=None, optimizer=lambda parameters: sgd(parameters), processes=True)


def test_which_failure_says_the_most() -> None:
    coordinator = HostedTrainer.__new__(HostedTrainer)

    def told(kind: str) -> dict[str, str]:
        return {"kind": kind, "failure": json.dumps({"message": f"a failure of the {kind}", "traceback": ""})}

    def failure(answers: Mapping[int, object], lost: str = "") -> tuple[type[Exception], str]:
        found = coordinator._failure(answers, lost)
        return type(found), str(found)

    assert failure({1: told("rank"), 2: told("stage")}, "rank 3 is gone: so") == (StageError, "a failure of the stage")
    assert failure({1: told("rank"), 2: told("input")}) == (InputError, "a failure of the input")
    assert failure({1: told("rank")}, "rank 2 is gone: so") == (RankError, "rank 2 is gone: so; start again")
    assert failure({1: told("rank"), 2: {"value": 1.0}}) == (RankError, "a failure of the rank")
    assert failure({1: {}}, "rank 2 is gone: so") == (RankError, "rank 2 is gone: so; start again")
