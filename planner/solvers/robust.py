"""robust: the placement that loses least if operators do not take what was measured.

::

                     scenario 1   scenario 2   ...     regret = how much longer than the best of all candidates
    candidate a          0 %          7 %              worst 7 %
    candidate b          2 %          1 %              worst 2 %   ◄ chosen

Source: Kouvelis and Yu, Robust Discrete Optimization and Its Applications, 1997 (the least worst regret).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np

from costmodels.table import QUARTILES, CostTable, Floats
from planner.problem.deadline import Deadline
from planner.problem.problem import Problem
from planner.problem.reporter import SILENT, Reporter
from planner.problem.result import Result
from planner.solvers.incumbent import objective_of
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


@dataclass(frozen=True)
class Draws:
    """How many errors of the costs to draw."""

    count: int  # how many
    seed: int  # of the draw
    deadline: Deadline  # when it is over, no more are drawn; `SOLVED` are drawn in any case
    reporter: Reporter = SILENT  # hears of progress


def draw(table: CostTable, count: int, seed: int) -> Iterator[CostTable]:
    """Tables in which every time is off by a factor that its spread makes likely.

    Errors are log-normal. Half of their variance is shared by all operators of a device, since what slows one of them
    down slows the others too; the rest is of each operator alone.
    """
    random = np.random.default_rng(seed)
    sigma = table.spread / QUARTILES
    for _ in range(count):
        shared = random.standard_normal((1, table.n_devices))
        own = random.standard_normal(table.forward_s.shape)
        factor = np.exp(sigma * (np.sqrt(SHARED) * shared + np.sqrt(1 - SHARED) * own))
        yield replace(table, forward_s=table.forward_s * factor, backward_s=table.backward_s * factor)


def harden(
    problem: Problem, nominal: Result, draws: Draws, solve: Callable[[Problem], Result]
) -> tuple[Placement, Robustness]:
    """The candidate with the least worst regret; among equals, the one that is better for the costs as measured.

    Args:
        problem: with the spread of its times.
        nominal: the answer for the costs as they were measured; it has a placement.
        draws: how many scenarios to draw.
        solve: finds a placement for a scenario.
    """
    assert nominal.placement is not None
    drawn = (replace(problem, table=table) for table in draw(problem.table, draws.count, draws.seed))
    first = list(islice(drawn, SOLVED))
    candidates = {nominal.placement: None}
    for scenario in first:
        placement = solve(scenario).placement
        if placement is not None:
            candidates[placement] = None
    found = [(placement, objective_of(problem, placement)) for placement in candidates]
    found = [(placement, seconds) for placement, seconds in found if np.isfinite(seconds)]
    regret = np.array(list(_regrets([placement for placement, _ in found], chain(first, drawn), draws)))
    worst = regret.max(axis=0, initial=0.0)
    chosen = min(range(len(found)), key=lambda c: (round(float(worst[c]), 6), found[c][1]))
    robustness = Robustness(len(regret), float(worst[chosen]), float(regret[:, chosen].mean()), float(worst[0]))
    return found[chosen][0], robustness


def _regrets(placements: Sequence[Placement], scenarios: Iterable[Problem], draws: Draws) -> Iterator[Floats]:
    """[n_placements] for each scenario in time: how much longer each placement takes than the best of them."""
    for number, scenario in enumerate(scenarios):
        if number >= SOLVED and draws.deadline.over:
            return
        draws.reporter.on_step("judging placements under wrong costs", number, draws.count)
        seconds = np.array([objective_of(scenario, placement) for placement in placements])
        best = seconds.min()
        yield seconds / best - 1 if best > 0 else np.zeros(len(seconds))
