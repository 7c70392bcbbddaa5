"""robust: the placement that loses least if costs differ from the measured ones.

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

from costmodels.table import QUARTILES, CostTable
from graphs.common.arrays import Floats
from graphs.common.checks import check_fields
from planner.problem.deadline import Deadline
from planner.problem.problem import Problem
from planner.problem.reporter import SILENT, Reporter
from planner.problem.result import Result
from planner.solvers.base import objective_of
from simulator.placement import Placement

SHARED = 0.5  # of the variance of the errors: what a device does to all of its operators, such as a lower clock
SOLVED = 6  # scenarios whose own best placements are candidates


@dataclass(frozen=True)
class Robustness:
    """How much a placement loses when costs are wrong, compared with the best candidate of each scenario."""

    scenarios: int  # their number
    worst_regret: float  # the largest relative loss
    mean_regret: float  # the mean relative loss
    nominal_regret: float  # the largest relative loss of the placement that is best for the measured costs

    def __post_init__(self) -> None:
        check_fields(self, "the robustness")


@dataclass(frozen=True)
class Draws:
    """How many scenarios to draw, and how."""

    count: int
    seed: int
    deadline: Deadline  # after it no more are drawn, except for the first `SOLVED`
    reporter: Reporter = SILENT  # hears of progress


def draw(table: CostTable, count: int, seed: int) -> Iterator[CostTable]:
    """Yield tables whose times are multiplied by random errors of the measured spread.

    Errors are log-normal. All operators of a device share half of the variance, since a cause that slows one of them
    down slows the others down too; the other half is independent for each operator.
    """
    random = np.random.default_rng(seed)
    sigma = table.spread / QUARTILES
    for _ in range(count):
        shared = random.standard_normal((1, table.n_devices))
        own = random.standard_normal(table.forward_s.shape)
        factor = np.exp(sigma * (np.sqrt(SHARED) * shared + np.sqrt(1 - SHARED) * own))
        training = table.training and replace(table.training, backward_s=table.backward_s * factor)
        yield replace(table, forward_s=table.forward_s * factor, training=training)


def harden(
    problem: Problem, nominal: Result, draws: Draws, solve: Callable[[Problem], Result]
) -> tuple[Placement, Robustness]:
    """Return the candidate with the least worst regret; among equals, the one that is better for the measured costs.

    Candidates are the placement of ``nominal``, the answer for the measured costs, and the answers of ``solve`` for the
    first scenarios.
    """
    assert nominal.placement is not None
    drawn = (replace(problem, table=table) for table in draw(problem.table, draws.count, draws.seed))
    first = list(islice(drawn, SOLVED))
    candidates = {nominal.placement: None}
    for scenario in first:
        placement = solve(scenario).placement
        if placement is not None:
            candidates[placement] = None
    nominal_s = {placement: objective_of(problem, placement) for placement in candidates}
    feasible = [placement for placement, seconds in nominal_s.items() if np.isfinite(seconds)]
    regret = np.array(list(_regrets(feasible, chain(first, drawn), draws)))
    worst = regret.max(axis=0, initial=0.0)
    chosen = min(range(len(feasible)), key=lambda c: (round(float(worst[c]), 6), nominal_s[feasible[c]]))
    robustness = Robustness(len(regret), float(worst[chosen]), float(regret[:, chosen].mean()), float(worst[0]))
    return feasible[chosen], robustness


def _regrets(placements: Sequence[Placement], scenarios: Iterable[Problem], draws: Draws) -> Iterator[Floats]:
    """Yield [n_placements] for each scenario in time, the share by which each placement is above the best one."""
    for number, scenario in enumerate(scenarios):
        if number >= SOLVED and draws.deadline.over:
            return
        draws.reporter.on_step("evaluating placements under wrong costs", number, draws.count)
        seconds = np.array([objective_of(scenario, placement) for placement in placements])
        best = seconds.min()
        yield seconds / best - 1 if best > 0 else np.zeros(len(seconds))
