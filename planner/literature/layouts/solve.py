"""Layouts of least peak memory, by branch and bound: one dimension after the other, those of most entries first.

A partial layout needs no less than with every open dimension split among all mesh dimensions that divide it, as if none
were taken. Among layouts of equal memory, the one that splits the most dimensions is taken, then the first by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, prod
from typing import NamedTuple

from planner.literature.layouts.dimension_layout import DimensionLayout, LayoutProblem
from planner.problem.deadline import Deadline
from planner.problem.result import Status


class LayoutResult(NamedTuple):
    """A layout, its memory, and whether no other one needs less."""

    layout: DimensionLayout
    peak_bytes: int
    status: Status


def solve_layout(problem: LayoutProblem, time_limit_s: float = 60.0) -> LayoutResult:
    """Find the layout with the lowest peak memory."""
    search = _LayoutSearch(problem, Deadline(time_limit_s))
    search.branch({}, 0)
    status = Status.FEASIBLE if search.stopped else Status.OPTIMAL
    return LayoutResult(search.best, problem.peak_bytes(search.best), status)


@dataclass
class _LayoutSearch:
    """The best layout so far."""

    problem: LayoutProblem
    deadline: Deadline
    stopped: bool = False

    def __post_init__(self) -> None:
        problem = self.problem
        self._splits = {name: problem.splits(name) for name in problem.dimensions}
        self._most_parts = {name: prod(problem.mesh[axis] for axis in splits) for name, splits in self._splits.items()}
        self.best: DimensionLayout = {}
        self._best_rank: tuple[float, float, str] = (inf, inf, "")

    def branch(self, layout: dict[str, str], depth: int) -> None:
        """Try every mesh dimension for the next dimension, and none."""
        problem = self.problem
        if self.deadline.over:
            self.stopped = True
            return
        if depth == len(problem.dimensions):
            rank = (problem.peak_bytes(layout), -len(layout), _text(layout))
            if rank < self._best_rank:
                self.best, self._best_rank = dict(sorted(layout.items())), rank
            return
        still_open = problem.dimensions[depth:]
        if (self._least_bytes(layout, still_open), -len(layout) - len(still_open)) > self._best_rank[:2]:
            return
        name = problem.dimensions[depth]
        taken = {layout[other] for other in problem.together[name] if other in layout}
        for axis in sorted(self._splits[name], key=lambda axis: -problem.mesh[axis]):
            if axis not in taken:
                self.branch({**layout, name: axis}, depth + 1)
        self.branch(layout, depth + 1)

    def _least_bytes(self, layout: Mapping[str, str], still_open: tuple[str, ...]) -> int:
        """Return a lower bound of the bytes of all layouts that extend this one."""
        problem, most = self.problem, prod(self.problem.mesh.values())
        parts = []
        for sizes in problem.shapes:
            given = prod(problem.mesh[layout[name]] for name in sizes if name in layout)
            parts.append(min(most, given * prod(self._most_parts[name] for name in sizes if name in still_open)))
        return problem.most_bytes(parts)


def _text(layout: DimensionLayout) -> str:
    return ";".join(f"{name}:{axis}" for name, axis in sorted(layout.items()))
