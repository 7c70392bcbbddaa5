"""Into how many devices to divide a CPU: a plan for each division, and the choice among them.

::

    cores        0 1 2 3          one device: PyTorch's own threads share the work of each operator
    divisions   [0 1 2 3]         more devices: each runs operators of its own, so they need no sharing, but work for
                [0 1] [2 3]       all of them at any time
                [0] [1] [2] [3]
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from costmodels.cluster import Cluster
from costmodels.table import Source
from graphs.errors import InputError
from planner.constraints import Constraint
from planner.plans import Plan
from planner.problem import Goal
from planner.result import NoPlanError

Split: TypeAlias = int | Literal["auto"]
"""How many devices to make of one CPU; "auto" tries every division."""

AUTO: Literal["auto"] = "auto"

MARGIN = 0.03
"""How much faster more devices must be, by prediction. Costs are hardly known better, and fewer devices have less that
was left out of them: nothing is handed over, and nobody waits for anybody."""

GUESSED = 0.05
"""By how much the shares of time that were not measured may differ between plans that compete."""


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
class Choice:
    """Plans of one network for several divisions of the same machine.

    Attributes:
        plans: at least one; fewest devices first.
    """

    plans: tuple[Plan, ...]

    def __post_init__(self) -> None:
        if not self.plans:
            raise InputError("there is no plan to choose from; give at least one cluster")

    @property
    def plan(self) -> Plan:
        """The one with the fewest devices that is within `MARGIN` of the fastest.

        Plans whose costs were guessed do not compete with those whose costs were measured.
        """
        known = self._known
        fastest_s = min(map(predicted_s, known))
        return next(plan for plan in known if predicted_s(plan) * (1 - MARGIN) <= fastest_s)

    @property
    def why(self) -> str:
        """What decided, for people."""
        chosen, known = self.plan, self._known
        fastest = min(known, key=predicted_s)
        if len(known) < len(self.plans) and min(self.plans, key=predicted_s) not in known:
            return "the operators of the others were not measured"
        if fastest is not chosen:
            return f"more devices are less than {MARGIN:.0%} faster, which the costs are not sure of"
        return "predicted to be the fastest"

    @property
    def _known(self) -> list[Plan]:
        """The plans whose costs are known best."""
        least = min(map(_guessed, self.plans))
        return [plan for plan in self.plans if _guessed(plan) <= least + GUESSED]


def choose(
    clusters: Iterable[Cluster], make: Callable[[Cluster], Plan], constraints: Sequence[Constraint] = ()
) -> Choice:
    """Plan for every division.

    Args:
        clusters: of the same machine.
        make: plans for one of them.
        constraints: a division without a device that they name is left out, unless there is no other.

    Raises:
        InputError: if there is no cluster.
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
    if failed and not plans:
        raise failed[0]
    return Choice(tuple(plans))


def predicted_s(plan: Plan) -> float:
    """What the goal is about, simulated: from one micro-batch to the next for throughput, else the objective."""
    return plan.period_s if plan.goal is Goal.THROUGHPUT else plan.objective_s


def _guessed(plan: Plan) -> float:
    return 1 - plan.table.share(Source.MEASURED)
