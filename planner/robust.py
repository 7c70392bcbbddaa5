"""robust: the placement that loses least if operators do not take what was measured.

::

                     scenario 1   scenario 2   ...     regret = how much longer than the best of all candidates
    candidate a          0 %          7 %              worst 7 %
    candidate b          2 %          1 %              worst 2 %   ◄ chosen

Source: Kouvelis and Yu, Robust Discrete Optimization and Its Applications, 1997 (the least worst regret).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from costmodels.table import QUARTILES, CostTable
from planner.problem import Problem
from planner.result import Result
from planner.solvers.incumbent import judge
from simulator.placement import Placement

SHARED = 0.5  # of the variance of the errors: what a device does to all of its operators, such as a lower clock
SOLVED = 6  # scenarios whose own best placements are candidates


@dataclass(frozen=True)
class Robustness:
    """How much a placement loses when costs are wrong, against the best of all candidates in each scenario.

    Attributes:
        scenarios: how many were drawn.
        worst_regret: the largest loss, relative.
        mean_regret: the mean loss.
        nominal_regret: the largest loss of the placement that is best for the costs as they were measured.
    """

    scenarios: int
    worst_regret: float
    mean_regret: float
    nominal_regret: float


def draw(table: CostTable, count: int, seed: int) -> list[CostTable]:
    """Tables in which every time is off by a factor that its spread makes likely.

    Errors are log-normal. Half of their variance is shared by all operators of a device, since what slows one of them
    down slows the others too; the rest is of each operator alone.
    """
    random = np.random.default_rng(seed)
    sigma = table.spread / QUARTILES
    tables = []
    for _ in range(count):
        shared = random.standard_normal((1, table.n_devices))
        own = random.standard_normal(table.forward_s.shape)
        factor = np.exp(sigma * (np.sqrt(SHARED) * shared + np.sqrt(1 - SHARED) * own))
        tables.append(replace(table, forward_s=table.forward_s * factor, backward_s=table.backward_s * factor))
    return tables


def harden(
    problem: Problem, nominal: Result, scenarios: int, seed: int, solve: Callable[[Problem], Result]
) -> tuple[Placement, Robustness]:
    """The candidate with the least worst regret; among equals, the one that is better for the costs as measured.

    Args:
        problem: with the spread of its times.
        nominal: the answer for the costs as they were measured; it has a placement.
        scenarios: how many to draw.
        seed: of the draw.
        solve: finds a placement for a scenario.
    """
    assert nominal.placement is not None
    drawn = [replace(problem, table=table) for table in draw(problem.table, scenarios, seed)]
    candidates = {nominal.placement: None}
    for scenario in drawn[:SOLVED]:
        placement = solve(scenario).placement
        if placement is not None:
            candidates[placement] = None
    found = [(placement, judge(problem, placement)) for placement in candidates]
    found = [(placement, seconds) for placement, seconds in found if np.isfinite(seconds)]
    seconds = np.array([[judge(scenario, placement) for scenario in drawn] for placement, _ in found])
    best = seconds.min(axis=0)
    regret = np.divide(seconds, best, out=np.ones_like(seconds), where=best > 0) - 1
    worst = regret.max(axis=1, initial=0.0)
    chosen = min(range(len(found)), key=lambda c: (round(float(worst[c]), 6), found[c][1]))
    mean = float(regret[chosen].mean()) if scenarios else 0.0
    return found[chosen][0], Robustness(scenarios, float(worst[chosen]), mean, float(worst[0]))
