"""solve: the front door. It picks solvers, judges every answer again and puts the proofs together."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from math import inf

from graphs.common import checks
from planner.problem import deadline
from planner.problem.bounds import lower_bound, streaming_bound
from planner.problem.deadline import now_s
from planner.problem.infeasible import infeasible_because, out_of_reach
from planner.problem.problem import Goal, Problem
from planner.problem.reporter import SILENT, Reporter
from planner.problem.result import PROOF_TOLERANCE, Interrupted, Result, Status
from planner.solvers.base import Answer, Budget, Solver, objective_of
from planner.solvers.exhaustive import Exhaustive
from planner.solvers.fewer_devices import MOST_JUDGED, on_fewer, worth_one_device
from planner.solvers.portfolio import AUTO, SolverTurn, opening_s, turns
from planner.solvers.single_moves import climbed
from simulator.placement import Placement

DEFAULT_GAP = 0.005
CLIMB = 0.1  # share of the time limit that single moves take at most, on top
MEANWHILE = 0.25  # seconds of a search for each second of the solver that it takes turns with
ONE_DEVICE = "one device"  # who finds a placement on one

NO_PLACEMENT = "no placement keeps the memory, the links and the groups at once; add memory, links or devices"
NOT_FOUND = "no placement was found, nor a proof that there is none; allow more time, or give the devices more memory"


def solve(
    problem: Problem,
    solver: str | Solver = AUTO,
    time_limit_s: float = 10.0,
    gap: float = DEFAULT_GAP,
    seed: int = 0,
    reporter: Reporter = SILENT,
) -> Result:
    """Find a placement of one copy and say how good it is.

    If micro-batches may take turns among copies (`Problem.copies`), the bound holds for any number of them. Solvers
    prove bounds for one copy, so the bound is then that of `lower_bound`.

    ``auto`` tries every placement if there are few. Otherwise it begins with the best single device, continues with the
    best contiguous placement for throughput or list scheduling for latency and, if that is not within the gap, with
    integer programming in turns with a local search, until time is up. The first two run even without time, and at the
    end single operators move while that helps. A longer search begins as a shorter one, and finds no worse an answer.

    Args:
        problem: the costs, the constraints and the goal.
        solver: one of `planner.solvers.portfolio.SOLVERS`, ``auto``, or a solver of your own.
        time_limit_s: seconds for everything; loading and compiling do not count. Searches count their work, so that
            the answer does not depend on the clock unless the result says so.
        gap: stop when the answer is at most this far from a bound, relative.
        seed: of every random choice.
        reporter: receives every better placement.

    Returns:
        The best placement of all that were tried, with the best bound for all that the problem allows; OPTIMAL only if
        they meet.

    Raises:
        InputError: for an unknown solver, one that does not serve the goal, or a limit that is no limit.
        Interrupted: on Ctrl-C, with the best result until then.
    """
    start_s = now_s()
    order = turns(problem, solver)
    asked = solver if isinstance(solver, str) else solver.name
    checks.seconds(time_limit_s, "the time limit")
    checks.share(gap, "the gap")
    checks.integer(seed, "the seed")
    checks.instance(reporter, Reporter, "the reporter", "a Reporter")
    single = replace(problem, copies=False)
    bound_s = lower_bound(single)
    heard = _Heard(reporter)
    search = _SearchState(single, Budget(time_limit_s, gap, start_s, bound_s=bound_s, seed=seed, reporter=heard))
    advice = infeasible_because(problem.table, bound_s)
    if advice:
        return search.nothing(Status.INFEASIBLE, asked, advice)
    try:
        search.take(order, auto=solver == AUTO)
    except KeyboardInterrupt as stopped:
        if heard.placement is None:
            raise
        search.keep(heard.solver, heard.placement)
        raise Interrupted(_of_all(problem, search.result(asked))) from stopped
    found = _of_all(problem, search.result(asked))
    if found.by_clock:
        reporter.on_clock(asked)
    return found


def _of_all(problem: Problem, found: Result) -> Result:
    """Return an answer for one copy with a bound for any number of copies, if the problem allows them."""
    if not problem.copies or found.status is Status.INFEASIBLE:
        return found
    bound_s = min(found.objective_s, lower_bound(problem))
    if found.placement is None:
        return replace(found, bound_s=bound_s)
    proved = found.objective_s <= bound_s * (1 + PROOF_TOLERANCE)
    return replace(found, bound_s=bound_s, status=Status.OPTIMAL if proved else Status.FEASIBLE)


class _Heard(Reporter):
    """Passes on what solvers tell, and remembers their latest placement, for when the search is interrupted."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self.solver = ""
        self.placement: Placement | None = None

    def on_step(self, name: str, done: int, total: int) -> None:
        """Pass it on."""
        self._reporter.on_step(name, done, total)

    def on_incumbent(self, solver: str, objective_s: float, bound_s: float, wall_s: float) -> None:
        """Remember who it was, and pass it on."""
        self.solver = solver
        self._reporter.on_incumbent(solver, objective_s, bound_s, wall_s)

    def on_placement(self, placement: Placement) -> None:
        """Keep a placement, and pass it on."""
        self.placement = placement
        self._reporter.on_placement(placement)


class _AllHeard(_Heard):
    """Remembers all placements."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__(reporter)
        self.placements: list[Placement] = []

    def on_placement(self, placement: Placement) -> None:
        """Keep a placement, and pass it on."""
        super().on_placement(placement)
        self.placements.append(placement)


class _TakingTurns:
    """Two solvers that take turns: one that proves, and one that only searches.

    The searching one has a slice of time whenever all its slices are a small part of the time of the other one. Once
    that one gives up, the rest of the time is the searching one's. No slice depends on the time limit, which only cuts
    off the last one.
    """

    def __init__(self, state: "_SearchState", prover: Solver, searcher: Solver, slice_s: float) -> None:
        self._state, self._prover, self._searcher = state, prover, searcher
        self._proved_s = self._searched_s = 0.0
        self._slice_s = slice_s  # each takes twice as long as the one before

    def search(self) -> None:
        """Run both until the answer is good enough or time is up."""
        state = self._state
        state.run(self._prover, state.left_s / (1 + MEANWHILE), last=False, meanwhile=self._listen)
        while self._slice_s <= state.left_s and not state.ends(first=False):
            self._search_on(self._slice_s)
        if not state.ends(first=False):
            self._search_on(state.left_s)

    def _listen(self, seconds: float) -> None:
        """Let the searching solver search if it is its turn."""
        self._proved_s += seconds
        if MEANWHILE * self._proved_s >= self._searched_s + self._slice_s:
            self._search_on(self._slice_s)

    def _search_on(self, limit_s: float) -> None:
        """Let the searching solver search for its next slice."""
        slice_s, self._slice_s = self._slice_s, 2 * self._slice_s
        self._searched_s += slice_s
        self._state.run(self._searcher, limit_s, last=True, planned_s=slice_s)


class _SearchState:
    """The state of a search: the best placement, the solver that found it, and the best bound."""

    def __init__(self, problem: Problem, budget: Budget) -> None:
        self._problem, self._budget = problem, budget
        self._placement: Placement | None = None
        self._objective_s, self._bound_s = inf, budget.bound_s
        self._finder = ""
        self._complete = False
        self._contended_s = lower_bound(problem.contended) if problem.table.slowdown.any() else 0.0
        self._settled = False
        self._by_clock = False
        self._alone: tuple[Placement | None, float] = None, inf
        self._left_s = budget.time_limit_s  # by the solvers' own count
        self._runs = Counter[str]()
        self._heard_s = 0.0  # bound that solvers have proved, for devices that compute all the time

    def take(self, turns: Sequence[SolverTurn], auto: bool) -> None:
        """Take the turns of a search: single devices, the solvers, and what makes the best placement better.

        Each solver has a share of the time that is left. With ``auto``, no solver runs once the placement is good
        enough, and single operators move at the end.
        """
        self.try_single_devices()
        for number, turn in enumerate(turns):
            if auto and self.ends(first=number == 0):
                break
            if turn.meanwhile is not None:
                _TakingTurns(self, turn.solver, turn.meanwhile, opening_s(self._problem)).search()
            else:
                limit_s = min(turn.share * self.left_s, turn.most_s)
                self.run(turn.solver, limit_s, last=number + 1 == len(turns))
        self.spare()
        if auto:
            self.climb()

    def try_single_devices(self) -> None:
        """Try each single device that could be the best placement.

        All proofs rely on this: solvers prove optima for contended devices, and a single device may be faster.
        """
        for placement in worth_one_device(self._problem, lambda: self._objective_s):
            self.offer(ONE_DEVICE, placement, tell=True)
        self._alone = self._placement, self._objective_s

    def offer(self, finder: str, placement: Placement, tell: bool) -> None:
        """Take a placement if its evaluation is feasible and better than the best one, whatever its finder claims."""
        objective_s = objective_of(self._problem, placement)
        if objective_s < self._objective_s:
            self._placement, self._objective_s, self._finder = placement, objective_s, finder
            if tell:
                self._budget.reporter.on_incumbent(finder, objective_s, self._bound_s, self._budget.wall_s)
                self._budget.reporter.on_placement(placement)

    @property
    def left_s(self) -> float:
        """Seconds that are left, by the solvers' own count."""
        return self._left_s

    def run(
        self,
        solver: Solver,
        limit_s: float,
        last: bool,
        planned_s: float = 0.0,
        meanwhile: Callable[[float], None] | None = None,
    ) -> None:
        """Let a solver continue from here; for the seconds see `Budget`."""
        budget = replace(
            self._budget,
            time_limit_s=limit_s,
            start_s=now_s(),
            end_s=self._budget.start_s + deadline.BRAKE * self._budget.time_limit_s,
            before_s=self._budget.wall_s,
            incumbent=self._placement,
            seed=self._budget.seed + self._runs[solver.name],
            last=last,
            planned_s=planned_s,
            meanwhile=meanwhile or self._budget.meanwhile,
            prove=self._prove,
        )
        self._runs[solver.name] += 1
        answer = self._asked(solver, budget)
        self._left_s -= limit_s * answer.spent
        self._by_clock = self._by_clock or answer.by_clock or (budget.brake_s <= 0 and not answer.complete)
        if answer.placement is not None:
            self.offer(solver.name, answer.placement, tell=False)  # the solver has told already
        self._bound_s = max(self._bound_s, answer.bound_s)
        self._complete = self._complete or answer.complete

    def _asked(self, solver: Solver, budget: Budget) -> Answer:
        """Return the answer of a solver.

        All except the exhaustive one assume that all devices compute all the time. Their bounds hold for placements on
        several devices; single devices are tried before. For devices that pause, see `planner.problem.bounds`.
        """
        if isinstance(solver, Exhaustive) or not self._problem.table.slowdown.any():
            return solver.search(self._problem, replace(budget, bound_s=self._bound_s))
        contended, streams = self._problem.contended, self._problem.goal is Goal.THROUGHPUT
        known_s, heard = inf if streams else self._objective_s, _AllHeard(budget.reporter)
        asked = replace(budget, bound_s=self._contended_s, incumbent_s=known_s, reporter=heard)
        answer = solver.search(contended, asked)
        for placement in heard.placements:  # the best of contended devices need not be the best
            self.offer(solver.name, placement, tell=False)
        nothing = answer.placement is None
        objective_s = objective_of(contended, answer.placement) if answer.placement is not None else inf
        self._contended_s = max(self._contended_s, objective_s if answer.complete else answer.bound_s)
        self._settled = self._settled or objective_s * (1 - budget.gap) <= self._contended_s
        return replace(answer, bound_s=self._with_pauses(self._contended_s), complete=answer.complete and nothing)

    def _with_pauses(self, bound_s: float) -> float:
        """Return the bound for devices that need not compute all the time, from one for those that do."""
        pauses = self._problem.table.slowdown.any() and self._problem.goal is Goal.THROUGHPUT
        return streaming_bound(self._problem.table, bound_s) if pauses else bound_s

    def _prove(self, bound_s: float) -> None:
        """Hear of a bound that a solver has proved on its way."""
        self._heard_s = max(self._heard_s, bound_s)

    def keep(self, finder: str, placement: Placement) -> None:
        """Keep what a solver had found and proved when it was interrupted."""
        self.offer(finder, placement, tell=False)
        self._bound_s = max(self._bound_s, self._with_pauses(max(self._heard_s, self._contended_s)))

    def ends(self, first: bool) -> bool:
        """Return whether to stop: nothing is left to gain, or no time is left (after the first solver)."""
        if self._good_enough:
            return True
        self._by_clock = self._by_clock or self._budget.left_s <= 0
        return self._by_clock and not first and self._budget.left_s <= 0

    @property
    def _good_enough(self) -> bool:
        """Whether the answer is within the gap, all has been tried, or these solvers can find nothing more."""
        near = self._placement is not None and self._objective_s * (1 - self._budget.gap) <= self._bound_s
        return near or self._proved or self._complete or self._settled

    @property
    def _proved(self) -> bool:
        """Whether the bound proves the placement."""
        return self._placement is not None and self._objective_s <= self._bound_s * (1 + PROOF_TOLERANCE)

    def spare(self) -> None:
        """Do without devices that gain nothing: of placements within the gap, the one on fewer devices wins.

        Without a proof that this one is within the gap, one on fewer devices has to be as good.
        """
        if self._placement is None:
            return
        if self._complete:
            self._bound_s, self._complete = self._objective_s, False
        most_s = max(self._objective_s, self._bound_s / (1 - self._budget.gap))
        alone, alone_s = self._alone
        if alone is not None and alone_s <= most_s:
            self._placement, self._objective_s, self._finder = alone, alone_s, ONE_DEVICE
            return
        size, judged = self._problem.table.n_ops + len(self._problem.table.flows), count()

        def stop() -> bool:
            """Return whether many placements were judged and no time is left."""
            return next(judged) * size > MOST_JUDGED and self._budget.left_s <= 0

        self._placement = on_fewer(self._problem, self._placement, most_s, stop)
        self._objective_s = objective_of(self._problem, self._placement)

    def climb(self) -> None:
        """Move single operators as long as that helps; the finder of the placement stays the same.

        `Pipeline` has moved them on its way.
        """
        climbs = self._problem.goal is not Goal.TRAINING
        if climbs and self._placement is not None and not self._proved and not self._complete:
            moved = climbed(self._problem, self._placement, CLIMB * self._budget.time_limit_s)
            self.offer(self._finder, moved, tell=True)

    def result(self, asked: str) -> Result:
        """Return the answer."""
        if self._placement is None:
            if self._complete:
                return self.nothing(Status.INFEASIBLE, asked, NO_PLACEMENT)
            return self.nothing(Status.UNKNOWN, asked, NOT_FOUND)
        objective_s = self._objective_s
        bound_s = objective_s if self._complete else min(objective_s, self._bound_s)
        status = Status.OPTIMAL if self._complete or self._proved else Status.FEASIBLE
        advice = out_of_reach(self._problem.table, self._placement)
        by_clock = self._by_clock and not self._good_enough
        wall_s, spent_s = self._budget.wall_s, self._spent_s
        return Result(status, self._placement, objective_s, bound_s, wall_s, self._finder, advice, by_clock, spent_s)

    def nothing(self, status: Status, asked: str, advice: str) -> Result:
        """Return the answer without a placement."""
        bound_s = inf if status is Status.INFEASIBLE else self._bound_s
        by_clock = self._by_clock and status is Status.UNKNOWN
        return Result(status, None, inf, bound_s, self._budget.wall_s, asked, advice, by_clock, self._spent_s)

    @property
    def _spent_s(self) -> float:
        return self._budget.time_limit_s - self._left_s
