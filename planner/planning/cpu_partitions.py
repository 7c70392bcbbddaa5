"""Divisions of a CPU into devices: a plan for each division, and the choice among them.

::

    cores        0 1 2 3          one device: PyTorch's threads share the work of each operator
    divisions   [0 1 2 3]         several devices: each runs its own operators, without the cost of sharing, but there
                [0 1] [2 3]       must be work for all of them at any time
                [0] [1] [2] [3]

Operators that were measured in a slow phase of the machine make predictions wrong. So plans that can run take turns
(autotuning), and their measured times decide. Otherwise the predictions decide.

::

    round 1          round 2      round 3      ...      one turn: start the plan, warm up, time it, close it
    [A] [B] [ C  ]   [A] [B]      [A] [B]               C took more than twice as long as A and drops out

Only one plan is started at a time, as when it is used: the idle threads that PyTorch keeps for a plan of several cores
would slow the other plans down, and the memory of trainers and packed weights is needed only once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from statistics import median
from typing import TYPE_CHECKING, Literal, TypeAlias

from costmodels.cluster import Cluster
from costmodels.table import Source
from graphs.errors import InputError
from graphs.ir import Graph
from planner.plans.plan import Plan
from planner.problem.constraints import Constraint
from planner.problem.problem import Goal
from planner.problem.reporter import SILENT, Reporter
from planner.problem.result import Interrupted, NoPlanError

if TYPE_CHECKING:  # torch takes seconds to load
    from graphs.program.program import Program

Split: TypeAlias = int | Literal["auto"]
"""The number of devices that a CPU is divided into; "auto" for every division."""

AUTO: Literal["auto"] = "auto"

MARGIN = 0.03
"""By how much more devices must be predicted to be faster. Costs are not known better than that, and predictions leave
out less for fewer devices, which send less and wait less."""

GUESSED = 0.05
"""By how much the shares of time that was not measured may differ between plans that compete."""

TIE = 0.01
"""By how much more devices must be measured to be faster: less than `MARGIN`, because a measurement leaves nothing out
and only the drift of the machine disturbs it."""


AUTOTUNE_S = 8.0  # after which no round begins; slow phases of a machine last some seconds
LEAST_ROUNDS, MOST_ROUNDS = 3, 9
TURN_S = 0.4  # timed in one turn
LEAST_STREAMED = 2  # micro-batches of one turn, besides those that fill and drain the devices

HOPELESS = 2.0
"""A plan that takes so many times as long as the fastest one drops out. The memory bandwidth of a shared machine varies
by a third within seconds, which alone does not make a plan appear so slow."""


def widths(split: Split, divisions: Mapping[int, int]) -> tuple[int, ...]:
    """The number of cores of each device, for one division or for all, fewest devices first.

    Args:
        split: the wanted number of devices, or "auto".
        divisions: number of devices → cores of each device, for every possible division.

    Raises:
        InputError: if the CPU cannot be divided into so many devices.
    """
    if split == AUTO:
        return tuple(divisions.values())
    if split not in divisions:
        known = ", ".join(map(str, divisions))
        raise InputError(f"the CPU cannot be divided into {split} equal devices; it can be into {known}, or say {AUTO}")
    return (divisions[split],)


@dataclass(frozen=True)
class Autotuning:
    """Plans that have taken turns on this host.

    The n-th turns of all plans are one round, in which the machine was about the same for all of them. A plan that
    drops out has fewer turns.
    """

    turns_s: tuple[tuple[float, ...], ...]  # [n_plans][n_turns of the plan], seconds that the goal minimises
    foreign_cores: float = 0.0  # processors that other processes used meanwhile, on average; 0.1 disturb the figures

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
    def why(self) -> str:
        """The reason for the choice in words."""
        if self.chosen != self.quickest:
            return f"more devices are less than {TIE:.0%} faster"
        return f"the fastest in {self.rounds} round{'s'[: self.rounds - 1]}"

    def ratio(self, number: int, to: int) -> float:
        """The time of one plan divided by that of another: the median over their common rounds."""
        return median(a / b for a, b in zip(self.turns_s[number], self.turns_s[to], strict=False))

    @property
    def _stayed(self) -> list[int]:
        return [i for i, turns in enumerate(self.turns_s) if len(turns) == self.rounds]


@dataclass(frozen=True)
class PartitionChoice:
    """Plans of one network for several divisions of the same machine."""

    plans: tuple[Plan, ...]  # at least one; fewest devices first
    autotuning: Autotuning | None = None  # of them all; None where predictions decide
    untried: str = ""  # why there was no autotuning though one was asked for; else empty

    def __post_init__(self) -> None:
        if not self.plans:
            raise InputError("there is no plan to choose from; give at least one cluster")
        if self.autotuning is not None and len(self.autotuning.turns_s) != len(self.plans):
            raise InputError(f"{len(self.autotuning.turns_s)} of {len(self.plans)} plans were tried; try all or none")

    @property
    def plan(self) -> Plan:
        """The plan with the fewest devices that is within `TIE` of the fastest, without autotuning within `MARGIN`.

        Without autotuning, plans with guessed costs do not compete with plans with measured costs.
        """
        if self.autotuning is not None:
            return self.plans[self.autotuning.chosen]
        measured = self._measured
        fastest_s = min(plan.predicted_s for plan in measured)
        return next(plan for plan in measured if plan.predicted_s * (1 - MARGIN) <= fastest_s)

    @property
    def why(self) -> str:
        """The reason for the choice in words."""
        if self.autotuning is not None:
            return self.autotuning.why
        measured = self._measured
        if min(self.plans, key=attrgetter("predicted_s")) not in measured:
            return "the operators of the others were not measured"
        if min(measured, key=attrgetter("predicted_s")) is not self.plan:
            return f"more devices are less than {MARGIN:.0%} faster, which the costs are not sure of"
        return "predicted to be the fastest"

    @property
    def measured_s(self) -> tuple[float | None, ...]:
        """[n_plans], the median times in autotuning; None without autotuning."""
        return (None,) * len(self.plans) if self.autotuning is None else self.autotuning.seconds

    @property
    def _measured(self) -> list[Plan]:
        """The plans with the largest shares of measured costs."""
        least = min(map(_guessed, self.plans))
        return [plan for plan in self.plans if _guessed(plan) <= least + GUESSED]


def choose(
    clusters: Iterable[Cluster], make: Callable[[Cluster], Plan], constraints: Sequence[Constraint] = ()
) -> PartitionChoice:
    """Make a plan for every division.

    Args:
        clusters: of the same machine.
        make: makes a plan for one cluster.
        constraints: a division without a device that they name is left out, unless all divisions lack it.

    Raises:
        InputError: if there is no cluster.
        Interrupted: on Ctrl-C, with the best plan so far.
        NoPlanError: if there is no plan for any division, from the division with the fewest devices.
    """
    ordered = sorted(clusters, key=lambda cluster: len(cluster.devices))
    named = {device for constraint in constraints for device in constraint.devices}
    plans: list[Plan] = []
    failed: list[NoPlanError] = []
    for cluster in [cluster for cluster in ordered if named <= {*cluster.index, *cluster.kinds}] or ordered:
        try:
            plans.append(make(cluster))
        except NoPlanError as error:
            failed.append(error)
        except KeyboardInterrupt as stopped:
            plans += [stopped.best] if isinstance(stopped, Interrupted) else []
            if not plans:
                raise
            raise Interrupted(PartitionChoice(tuple(plans)).plan) from stopped
    if failed and not plans:
        raise failed[0]
    return PartitionChoice(tuple(plans))


def _guessed(plan: Plan) -> float:
    return 1 - plan.table.share(Source.MEASURED)


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
    """One turn of a plan: the measured counterpart of `Plan.predicted_s`.

    The first micro-batch, or the first step with the mean square as the loss, shows how many a turn has time for.
    """
    if plan.goal is Goal.TRAINING:
        from planner.runtime.start import train
        from planner.runtime.training.check import TINY_STEPS, example_batches, mean_square

        with train(plan, program, loss=mean_square, optimizer=TINY_STEPS[plan.workload.optimizer]) as trainer:
            batches = example_batches(program, plan.workload.micro_batches)
            return median(trainer.step_s(batches) for _ in range(_count(trainer.step_s(batches))))
    from planner.runtime.benchmark.measure import Planned
    from planner.runtime.start import start

    with start(plan, program) as runner:
        contender = Planned(runner)
        (first_s,) = contender.single(1)
        if plan.goal is Goal.LATENCY:
            return median(contender.single(_count(first_s)))
        return contender.stream(max(LEAST_STREAMED, _count(first_s)))


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
