"""The integer programs: by hand, against their own constraints, and what they prove."""

import json
from math import inf
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from costmodels.table import CostTable
from planner.bounds import lower_bound
from planner.problem import Goal, Problem
from planner.reporter import Reporter
from planner.solvers.base import Answer, Budget
from planner.solvers.blocks import merge_blocks
from planner.solvers.programs.ilp import ILP, count_columns, merge_forced
from planner.solvers.programs.latency import LatencyModel, as_early_as_possible, by_start, incomparable, longest_paths
from planner.solvers.programs.model import PlacementModel
from simulator.placement import Placement
from tests.planner.problems import make_table, tables, value

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


def test_it_proves_that_nothing_fits() -> None:
    # 18 of 20 bytes, but no two of the three are on one device
    table = make_table([[1, 1]] * 3, op_bytes=[6, 6, 6], capacity_bytes=[10, 10])
    for goal in Goal:
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


def test_it_stops_within_the_gap() -> None:
    table = make_table([[c, c] for c in (5, 4, 3, 3)])  # 5 + 4 | 3 + 3; 8 is possible, and the bound is 15 / 2
    answer = search(table, Goal.THROUGHPUT, Placement((0, 0, 1, 1)), gap=0.2)
    assert 7.5 - 1e-4 <= answer.bound_s <= 8 <= objective_s(table, Goal.THROUGHPUT, answer) <= 9


def test_the_same_input_gives_the_same_placement() -> None:
    rows = [[float(c), float(c), float(c)] for c in (7, 3, 5, 9, 2, 4, 6, 8, 3, 5, 7, 2)]
    flows = [(op, (op + 1, min(op + 4, 11)) if op < 10 else (op + 1,), 1.0) for op in range(11)]
    for goal in Goal:
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
    beside = Problem(make_table(table.forward_s, [(0, (1,), 7), (1, (2,), 1)]), Goal.THROUGHPUT)
    assert merge_forced(beside, 10.0).members == ((0,), (1,), (2,))
    assert merge_forced(beside, 7.0).members == ((0, 1), (2,))


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
    for goal in Goal:
        problem = Problem(table, goal)
        blocks = merge_blocks(table)
        kind = LatencyModel if goal is Goal.LATENCY else PlacementModel
        model = kind(blocks, 1.0, 9.0)
        assert model.build(Budget(1e3))
        assert len(model.model.variables()) <= count_columns(problem, blocks) + 1 + table.n_ops


def test_paths_and_pairs_of_a_diamond() -> None:
    table = make_table([[1, 2], [4, 4], [3, 3], [1, 1]], [(0, (1, 2), 1), (1, (3,), 1), (2, (3,), 1)])
    head_s, tail_s = longest_paths(table)
    assert head_s.tolist() == [0, 1, 1, 1 + 4]
    assert tail_s.tolist() == [1 + 4 + 1, 4 + 1, 3 + 1, 1]
    assert list(incomparable(table)) == [(1, 2)]
    # op2 on dev1: starts when t0 is there, op3 when both are; t2 comes back at 2 + 3 + 1
    assert as_early_as_possible(table, Placement((0, 0, 1, 0))) == [0, 1, 2, 6]
    assert by_start(table, [0.0, 2.0, 1.0, 5.0]) == (0, 2, 1, 3)
    assert by_start(table, [9.0, 2.0, 1.0, 0.0]) == (0, 2, 1, 3)


@settings(deadline=None)
@given(tables(), st.sampled_from(Goal), st.data())
def test_every_feasible_placement_is_a_solution_of_the_program(
    table: CostTable, goal: Goal, data: st.DataObject
) -> None:
    problem = Problem(table, goal)
    blocks = merge_blocks(table)
    assume(blocks.fits.any(axis=1).all())
    choices = [st.sampled_from([d for d in range(table.n_devices) if fits[d]]) for fits in blocks.fits]
    placement = blocks.spread([data.draw(choice) for choice in choices])
    upper_s = value(problem, placement)
    assume(0 < upper_s < inf)
    kind = LatencyModel if goal is Goal.LATENCY else PlacementModel
    model = kind(blocks, 0.0, upper_s)
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
