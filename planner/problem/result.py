"""Result: what a solver answered, judged by `planner.evaluate`."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from graphs.brief import brief
from simulator.placement import Placement

PROOF_TOLERANCE = 1e-5  # relative; an objective this close to a bound is optimal


class Status(StrEnum):
    """How a search ended."""

    OPTIMAL = "optimal"  # proved: no placement is better
    FEASIBLE = "feasible"  # a placement with a bound, not proved to be the best
    INFEASIBLE = "infeasible"  # proved: no placement keeps all constraints
    UNKNOWN = "unknown"  # time ran out before any placement was found


@dataclass(frozen=True)
class Result:
    """An answer with its proof.

    Attributes:
        status: how the search ended.
        placement: the best one found, or None.
        objective_s: its value by `evaluate`; infinite without a placement.
        bound_s: no placement can be better than this.
        wall_s: how long the search took.
        solver: who found it.
        advice: what to change if there is no placement, or if devices cannot be reached, one sentence; else empty.
    """

    status: Status
    placement: Placement | None
    objective_s: float
    bound_s: float
    wall_s: float
    solver: str
    advice: str = ""

    __repr__ = brief

    @property
    def gap(self) -> float:
        """How much better an answer could be at most, ``(objective − bound) / objective``, 0 to 1."""
        if self.placement is None:
            return 1.0
        return max(0.0, (self.objective_s - self.bound_s) / self.objective_s) if self.objective_s > 0 else 0.0


class NoPlanError(RuntimeError):
    """There is no plan: the message says why and what to change; ``result`` is the solver's answer."""

    def __init__(self, result: Result) -> None:
        super().__init__(f"no plan ({result.status}): {result.advice}")
        self.result = result


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in the middle of a search: ``best`` is the best that was found before, of the type that the call returns.

    Whoever does not ask for it sees a KeyboardInterrupt.
    """

    def __init__(self, best: Any) -> None:
        super().__init__("interrupted")
        self.best = best
