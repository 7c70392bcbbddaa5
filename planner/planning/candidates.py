"""Candidates: plans for one task, and the rule by which one of them is chosen."""

from collections.abc import Iterable
from typing import NamedTuple

from planner.plans.plan import Plan


class Candidate(NamedTuple):
    """A plan that may be chosen."""

    plan: Plan
    margin: float = 0.0  # share by which it has to take less time than the best candidate before it


def best_of(candidates: Iterable[Candidate]) -> Plan | None:
    """Return the best feasible plan, by the prediction for its goal; None without one.

    Simpler candidates come first: a later one has to be faster by its margin.
    """
    best: Plan | None = None
    for plan, margin in candidates:
        if plan.evaluation.feasible and (best is None or plan.predicted_s < best.predicted_s * (1 - margin)):
            best = plan
    return best
