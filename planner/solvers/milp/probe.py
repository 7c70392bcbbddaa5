"""Prober: asks whether there is a placement with a load of at most T; each answer moves a bound.

::

    lower ───────────── T ──── upper       "none" raises the lower bound to T, a placement lowers the upper one below it
                        └──► asks the integer program with T as a constant

To decide a program with a constant T is often several times as fast as to find the least T: its rows are knapsacks.
Bounds from refuted values are called destructive (Klein and Scholl, EJOR 112(2), 1999).
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
"""How far T is from the lower to the upper bound, and its share of the steps left; the last third costs most."""

Pose = Callable[[float, float], PlacementModel]
"""The program for loads between a lower and an upper number of seconds."""


@dataclass
class Prober:
    """Closes the gap around the least load within the budget: it probes as in `PROBES`, then minimises."""

    budget: Budget
    best: Incumbent  # hears of every placement
    lower_s: float  # no placement is below it
    worst_s: float  # no placement is above it
    pose: Pose
    spent: float = 0.0  # share of the budget's steps

    def search(self) -> Answer:
        """The best placement and bound."""
        for reach, share in PROBES:
            refuted = self._probe_at(reach, share)
            if refuted and self.best.placement is None:
                return Answer(None, complete=True)
            if not refuted:
                break
        if not self._closed:
            # The lower bound is left out: a relaxation that is equal to it everywhere does not tell where to branch.
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
        """The load to refute to close the gap; without a placement, the largest of all."""
        if self.best.placement is None:
            return self.worst_s
        return self._upper_s * (1 - max(self.budget.gap, LEAST_GAP))

    @property
    def _closed(self) -> bool:
        """Whether the gap is closed or the budget is used up."""
        proved = self.best.placement is not None and self._claim_s * (1 - 2 * SAFETY) <= self.lower_s
        return proved or self.spent >= 1 or self.budget.left_s <= 0

    def _probe_at(self, reach: float, share: float) -> bool:
        """Probe until a load is refuted, then True; False if that does not happen within the budget."""
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
        """Solve the program between two loads with a share of all steps; return the bound in seconds."""
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
        """The best placement as a solution, unless it separates operators that the program keeps together."""
        placement = self.best.placement
        return model.start(placement) if placement is not None and model.expresses(placement) else None
