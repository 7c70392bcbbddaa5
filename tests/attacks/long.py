"""Long runs: requests by eight callers at once, starts one after the other, trainings whose ranks are killed.

After each round the answers and their order are looked at, and that the process has no more threads and descriptors
than after the first rounds, and hardly more memory.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

import planner
from graphs.program.program import Program
from planner.plans.plan import Plan
from planner.runtime.distributed.training.hosted_trainer import HostedTrainer
from planner.runtime.errors import RankError
from planner.runtime.inference.runner import Runner
from planner.runtime.training.check import differing, example_batches, mean_square, reference_gradients
from planner.runtime.training.prepare import stage_layout
from tests.planner.runtime.distributed.leftovers import processes
from tests.planner.runtime.distributed.pipelines import Case, plan_for, program_for, sgd
from tests.planner.runtime.small import (
    PATIENCE_S,
    alternating,
    begin,
    fresh_arguments,
    make_plan,
    program_of,
    reference,
)

NETWORK = "branches"
CALLERS, REQUESTS = 8, 125  # of each caller in a round: 1,000 in all
INPUTS = 16  # different ones
WARM = 5  # rounds after which nothing grows any more
SPARE = {"bytes": 64 << 20}  # memory that an allocator may keep
SETTLED_S = 5.0  # after which a thread that was told to end has ended
LATEST_S = 3.0  # of training, until a rank is killed

Judged = Callable[[int], str]
"""Runs the round of a seed; says what is wrong, or nothing."""


@dataclass
class Holdings:
    """What this process held after its first rounds."""

    rounds: int = 0
    most: dict[str, int] = field(default_factory=dict)

    def grown(self) -> str:
        """Return what stays more than after the first rounds, or nothing; a thread goes a moment after its end."""
        self.rounds += 1
        now = _held()
        if self.rounds <= WARM:
            self.most = {what: max(count, self.most.get(what, 0)) for what, count in now.items()}
            return ""
        end_s = time.monotonic() + SETTLED_S
        while (more := self._more(now)) and time.monotonic() < end_s:
            time.sleep(0.01)
            now = _held()
        return ", ".join(
            f"{now[what]:,} {what} after {self.rounds} rounds, {self.most[what]:,} before" for what in more
        )

    def _more(self, now: Mapping[str, int]) -> list[str]:
        return [what for what, count in now.items() if count > self.most[what] + SPARE.get(what, 0)]


def _held() -> dict[str, int]:
    """Return what this process holds now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "bytes": pages * os.sysconf("SC_PAGE_SIZE"),
    }


@cache
def _divided() -> tuple[Plan, Program, list[tuple[tuple[Any, ...], Any]]]:
    """A network on three devices, and inputs with PyTorch's own answers."""
    program = program_of(NETWORK)
    arguments = [fresh_arguments(NETWORK, seed) for seed in range(INPUTS)]
    return (
        make_plan(program, alternating(program)),
        program,
        [(each[0], reference(program, each)) for each in arguments],
    )


def requests(until: ExitStack) -> Judged:
    """Answer rounds of requests until the stack is closed: half of the callers call, and half let theirs stream."""
    plan, program, known = _divided()
    runner, held = until.enter_context(Runner(plan, program)), Holdings()
    pool = until.enter_context(ThreadPoolExecutor(CALLERS))

    def caller(seed: int, number: int) -> int:
        asked = random.Random(f"{seed} {number}").choices(known, k=REQUESTS)
        inputs = [args for args, _ in asked]
        answers = runner.stream(inputs) if number % 2 else (runner(*args) for args in inputs)
        return sum(not torch.equal(got, right) for got, (_, right) in zip(answers, asked, strict=True))

    def judged(seed: int) -> str:
        wrong = sum(pool.map(caller, [seed] * CALLERS, range(CALLERS)))
        return f"{wrong} answers are wrong or those of others" if wrong else held.grown()

    return judged


def starts() -> Judged:
    """Start a plan, ask once and close it."""
    plan, program, known = _divided()
    held = Holdings()

    def judged(seed: int) -> str:
        args, right = known[seed % INPUTS]
        with planner.start(plan, program) as runner:
            wrong = not torch.equal(runner(*args), right)
        return "the answer is wrong" if wrong else held.grown()

    return judged


def losses() -> Judged:
    """Train in two processes, one of which is killed or stopped at a random moment, and begin again."""
    case = Case("transformer", ("layers.1.first",), 2, steps=3)
    program = program_for(case)
    plan, batches, held = plan_for(case, program), example_batches(program, 2), Holdings()
    right = reference_gradients(program, stage_layout(plan), mean_square, batches)

    def judged(seed: int) -> str:
        rng = random.Random(f"losses {seed}")
        with planner.train(plan, program, loss=mean_square, optimizer=sgd, processes=True) as ranks:
            assert isinstance(ranks, HostedTrainer)
            found = ranks.gradients(batches)
            if found.keys() != right.keys() or any(one.share >= one.allowed for one in differing(right, found)):
                return "gradients are wrong"
            training = _without_end(ranks, batches)
            time.sleep(LATEST_S * rng.random())
            os.kill(rng.choice(ranks.pids), rng.choice((signal.SIGKILL, signal.SIGSTOP)))
            error = training.exception(PATIENCE_S)
        if not isinstance(error, RankError):
            return f"a rank is lost, and the error is {error!r}"
        return f"processes are left: {left}" if (left := processes()) else held.grown()

    return judged


def _without_end(ranks: HostedTrainer, batches: Any) -> "Future[None]":
    """Begin to train on a thread, and wait for the first step."""
    one = threading.Event()

    def train() -> None:
        while True:
            ranks.step_through(batches)
            one.set()

    training = begin(train)
    one.wait(PATIENCE_S)
    return training
