"""Autotuning: plans take turns on this host, and the fastest one is chosen.

::

    round 1          round 2      round 3      ...      one turn: start the plan, warm up, time it, close it
    [A] [B] [ C  ]   [A] [B]      [A] [B]               C took more than twice as long as A and drops out

Only one plan is started at a time, as when it is used: the idle threads that PyTorch keeps for a plan of several cores
would slow the other plans down, and the memory of trainers and packed weights is needed only once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from graphs.errors import InputError
from graphs.ir import Graph
from planner.planning.cpu_partitions import Autotuning, PartitionChoice
from planner.plans.plan import Plan
from planner.problem.problem import Goal
from planner.problem.reporter import SILENT, Reporter
from planner.problem.result import Interrupted

if TYPE_CHECKING:  # torch takes seconds to load
    from graphs.program.program import Program

AUTOTUNE_S = 8.0  # after which no round begins; slow phases of a machine last some seconds
LEAST_ROUNDS, MOST_ROUNDS = 3, 9
TURN_S = 0.4  # timed in one turn
LEAST_STREAMED = 2  # micro-batches of one turn, besides those that fill and drain the devices

HOPELESS = 2.0
"""A plan that takes so many times as long as the fastest one drops out. The memory bandwidth of a shared machine varies
by a third within seconds, which alone does not make a plan appear so slow."""


def tried(choice: PartitionChoice, model: Program | Graph, reporter: Reporter = SILENT) -> PartitionChoice:
    """The choice with autotuning of its plans on this host, or with the reason why they cannot run here.

    Raises:
        Interrupted: on Ctrl-C, with the plan that was chosen by prediction.
        StageError: if an operator fails.
    """
    if len(choice.plans) == 1:
        return choice
    if isinstance(model, Graph):
        return replace(choice, untried=f"'{model.name}' is a graph, which cannot run; give the model it came from")
    try:
        return replace(choice, autotuning=try_out(choice.plans, model, reporter))
    except InputError as error:
        return replace(choice, untried=str(error))
    except KeyboardInterrupt as stopped:
        raise Interrupted(choice.plan) from stopped


def try_out(plans: Sequence[Plan], program: Program, reporter: Reporter = SILENT) -> Autotuning:
    """Let plans of one goal take turns on this host.

    Raises:
        InputError: if the goal is "cost", a plan cannot run, or its devices were measured elsewhere.
        StageError: if an operator fails.
    """
    from planner.runtime.benchmark.load import Load

    for plan in plans:
        _check_here(plan)
    turns_s: list[list[float]] = [[] for _ in plans]
    staying = list(range(len(plans)))
    load, start_s = Load(), time.perf_counter()
    while True:
        for i in staying:
            reporter.on_step(f"trying {len(plans)} plans in turns", sum(map(len, turns_s)), MOST_ROUNDS * len(plans))
            turns_s[i].append(turn_s(plans[i], program))
        autotuning = Autotuning(tuple(map(tuple, turns_s)), load.foreign_cores())
        staying = [i for i in staying if autotuning.ratio(i, autotuning.quickest) <= HOPELESS]
        late = autotuning.rounds >= LEAST_ROUNDS and time.perf_counter() - start_s > AUTOTUNE_S
        if late or len(staying) == 1 or autotuning.rounds == MOST_ROUNDS:
            return autotuning


def turn_s(plan: Plan, program: Program) -> float:
    """One turn of a plan: the measured counterpart of `Plan.predicted_s`."""
    return _trained_s(plan, program) if plan.goal is Goal.TRAINING else _inferred_s(plan, program)


def _inferred_s(plan: Plan, program: Program) -> float:
    """The period, or the latency for that goal; the first micro-batch shows how many a turn has time for."""
    from planner.runtime.benchmark.measure import Planned
    from planner.runtime.start import start

    with start(plan, program) as runner:
        contender = Planned(runner)
        (first_s,) = contender.single(1)
        if plan.goal is Goal.LATENCY:
            return median(contender.single(_count(first_s)))
        return contender.stream(max(LEAST_STREAMED, _count(first_s)))


def _trained_s(plan: Plan, program: Program) -> float:
    """The median time of a step with the mean square as the loss; the first step, which allocates, does not count."""
    from planner.runtime.train import train
    from planner.runtime.training.check import TINY_STEPS, example_batches, mean_square

    with train(plan, program, loss=mean_square, optimizer=TINY_STEPS[plan.workload.optimizer]) as trainer:
        batches = example_batches(program, plan.workload.micro_batches)
        return median(trainer.step_s(batches) for _ in range(_count(trainer.step_s(batches))))


def _count(first_s: float) -> int:
    """The number of repetitions in a turn."""
    return max(1, round(TURN_S / first_s))


def _check_here(plan: Plan) -> None:
    """Refuse a plan whose time cannot be measured, or whose devices were not measured on this host."""
    from costmodels.host.fingerprint import fingerprint_of, machine_of

    if plan.goal is Goal.COST:
        raise InputError("the goal 'cost' adds up what all devices do, which no clock shows")
    for device in (plan.cluster.devices[i] for i in sorted(set(plan.placement.device))):
        if device.profile != fingerprint_of(machine_of(device)):
            raise InputError(
                f"device '{device.name}' was not measured on this host as it is now; `planner calibrate` does that"
            )
