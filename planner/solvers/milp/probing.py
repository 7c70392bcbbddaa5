"""Prober: finds the least load by asking again and again whether there is a placement of a certain load.

::

    lower ───────── T ──────── upper      "none" raises the lower bound to T, a placement lowers the upper one below
                    └──► asks the integer program with T as a constant

To decide a program with a constant T is often several times as fast as to find the least T: its rows are knapsacks.
Bounds from refuted values are called destructive (Klein and Scholl, EJOR 112(2), 1999).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from planner.solvers.base import Answer, Budget, Incumbent
from planner.solvers.milp.highs import LEAST_GAP, SAFETY, Pace, allowance, minimise
from planner.solvers.milp.model import PlacementModel

PROBING = Pace(1e-4, 2.2, 0.9)
FIRST_S, LONGER = 2.0, 3.0  # seconds of the first probe at most; after one without an answer, this many times as long

Pose = Callable[[float, float], PlacementModel]
"""The program for loads between a lower and an upper number of seconds."""


@dataclass
class Prober:
    """Closes the gap around the least load within the budget.

    After an answer, a probe asks for all of the gap; at first, and after none within its time, for half of it. No time
    but that of the last probe depends on the time limit, so a longer search begins as a shorter one.
    """

    budget: Budget
    best: Incumbent  # hears of every placement
    lower_s: float  # no placement is below it
    worst_s: float  # no placement is above it
    pose: Pose
    spent: float = 0.0  # share of the budget's steps

    def search(self) -> Answer:
        """Return the best placement and bound."""
        reach, limit_s = 0.5, FIRST_S
        while not self._closed:
            target_s, before_s = self._target_s(reach), self.best.objective_s
            bound_s, ended = self._run(target_s, target_s, limit_s)
            if bound_s == inf:
                if self.best.placement is None:
                    return Answer(None, complete=True)
                self.lower_s = max(self.lower_s, min(target_s * (1 - SAFETY), self._upper_s))
                self.budget.prove(self.lower_s)
                reach = 1.0
            elif self.best.objective_s >= before_s:
                if ended:  # with a placement that is as good as T within the tolerance, but no better than the best one
                    break
                reach, limit_s = 0.5, LONGER * limit_s
        if not self._closed:
            # The lower bound is left out: a relaxation that is equal to it everywhere does not tell where to branch.
            bound_s, _ = self._run(0.0, self._upper_s, inf)
            if bound_s == inf and self.best.placement is None:
                return Answer(None, complete=True)
            self.lower_s = max(self.lower_s, min(bound_s, self._upper_s))
        spent = PROBING.share * min(1.0, self.spent)
        return Answer(self.best.placement, min(self.lower_s, self._upper_s), spent=spent)

    def _target_s(self, reach: float) -> float:
        """Return the load to ask for; without a placement, the largest of all."""
        if self.best.placement is None:
            return self.worst_s
        return min(self._claim_s, self.lower_s + reach * (self._upper_s - self.lower_s))

    @property
    def _upper_s(self) -> float:
        return min(self.worst_s, self.best.objective_s)

    @property
    def _claim_s(self) -> float:
        """Return the load to refute to close the gap."""
        return self._upper_s * (1 - max(self.budget.gap, LEAST_GAP))

    @property
    def _closed(self) -> bool:
        """Return whether the gap is closed or the budget is used up."""
        proved = self.best.placement is not None and self._claim_s * (1 - 2 * SAFETY) <= self.lower_s
        return proved or self.spent >= 1 or self.budget.brake_s <= 0

    def _run(self, lower_s: float, upper_s: float, limit_s: float) -> tuple[float, bool]:
        """Solve the program between two loads within a time, by count.

        Returns:
            A bound in seconds, infinite if there is no placement; and whether the search ended by itself.
        """
        model = self.pose(lower_s, upper_s)
        if not model.build(self.budget):
            self.spent = 1.0
            return 0.0, False
        best, start = self.best.placement, None
        if upper_s > lower_s and best is not None and model.expresses(best):  # else it has to find one
            start = model.start(best)
        whole = allowance(model.model, self.budget.time_limit_s, PROBING)
        steps = min(allowance(model.model, limit_s, PROBING), int((1 - self.spent) * whole))
        heard = model.heard(self.budget) if lower_s < upper_s else self.budget.unheard  # which bounds one load alone
        proof = minimise(model.model, heard, steps, lambda values: self.best.offer(model.read(values)), start, PROBING)
        self.spent += (proof.steps + 1) / (whole + 1)
        return model.proved_s(proof.bound), proof.steps <= steps
