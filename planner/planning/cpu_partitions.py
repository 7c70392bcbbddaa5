"""Into how many devices to divide a CPU: a plan for each division, and the choice among them.

::

    cores        0 1 2 3          one device: PyTorch's own threads share the work of each operator
    divisions   [0 1 2 3]         more devices: each runs operators of its own, so they need no sharing, but work for
                [0 1] [2 3]       all of them at any time
                [0] [1] [2] [3]

Operators that were measured at a bad moment of the machine mislead predictions. So plans take turns where they can run
(`planner.planning.autotune`), and what was measured then decides; predictions do where nothing runs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from typing import Literal, TypeAlias

from costmodels.cluster import Cluster
from costmodels.table import Source
from graphs.errors import InputError
from planner.plans.plan import Plan
from planner.problem.constraints import Constraint
from planner.problem.result import Interrupted, NoPlanError

Split: TypeAlias = int | Literal["auto"]
"""How many devices to make of one CPU; "auto" tries every division."""

AUTO: Literal["auto"] = "auto"

MARGIN = 0.03
"""How much faster more devices must be, by prediction. Costs are hardly known better, and fewer devices have less that
was left out of them: nothing is handed over, and nobody waits for anybody."""

GUESSED = 0.05
"""By how much the shares of time that were not measured may differ between plans that compete."""

TIE = 0.01
"""How much faster more devices must be, as measured in turns: less than by prediction, since nothing is left out of
what was measured, and only the machine's drift makes it unsure."""


def widths(split: Split, divisions: Mapping[int, int]) -> tuple[int, ...]:
    """How many cores each device has, for one division or for all, fewest devices first.

    Args:
        split: what is asked for.
        divisions: what can be had: cores of each device by the number of devices.

    Raises:
        InputError: if the cores cannot be divided so.
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
        """How often the plans took turns that stayed until the end."""
        return max(map(len, self.turns_s))

    @property
    def seconds(self) -> tuple[float, ...]:
        """[n_plans], the median of each plan's turns."""
        return tuple(map(median, self.turns_s))

    @property
    def quickest(self) -> int:
        """Number of the plan whose rounds have the least ratio to those of the first one that stayed, by the median."""
        return min(self._stayed, key=lambda i: self.ratio(i, self._stayed[0]))

    @property
    def chosen(self) -> int:
        """Number of the plan with the fewest devices that is within `TIE` of the quickest."""
        return next(i for i in self._stayed if self.ratio(i, self.quickest) <= 1 + TIE)

    @property
    def why(self) -> str:
        """What decided, for people."""
        if self.chosen != self.quickest:
            return f"more devices are less than {TIE:.0%} faster"
        return f"the fastest in {self.rounds} round{'s'[: self.rounds - 1]}"

    def ratio(self, number: int, to: int) -> float:
        """How many times as long one plan takes as another: the median of the ratios of their common rounds."""
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
        """The one with the fewest devices that is within `TIE` of the quickest, or `MARGIN` if there was no autotuning.

        By prediction, plans whose costs were guessed do not compete with those whose costs were measured.
        """
        if self.autotuning is not None:
            return self.plans[self.autotuning.chosen]
        known = self._known
        fastest_s = min(plan.predicted_s for plan in known)
        return next(plan for plan in known if plan.predicted_s * (1 - MARGIN) <= fastest_s)

    @property
    def why(self) -> str:
        """What decided, for people."""
        if self.autotuning is not None:
            return self.autotuning.why
        chosen, known = self.plan, self._known
        fastest = min(known, key=attrgetter("predicted_s"))
        if len(known) < len(self.plans) and min(self.plans, key=attrgetter("predicted_s")) not in known:
            return "the operators of the others were not measured"
        if fastest is not chosen:
            return f"more devices are less than {MARGIN:.0%} faster, which the costs are not sure of"
        return "predicted to be the fastest"

    @property
    def measured_s(self) -> tuple[float | None, ...]:
        """[n_plans], what each took in autotuning."""
        return (None,) * len(self.plans) if self.autotuning is None else self.autotuning.seconds

    @property
    def _known(self) -> list[Plan]:
        """The plans whose costs are known best."""
        least = min(map(_guessed, self.plans))
        return [plan for plan in self.plans if _guessed(plan) <= least + GUESSED]


def choose(
    clusters: Iterable[Cluster], make: Callable[[Cluster], Plan], constraints: Sequence[Constraint] = ()
) -> PartitionChoice:
    """Plan for every division.

    Args:
        clusters: of the same machine.
        make: plans for one of them.
        constraints: a division without a device that they name is left out, unless there is no other.

    Raises:
        InputError: if there is no cluster.
        Interrupted: on Ctrl-C, with the best plan until then.
        NoPlanError: if there is no plan for any of them; the one of the fewest devices says why.
    """
    ordered = sorted(clusters, key=lambda cluster: len(cluster.devices))
    named = {device for constraint in constraints for device in constraint.devices}
    plans: list[Plan] = []
    failed: list[NoPlanError] = []
    for cluster in [one for one in ordered if named <= {*one.index, *one.kinds}] or ordered:
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
