"""The front door: what it picks, what it refuses, what it claims and what it tells."""

import sys
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np
import pytest

from costmodels.table import CostTable
from graphs.common.errors import InputError
from planner.problem.bounds import lower_bound
from planner.problem.evaluate import evaluate
from planner.problem.problem import Goal, Problem
from planner.problem.reporter import Reporter
from planner.problem.result import Interrupted, Result, Status
from planner.solvers.base import Answer, Budget, Solver
from planner.solvers.portfolio import SOLVERS
from planner.solvers.solve import solve
from simulator.placement import Placement
from simulator.training import TrainingStep
from tests.costmodels.parts import table_with
from tests.planner.problem.problems import make_table


def line(n: int, n_devices: int = 3) -> CostTable:
    """Operators of 1 to 7 s that feed the next one."""
    rows = [[float(1 + op * 5 % 7)] * n_devices for op in range(n)]
    return make_table(rows, [(op, (op + 1,), 0.1) for op in range(n - 1)], overlap=False)


def branches(n: int) -> CostTable:
    """A first operator, n beside each other and a last one."""
    flows = [(0, tuple(range(1, n + 1)), 0.1), *((op, (n + 1,), 0.1) for op in range(1, n + 1))]
    return make_table([[1.0 + op % 3] * 2 for op in range(n + 2)], flows)


@dataclass(frozen=True)
class Fake:
    """A solver that answers what it is told to."""

    answer: Answer
    name: str = "fake"
    goals: frozenset[Goal] = frozenset(Goal)

    def refuses(self, problem: Problem) -> str:  # noqa: ARG002 (it takes everything)
        return ""

    def search(self, problem: Problem, budget: Budget) -> Answer:  # noqa: ARG002 (it does not even look)
        return self.answer


def solve_with(fake: Fake, table: CostTable, monkeypatch: pytest.MonkeyPatch) -> Result:
    # by its name among the modules, because the package has a function of that name
    monkeypatch.setattr(sys.modules["planner.solvers.portfolio"], "SOLVERS", {fake.name: fake})
    return solve(Problem(table, Goal.THROUGHPUT), "fake")


def test_a_tiny_problem_is_tried_out() -> None:
    result = solve(Problem(make_table([[4, 4], [3, 3], [2, 2], [1, 1]]), Goal.THROUGHPUT), gap=0.0)
    assert (result.status, result.objective_s, result.bound_s, result.gap) == (Status.OPTIMAL, 5, 5, 0)
    assert result.solver == "exhaustive"


def test_throughput_is_cut_into_intervals_first() -> None:
    result = solve(Problem(line(40), Goal.THROUGHPUT), time_limit_s=100.0, gap=0.05)
    assert result.solver == "chain-dp"
    assert result.gap <= 0.05


def test_then_integer_programming_proves_the_rest() -> None:
    # 40 s on two devices and 0.1 s to send on each side: a cut in half costs 20.1, the bound before is 20
    table = make_table([[5.0, 5.0]] * 12, [(op, (op + 1,), 0.1) for op in range(11)], overlap=False)
    result = solve(Problem(table, Goal.THROUGHPUT), time_limit_s=60.0, gap=0.0)
    assert result.objective_s == pytest.approx(30.1)
    assert (result.status, result.solver) == (Status.OPTIMAL, "chain-dp")


def test_latency_runs_branches_beside_each_other() -> None:
    result = solve(Problem(branches(10), Goal.LATENCY), time_limit_s=1.0)
    isolated = sum(1.0 + op % 3 for op in range(12))
    assert result.objective_s < 0.65 * isolated
    assert result.bound_s <= result.objective_s


def test_all_on_one_device_is_always_considered() -> None:
    # anything sent takes 99 s
    table = make_table([[5, 3]] * 12, [(op, (op + 1,), 99) for op in range(11)])
    result = solve(Problem(table, Goal.LATENCY))
    assert (result.objective_s, result.solver, result.status) == (36, "one device", Status.OPTIMAL)
    assert result.placement == Placement((1,) * 12)


def test_in_training_the_way_back_decides_which_devices_are_tried_alone() -> None:
    # five quick ones forward, of which the last takes the least there and back; what is sent takes 99 s
    table = make_table([[1, 2, 3, 4, 5]] * 3, [(0, (1,), 99), (1, (2,), 99)])
    table = table_with(table, backward_s=np.array([[9.0, 9.0, 9.0, 9.0, 1.0]] * 3))
    result = solve(Problem(table, Goal.TRAINING, step=TrainingStep("1f1b", 4)))
    assert (result.placement, result.solver) == (Placement((4,) * 3), "one device")


@pytest.mark.parametrize("goal", [goal for goal in Goal if goal is not Goal.GENERATION])
@pytest.mark.parametrize("solver", ["auto", *SOLVERS])
def test_the_same_input_gives_the_same_result(solver: str, goal: Goal) -> None:
    problem = Problem(branches(4) if goal is Goal.LATENCY else line(7), goal)
    if solver != "auto" and (goal not in SOLVERS[solver].goals or SOLVERS[solver].refuses(problem)):
        return
    time_limit_s = 4.0 if solver in ("local-search", "latency-search") else 200.0  # those go on, and prove nothing
    one, other = (solve(problem, solver, time_limit_s=time_limit_s, gap=0.0) for _ in range(2))
    assert (one.placement, one.objective_s, one.bound_s) == (other.placement, other.objective_s, other.bound_s)
    assert (one.status, one.solver) == (other.status, other.solver)


def test_an_infeasible_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table([[1, 1]] * 2, op_bytes=[6, 6], capacity_bytes=[10, 10])
    result = solve_with(Fake(Answer(Placement((0, 0)))), table, monkeypatch)
    assert (result.status, result.placement, result.objective_s) == (Status.UNKNOWN, None, inf)
    assert result.advice.startswith("no placement was found, nor a proof that there is none; allow more time")


def test_an_answer_that_is_no_placement_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    result = solve_with(Fake(Answer(Placement((0, 1, 5)))), make_table([[1, 1]] * 3), monkeypatch)
    assert result.solver == "one device"


def test_a_worse_answer_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    result = solve_with(Fake(Answer(Placement((0, 0)))), make_table([[3, 1], [3, 1]]), monkeypatch)
    assert (result.objective_s, result.solver) == (2, "one device")


def test_optimal_is_claimed_only_with_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table([[c, c] for c in (3, 2, 3, 2, 2)])
    best = Placement((0, 1, 0, 1, 1))
    assert solve_with(Fake(Answer(best)), table, monkeypatch).status is Status.OPTIMAL  # it meets lower_bound: 6
    table = make_table([[c, c] for c in (5, 4, 3, 3)])
    best = Placement((0, 1, 0, 1))  # 5 + 3 | 4 + 3, and the bound is 15 / 2
    assert solve_with(Fake(Answer(best)), table, monkeypatch).status is Status.FEASIBLE
    assert solve_with(Fake(Answer(best, bound_s=8.0)), table, monkeypatch).status is Status.OPTIMAL
    assert solve_with(Fake(Answer(best, complete=True)), table, monkeypatch).status is Status.OPTIMAL


def test_a_search_of_everything_that_found_nothing_is_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table([[1, 1]] * 3, op_bytes=[6, 6, 6], capacity_bytes=[10, 10])
    for result in (
        solve(Problem(table, Goal.THROUGHPUT)),
        solve_with(Fake(Answer(None, complete=True)), table, monkeypatch),
    ):
        assert (result.status, result.bound_s) == (Status.INFEASIBLE, inf)
        assert result.advice == (
            "no placement keeps the memory, the links and the groups at once; add memory, links or devices"
        )


def test_what_cannot_fit_is_said_at_once() -> None:
    table = make_table([[1, 1]] * 3, op_bytes=[2.0**30] * 3, capacity_bytes=[2.0**30] * 2)
    result = solve(Problem(table, Goal.LATENCY))
    assert result.status is Status.INFEASIBLE
    assert result.advice == "the operators need 3.00 GiB in all, the devices have 2.00 GiB; add memory or devices"
    assert result.gap == 1


@dataclass(frozen=True)
class Counting(Fake):
    """A solver that remembers the budgets that it gets."""

    budgets: list[Budget] = field(default_factory=list)

    def search(self, problem: Problem, budget: Budget) -> Answer:  # noqa: ARG002 (the answer is given)
        self.budgets.append(budget)
        return self.answer


def test_what_a_solver_leaves_over_by_its_own_count_goes_to_those_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = {
        name: Counting(Answer(None, spent=spent), name)
        for name, spent in (("chain-dp", 0.0), ("local-search", 1.0), ("ilp", 0.25))
    }
    monkeypatch.setattr(sys.modules["planner.solvers.portfolio"], "SOLVERS", fakes)
    problem = Problem(make_table([[c, c] for c in (5, 4, 3, 3) * 4]), Goal.THROUGHPUT)
    solve(problem, time_limit_s=100.0, gap=0.0)
    limits_s = {name: [round(budget.time_limit_s, 9) for budget in fake.budgets] for name, fake in fakes.items()}
    # 2.5 of 100 s; of the rest a fifth is kept for those that search in turns with ilp, which uses a quarter of its 78
    assert limits_s == {"chain-dp": [0.5], "local-search": [2.5, 2.5, 5.0, 10.0, 20.0, 40.0, 0.5], "ilp": [78.0]}
    first, *again = fakes["local-search"].budgets
    assert [budget.planned_s for budget in again] == [2.5, 5.0, 10.0, 20.0, 40.0, 80.0]  # the last one is cut off
    assert not first.last
    assert all(budget.last for budget in again)
    assert [budget.seed for budget in (first, *again)] == list(range(7))
    assert {budget.end_s for fake in fakes.values() for budget in fake.budgets} == {first.end_s}


@dataclass(frozen=True)
class Working(Counting):
    """A solver that spends 40 seconds by its own count, and remembers how often others have searched by then."""

    others: list[Budget] = field(default_factory=list)
    searched: list[int] = field(default_factory=list)

    def search(self, problem: Problem, budget: Budget) -> Answer:  # noqa: ARG002 (the answer is given)
        for _ in range(40):
            budget.meanwhile(1.0)
            self.searched.append(len(self.others))
        return self.answer


def test_a_search_takes_turns_with_a_proof_however_long_both_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, turns_s = Problem(make_table([[c, c] for c in (5, 4, 3, 3) * 4]), Goal.THROUGHPUT), []
    for limit_s in (100.0, 1000.0):
        searching = Counting(Answer(None, spent=1.0), "local-search")
        proving = Working(Answer(None, spent=0.4), "ilp", others=searching.budgets)
        fakes = {"chain-dp": Fake(Answer(None), "chain-dp"), "local-search": searching, "ilp": proving}
        monkeypatch.setattr(sys.modules["planner.solvers.portfolio"], "SOLVERS", fakes)
        solve(problem, time_limit_s=limit_s, gap=0.0)
        turns_s.append([proving.searched.index(number) + 1 for number in (1, 2, 3)])
    # after the first search, 2.5 s of searching after 10 s of proving, and 5 s more after 30 s: a quarter each time
    assert turns_s == [[1, 10, 30], [1, 10, 30]]


def test_an_unknown_solver() -> None:
    with pytest.raises(InputError, match=rf"^there is no solver 'magic'; known: auto, {', '.join(SOLVERS)}$"):
        solve(Problem(line(3), Goal.THROUGHPUT), "magic")


def test_a_solver_for_the_other_goal() -> None:
    able = "exhaustive, chain-dp, downset-dp, local-search, ilp"
    message = f"^the solver 'heft' cannot minimise throughput; these can: auto, {able}$"
    with pytest.raises(InputError, match=message):
        solve(Problem(line(3), Goal.THROUGHPUT), "heft")


@pytest.mark.parametrize("time_limit_s", [0.0, -1.0, np.nan])
def test_no_time(time_limit_s: float) -> None:
    with pytest.raises(InputError, match=r"the time limit is .*; give a number of seconds above 0"):
        solve(Problem(line(3), Goal.THROUGHPUT), time_limit_s=time_limit_s)


@pytest.mark.parametrize("gap", [-0.1, 1.0, np.nan])
def test_no_gap(gap: float) -> None:
    with pytest.raises(InputError, match=r"the gap is .*; give a number from 0 to below 1, such as 0.01 for 1 %"):
        solve(Problem(line(3), Goal.THROUGHPUT), gap=gap)


def test_the_reporter_hears_of_better_and_better_placements() -> None:
    heard: list[tuple[str, float, float]] = []

    class Ear(Reporter):
        def on_incumbent(self, solver: str, objective_s: float, bound_s: float, wall_s: float) -> None:
            assert wall_s >= 0
            heard.append((solver, objective_s, bound_s))

    result = solve(Problem(line(30), Goal.THROUGHPUT), gap=0.02, reporter=Ear())
    values = [objective_s for _, objective_s, _ in heard]
    assert values == sorted(values, reverse=True)
    assert values[-1] == result.objective_s
    assert heard[0][0] == "one device"
    assert all(bound_s <= objective_s for _, objective_s, bound_s in heard)


def test_a_thousand_operators_in_a_moment() -> None:
    rng = np.random.default_rng(0)
    rows = rng.lognormal(size=(1000, 1)) * [[1.0, 1.0, 2.0, 2.0]]
    table = make_table(rows, [(op, (op + 1,), 0.01) for op in range(999)], overlap=False)
    # a twentieth of the time is the first solver's: half a second would do, if nothing else ran
    result = solve(Problem(table, Goal.THROUGHPUT), time_limit_s=200.0, gap=0.01)
    assert (result.solver, result.gap <= 0.01) == ("chain-dp", True)


def test_a_solver_of_ones_own_is_run_and_judged_like_the_others() -> None:
    problem = Problem(branches(3), Goal.THROUGHPUT)
    result = solve(problem, Fake(Answer(Placement((1, 0, 0, 0, 0)))))
    assert (result.solver, result.objective_s) == ("fake", 8.0)  # 1 + 2 + 3 + 1 + 2 s, the first of them elsewhere
    assert result.bound_s == 4.5  # that of the problem: half of all work


def test_a_solver_of_ones_own_says_what_it_cannot() -> None:
    problem = Problem(branches(3), Goal.THROUGHPUT)
    with pytest.raises(InputError, match=r"^the solver 'fake' cannot minimise throughput; these can: auto, "):
        solve(problem, Fake(Answer(None), goals=frozenset({Goal.LATENCY})))


@dataclass(frozen=True)
class Stopped(Fake):
    """A solver that has found a placement when Ctrl-C comes."""

    def search(self, problem: Problem, budget: Budget) -> Answer:  # noqa: ARG002 (what it found is given)
        budget.reporter.on_incumbent(self.name, 0.0, budget.bound_s, 0.0)
        budget.reporter.on_placement(Placement((0, 0, 1, 1)))
        raise KeyboardInterrupt


@pytest.mark.attack("process")
def test_ctrl_c_keeps_the_best_until_then() -> None:
    problem = Problem(line(4), Goal.THROUGHPUT)
    with pytest.raises(Interrupted) as stopped:
        solve(problem, Stopped(Answer(None)))
    found = stopped.value.best
    assert (found.status, found.solver, found.placement) == (Status.FEASIBLE, "fake", Placement((0, 0, 1, 1)))
    assert 0 < found.bound_s <= found.objective_s == evaluate(problem, found.placement).objective_s


@dataclass(frozen=True)
class StoppedOnceItProves:
    """A solver that Ctrl-C stops when it has proved that a placement takes longer than some seconds."""

    solver: Solver
    longer_than_s: float
    told: list[float] = field(default_factory=list)
    name: str = "stopped"
    goals: frozenset[Goal] = frozenset(Goal)

    def refuses(self, problem: Problem) -> str:
        return self.solver.refuses(problem)

    def search(self, problem: Problem, budget: Budget) -> Answer:
        def prove(bound_s: float) -> None:
            budget.prove(bound_s)
            self.told.append(bound_s)
            if bound_s > self.longer_than_s:
                raise KeyboardInterrupt

        first = Placement(tuple(op % 2 for op in range(problem.table.n_ops)))
        budget.reporter.on_placement(first)
        return self.solver.search(problem, replace(budget, incumbent=first, prove=prove))


@pytest.mark.attack("proof")
@pytest.mark.parametrize(
    ("name", "goal", "contiguous"),
    [("ilp", Goal.THROUGHPUT, False), ("ilp", Goal.LATENCY, False), ("downset-dp", Goal.THROUGHPUT, True)],
)
def test_ctrl_c_keeps_the_bound_until_then(name: str, goal: Goal, contiguous: bool) -> None:
    rng = np.random.default_rng(0)
    flows = [(op, tuple(sorted({*rng.integers(op + 1, 12, 2).tolist()})), 1.0) for op in range(11)]
    table = make_table(rng.uniform(1.0, 9.0, (12, 3)), flows, link_s=0.5, overlap=False)
    problem = Problem(table, goal, contiguous=frozenset(range(12)) if contiguous else frozenset())
    stopped = StoppedOnceItProves(SOLVERS[name], lower_bound(problem) * 1.001)
    with pytest.raises(Interrupted) as interrupt:
        solve(problem, stopped, gap=0.0)
    found, best = interrupt.value.best, solve(problem, name, gap=0.0, time_limit_s=60.0)
    assert stopped.longer_than_s < stopped.told[-1] <= found.bound_s <= best.objective_s * (1 + 1e-9)


@pytest.mark.parametrize("goal", [Goal.THROUGHPUT, Goal.LATENCY, Goal.COST, Goal.TRAINING])
def test_however_late_it_is_the_first_answers_are_the_same(monkeypatch: pytest.MonkeyPatch, goal: Goal) -> None:
    # 60 equal operators in a line on four devices: one device alone takes 60 s, four take 15 s streaming
    table = make_table([[1.0] * 4] * 60, [(i, (i + 1,), 0.001) for i in range(59)])
    problem = Problem(table_with(table, backward_s=2 * table.forward_s), goal)
    found = solve(problem, time_limit_s=0.05, gap=0.05)
    monkeypatch.setattr("planner.problem.deadline.BRAKE", 1e-9)  # as on a machine that is as slow as that
    late = solve(problem, time_limit_s=0.05, gap=0.05)
    assert late.placement is not None
    if goal is Goal.THROUGHPUT:
        assert late.placement == found.placement
        assert 15 <= late.objective_s <= 15.1
    # a step of 8 micro-batches takes 1,440 s on one device, and on four a quarter and what fills and drains them
    assert late.objective_s <= (500.0 if goal is Goal.TRAINING else 60.0)


def test_few_placements_are_all_tried_however_late_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.problem.deadline.BRAKE", 1e-9)
    # 3 | 2; neither device alone has the memory for both
    problem = Problem(make_table([[3, 4], [9, 2]], op_bytes=[1, 1], capacity_bytes=[1, 1]), Goal.LATENCY)
    found = solve(problem, time_limit_s=1e-6)
    assert (found.status, found.objective_s, found.by_clock) == (Status.OPTIMAL, 3.0, False)


def test_it_says_that_the_clock_stopped_it(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(make_table([[c, c] for c in (5, 4, 3, 3) * 8]), Goal.THROUGHPUT)
    problem = replace(problem, table=replace(problem.table, together=((0, 31), (1, 7), (2, 9))))
    told: list[str] = []

    class Listens(Reporter):
        def on_clock(self, solver: str) -> None:
            told.append(solver)

    monkeypatch.setattr("planner.problem.deadline.BRAKE", 1e-9)
    late = solve(problem, time_limit_s=0.5, gap=0.0, reporter=Listens())
    assert late.by_clock == (late.status is not Status.OPTIMAL) == bool(told)
    monkeypatch.setattr("planner.problem.deadline.BRAKE", 1e3)
    assert not solve(problem, time_limit_s=0.05, gap=0.0, reporter=Listens()).by_clock
