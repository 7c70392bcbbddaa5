"""Result: the answer of a solver, as `planner.evaluate` judges it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from graphs.common.brief import Brief
from simulator.placement import Placement

PROOF_TOLERANCE = 1e-5  # relative; an objective this close to a bound is optimal


class Status(StrEnum):
    """How a search ended."""

    OPTIMAL = "optimal"  # proved: no placement is better
    FEASIBLE = "feasible"  # a placement with a bound, not proved to be the best
    INFEASIBLE = "infeasible"  # proved: no placement keeps all constraints
    UNKNOWN = "unknown"  # time ran out before any placement was found


@dataclass(frozen=True)
class Result(Brief):
    """An answer with its proof.

    Attributes:
        status: how the search ended.
        placement: the best one found, or None.
        objective_s: its value by `evaluate`; infinite without a placement.
        bound_s: no placement can be better than this.
        wall_s: seconds that the search took.
        solver: the solver that found the placement.
        advice: one sentence on what to change if there is no placement or a device is out of reach; else empty.
        by_clock: whether the clock stopped the search before its work was done, so that a quicker machine, or this one
            when it is less busy, may find another answer.
        spent_s: seconds of the time limit that the search used by its own count; with more, it finds nothing better
            unless it used all.
    """

    status: Status
    placement: Placement | None
    objective_s: float
    bound_s: float
    wall_s: float
    solver: str
    advice: str = ""
    by_clock: bool = False
    spent_s: float = 0.0

    @property
    def gap(self) -> float:
        """By how much the objective may be above the optimum, ``(objective − bound) / objective``, 0 to 1."""
        if self.placement is None:
            return 1.0
        return max(0.0, (self.objective_s - self.bound_s) / self.objective_s) if self.objective_s > 0 else 0.0


class NoPlanError(RuntimeError):
    """There is no plan: the message says why and what to change; ``result`` is the solver's answer."""

    def __init__(self, result: Result) -> None:
        super().__init__(f"no plan ({result.status}): {result.advice}")
        self.result = result


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a search; ``best`` is the best answer until then, of the type that the interrupted call returns.

    Callers that do not handle it see a KeyboardInterrupt.
    """

    def __init__(self, best: Any) -> None:
        super().__init__("interrupted")
        self.best = best
