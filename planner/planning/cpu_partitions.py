"""Divisions of a CPU into devices: a plan for each division, and the choice among them.

::

    cores        0 1 2 3          one device: PyTorch's threads share the work of each operator
    divisions   [0 1 2 3]         several devices: each runs its own operators, without the cost of sharing, but there
                [0 1] [2 3]       must be work for all of them at any time
                [0] [1] [2] [3]

Operators that were measured in a slow phase of the machine make predictions wrong. So plans that can run take turns
(see `planner.planning.autotune`), and their measured times decide. Otherwise the predictions decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, TypeAlias

from costmodels.cluster.cluster import Cluster
from costmodels.table import Source
from graphs.common.errors import InputError
from graphs.ir import Graph
from planner.planning.autotune import AUTOTUNE_S, UNSURE_S, Autotuning, check_here, run_turn, try_out
from planner.plans.plan import Plan
from planner.problem.constraints import Constraint
from planner.problem.reporter import SILENT, Reporter
from planner.problem.result import Interrupted, NoPlanError

if TYPE_CHECKING:  # torch takes seconds to load
    from graphs.program.program import Program

Split: TypeAlias = int | Literal["auto"]
"""The number of devices that a CPU is divided into; "auto" for every division."""

AUTO: Literal["auto"] = "auto"

MARGIN = 0.03
"""The share by which more devices must be predicted to be faster. Costs are not known better than that, and the
prediction for fewer devices leaves out less, because they send and wait less."""

GUESSED = 0.05
"""The largest difference between the shares of unmeasured time of plans that compete."""


def widths(split: Split, divisions: Mapping[int, int]) -> tuple[int, ...]:
    """Return the number of cores of each device, for one division or for all, fewest devices first.

    Args:
        split: the wanted number of devices, or "auto".
        divisions: number of devices → cores of each device, for every possible division.

    Raises:
        InputError: if the CPU cannot be divided into this number of devices.
    """
    if split == AUTO:
        return tuple(divisions.values())
    if split not in divisions:
        known = ", ".join(map(str, divisions))
        raise InputError(f"the CPU cannot be divided into {split} equal devices; it can be into {known}, or say {AUTO}")
    return (divisions[split],)


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


def choose_partition(
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
    """Return the choice with autotuning of its plans on this host, or with the reason why they cannot run here.

    Raises:
        Interrupted: on Ctrl-C, with the plan that was chosen by prediction.
        StageError: if an operator fails.
    """
    if len(choice.plans) == 1:
        return choice
    if isinstance(model, Graph):
        return replace(choice, untried=f"'{model.name}' is a graph, which cannot run; give the model it came from")
    try:
        for plan in choice.plans:
            check_here(plan.goal, (plan.cluster.devices[i] for i in plan.placement.used))
        autotuning = try_out(choice.plans, lambda plan: run_turn(plan, model).seconds, AUTOTUNE_S, reporter, UNSURE_S)
        return replace(choice, autotuning=autotuning)
    except InputError as error:
        return replace(choice, untried=str(error))
    except KeyboardInterrupt as stopped:
        raise Interrupted(choice.plan) from stopped
