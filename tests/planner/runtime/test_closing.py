"""Threads end with what holds them, and a forked process is told that it has none."""

import gc
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
import torch

from planner.runtime.start import train
from planner.runtime.training.any_trainer import AnyTrainer
from tests.planner.runtime.forks import in_fork, refusal
from tests.planner.runtime.small import (
    PATIENCE_S,
    device_threads,
    divided,
    eventually,
    fresh_arguments,
    live_tensors,
    program_of,
    settled,
)
from tests.planner.runtime.training.loops import SGD
from tests.planner.runtime.training.nets import BATCH, Case, main_loss, samples, training_plan
from tests.planner.runtime.training.nets import program_of as trained_program

(X,), _ = fresh_arguments("branches", 0)

ROOT = Path(__file__).parents[3]  # of the repository; tests run in folders of their own


def trainer_of(name: str) -> AnyTrainer:
    plan = training_plan(Case(name, micro_batches=2))
    return train(plan, trained_program(name), loss=main_loss, optimizer=SGD)


# When nobody refers to it


@pytest.mark.attack("process")
def test_a_runner_that_nobody_closes_ends_with_the_last_reference() -> None:
    program_of("branches")
    before = live_tensors()
    for _ in range(5):
        runner = divided("branches")
        runner(X)
        assert len(list(islice(runner.stream([X] * 9), 2))) == 2  # and a stream that is left half way
    del runner
    eventually(lambda: device_threads() == [])
    assert settled(before)


@pytest.mark.attack("process")
def test_one_in_a_cycle_of_references_ends_when_garbage_is_collected() -> None:
    runner = divided("branches")
    runner(X)
    runner.me = runner  # type: ignore[attr-defined]
    del runner
    gc.collect()
    eventually(lambda: device_threads() == [])


@pytest.mark.attack("process")
def test_a_trainer_that_nobody_closes_ends_too() -> None:
    trainer = trainer_of("skips")
    trainer.step(*samples("skips", 2 * BATCH))
    assert device_threads() != []
    del trainer
    eventually(lambda: device_threads() == [])


# In a fork


@pytest.mark.attack("process")
def test_a_forked_process_is_told_that_it_has_no_threads() -> None:
    with divided("branches") as runner:
        expected = runner(X)
        stream = runner.stream([X] * 9)
        next(stream)
        assert in_fork(lambda: runner(X)) == refusal("runner")
        assert in_fork(lambda: next(stream)) == refusal("runner")
        assert in_fork(runner.record) == refusal("runner")
        assert in_fork(runner.timeline) == refusal("runner")
        assert in_fork(runner.close) == "None"
        assert torch.equal(runner(X), expected)  # and here all is as it was
        assert len(list(stream)) == 8


@pytest.mark.attack("process")
def test_a_forked_process_does_not_train() -> None:
    batch = samples("skips", 2 * BATCH)
    with trainer_of("skips") as trainer:
        assert in_fork(lambda: trainer.step(*batch)) == refusal("trainer")
        assert in_fork(trainer.state_dict) == refusal("trainer")
        assert in_fork(trainer.close) == "None"


# When Python ends

LEFT = """
import os
import torch
from tests.planner.runtime.small import divided, fresh_arguments
(x,), _ = fresh_arguments("branches", 0)
runner, other = divided("branches"), divided("branches")
stream = runner.stream([x] * 1000)
next(stream)
del other
if os.fork():
    os.wait()
print("over")
"""


@pytest.mark.slow
@pytest.mark.attack("process")
def test_python_ends_while_runners_are_open_and_so_does_its_fork() -> None:
    command = [sys.executable, "-c", LEFT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "over\nover\n", "")
