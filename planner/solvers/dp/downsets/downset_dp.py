"""DownsetDP: the best contiguous placement, with a proof, by dynamic programming over downsets."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf, prod
from typing import TYPE_CHECKING

import numpy as np

from costmodels.table import CostTable
from planner.problem.deadline import loading
from planner.problem.evaluate import loads
from planner.problem.problem import Goal, Problem
from planner.solvers.base import Answer, Budget, Incumbent
from planner.solvers.dp.chains.chain_dp import ChainDP
from planner.solvers.dp.downsets.reduce import ROUNDING, IntervalKinds, kinds_of, reduce

if TYPE_CHECKING:
    from planner.solvers.dp.downsets.lattice import Elements
    from planner.solvers.dp.downsets.sweep import SearchSpace, Swept, SweptPlacement

FIRST, FIRST_SHARE = ChainDP(), 0.1  # the solver that it begins with, and that solver's share of the time at most
MOST_STATES = 256  # counts of devices of each kind
GROWTH = 3  # times the work of the last limit that the next one takes
HALVINGS = 2  # of the step to the next limit: all where pairs are many, else as many as the work needs
FEW_PAIRS = 10_000_000  # pairs of downsets that take a moment
LISTED = 8  # times the root of the work: the downsets that it lists to estimate the work
FIRST_STEP = 1e-3  # from the lower bound to the first limit, relative; each step is at least as long as all before


@dataclass(frozen=True)
class DownsetDP:
    """The best contiguous placement, by dynamic programming over downsets and the devices used.

    ``F[c, J]`` is the busiest device's time when c[k] devices of each kind k have taken the downset J (`downsets`)::

        F[0, {}] = 0        F[c, J] = min over kinds k, downsets I within J of max(F[c - 1_k, I], cost(k, J - I))

    It only considers intervals within a limit, which grows from the lower bound until an answer is within it; that
    answer is the best. Under a tight limit, many blocks are merged beforehand (`reduce`) and few downsets are left
    (`windows`). A limit without an answer is a bound.

    Where devices exchange tensors through a host, an interval costs what the evaluator says. Where devices send to each
    other it costs at most that: a tensor for several devices is charged once, because the devices of its readers are
    not known yet. If an answer shows that this matters, a way back from the last device charges for each (`retrace`).
    Operators outside ``contiguous`` that are not tied to those inside are charged their least cost as well, and the
    exact cost only after an answer shows that it matters. So the bound always holds, and it proves an answer of which
    the evaluator says the same.

    Source: Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020, section
    5.1.1, where the program considers all pairs of downsets.
    """

    name: str = "downset-dp"
    goals: frozenset[Goal] = frozenset({Goal.THROUGHPUT})

    def refuses(self, problem: Problem) -> str:
        """Refuse more than `MOST_STATES` states, which are counts of devices of each kind."""
        states = prod(len(devices) + 1 for devices in kinds_of(problem.table).devices)
        return "this many different devices" if states > MOST_STATES else ""

    def search(self, problem: Problem, budget: Budget) -> Answer:
        """Search for the best contiguous placement, whatever the gap: any other placement proves little.

        It begins with cuts of a line, unless the incumbent is on several devices. If ``contiguous`` is empty, it takes
        all operators as contiguous and proves nothing.
        """
        best = Incumbent(problem, budget, self.name)
        if (best.placement is None or len(set(best.placement.device)) == 1) and not FIRST.refuses(problem):
            cut = FIRST.search(problem, replace(budget, time_limit_s=FIRST_SHARE * budget.time_limit_s)).placement
            if cut is not None:
                best.offer(cut)
        heard = budget if problem.contiguous else budget.unheard
        bound_s = _hunt(_DownsetSearch(problem, heard, best), budget.bound_s)
        if not problem.contiguous:
            return Answer(best.placement)
        # The sums of a sweep are rounded, so the bound may be a little above the objective.
        return Answer(best.placement, min(bound_s, best.objective_s), complete=_proved(best, bound_s))


def _hunt(search: "_DownsetSearch", bound_s: float) -> float:
    """Raise the limit until an answer is within it; return a bound on contiguous placements, infinite if none exists.

    The bound rises with each limit without an answer, and stays if time or memory runs out.
    """
    if bound_s == inf:
        return inf
    last_s = max(search.most_s, bound_s) or 1.0  # not 0: twice a limit stands for infinity
    least_s, work = bound_s, FEW_PAIRS
    while True:
        limit_s = search.next_limit_s(bound_s, bound_s - least_s or FIRST_STEP * (least_s or last_s), last_s, work)
        bound_s, pairs = search.bound_within(limit_s, bound_s)
        if pairs < 0:
            return bound_s
        if limit_s >= last_s:
            return inf
        work = max(work, pairs)


class _DownsetSearch:
    """The search under each limit, with the unordered blocks that are tracked and the flows whose readers count."""

    def __init__(self, problem: Problem, budget: Budget, best: Incumbent) -> None:
        self._table, self._budget, self._best = problem.table, budget, best
        self._inside = problem.contiguous or frozenset(range(problem.table.n_ops))
        self._tracked: frozenset[int] = frozenset()
        self._elements: Elements | None = None
        self._kinds = kinds_of(problem.table)
        self._counted: frozenset[int] = frozenset()  # flows that are charged for each device that reads them

    @property
    def most_s(self) -> float:
        """Seconds that no placement exceeds."""
        return _most_s(self._table, self._kinds)

    def pose(self, limit_s: float, most: int | None = None) -> "SearchSpace | None":
        """Return the downsets within a limit and below the best placement; None if there are more than ``most``."""
        with loading():
            from planner.solvers.dp.downsets.lattice import elements_of
            from planner.solvers.dp.downsets.sweep import pose  # late: numba takes half a second to load

        limit_s = min(limit_s, self._best.objective_s)
        blocks = reduce(self._table, self._inside, self._kinds, limit_s)
        if self._elements is None or not np.array_equal(self._elements.blocks.block, blocks.block):
            self._elements = elements_of(blocks, self._inside, self._kinds, self._tracked)
        return pose(self._elements, limit_s, self._budget, most)

    def bound_within(self, limit_s: float, bound_s: float) -> tuple[float, int]:
        """Return the bound after a sweep within a limit, and its pairs of downsets; -1 if nothing is left to do.

        It sweeps again if an answer shows that an unordered block is undercounted, which then becomes an element.
        """
        while True:
            posed = self.pose(limit_s)
            if posed is None:
                return bound_s, -1
            for found in self._rounds(posed._replace(floor_s=bound_s)):
                bound_s = max(bound_s, found.bound_s)
                self._budget.prove(min(bound_s, self._best.objective_s))
                for answer in found.answers:
                    self._best.offer(answer.placement)
                if not found.done or _proved(self._best, bound_s):
                    return bound_s, -1
                if not found.answers:
                    return bound_s, posed.pairs
                if found.answers[0].too_low >= 0:
                    self.track(found.answers[0].too_low)
                    break
            else:
                return bound_s, -1

    def _rounds(self, posed: "SearchSpace") -> "Iterator[Swept]":
        """Yield what a sweep finds, then what ways back find that count the readers of more and more flows."""
        with loading():
            from planner.solvers.dp.downsets.sweep import DownsetSweep, Swept  # late, see `pose`

        if not posed.whole:
            yield Swept([], posed.limit_s)
            return
        sweep, counted = DownsetSweep(posed), frozenset[int]()
        yield (found := sweep.run(self._budget))
        while found.answers and not (undercounted := self._undercounted(found.answers[0])) <= counted:
            self._counted |= undercounted
            counted = self._counted
            yield (found := sweep.retrace(counted, (found.bound_s, self._best.objective_s), self._budget))

    def next_limit_s(self, bound_s: float, step_s: float, last_s: float, work: int) -> float:
        """Return the limit after a bound: a step higher, and more or less than that as far as the work allows.

        Once pairs of downsets are many, the step is a part of the given one.
        """
        top_s = min(last_s, self._best.objective_s)
        if work > FEW_PAIRS:  # the wider a limit is above the bound, the less a sweep can leave out
            return min(bound_s + step_s * 0.5**HALVINGS, top_s)
        for _ in range(HALVINGS):
            if self._takes_at_most(GROWTH * work, min(bound_s + step_s, top_s)):
                break
            step_s /= 2
        while bound_s + 2 * step_s < top_s and self._takes_at_most(GROWTH * work, bound_s + 2 * step_s):
            step_s *= 2
        return min(bound_s + step_s, top_s)

    def _takes_at_most(self, work: int, limit_s: float) -> bool:
        """Return whether a sweep within a limit considers at most this many pairs of downsets."""
        posed = self.pose(limit_s, int(LISTED * work**0.5))
        return posed is not None and posed.pairs <= work

    def _undercounted(self, answer: "SweptPlacement") -> frozenset[int]:
        """Return flows that devices busier than was counted send to several devices."""
        placement, load_s = answer.placement, loads(self._table, answer.placement)[0]
        busier = np.flatnonzero(load_s > answer.counted_s * (1 + ROUNDING))
        several = Counter(flow for flow, writer, _ in placement.cuts(self._table) if writer in busier)
        return frozenset(flow for flow, count in several.items() if count > 1)

    def track(self, op: int) -> None:
        """Make an element of the unordered block of an operator."""
        self._tracked |= {op}
        self._elements = None


def _proved(best: Incumbent, bound_s: float) -> bool:
    return best.objective_s <= bound_s * (1 + ROUNDING)


def _most_s(table: CostTable, kinds: IntervalKinds) -> float:
    """Return seconds that no placement exceeds."""
    return sum(
        float(np.where(np.isfinite(part), part, 0.0).max(axis=1, initial=0.0).sum())
        for part in (table.forward_s, kinds.enter_s, kinds.leave_s)
    )
