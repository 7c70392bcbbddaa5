"""Ideal DP: the best placement whose devices follow one another, proved, by dynamic programming over downsets."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf, prod
from typing import TYPE_CHECKING

import numpy as np

from costmodels.table import CostTable
from planner.problem.problem import Goal, Problem
from planner.solvers.base import Answer, Budget
from planner.solvers.dp.chains.chain_dp import ChainDP
from planner.solvers.dp.downsets.reduce import ROUNDING, IntervalKinds, kinds_of, reduce
from planner.solvers.incumbent import Incumbent

if TYPE_CHECKING:
    from planner.solvers.dp.downsets.lattice import Elements
    from planner.solvers.dp.downsets.sweep import Posed

FIRST, FIRST_SHARE = ChainDP(), 0.1  # what it begins with, and for how much of its time at most
MOST_STATES = 256  # of how many devices of each kind have been used
GROWTH = 2  # a limit is passed over if the next one takes at most so many times the work of the last one
FEW_PAIRS = 10_000_000  # of downsets, that are looked at in a moment
LISTED = 8  # times the root of the work are the downsets that are listed to find out how much it is
FIRST_STEP = 1e-3  # from the lower bound to the first limit, relative; each step is twice the one before


@dataclass(frozen=True)
class DownsetDP:
    """The best contiguous placement, by dynamic programming over downsets and the devices used.

    ``F[c, J]`` is the busiest device's time when c[k] devices of each kind k have taken the downset J (`downsets`)::

        F[0, {}] = 0        F[c, J] = min over kinds k, downsets I within J of max(F[c - 1_k, I], cost(k, J - I))

    Only what is within a limit is looked at. The limit grows from the lower bound until an answer is within it, which
    is then the best. Under a tight limit, much is merged beforehand (`reduce`) and few downsets are left
    (`windows`). A limit with nothing within it is a bound.

    The cost of an interval is the evaluator's where devices exchange tensors through a host. Where they send to each
    other it is at most the evaluator's, since what they pay depends on who reads. Operators outside ``contiguous`` that
    are not tied to those inside are also counted at what they cost at least, and exactly only from when an answer
    shows that it matters. So the bound always holds, and proves an answer of which the evaluator says the same.

    Source: Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020, section
    5.1.1. There, over all pairs of downsets.
    """

    name: str = "downset-dp"
    goals: frozenset[Goal] = frozenset({Goal.THROUGHPUT})

    def refuses(self, problem: Problem) -> str:
        """It counts the devices of each kind."""
        states = prod(len(devices) + 1 for devices in kinds_of(problem.table).devices)
        return "so many different devices" if states > MOST_STATES else ""

    def search(self, problem: Problem, budget: Budget) -> Answer:
        """Look for the best contiguous placement, whatever the gap: what is not the best proves little.

        It begins with cuts of a line, unless it is given a placement on several devices. Without ``contiguous``
        operators, all of them are, and nothing is proved.
        """
        best = Incumbent(problem, budget, self.name)
        if (best.placement is None or len(set(best.placement.device)) == 1) and not FIRST.refuses(problem):
            cut = FIRST.search(problem, replace(budget, time_limit_s=FIRST_SHARE * budget.time_limit_s)).placement
            if cut is not None:
                best.offer(cut)
        bound_s = _hunt(problem, budget, best)
        if not problem.contiguous:
            return Answer(best.placement)
        # The sums of a sweep are rounded: what was found has the last word.
        return Answer(best.placement, min(bound_s, best.objective_s), complete=_proved(best, bound_s))


def _hunt(problem: Problem, budget: Budget, best: Incumbent) -> float:
    """Raise the limit until an answer is within it; what no contiguous placement is below, infinite if there is none.

    The bound rises with each limit that nothing is within, and stays where it is when time or memory runs out. A limit
    is passed over if the next one takes hardly more work. A unordered block that an answer shows to be counted too
    low is tracked from then on: it becomes an element.
    """
    search, bound_s = _DownsetSearch(problem, budget, best), budget.bound_s
    if bound_s == inf:
        return inf
    limits = list(_limits(problem.table, search.kinds, bound_s))
    work = FEW_PAIRS
    for step_s, next_s in zip(limits, [*limits[1:], 0.0], strict=True):
        if step_s < min(next_s, best.objective_s) and search.takes_at_most(GROWTH * work, next_s):
            continue
        while True:
            posed = search.pose(step_s)
            found = posed.sweep(budget) if posed else None
            if posed is None or found is None:
                return bound_s
            bound_s = max(bound_s, min((answer.counted_s for answer in found), default=posed.limit_s))
            for answer in found:
                best.offer(answer.placement)
            if _proved(best, bound_s) or (found and found[0].too_low < 0):
                return bound_s
            if not found:
                break
            search.track(found[0].too_low)
        work = max(work, posed.pairs)
    return inf


class _DownsetSearch:
    """What to look at under each limit, with what is known of unordered blocks."""

    def __init__(self, problem: Problem, budget: Budget, best: Incumbent) -> None:
        self._table, self._budget, self._best = problem.table, budget, best
        self._inside = problem.contiguous or frozenset(range(problem.table.n_ops))
        self._tracked: frozenset[int] = frozenset()
        self._elements: Elements | None = None
        self.kinds = kinds_of(problem.table)

    def pose(self, step_s: float, most: int | None = None) -> "Posed | None":
        """What there is within a limit, and below the best placement; None if it is more than ``most`` or too much."""
        from planner.solvers.dp.downsets.lattice import elements_of
        from planner.solvers.dp.downsets.sweep import pose  # late: numba takes half a second to load

        limit_s = min(step_s, self._best.objective_s)
        blocks = reduce(self._table, self._inside, self.kinds, limit_s)
        if self._elements is None or not np.array_equal(self._elements.blocks.block, blocks.block):
            self._elements = elements_of(blocks, self._inside, self.kinds, self._tracked)
        return pose(self._elements, limit_s, self._budget, most)

    def takes_at_most(self, work: int, step_s: float) -> bool:
        """Whether a sweep within a limit looks at so few pairs of downsets."""
        posed = self.pose(step_s, int(LISTED * work**0.5))
        return posed is not None and posed.pairs <= work

    def track(self, op: int) -> None:
        """Make an element of the unordered block of an operator."""
        self._tracked |= {op}
        self._elements = None


def _proved(best: Incumbent, bound_s: float) -> bool:
    return best.objective_s <= bound_s * (1 + ROUNDING)


def _limits(table: CostTable, kinds: IntervalKinds, bound_s: float) -> Iterator[float]:
    """Limits from the lower bound on; under the last one is every placement that is possible at all. None is 0, which
    could not tell what is impossible from what costs nothing."""
    last_s = sum(
        float(np.where(np.isfinite(part), part, 0.0).max(axis=1, initial=0.0).sum())
        for part in (table.forward_s, kinds.enter_s, kinds.leave_s)
    )
    step_s = FIRST_STEP * (bound_s or last_s)
    while bound_s + step_s < last_s:
        yield bound_s + step_s
        step_s *= 2
    yield max(last_s, bound_s) or 1.0
