"""Ideal DP: the best placement whose devices follow one another, proved, by dynamic programming over ideals."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, prod

import numpy as np

from costmodels.table import CostTable
from planner.problem import Goal, Problem
from planner.solvers.base import Answer, Budget
from planner.solvers.ideals.reduce import ROUNDING, Kinds, kinds_of, reduce
from planner.solvers.incumbent import Incumbent

MOST_STATES = 256  # of how many devices of each kind have been used
FIRST_STEP = 1e-3  # from the lower bound to the first limit, relative; each step is twice the one before


@dataclass(frozen=True)
class IdealDP:
    """The best contiguous placement, by dynamic programming over ideals and the devices used.

    ``F[c, J]`` is the busiest device's time when c[k] devices of each kind k have taken the ideal J (`ideals`)::

        F[0, {}] = 0        F[c, J] = min over kinds k, ideals I within J of max(F[c - 1_k, I], cost(k, J - I))

    Only what is within a limit is looked at. The limit grows from the lower bound until an answer is within it, which
    is then the best. Under a tight limit, much is merged beforehand (`reduce`) and few ideals are left
    (`windows`). A limit with nothing within it is a bound.

    The cost of an interval is the judge's where devices exchange tensors through a host. Where they send to each
    other it is at most the judge's, since what they pay depends on who reads. Operators outside ``contiguous`` that
    are not tied to those inside are also counted at what they cost at least, and exactly only from when an answer
    shows that it matters. So the bound always holds, and proves an answer of which the judge says the same.

    Source: Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020, section
    5.1.1. There, over all pairs of ideals.
    """

    name: str = "ideal-dp"
    goals: frozenset[Goal] = frozenset({Goal.THROUGHPUT})

    def refuses(self, problem: Problem) -> str:
        """It counts the devices of each kind."""
        states = prod(len(devices) + 1 for devices in kinds_of(problem.table).devices)
        return "so many different devices" if states > MOST_STATES else ""

    def search(self, problem: Problem, budget: Budget) -> Answer:
        """Look for the best contiguous placement, whatever the gap: what is not the best proves little.

        Without ``contiguous`` operators, all of them are, and nothing is proved.
        """
        best = Incumbent(problem, budget, self.name)
        bound_s = _hunt(problem, budget, best)
        if not problem.contiguous:
            return Answer(best.placement)
        return Answer(best.placement, bound_s, complete=_proved(best, bound_s))


def _hunt(problem: Problem, budget: Budget, best: Incumbent) -> float:
    """Raise the limit until an answer is within it; what no contiguous placement is below, infinite if there is none.

    The bound rises with each limit that nothing is within, and stays where it is when time or memory runs out. A loose
    block that an answer shows to be counted too low is tracked from then on: it becomes an element.
    """
    from planner.solvers.ideals.lattice import elements_of
    from planner.solvers.ideals.sweep import sweep  # late: numba takes half a second to load

    table, kinds, bound_s = problem.table, kinds_of(problem.table), budget.bound_s
    inside = problem.contiguous or frozenset(range(table.n_ops))
    tracked: frozenset[int] = frozenset()
    elements = None
    if bound_s == inf:
        return inf
    for step_s in _limits(table, kinds, bound_s):
        within = True
        while within:
            limit_s = min(step_s, best.objective_s)
            blocks = reduce(table, inside, kinds, limit_s)
            if elements is None or not np.array_equal(elements.blocks.block, blocks.block):
                elements = elements_of(blocks, inside, kinds, tracked)
            found = sweep(elements, limit_s, budget)
            if found is None:
                return bound_s
            bound_s = max(bound_s, min((answer.counted_s for answer in found), default=limit_s))
            for answer in found:
                best.offer(answer.placement)
            if _proved(best, bound_s) or (found and found[0].too_low < 0):
                return bound_s
            within = bool(found)
            if within:
                tracked |= {found[0].too_low}
                elements = None
    return inf


def _proved(best: Incumbent, bound_s: float) -> bool:
    return best.objective_s <= bound_s * (1 + ROUNDING)


def _limits(table: CostTable, kinds: Kinds, bound_s: float) -> Iterator[float]:
    """Limits from the lower bound on; under the last one is every placement that is possible at all."""
    last_s = sum(
        float(np.where(np.isfinite(part), part, 0.0).max(axis=1, initial=0.0).sum())
        for part in (table.forward_s, kinds.enter_s, kinds.leave_s)
    )
    step_s = FIRST_STEP * (bound_s or last_s)
    while bound_s + step_s < last_s:
        yield bound_s + step_s
        step_s *= 2
    yield max(last_s, bound_s)
