"""Copies of a network: worked out by hand, and never better than the bound or worse than claimed."""

from collections.abc import Sequence
from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.table import CostTable
from planner.problem.bounds import lower_bound
from planner.problem.evaluate import evaluate
from planner.problem.problem import Goal, Problem
from planner.problem.result import Result
from planner.solvers.copies import MOST_COPIES, copies_of_everything, copies_of_stages
from planner.solvers.solve import solve
from simulator.placement import Placement
from tests.costmodels.parts import table_with
from tests.planner.problem.problems import make_table, tables


def line(*n_bytes: float) -> list[tuple[int, tuple[int, ...], float]]:
    """Each operator feeds the next one."""
    return [(i, (i + 1,), size) for i, size in enumerate(n_bytes)]


def problem_of(table: CostTable) -> Problem:
    return Problem(table, Goal.THROUGHPUT, copies=True)


def quickly(problem: Problem) -> Result:
    return solve(problem, time_limit_s=1.0, gap=0.0)


def best_of_stages(problem: Problem) -> tuple[float, Placement]:
    found = copies_of_stages(problem, quickly, inf, 0.0)
    return min(((evaluate(problem, one).objective_s, one) for one in found), key=lambda pair: pair[0])


def devices(placement: Placement) -> list[tuple[int, ...]]:
    return [copy.device for copy in placement.copies]


def test_a_device_that_is_twice_as_slow_gets_half_as_many() -> None:
    # 4 s on the fast devices, 8 s on the slow one: in 8 s two, two and one are through
    problem = problem_of(make_table([[1, 1, 2]] * 4, line(0.01, 0.01, 0.01)))
    placement = copies_of_everything(problem, 0.0)
    assert placement is not None
    assert sorted(copy[0] for copy in devices(placement)) == [0, 0, 1, 1, 2]
    assert evaluate(problem, placement).objective_s == lower_bound(problem) == 8 / 5


@pytest.mark.parametrize(("slow", "counts"), [(1.0, [1, 1]), (3.0, [3, 1]), (1.5, [3, 2]), (1000.0, [])])
def test_the_fewest_copies_that_are_enough(slow: float, counts: Sequence[int]) -> None:
    placement = copies_of_everything(problem_of(make_table([[1.0, slow]])), 0.01)
    found = [] if placement is None else [copy[0] for copy in devices(placement)]
    assert [found.count(device) for device in (0, 1)] == (counts or [0, 0])


def test_a_stage_that_cannot_be_cut_gets_two_devices_and_the_rest_one() -> None:
    # a and c, 2 s each, and b, 10 s, of which the weights of two at most fit on a device: b on two of them takes 5 s a
    # micro-batch, a and c on the third 4 s
    table = make_table([[2] * 3, [10] * 3, [2] * 3], line(0.01, 0.01), op_bytes=[4, 1, 4], capacity_bytes=[8.1] * 3)
    seconds, placement = best_of_stages(problem_of(table))
    assert copies_of_everything(problem_of(table), 0.0) is None
    assert seconds == 5.0
    ends, middle, other_ends = zip(*devices(placement), strict=True)
    assert (len({*ends, *other_ends}), len({*middle}), {*middle} & {*ends}) == (1, 2, set())


def test_only_some_devices_can_run_everything() -> None:
    # b runs on the two GPUs only: copies of everything there, or a and c on the CPU beside copies of b
    table = make_table([[2, 2, 3], [4, 4, inf], [2, 2, 3]], line(0.01, 0.01))
    whole = copies_of_everything(problem_of(table), 0.0)
    assert whole is not None
    assert devices(whole) == [(0, 0, 0), (1, 1, 1)]
    assert evaluate(problem_of(table), whole).objective_s == 4.0
    # a on the CPU takes 3 s, b and c on two GPUs 6 / 2
    assert best_of_stages(problem_of(table))[0] == 3.0


def test_copies_on_a_host_that_share_its_cache_leave_another_device_out() -> None:
    # two parts of a host slow each other down to 8 s, but hardly as copies: 4.4 s; a third device of 12 s beside
    # them would have each third micro-batch or so take as long as there
    table = make_table(
        [[2, 2, 6]] * 2,
        line(0.01),
        slowdown=np.ones((2, 3)),
        copies_slowdown=np.full((2, 3), 0.1),
        contention_group=np.array([0, 0, 2]),
    )
    problem = problem_of(table)
    placement = copies_of_everything(problem, 0.0)
    assert placement is not None
    assert devices(placement) == [(0, 0), (1, 1)]
    assert lower_bound(problem) <= evaluate(problem, placement).objective_s == pytest.approx(2.2)


def test_a_weight_is_held_once_for_all_copies() -> None:
    table = make_table([[1.0, 2.0]] * 2, op_bytes=[5, 7], working_bytes=3.0)
    placement = copies_of_everything(problem_of(table), 0.0)
    assert placement is not None
    assert len(placement.copies) == 3  # two of three micro-batches go to the fast device
    assert evaluate(problem_of(table), placement).memory_bytes.tolist() == [15, 15]


def test_many_devices_take_turns_too() -> None:
    table = make_table(np.ones((30, 24)), line(*[0.001] * 29), op_bytes=[1.0] * 30, capacity_bytes=[16.0] * 24)
    seconds, placement = best_of_stages(problem_of(table))
    assert len(placement.copies) <= MOST_COPIES
    assert seconds < 1.3  # 30 / 24 = 1.25; of one copy 2, since operators cannot be cut


def least_of(table: CostTable, n_copies: int) -> float:
    """The best of all ways to place so many copies."""
    problem, least_s = problem_of(table), inf
    every = [Placement(device) for device in product(range(table.n_devices), repeat=table.n_ops)]
    for copies in product(every, repeat=n_copies):
        try:
            judged = evaluate(problem, Placement(copies[0].device, others=copies[1:]))
        except ValueError:  # no link, or an operator that cannot run there
            continue
        least_s = min(least_s, judged.objective_s if judged.feasible else inf)
    return least_s


@st.composite
def crowds(draw: st.DrawFn) -> CostTable:
    """Random tables, as a rule of devices that slow each other down, less or more as copies."""
    table = draw(tables(max_ops=3))
    if draw(st.integers(0, 2)) == 0:
        return table
    shape = table.forward_s.shape
    share = st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=table.forward_s.size, max_size=table.forward_s.size)
    group = np.array(draw(st.lists(st.integers(0, 1), min_size=shape[1], max_size=shape[1])))
    slowdown, copies = (np.array(draw(share)).reshape(shape) for _ in range(2))
    return table_with(table, slowdown=slowdown, copies_slowdown=copies, contention_group=group)


@settings(max_examples=25)
@given(crowds(), st.integers(1, 2))
def test_no_copies_are_below_the_bound_and_what_is_found_keeps_the_constraints(table: CostTable, n: int) -> None:
    problem = problem_of(table)
    bound_s, least_s = lower_bound(problem), least_of(table, n)
    assert bound_s <= least_s * (1 + 1e-9)
    found = [*copies_of_stages(problem, quickly, inf, 0.0), copies_of_everything(problem, 0.0)]
    for placement in (each for each in found if each is not None):
        judged = evaluate(problem, placement)
        if judged.feasible:
            assert judged.objective_s >= bound_s * (1 - 1e-9)
            if len(placement.copies) <= n:
                assert judged.objective_s >= least_of(table, len(placement.copies)) * (1 - 1e-9)
