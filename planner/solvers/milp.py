"""milp: hands a PuLP model to HiGHS and reads back what it found and proved."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from costmodels.table import Floats
from planner.solvers.base import Budget

STEP_S = 1e-4  # a step of HiGHS on a model with 1000 coefficients, about, measured on one core of 2.5 GHz
STEP_POWER = 2.5  # how the seconds of a step grow with the coefficients, measured up to 30 000 of them


@dataclass(frozen=True)
class Found:
    """What HiGHS answered.

    Attributes:
        solutions: the value of every variable of the model (in ``model.variables()``), each better than the last.
        bound: no solution is below; infinite if there is none at all.
    """

    solutions: tuple[Floats, ...]
    bound: float


def minimise(model: Any, budget: Budget, start: Mapping[Any, float] | None = None) -> Found:
    """Solve a ``pulp.LpProblem`` within the budget, on one thread.

    It stops after a number of steps that depends on the time limit and the size of the model, so that the same
    input gives the same answer; the clock is the emergency brake, for a machine that needs twice the usual time.

    Args:
        model: what to minimise.
        budget: for the time, the gap and the seed.
        start: a feasible solution to start from, a value for each variable.
    """
    import highspy  # late: HiGHS and PuLP take a moment to load, and most commands never solve
    import pulp

    events = highspy.cb.HighsCallbackType
    solutions: list[Floats] = []

    steps = 0

    def listen(event: Any, _message: str, out: Any, into: Any, _data: Any) -> None:
        # Every call also lets Python look at its signals, which is how Ctrl-C gets through.
        nonlocal steps
        if event == events.kCallbackMipImprovingSolution:
            solutions.append(np.array(out.mip_solution))
        else:  # HiGHS asks whether to go on, after every round of cuts and every dive
            steps += 1
            into.user_interrupt = steps > most_steps

    solver = pulp.HiGHS(
        msg=False,
        threads=1,
        gapRel=budget.gap,
        gapAbs=0.0,
        random_seed=budget.seed % 2**31,
        callbackTuple=(listen, None),
        callbacksToActivate=[events.kCallbackMipImprovingSolution, events.kCallbackMipInterrupt],
    )
    # The steps of `solver.solve`, because between them there is a start to hand over and behind them a bound to read.
    solver.createAndConfigureSolver(model)
    solver.buildSolverModel(model)
    highs = model.solverModel
    if start is not None:
        guess = highspy.HighsSolution()
        guess.col_value = [start[variable] for variable in model.variables()]
        highs.setSolution(guess)
    most_steps = budget.time_limit_s / 2 / (STEP_S * (highs.getNumNz() / 1000) ** STEP_POWER)
    highs.setOptionValue("time_limit", budget.left_s)
    highs.run()
    status = highs.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return Found((), inf)
    if status == highspy.HighsModelStatus.kOptimal:
        solutions.append(np.array(highs.getSolution().col_value))
    return Found(tuple(solutions), float(highs.getInfo().mip_dual_bound))
