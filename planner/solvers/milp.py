"""milp: hands a PuLP model to HiGHS, and back what it finds and proves."""

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from planner.solvers.base import Budget

STEP_S = 1e-4  # a step of HiGHS on a model with 1000 coefficients, about, measured on one core of 2.5 GHz
STEP_POWER = 2.5  # how the seconds of a step grow with the coefficients, measured up to 30 000 of them


def minimise(
    model: Any, budget: Budget, start: Mapping[Any, float] | None, tell: Callable[[Mapping[str, float]], None]
) -> float:
    """Solve a ``pulp.LpProblem`` within the budget, on one thread; return a bound that no solution is below.

    It stops after a number of steps that depends on the time limit and the size of the model, so that the same
    input gives the same answer; the clock is the emergency brake, for a machine that needs twice the usual time.

    Args:
        model: what to minimise.
        budget: for the time, the gap and the seed.
        start: a feasible solution to start from, a value for each variable; None without one.
        tell: hears of every better solution, a value for the name of each variable.

    Returns:
        The bound; infinite if there is no solution at all.
    """
    import highspy  # late: HiGHS and PuLP take a moment to load, and most commands never solve
    import pulp

    events = highspy.cb.HighsCallbackType
    names = [variable.name for variable in model.variables()]
    steps = 0

    def listen(event: Any, _message: str, out: Any, into: Any, _data: Any) -> None:
        # Every call also lets Python look at its signals, which is how Ctrl-C gets through.
        nonlocal steps
        if event == events.kCallbackMipImprovingSolution:
            tell(dict(zip(names, out.mip_solution, strict=True)))
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
        return inf
    if status == highspy.HighsModelStatus.kOptimal:
        tell(dict(zip(names, highs.getSolution().col_value, strict=True)))
    return float(highs.getInfo().mip_dual_bound)
