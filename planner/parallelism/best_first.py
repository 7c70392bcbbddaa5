"""best_first: the best stages of a pipeline, one stage after another, wherever the costs of stages come from.

::

    ()  ─┬─ (a)  ─┬─ (a, b)              the beginning with the least bound goes on: A*
         │        └─ (a, b')  ── ...     no beginning whose bound is above the best step goes on
         └─ (a') ── ...

Source: Hart, Nilsson and Raphael, IEEE Transactions on Systems Science and Cybernetics 1968.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, NamedTuple, Protocol, TypeVar

from planner.problem.deadline import Deadline

MOST_STAGES = 8
NEARLY = 1e-9  # relative; times that differ by less are equal

StageT = TypeVar("StageT")
SolutionT = TypeVar("SolutionT", covariant=True)


class Prefix(NamedTuple, Generic[StageT]):
    """The first stages of a pipeline, ordered as the search takes them from its heap."""

    bound_s: float  # no step that begins so is shorter
    to_come: int  # stages
    at: int  # the next device
    left: int  # layers or blocks
    costs_s: tuple[float, ...]  # of the stages so far: seconds of which no step gets shorter if one grows
    stages: tuple[StageT, ...]


class StageSource(Protocol[StageT, SolutionT]):
    """The stages that a pipeline may have, and what they cost."""

    @property
    def exact(self) -> bool:
        """Whether ``costs_s`` and what is left say all about a beginning, so that a dearer one leads to nothing."""
        ...

    def beginnings(self) -> Iterable[Prefix[StageT]]:
        """Return beginnings without stages, one for each number of stages."""
        ...

    def longer(self, begun: Prefix[StageT]) -> Iterable[Prefix[StageT]]:
        """Return the beginnings with one more stage."""
        ...

    def solution(self, begun: Prefix[StageT]) -> tuple[SolutionT, float] | None:
        """Return all stages of a pipeline and the seconds of its step; None if they break a constraint."""
        ...


def best_first(
    source: StageSource[StageT, SolutionT], most_s: float, most_steps: int, deadline: Deadline
) -> tuple[SolutionT | None, float]:
    """Return the fastest stages whose step takes less than ``most_s``, if any, and a lower bound of all steps.

    The bound is infinite if no step is that short. The search ends after ``most_steps`` beginnings or at the deadline.
    """
    best, least_s, heap = None, most_s, list(source.beginnings())
    heapify(heap)
    seen: dict[tuple[int, int, int], list[tuple[float, ...]]] = {}
    for _ in range(most_steps):
        if not heap or heap[0].bound_s >= least_s * (1 - NEARLY):
            return best, inf if best is None else least_s
        begun = heappop(heap)
        if deadline.over:
            return best, begun.bound_s
        if not begun.to_come:
            found = source.solution(begun)
            if found is not None and found[1] < least_s:
                best, least_s = found
        elif not (source.exact and _dominated(begun, seen)):
            for longer in source.longer(begun):
                if longer.bound_s < least_s * (1 - NEARLY):
                    heappush(heap, longer)
    return best, min(least_s, heap[0].bound_s) if heap else least_s


def _dominated(begun: Prefix[StageT], seen: dict[tuple[int, int, int], list[tuple[float, ...]]]) -> bool:
    """Return whether another beginning with the same left costs no more; else remember this one."""
    others = seen.setdefault((begun.to_come, begun.at, begun.left), [])
    if any(all(x <= y for x, y in zip(other, begun.costs_s, strict=True)) for other in others):
        return True
    others.append(begun.costs_s)
    return False
