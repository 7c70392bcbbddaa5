"""milp: hands a PuLP model to HiGHS and reads back what it found and proved."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from costmodels.table import Floats
from planner.solvers.base import Budget


@dataclass(frozen=True)
class Found:
    """What HiGHS answered.

    Attributes:
        solutions: the value of every variable of the model (in ``model.variables()``), each better than the last.
        bound: no solution is below; infinite if there is none at all.
    """

    solutions: tuple[Floats, ...]
    bound: float


def minimise(model: Any, budget: Budget, most_nodes: int, start: Mapping[Any, float] | None = None) -> Found:
    """Solve a ``pulp.LpProblem`` within the budget, on one thread.

    It stops after ``most_nodes`` nodes of the search tree, which is the same at every run; the clock is only the
    emergency brake.

    Args:
        model: what to minimise.
        budget: for the time that is left, the gap and the seed.
        most_nodes: nodes to look at.
        start: a feasible solution to start from, a value for each variable.
    """
    import highspy  # late: HiGHS and PuLP take a moment to load, and most commands never solve
    import pulp

    events = highspy.cb.HighsCallbackType
    solutions: list[Floats] = []

    def listen(event: Any, _message: str, out: Any, _into: Any, _data: Any) -> None:
        # Every call also lets Python look at its signals, which is how Ctrl-C gets through.
        if event == events.kCallbackMipImprovingSolution:
            solutions.append(np.array(out.mip_solution))

    solver = pulp.HiGHS(
        msg=False,
        threads=1,
        gapRel=budget.gap,
        gapAbs=0.0,
        random_seed=budget.seed % 2**31,
        mip_max_nodes=most_nodes,
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
    highs.setOptionValue("time_limit", budget.left_s)
    highs.run()
    status = highs.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return Found((), inf)
    if status == highspy.HighsModelStatus.kOptimal:
        solutions.append(np.array(highs.getSolution().col_value))
    return Found(tuple(solutions), float(highs.getInfo().mip_dual_bound))
