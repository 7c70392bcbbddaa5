"""Training in processes of this host: they answer, they fail, they are killed, and nothing of them is left."""

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
import torch

from graphs.errors import InputError
from planner.plans import Plan
from planner.runtime.engine import StageError
from planner.runtime.processes import training_front
from planner.runtime.processes.failures import RankError, RemoteError
from planner.runtime.processes.training_front import HostedTraining
from planner.runtime.processes.training_worker import Word
from planner.runtime.training.check import differing, example_batches, mean_square, unsplit_gradients
from planner.runtime.training.prepare import layout_of
from tests.planner.runtime.processes.leftovers import left, processes
from tests.planner.runtime.processes.pipelines import Case, plan_for, program_for
from tests.planner.runtime.processes.test_hosting import SOON_S
from tests.planner.runtime.small import CORE, PATIENCE_S, begin, cpu, with_device

HALVES = Case("transformer", ("layers.1.first",), 2)
PROGRAM = program_for(HALVES)
PLAN = plan_for(HALVES, PROGRAM)


@pytest.fixture(autouse=True)
def _nothing_is_left(apart: None) -> Iterator[None]:  # noqa: ARG001  # makes what is ours known
    before = left()
    yield
    assert processes() == set()
    assert left() == before


@pytest.mark.slow
def test_the_whole_life() -> None:
    with HostedTraining(PLAN, PROGRAM) as ranks:
        assert len(processes() & set(ranks.pids)) == 2
        expected = unsplit_gradients(PROGRAM, layout_of(PLAN), mean_square, example_batches(PROGRAM, 2))
        assert expected.keys() == ranks.gradients().keys()
        assert all(one.share < one.allowed for one in differing(expected, ranks.gradients()))
        assert ranks.step_s() > 0
        found = ranks.recorded()
        assert found.devices == ("cpu0", "cpu1")
        assert {(span.resource, span.label) for span in found.spans} == {
            (f"cpu{s}", label) for s in range(2) for label in ("optimizer", *(f"{s}{c}{i}" for c in "FB" for i in "01"))
        }
        closing_s = time.monotonic()
    assert time.monotonic() - closing_s < SOON_S
    ranks.close()


@pytest.mark.slow
def test_a_stage_that_fails_is_told_with_its_traceback() -> None:
    """The other rank, whose connection breaks, says less."""
    (words,) = PROGRAM.example_inputs
    bad = replace(PROGRAM, example_inputs=(torch.full_like(words, 11),))
    with HostedTraining(PLAN, bad) as ranks, pytest.raises(StageError) as error:
        ranks.step_s()
    assert str(error.value) == "stage 0 on 'cpu0' failed in 0F0: IndexError: index out of range in self"
    assert isinstance(error.value.__cause__, RemoteError)
    assert str(error.value.__cause__).endswith("IndexError: index out of range in self\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "why"), [(signal.SIGKILL, "killed by SIGKILL"), (signal.SIGSTOP, "it is stopped")], ids=str
)
def test_a_rank_that_is_gone_is_told_soon(sent: signal.Signals, why: str) -> None:
    with HostedTraining(PLAN, PROGRAM) as ranks:
        waiting = begin(lambda: [ranks.step_s() for _ in range(1_000_000)])
        time.sleep(0.2)
        os.kill(ranks.pids[1], sent)
        sent_s = time.monotonic()
        error = waiting.exception(PATIENCE_S)
        assert time.monotonic() - sent_s < SOON_S
        assert isinstance(error, RankError)
        assert str(error) == f"rank 2 ('cpu1') is gone: {why}; start again"


@pytest.mark.slow
def test_a_device_that_is_not_here() -> None:
    far = with_device(PLAN, 1, cpu("cpu1", cores=(CORE + 4096,)))
    with pytest.raises(InputError, match=rf"device 'cpu1' is bound to core {CORE + 4096}, which this process may not"):
        HostedTraining(far, PROGRAM)


def test_what_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_front, "Hosted", None)
    inference: Plan = replace(PLAN, workload=replace(PLAN.workload, mode="inference"))
    with pytest.raises(InputError, match="the plan is for inference; to train, plan with the goal 'training'"):
        HostedTraining(inference, PROGRAM)
    case = replace(HALVES, replicas=2)
    with pytest.raises(InputError, match="the plan is for 2 replicas of its devices, which are not all on this host"):
        HostedTraining(plan_for(case, PROGRAM), PROGRAM)


def test_which_failure_says_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    front = HostedTraining.__new__(HostedTraining)
    monkeypatch.setattr(HostedTraining, "_lost", lambda _, answers: "" if 2 in answers else "rank 2 is gone: so")

    def told(kind: str) -> dict[str, str]:
        return {"kind": kind, "failure": json.dumps({"message": f"a failure of the {kind}", "traceback": ""})}

    def failure(answers: Mapping[int, object]) -> tuple[type[Exception], str]:
        found = front._failure(answers, Word.STEP)
        return type(found), str(found)

    assert failure({1: told("rank"), 2: told("stage")}) == (StageError, "a failure of the stage")
    assert failure({1: told("rank"), 2: told("input")}) == (InputError, "a failure of the input")
    assert failure({1: told("rank")}) == (RankError, "rank 2 is gone: so; start again")
    assert failure({1: told("rank"), 2: {"value": 1.0}}) == (RankError, "a failure of the rank")
    assert failure({1: {}, 2: {}}) == (RankError, "no answer to 'step' within 600 s; start again")
