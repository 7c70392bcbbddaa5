"""Autotuning: plans take turns on this host, and their measured times decide.

::

    round 1          round 2      round 3      ...      one turn: start the plan, warm up, time it, close it
    [A] [B] [ C  ]   [A] [B]      [A] [B]               C took more than twice as long as A and drops out

Only one plan is started at a time, as when it is used: the idle threads that PyTorch keeps for a plan of several cores
would slow the other plans down, and the memory of trainers and packed weights is needed only once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, log, sqrt
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, NamedTuple

from graphs.common.errors import InputError
from planner.plans.plan import Plan
from planner.problem.problem import Goal
from planner.problem.reporter import SILENT, Reporter
from simulator.timeline import Timeline

if TYPE_CHECKING:  # torch takes seconds to load
    from costmodels.cluster.cluster import Device
    from graphs.program.generation import GenerationProgram
    from graphs.program.program import Program

TIE = 0.01
"""The share by which a plan must be measured to be faster than a preferred one. A measurement includes every effect, so
only the drift of the machine disturbs it."""

DISTURBED_CORES = 0.1  # used by other processes; with more, figures are disturbed
AUTOTUNE_S, UNSURE_S = 8.0, 24.0
"""Seconds after which no round begins: if the fastest plan is certain, and if it is not. Slow phases of a machine last
some seconds."""
LEAST_ROUNDS, MOST_ROUNDS = 3, 15
STANDARD_ERRORS = 2.0  # of the mean log ratio of rounds; from this many on, one plan is surely faster
TURN_S = 0.4  # timed in one turn
LEAST_STREAMED = 2  # micro-batches of one turn, besides those that fill and drain the devices

HOPELESS = 2.0
"""A plan that takes this many times as long as the fastest one drops out. The memory bandwidth of a shared machine
varies by a third within seconds, which alone does not make a plan appear that slow."""


@dataclass(frozen=True)
class Autotuning:
    """Plans that have taken turns on this host.

    The n-th turns of all plans are one round, in which the machine was about the same for all of them. A plan that
    drops out has fewer turns.
    """

    turns_s: tuple[tuple[float, ...], ...]  # [n_plans][n_turns of the plan], seconds that the goal minimises
    foreign_cores: float = 0.0  # mean number of processors that other processes used; 0.1 disturb the figures

    def __post_init__(self) -> None:
        if not self.turns_s or not all(self.turns_s):
            raise InputError("autotuning needs plans, and a turn of each of them")

    @property
    def rounds(self) -> int:
        """The number of turns of the plans that did not drop out."""
        return max(map(len, self.turns_s))

    @property
    def seconds(self) -> tuple[float, ...]:
        """[n_plans], the median of each plan's turns."""
        return tuple(map(median, self.turns_s))

    @property
    def quickest(self) -> int:
        """The index of the fastest plan, by the median ratio of its rounds to those of the first plan that stayed."""
        return min(self._stayed, key=lambda i: self.ratio(i, self._stayed[0]))

    @property
    def chosen(self) -> int:
        """The index of the plan with the fewest devices that is within `TIE` of the fastest one."""
        return next(i for i in self._stayed if self.ratio(i, self.quickest) <= 1 + TIE)

    @property
    def sure(self) -> bool:
        """Whether each plan that stayed is surely slower than the quickest one, or surely equal within `TIE`."""
        return all(self._surely_apart(i) for i in self._stayed if i != self.quickest)

    @property
    def why(self) -> str:
        """The reason for the choice in words."""
        if self.chosen != self.quickest:
            return f"more devices are less than {TIE:.0%} faster"
        return f"the fastest in {self.rounds} round{'s'[: self.rounds - 1]}"

    def ratio(self, number: int, to: int) -> float:
        """Return the time of one plan divided by that of another: the median over their common rounds."""
        return median(self._ratios(number, to))

    def _ratios(self, number: int, to: int) -> list[float]:
        """Return the ratio of two plans' times in each of their common rounds."""
        return [a / b for a, b in zip(self.turns_s[number], self.turns_s[to], strict=False)]

    def _surely_apart(self, number: int) -> bool:
        """Return whether a plan's ratios to the quickest one show which is faster, or that both are equally fast."""
        logs = [log(ratio) for ratio in self._ratios(number, self.quickest)]
        error = stdev(logs) / sqrt(len(logs)) if len(logs) > 1 else inf
        return STANDARD_ERRORS * error <= max(TIE, abs(fmean(logs)))

    @property
    def _stayed(self) -> list[int]:
        return [i for i, turns in enumerate(self.turns_s) if len(turns) == self.rounds]


class TimedTurn(NamedTuple):
    """One turn of a plan."""

    seconds: float  # that the goal minimises, the measured counterpart of `Plan.predicted_s`
    recorded: Timeline | None  # the stream, the micro-batches one by one, or a training step


def try_out(
    plans: Sequence[Plan],
    turn_s: Callable[[Plan], float],
    limit_s: float,
    reporter: Reporter = SILENT,
    unsure_s: float = 0.0,
) -> Autotuning:
    """Let plans of one goal take turns.

    Args:
        plans: at least one.
        turn_s: runs one turn of a plan on this host and returns its seconds, see `run_turn`.
        limit_s: seconds after which no round begins, except the first `LEAST_ROUNDS`.
        reporter: receives every turn.
        unsure_s: the limit while rounds contradict each other, if it is longer.
    """
    from planner.runtime.benchmark.load import Load

    turns_s: list[list[float]] = [[] for _ in plans]
    staying = list(range(len(plans)))
    load, start_s = Load(), time.perf_counter()
    name = f"trying {len(plans)} plans in turns" if len(plans) > 1 else "running the plan"
    while True:
        for i in staying:
            reporter.on_step(name, sum(map(len, turns_s)), MOST_ROUNDS * len(plans))
            turns_s[i].append(turn_s(plans[i]))
        autotuning = Autotuning(tuple(map(tuple, turns_s)), load.foreign_cores())
        staying = [i for i in staying if autotuning.ratio(i, autotuning.quickest) <= HOPELESS]
        passed_s = time.perf_counter() - start_s
        late = autotuning.rounds >= LEAST_ROUNDS and passed_s > limit_s and (autotuning.sure or passed_s > unsure_s)
        if late or len(staying) < min(2, len(plans)) or autotuning.rounds == MOST_ROUNDS:
            return autotuning


def run_turn(plan: Plan, program: Program) -> TimedTurn:
    """Start a plan on this host, time it and close it.

    The first micro-batch, or the first step with the mean square as the loss, shows how many a turn has time for.

    Raises:
        InputError: if the plan cannot run here, or the program has no weights.
        StageError: if an operator fails.
    """
    if plan.goal is Goal.TRAINING:
        from planner.runtime.start import train
        from planner.runtime.training.check import TINY_STEPS, example_batches, mean_square

        with train(plan, program, loss=mean_square, optimizer=TINY_STEPS[plan.workload.optimizer]) as trainer:
            batches = example_batches(program, plan.workload.micro_batches)
            seconds = median(trainer.step_s(batches) for _ in range(_count(trainer.step_s(batches))))
            return TimedTurn(seconds, trainer.recorded(batches))
    from planner.runtime.benchmark.measure import PlannedContender
    from planner.runtime.start import start

    with start(plan, program, share_weights=True) as runner:
        contender = PlannedContender(runner)
        (first_s,) = contender.single(1)
        if plan.goal is Goal.LATENCY:
            runner.record()
            return TimedTurn(median(contender.single(_count(first_s))), runner.timeline())
        return TimedTurn(contender.stream(max(LEAST_STREAMED, _count(first_s))), contender.recorded)


def run_generation_turn(plan: Plan, model: GenerationProgram) -> TimedTurn:
    """Start a plan for generation on this host, generate for its workload and close it; errors as `run_turn`."""
    from planner.runtime.benchmark.generation_turn import generation_turn

    return TimedTurn(*generation_turn(plan, model))


def _count(first_s: float) -> int:
    """Return the number of repetitions in a turn."""
    return max(1, round(TURN_S / first_s))


def check_here(goal: Goal, devices: Iterable[Device]) -> None:
    """Check that the times of plans for a goal can be measured, and that devices were measured on this host.

    Raises:
        InputError: if the goal is "cost", or a device is of another host, or on paper.
    """
    from costmodels.host.fingerprint import fingerprint_of, machine_of

    if goal is Goal.COST:
        raise InputError("the goal 'cost' adds up what all devices do, which no clock shows")
    for device in devices:
        if device.profile != fingerprint_of(machine_of(device)):
            raise InputError(
                f"device '{device.name}' was not measured on this host as it is now; `planner calibrate` does that"
            )
