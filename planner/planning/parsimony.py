"""Parsimony: of plans whose times differ by less than is known of them, the simplest.

::

    found       7.09 ms    5 tensors, 53 MiB between devices         costs known to ± 20 %: 2 % decide nothing
    simpler     7.17 ms    1 tensor, 4 MiB                           taken; the bound stays that of the optimum

A prediction that is sure to 15 % says nothing of 1 %, while each tensor between devices is a message that may be late.
"""

from dataclasses import replace
from math import inf

from planner.plans.plan import Plan
from planner.plans.simplification import Simplification, sent_tensors
from planner.problem.problem import Goal
from planner.problem.result import PROOF_TOLERANCE, Status
from planner.solvers.base import moves_within, objective_of
from planner.solvers.dp.chains.fewest_cuts import fewest_cuts
from planner.solvers.islands import islands_moved
from simulator.placement import Placement

MOST_SLOWER = 0.02  # on paper, of a plan that is simpler
SHARE = 0.1  # of the range around a prediction without the machine's pace, which is the same for both plans


def slack_of(plan: Plan) -> float:
    """Return the share by which a simpler plan may be predicted slower: a tenth of what is unknown, at most 2 %."""
    unknown = plan.spread(alone=plan.minimised is Goal.LATENCY).without_pace().factor - 1
    return min(MOST_SLOWER, SHARE * unknown)


def simplest(plan: Plan, time_limit_s: float) -> Plan:
    """Return the simplest plan whose predicted time is within the slack of the given plan's, which may be itself.

    The simplest plan sends the fewest tensors between devices, of those with as many the fewest bytes, and of those
    with as many it uses the fewest devices. The bound stays, because it speaks of the optimum. A plan with copies,
    whose micro-batches take turns, stays as it is.

    Args:
        plan: for throughput or latency; for another goal it stays as it is.
        time_limit_s: of the usual machine, for the moves of single islands.
    """
    if plan.minimised not in (Goal.THROUGHPUT, Goal.LATENCY) or plan.placement.others or plan.n_used < 2:
        return plan
    search = _Simpler(plan, moves_within(time_limit_s, plan.problem))
    if plan.minimised is Goal.THROUGHPUT:
        # a stream may wait more than its busiest device works; mostly both are equal
        for seconds in dict.fromkeys((plan.predicted_s, plan.objective_s)):
            for placement in fewest_cuts(plan.problem, plan.placement, seconds * search.most):
                search.offer(placement)
    search.join_islands()
    return search.answer


class _Simpler:
    """The state of a search for a simpler plan."""

    def __init__(self, plan: Plan, evaluations: int) -> None:
        self._plan, self._best, self._left = plan, plan, evaluations
        self._sent = sent_tensors(plan.table, plan.placement)
        self.most = 1 + slack_of(plan)

    def offer(self, placement: Placement) -> bool:
        """Take a placement if it is simpler and within the slack, and return whether it is."""
        self._left -= 1
        sent = sent_tensors(self._plan.table, placement)
        if sent >= self._sent:
            return False
        if objective_of(self._plan.problem, placement) == inf:
            return False
        other = self._plan.placed(placement)
        if other.predicted_s > self._plan.predicted_s * self.most:
            return False
        self._best, self._sent = other, sent
        return True

    def join_islands(self) -> None:
        """Move islands to the devices of their neighbours, as long as that makes the plan simpler."""
        moved = True
        while moved:
            moved = False
            for placement in islands_moved(self._plan.table, self._best.placement):
                if self._left <= 0:
                    return
                if moved := self.offer(placement):
                    break

    @property
    def answer(self) -> Plan:
        """The simplest plan, with what it gave away."""
        plan, best = self._plan, self._best
        if best is plan:
            return plan
        before = sent_tensors(plan.table, plan.placement)
        record = Simplification(best.predicted_s / plan.predicted_s - 1, *before)
        proved = best.objective_s <= plan.bound_s * (1 + PROOF_TOLERANCE)
        status = Status.OPTIMAL if proved else Status.FEASIBLE
        bound_s = min(plan.bound_s, best.objective_s)
        return replace(best, simplification=record, status=str(status), bound_s=bound_s)
