"""minimise: solves a PuLP model with HiGHS, or with CBC where HiGHS is not installed."""

from collections.abc import Callable, Mapping
from math import inf
from typing import Any, NamedTuple

from graphs.common.errors import InputError
from planner.problem.deadline import loading
from planner.solvers.base import Budget

SAFETY = 1e-6  # relative; HiGHS keeps constraints within 1e-7 to 1e-6 of quantities that are about 1
LEAST_GAP = 4 * SAFETY  # a smaller gap could be within the tolerance of HiGHS
MOST_STEPS = 2**60


class Pace(NamedTuple):
    """The speed of HiGHS, measured on one core of 2.5 GHz."""

    step_s: float  # seconds of a step on a model with 1000 coefficients, about
    power: float  # of the coefficients, with which the seconds of a step grow; measured up to 30 000 coefficients
    share: float  # of the time limit that the steps may take; the rest is for slower machines


MINIMISING = Pace(1e-4, 2.5, 0.9)


class MilpOutcome(NamedTuple):
    """The outcome of a search."""

    bound: float  # no solution is below it; infinite if there is no solution
    steps: int  # the number of steps that the search took


def allowance(model: Any, time_limit_s: float, pace: Pace = MINIMISING) -> int:
    """The number of steps that fill the pace's share of the time limit on the usual machine."""
    coefficients = sum(len(constraint) for constraint in model.constraints())
    steps = time_limit_s * pace.share / (pace.step_s * (max(coefficients, 1) / 1000) ** pace.power)
    return int(min(steps, MOST_STEPS))


def minimise(
    model: Any,
    budget: Budget,
    most_steps: int,
    tell: Callable[[Mapping[str, float]], None],
    start: Mapping[Any, float] | None = None,
    pace: Pace = MINIMISING,
) -> MilpOutcome:
    """Solve a ``pulp.LpProblem`` within the budget, on one thread, with HiGHS or else with `minimise_by_cbc`.

    The search stops after a number of steps, see `allowance`, so that the same input gives the same answer; the clock
    stops it only on a machine that needs twice the usual time.

    Args:
        model: what to minimise. If its objective is fixed, the first solution ends the search.
        budget: for the time, the gap and the seed; it hears of bounds in the units of the objective.
        most_steps: HiGHS takes a step after every round of cuts and every dive.
        tell: hears of every better solution, a value for the name of each variable.
        start: a feasible solution to start from, a value for each variable; None without one.
        pace: of the steps, with which it counts the seconds that the budget hears of.
    """
    try:
        with loading():
            import highspy  # late: HiGHS and PuLP take a moment to load, and most commands never solve
    except ImportError:
        return minimise_by_cbc(model, budget, tell)
    events = highspy.cb.HighsCallbackType
    names = [variable.name for variable in model.variables()]
    steps = 0

    def listen(event: Any, _message: str, out: Any, into: Any, _data: Any) -> None:
        # At every call Python also handles its signals, such as that of Ctrl-C.
        nonlocal steps
        if event == events.kCallbackMipImprovingSolution:
            tell(dict(zip(names, out.mip_solution, strict=True)))
        else:  # HiGHS asks whether to go on
            steps += 1
            budget.prove(out.mip_dual_bound)
            budget.meanwhile(step_s)
            into.user_interrupt = steps > most_steps

    step_s = pace.share / max(1, allowance(model, 1.0, pace))
    highs = _loaded(model, budget, listen)
    if start is not None:
        guess = highspy.HighsSolution()
        guess.col_value = [start[variable] for variable in model.variables()]
        highs.setSolution(guess)
    highs.setOptionValue("time_limit", budget.brake_s)
    highs.run()
    status = highs.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return MilpOutcome(inf, steps)
    if status == highspy.HighsModelStatus.kOptimal:
        tell(dict(zip(names, highs.getSolution().col_value, strict=True)))
    info = highs.getInfo()
    bound = float(info.mip_dual_bound)
    if bound == -inf and status == highspy.HighsModelStatus.kOptimal:  # presolve found the optimum, and HiGHS no bound
        bound = float(info.objective_function_value) * (1 - budget.gap)
    return MilpOutcome(bound, steps)


def _loaded(model: Any, budget: Budget, listen: Callable[..., None]) -> Any:
    """HiGHS with the model, ready to run.

    These are the first steps of PuLP's ``solve``, which takes no start before the run and returns no bound after it.
    """
    with loading():
        import highspy
        import pulp

    events = highspy.cb.HighsCallbackType
    solver = pulp.HiGHS(
        msg=False,
        threads=1,
        gapRel=budget.gap,
        gapAbs=0.0,
        random_seed=budget.seed % 2**31,
        callbackTuple=(listen, None),
        callbacksToActivate=[events.kCallbackMipImprovingSolution, events.kCallbackMipInterrupt],
    )
    solver.createAndConfigureSolver(model)
    solver.buildSolverModel(model)
    highs, model.solverModel = model.solverModel, None  # Python cannot free a reference cycle through HiGHS
    if model.objective is not None and all(variable.lowBound == variable.upBound for variable in model.objective):
        highs.setOptionValue("mip_heuristic_effort", 0.0)  # heuristics gain nothing where the objective is fixed
    return highs


def minimise_by_cbc(model: Any, budget: Budget, tell: Callable[[Mapping[str, float]], None]) -> MilpOutcome:
    """`minimise` with CBC, which tells its last solution alone, and proves a bound only if it ends in time.

    Raises:
        InputError: if CBC is not installed either.
    """
    with loading():
        import pulp

    solver = pulp.COIN_CMD(
        msg=False,
        threads=1,
        timeLimit=budget.brake_s,
        gapRel=budget.gap,
        options=[f"randomCbcSeed {budget.seed % 2**31}"],
    )
    if not solver.available():
        raise InputError("integer programs need HiGHS or CBC, and neither is installed; `pip install highspy`")
    status = model.solve(solver)
    if status == pulp.LpStatusInfeasible:
        return MilpOutcome(inf, 0)
    if model.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        tell({variable.name: float(variable.value() or 0.0) for variable in model.variables()})
    proved = model.sol_status == pulp.LpSolutionOptimal
    return MilpOutcome(float(pulp.value(model.objective)) * (1 - budget.gap) if proved else 0.0, 0)
