"""The integer programs: by hand, against their own constraints, and what they prove."""

import gc
import json
from collections.abc import Callable
from itertools import product
from math import inf
from pathlib import Path
from random import Random
from typing import Any
from weakref import ref

import numpy as np
import pytest

from costmodels.table import CostTable
from planner.literature.placement.ilp import OffloadILP
from planner.literature.placement.offload import OffloadTable
from planner.problem.blocks import by_priority, merge_blocks
from planner.problem.bounds import longest_paths, lower_bound
from planner.problem.problem import Goal, Problem
from planner.problem.reporter import Reporter
from planner.solvers.base import Answer, Budget
from planner.solvers.milp.ilp import ILP, merge_forced
from planner.solvers.milp.latency import as_early_as_possible, incomparable
from planner.solvers.portfolio import PORTFOLIO
from simulator.placement import Placement
from tests.planner.problem.problems import make_table, value
from tests.planner.solvers.law.random_problems import KINDS, random_problem

CANONICAL = Path(__file__).parents[5] / "shared" / "bench" / "dag" / "canonical.json"


def search(table: CostTable, goal: Goal, incumbent: Placement | None = None, gap: float = 0.0) -> Answer:
    problem = Problem(table, goal)
    return ILP().search(problem, Budget(1e3, gap, incumbent=incumbent, bound_s=lower_bound(problem)))


def objective_s(table: CostTable, goal: Goal, answer: Answer) -> float:
    return inf if answer.placement is None else value(Problem(table, goal), answer.placement)


def test_it_finds_what_no_interval_can() -> None:
    # 3 + 3 | 2 + 2 + 2, which are no neighbours
    table = make_table([[c, c] for c in (3, 2, 3, 2, 2)])
    answer = search(table, Goal.THROUGHPUT)
    assert objective_s(table, Goal.THROUGHPUT, answer) == 6
    assert answer.bound_s == pytest.approx(6, rel=1e-5)


def test_it_runs_two_branches_at_once() -> None:
    # 1, then 4 beside 1 sent + 3 + 1 sent, then 1
    table = make_table([[1, 1], [4, 4], [3, 3], [1, 1]], [(0, (1, 2), 1), (1, (3,), 1), (2, (3,), 1)])
    answer = search(table, Goal.LATENCY)
    assert objective_s(table, Goal.LATENCY, answer) == 1 + (1 + 3 + 1) + 1
    assert answer.bound_s == pytest.approx(7, rel=1e-5)


def test_it_finds_the_order() -> None:
    table = make_table([[5, 5], [1, 1], [5, 5]], [(1, (2,), 0)])
    answer = search(table, Goal.LATENCY)
    assert objective_s(table, Goal.LATENCY, answer) == 1 + 5


def test_an_optimum_that_presolve_finds_is_a_bound() -> None:
    problem = random_problem("throughput", 115_000_019)
    answer = ILP().search(problem, Budget(60.0, gap=0.0))
    assert answer.placement is not None
    assert value(problem, answer.placement) == 2.5
    assert answer.bound_s == pytest.approx(2.5, rel=1e-5)


@pytest.mark.attack("proof")
def test_a_bound_that_is_a_millionth_of_the_worst_placement_is_no_noise() -> None:
    # computing takes 0.4 us, and a transfer that the start has takes seconds
    problem = random_problem("cost", 108_000_068)
    for pair in product(range(3), repeat=2):
        start = Placement((*pair, pair[0]))
        answer = ILP().search(problem, Budget(60.0, gap=0.0, incumbent=start, bound_s=0.0))
        assert answer.placement is not None
        assert value(problem, answer.placement) == pytest.approx(4e-7)
        assert 3.9999e-7 < answer.bound_s < 4e-7 * (1 + 1e-9)


@pytest.mark.attack("proof")
@pytest.mark.parametrize("goal", [Goal.THROUGHPUT, Goal.LATENCY, Goal.COST])
def test_the_only_placement_is_not_lost_where_it_is_the_worst_one_too(goal: Goal) -> None:
    # op0 runs on dev0 only, op1 on dev1 only
    table = make_table([[3, inf], [inf, 0]], [(0, (1,), 0)])
    assert objective_s(table, goal, search(table, goal)) == 3


@pytest.mark.attack("proof")
def test_tensors_on_their_way_at_once_are_not_added_up() -> None:
    # op0 on dev0 sends two tensors of 4 s to op1 on dev1, both at once: 1 + 4 + 1
    table = make_table([[1, inf], [inf, 1]], [(0, (1,), 4), (0, (1,), 4)], sharing="unlimited")
    answer = search(table, Goal.LATENCY)
    assert objective_s(table, Goal.LATENCY, answer) == 1 + 4 + 1
    assert answer.bound_s <= 6


@pytest.mark.attack("proof")
def test_latencies_of_a_channel_that_is_shared_fairly_pass_at_once() -> None:
    # op0 and op1 on dev0 send a tensor of 5 s of latency each over one channel; the second leaves at 2: 2 + 5 + 1
    rows = [[1.0, inf], [1.0, inf], [inf, 1.0]]
    table = make_table(rows, [(0, (2,), 0), (1, (2,), 0)], link_s=5.0, sharing="fair")
    answer = search(table, Goal.LATENCY)
    assert objective_s(table, Goal.LATENCY, answer) == 2 + 5 + 1
    assert answer.bound_s <= 8


@pytest.mark.attack("proof")
@pytest.mark.parametrize("goal", [Goal.THROUGHPUT, Goal.COST])
def test_what_is_short_beside_the_longest_time_is_not_lost(goal: Goal) -> None:
    # op0 runs on dev0 only, op1 on dev1 only; the bound without transfers is a ten-billionth of the transfer
    table = make_table([[1e-6, inf], [inf, 1e-6]], [(0, (1,), 1e4)])
    assert objective_s(table, goal, search(table, goal)) == pytest.approx(1e4)


@pytest.mark.attack("proof")
def test_what_is_a_billionth_of_a_unit_proves_nothing_wrong() -> None:
    rows = [[1e-3, 1.0], [1e-3, 1e-9], [1.0, 1.0], [1e-3, inf], [1e-3, 1e-9], [1e-9, inf]]
    table = make_table(rows, [(1, (2,), 0), (2, (5,), 0)])  # 1 + 1e-3 of op0 + 1e-3 of op3 + 3e-9
    assert search(table, Goal.COST).bound_s <= 1.002000003 * (1 + 1e-9)


@pytest.mark.attack("proof")
def test_a_better_placement_is_found_though_presolving_leaves_nothing_to_minimise() -> None:
    # op3 takes 20 s on dev2, the others have room elsewhere; the start is worth 24.5
    rows = [[1.0, 0.5, 4.0], [1.0, 20.0, 1.0], [4.0, 1.0, 0.5], [0.0, 4.0, 20.0], [0.5, 4.0, 0.0]]
    hands_over, n_bytes, room = [0.5, 0.5, 0], [2, 0, 2, 5, 1], [4, 4, 6]
    table = make_table(rows, [(2, (4,), 0)], overhead_s=hands_over, op_bytes=n_bytes, capacity_bytes=room)
    answer = search(table, Goal.THROUGHPUT, Placement((0, 1, 0, 2, 1)))
    assert objective_s(table, Goal.THROUGHPUT, answer) == 20


def test_it_proves_that_nothing_fits() -> None:
    # 18 of 20 bytes, but no two of the three are on one device
    table = make_table([[1, 1]] * 3, op_bytes=[6, 6, 6], capacity_bytes=[10, 10])
    for goal in PORTFOLIO:
        answer = search(table, goal)
        assert (answer.placement, answer.complete) == (None, True)


def test_it_proves_that_no_link_is_left() -> None:
    table = make_table([[1, inf], [inf, 1]], [(0, (1,), 0)], link_s=inf)
    assert search(table, Goal.THROUGHPUT).complete


def test_a_model_that_is_too_large_is_not_written_down() -> None:
    table = make_table([[1, 1]] * 12_000)
    start = Placement((0,) * 12_000)
    answer = search(table, Goal.THROUGHPUT, start)
    assert answer.placement == start
    assert answer.bound_s == pytest.approx(6_000)


def test_out_of_time_it_returns_the_incumbent_with_the_bound() -> None:
    table = make_table([[1, 1]] * 50, [(op, (op + 1,), 1) for op in range(49)])
    start = Placement((0,) * 50)
    answer = ILP().search(Problem(table, Goal.THROUGHPUT), Budget(0.0, incumbent=start))
    assert (answer.placement, answer.complete) == (start, False)
    assert answer.bound_s == pytest.approx(25)


def test_programs_one_after_another_share_the_time() -> None:
    limits_s, found = list[float](), [Placement((0, 0, 0, 1)), Placement((0, 0, 0, 0))]

    class Program:
        """Finds the next placement in three quarters of its steps, and proves nothing."""

        def __init__(self, *_: object) -> None:
            pass

        def build(self, _: Budget) -> bool:
            return True

        def minimise(self, budget: Budget, _: object, tell: Callable[[Placement], None]) -> tuple[float, float]:
            limits_s.append(budget.time_limit_s)
            tell(found.pop(0))
            return 0.0, 0.75

    class Finding(ILP):
        """Has that program."""

        def program_of(self, _: Problem) -> Any:
            return Program

    problem = Problem(make_table([[1, 10]] * 4), Goal.COST)  # 40 s, then 13 s, then 4 s
    answer = Finding().search(problem, Budget(64.0, 0.0, incumbent=Placement((1, 1, 1, 1))))
    assert answer.placement == Placement((0, 0, 0, 0))
    assert limits_s == [64.0, 16.0]
    assert answer.spent == 0.75 + 0.25 * 0.75


def test_it_stops_within_the_gap() -> None:
    table = make_table([[c, c] for c in (5, 4, 3, 3)])  # 5 + 4 | 3 + 3; 8 is possible, and the bound is 15 / 2
    answer = search(table, Goal.THROUGHPUT, Placement((0, 0, 1, 1)), gap=0.2)
    assert 7.5 - 1e-4 <= answer.bound_s <= 8 <= objective_s(table, Goal.THROUGHPUT, answer) <= 9


def test_the_same_input_gives_the_same_placement() -> None:
    rows = [[float(c), float(c), float(c)] for c in (7, 3, 5, 9, 2, 4, 6, 8, 3, 5, 7, 2)]
    flows = [(op, (op + 1, min(op + 4, 11)) if op < 10 else (op + 1,), 1.0) for op in range(11)]
    for goal in PORTFOLIO:
        table = make_table(rows[:8] if goal is Goal.LATENCY else rows, flows[:4] if goal is Goal.LATENCY else flows)
        assert search(table, goal) == search(table, goal)


def test_the_reporter_hears_of_every_better_placement() -> None:
    heard: list[float] = []

    class Ear(Reporter):
        def on_incumbent(self, solver: str, objective_s: float, bound_s: float, wall_s: float) -> None:  # noqa: ARG002 (it is a listener's signature)
            heard.append(objective_s)

    problem = Problem(make_table([[c, c] for c in (3, 2, 3, 2, 2)]), Goal.THROUGHPUT)
    ILP().search(problem, Budget(1e3, gap=0.0, incumbent=Placement((0,) * 5), reporter=Ear()))
    assert heard[-1] == 6
    assert heard == sorted(heard, reverse=True)


def test_ends_that_no_better_placement_parts_are_one() -> None:
    # to send t0 (7 s) makes op1's device busy for 7 + 3: nothing below 10 does it; t1 (1 s) can still be sent
    table = make_table([[2, 2], [3, 3], [4, 4]], [(0, (1,), 7), (1, (2,), 1)], overlap=False)
    problem = Problem(table, Goal.THROUGHPUT)
    assert merge_forced(problem, 10.0).members == ((0, 1), (2,))
    assert merge_forced(problem, 10.1).members == ((0,), (1,), (2,))
    # with overlap, t0 keeps its channel busy for 7
    contends = Problem(make_table(table.forward_s, [(0, (1,), 7), (1, (2,), 1)]), Goal.THROUGHPUT)
    assert merge_forced(contends, 10.0).members == ((0,), (1,), (2,))
    assert merge_forced(contends, 7.0).members == ((0, 1), (2,))


def test_merged_ends_weigh_more_and_may_merge_again() -> None:
    # with op0 and op1 as one of 5 s, to send t1 takes 5 + 4 too
    table = make_table([[2, 2], [3, 3], [2, 2]], [(0, (1,), 7), (1, (2,), 4)], overlap=False)
    assert merge_forced(Problem(table, Goal.THROUGHPUT), 9.0).members == ((0, 1, 2),)


def test_latency_merges_what_makes_the_longest_path_too_long() -> None:
    # op0 (2) 7 sent op1 (3) 0 sent op2 (4): 16 if t0 is sent
    table = make_table([[2, 2], [3, 3], [4, 4]], [(0, (1,), 7), (1, (2,), 0)])
    problem = Problem(table, Goal.LATENCY)
    assert merge_forced(problem, 16.0).members == ((0, 1), (2,))
    assert merge_forced(problem, 16.1).members == ((0,), (1,), (2,))


def test_columns_are_counted_before_they_are_made() -> None:
    table = make_table([[1, 1]] * 3, [(0, (1,), 1), (1, (2,), 1)], overlap=False)
    for goal in sorted(ILP().goals):
        problem = Problem(table, goal)
        blocks = merge_blocks(table)
        model = ILP().program_of(problem)(blocks, 1.0, 9.0)
        assert model.build(Budget(1e3))
        assert len(model.model.variables()) <= ILP().count_columns(problem, blocks) + 1 + table.n_ops


def test_programs_are_freed() -> None:
    problem = Problem(make_table([[1, 2], [2, 1]]), Goal.THROUGHPUT)
    models = []
    for _ in range(4):
        program = ILP().program_of(problem)(merge_blocks(problem.table), 1.0, 9.0)
        assert program.build(Budget(1e3))
        program.minimise(Budget(1e3), None, lambda _: None)
        models.append(ref(program.model))
        del program
    gc.collect()
    assert sum(model() is not None for model in models) <= 1  # HiGHS may keep the first or the last one


def test_paths_and_pairs_of_a_diamond() -> None:
    table = make_table([[1, 2], [4, 4], [3, 3], [1, 1]], [(0, (1, 2), 1), (1, (3,), 1), (2, (3,), 1)])
    head_s, tail_s = longest_paths(table)
    assert head_s.tolist() == [0, 1, 1, 1 + 4]
    assert tail_s.tolist() == [1 + 4 + 1, 4 + 1, 3 + 1, 1]
    assert list(incomparable(table)) == [(1, 2)]
    # op2 on dev1: starts when t0 is there, op3 when both are; t2 comes back at 2 + 3 + 1
    assert as_early_as_possible(table, Placement((0, 0, 1, 0))) == [0, 1, 2, 6]
    assert by_priority([0.0, -2.0, -1.0, -5.0], table.edges) == [0, 2, 1, 3]
    assert by_priority([-9.0, -2.0, -1.0, 0.0], table.edges) == [0, 2, 1, 3]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "contiguous" not in kind])
def test_every_feasible_placement_is_a_solution_of_the_program(kind: str) -> None:
    for seed in range(40):
        problem = random_problem(kind, seed).contended
        blocks, random = merge_blocks(problem.table), Random(seed)
        solver = OffloadILP() if isinstance(problem.table, OffloadTable) else ILP()
        if solver.refuses(problem) or problem.goal not in solver.goals or not blocks.fits.any(axis=1).all():
            continue
        placement = blocks.spread([random.choice(np.flatnonzero(fits).tolist()) for fits in blocks.fits])
        upper_s = value(problem, placement)
        if not 0 < upper_s < inf:
            continue
        model = solver.program_of(problem)(blocks, 0.0, upper_s)
        assert model.build(Budget(1e3))
        for variable, number in model.start(placement).items():
            variable.varValue = number
        assert all(variable.varValue is not None for variable in model.model.variables())
        assert all(constraint.valid(1e-9) for constraint in model.model.constraints())
        assert all(v.lowBound - 1e-9 <= v.varValue <= v.upBound + 1e-9 for v in model.model.variables())


@pytest.mark.skipif(not CANONICAL.exists(), reason="needs the literature's examples beside the repository")
@pytest.mark.parametrize("name", ["topcuoglu_2002", "arabnejad_2014"])
def test_the_optimum_of_the_literature_is_proved_as_a_bound(name: str) -> None:
    # There, messages never wait for each other, as in the program; in the simulator they do.
    example = json.loads(CANONICAL.read_text())[name]
    table = make_table(example["compute"], [(writer, (reader,), cost) for writer, reader, cost in example["edges"]])
    start = Placement((1,) * table.n_ops)
    assert search(table, Goal.LATENCY, start).bound_s == pytest.approx(example["makespan"]["optimum"], rel=1e-5)
