"""Probes: is there a placement with a load of at most T? Each answer moves a bound.

::

    lower ───────────── T ──── upper       "none" lifts the lower bound to T, a placement drops the upper one below it
                        └──► asks the integer program with T as a constant

A program with a constant T is often decided several times as fast as the least T is found: its rows are knapsacks.
Bounds by refuting ever larger values are known as destructive (Klein and Scholl, EJOR 112(2), 1999).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from planner.solvers.base import Answer, Budget
from planner.solvers.incumbent import Incumbent
from planner.solvers.milp.highs import LEAST_GAP, PROBING, SAFETY, allowance, minimise
from planner.solvers.milp.model import PlacementModel

PROBES = ((0.125, 0.3), (0.61, 0.9), (1.0, 0.4))
"""How far from the lower to the upper bound, and for how much of what is left; the last third of a gap costs most."""

Pose = Callable[[float, float], PlacementModel]
"""The program for loads between two numbers of seconds."""


@dataclass
class Prober:
    """Closes in on the least load until the gap or the budget is used up.

    It probes as in `PROBES`, and minimises with the rest.
    """

    budget: Budget  # for the time and the gap
    best: Incumbent  # hears of every placement
    lower_s: float  # no placement is below it
    worst_s: float  # no placement is above it
    pose: Pose  # writes the programs
    spent: float = 0.0  # the share of the budget's steps that is used up

    def search(self) -> Answer:
        """The best placement and bound."""
        for reach, share in PROBES:
            refuted = self._probe_at(reach, share)
            if refuted and self.best.placement is None:
                return Answer(None, complete=True)
            if not refuted:
                break
        if not self._closed:
            # Without the lower bound, because a relaxation that lies flat on it does not tell where to branch.
            bound_s = self._run(0.0, self._upper_s, 1 - self.spent)
            if bound_s == inf and self.best.placement is None:
                return Answer(None, complete=True)
            self.lower_s = max(self.lower_s, min(bound_s, self._upper_s))
        spent = PROBING.share * min(1.0, self.spent)
        return Answer(self.best.placement, min(self.lower_s, self._upper_s), spent=spent)

    @property
    def _upper_s(self) -> float:
        return min(self.worst_s, self.best.objective_s)

    @property
    def _claim_s(self) -> float:
        """What has to be refuted to close the gap; without a placement, everything."""
        found = self.best.placement is not None
        return self._upper_s * (1 - max(self.budget.gap, LEAST_GAP)) if found else self.worst_s

    @property
    def _closed(self) -> bool:
        found = self.best.placement is not None
        return (
            self.spent >= 1 or self.budget.left_s <= 0 or (found and self._claim_s * (1 - 2 * SAFETY) <= self.lower_s)
        )

    def _probe_at(self, reach: float, share: float) -> bool:
        """Probe until the answer is no, then True; False if there is no answer within the budget."""
        while not self._closed:
            target_s, before_s = self._claim_s, self.best.objective_s
            if self.best.placement is not None:
                target_s = min(target_s, self.lower_s + reach * (self._upper_s - self.lower_s))
            if self._run(target_s, target_s, (1 - self.spent) * share) == inf:
                self.lower_s = min(target_s * (1 - SAFETY), self._upper_s)
                return True
            if self.best.objective_s >= before_s:
                return False
        return False

    def _run(self, lower_s: float, upper_s: float, share: float) -> float:
        """Solve the program between two loads with a share of all steps; the bound in seconds."""
        model = self.pose(lower_s, upper_s)
        if not model.build(self.budget):
            self.spent = 1.0
            return 0.0
        start = self._start(model) if upper_s > lower_s else None
        whole = allowance(model.model, self.budget.time_limit_s, PROBING)
        steps = int(share * whole)
        proof = minimise(model.model, self.budget, steps, lambda values: self.best.offer(model.read(values)), start)
        self.spent += (proof.steps + 1) / (whole + 1)
        return model.proved_s(proof.bound)

    def _start(self, model: PlacementModel) -> Mapping[Any, float] | None:
        """The best placement as a solution, unless it parts what the program does not."""
        placement, blocks = self.best.placement, model.blocks
        if placement is None or blocks.spread(blocks.devices_of(placement)).device != placement.device:
            return None
        return model.start(placement)
