"""Long runs: requests by eight callers at once, starts one after the other, trainings whose ranks are killed.

After each round the answers and their order are looked at, and that the process has no more threads and descriptors
than after the first rounds, and hardly more memory.
"""

import gc
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import torch

import planner
from graphs.program.program import Program
from planner.plans.plan import Plan
from planner.runtime.errors import RankError
from planner.runtime.inference.runner import Runner
from planner.runtime.training.any_trainer import AnyTrainer
from tests.planner.runtime.distributed.leftovers import processes
from tests.planner.runtime.distributed.pipelines import Case, data_of, loss_of, plan_for, program_for, sgd
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
MOST_STEPS = 20  # from one saved state to the next

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
            self.most = {what: max(number, self.most.get(what, 0)) for what, number in now.items()}
            return ""
        end_s = time.monotonic() + SETTLED_S
        while (more := self._more(now)) and time.monotonic() < end_s:
            time.sleep(0.01)
            now = _held()
        return ", ".join(
            f"{now[what]:,} {what} after {self.rounds} rounds, {self.most[what]:,} before" for what in more
        )

    def _more(self, now: Mapping[str, int]) -> list[str]:
        return [what for what, number in now.items() if number > self.most[what] + SPARE.get(what, 0)]


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


@dataclass
class Disturbed:
    """A training whose ranks are lost again and again, and the same one that nothing disturbs, on threads.

    Attributes:
        undisturbed: has taken as many steps as the saved state.
        saved: the last state, and how many steps led to it.
    """

    case: Case
    undisturbed: AnyTrainer
    saved: tuple[int, Mapping[str, Any] | None] = (0, None)

    def until_lost(self, rng: random.Random, after_s: float) -> tuple[dict[int, float], BaseException | None]:
        """Go on from the last state until a rank is lost; return the losses of the steps, and the error."""
        program, lost, found = self.undisturbed.program, threading.Event(), dict[int, float]()
        plan, every = self.undisturbed.plan, rng.randint(1, MOST_STEPS)
        with planner.train(plan, program, loss=loss_of, optimizer=sgd, processes=True) as ranks:
            if self.saved[1] is not None:
                ranks.load_state_dict(self.saved[1])

            def train() -> None:
                for number in count(self.saved[0]):
                    found[number] = ranks.step(*data_of(self.case, number)).item()
                    if (number + 1) % every == 0:
                        self.saved = number + 1, ranks.state_dict()

            training = begin(train)
            lost.wait(after_s)
            os.kill(rng.choice(ranks.pids), rng.choice((signal.SIGKILL, signal.SIGSTOP)))
            return found, training.exception(PATIENCE_S)

    def wrong(self, found: Mapping[int, float]) -> str:
        """Take the steps up to the saved state undisturbed; return what is other than it was with losses, or nothing.

        Both must be the same in every bit: whatever device a stage runs on, it is the same kernel.
        """
        for number in range(min(found, default=self.saved[0]), self.saved[0]):
            right = self.undisturbed.step(*data_of(self.case, number)).item()
            if found.get(number) != right:
                return f"the loss of step {number} is {found.get(number)}, and {right} in an undisturbed training"
        right_state = self.undisturbed.state_dict()
        if self.saved[1] is None:
            return ""
        names = [each for each in ("steps", "model", "optimizer") if not same(self.saved[1][each], right_state[each])]
        return f"after {self.saved[0]} steps, {names} are not those of an undisturbed training" if names else ""


def same(one: Any, other: Any) -> bool:
    """Compare two states bit by bit, in whatever order their entries are."""
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


def losses(until: ExitStack, latest_s: float = LATEST_S) -> Judged:
    """Train in two processes; at a random moment one is killed or stopped, and others go on from the last state."""
    case = Case("transformer", ("layers.1.first",), 2)
    program, held = program_for(case), Holdings()
    undisturbed = planner.train(plan_for(case, program), program, loss=loss_of, optimizer=sgd)
    disturbed = Disturbed(case, until.enter_context(undisturbed))

    def judged(seed: int) -> str:
        rng = random.Random(f"losses {seed}")
        found, error = disturbed.until_lost(rng, latest_s * rng.random())
        if not isinstance(error, RankError):
            return f"a rank is lost, and the error is {error!r}"
        del error  # whose traceback holds the trainer
        gc.collect()
        if wrong := disturbed.wrong(found):
            return wrong
        return f"processes are left: {left}" if (left := processes()) else held.grown()

    return judged


def main() -> None:
    """Lose a rank every so many seconds for some hours: HOURS SECONDS."""
    hours, every_s = map(float, sys.argv[1:])
    with ExitStack() as until:
        judged, end_s = losses(until, 2 * every_s), time.monotonic() + 3600 * hours
        for seed in count():
            if time.monotonic() > end_s:
                break
            print(f"loss {seed}: {judged(seed) or 'resumed, every bit as if there had been no loss'}", flush=True)


if __name__ == "__main__":
    main()
