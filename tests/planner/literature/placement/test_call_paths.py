"""The bound from paths through calls: by hand, and against all placements of small problems."""

from math import inf
from typing import Any

import pytest
from hypothesis import given

from planner.literature.placement.call_paths import MOST_OPS, call_path_bound
from planner.literature.placement.offload import OffloadTable
from planner.problem.problem import Goal, Problem
from tests.planner.literature.placement.offloads import make_offload, offload_table, offload_tables, offloads
from tests.planner.problem.problems import brute_force

ROUNDING = 1e-9
ROW = [(0, (1,), 4.0), (1, (2,), 6.0)]


def bound_s(table: OffloadTable) -> Any:
    return pytest.approx(call_path_bound(table))


def test_a_path_that_fits_is_one_call() -> None:
    assert bound_s(offload_table([[1, 9], [2, 9], [3, 9]], ROW)) == 1 + 2 + 3


def test_operators_that_do_not_fit_together_store_and_fetch() -> None:
    # on the only accelerator one of op1 and op2: (1 + 2 + 6 to store) + 9 on the host, or (4 + 6 to fetch, 3) on it
    table = offload_table([[1, 9], [2, 9], [3, 9]], ROW, op_bytes=[0, 5, 5], capacity_bytes=8.0)
    assert bound_s(table) == min(1 + 2 + 6 + 9, 9 + 9 + 6 + 3, 1 + 4 + 9 + 9, 9 + 4 + 2 + 6 + 9)
    # with two accelerators: one stores for 6 s, the other one fetches for 6 s; the host is too slow
    table = offload_table([[1, 1, 99], [2, 2, 99], [3, 3, 99]], ROW, op_bytes=[0, 5, 5], capacity_bytes=8.0)
    assert bound_s(table) == 1 + 2 + 6 + 6 + 3


def test_what_is_between_two_operators_is_in_their_call() -> None:
    # op1 and op2 are both between op0 and op3, so one call takes 1 + 5 + 5 + 1; the quick path alone would take 7
    flows = [(0, (1, 2), 50.0), (1, (3,), 50.0), (2, (3,), 50.0)]
    assert bound_s(offload_table([[1, 90], [5, 90], [5, 90], [1, 90]], flows)) == 12
    # and their bytes have to fit, else a path goes over the host or through two calls
    table = offload_table([[1, 90]] * 4, flows, op_bytes=[1, 4, 4, 1], capacity_bytes=9.0)
    assert bound_s(table) == min(1 + 50 + 90 + 50 + 1, 1 + 1 + 50 + 90, 90 + 50 + 1 + 1)


def test_an_operator_that_only_the_host_runs_divides_its_path() -> None:
    assert bound_s(offload_table([[1, 9], [inf, 2], [3, 9]], ROW)) == 1 + 4 + 2 + min(6 + 3, 9)


def test_a_path_of_more_calls_than_accelerators_has_no_placement() -> None:
    rows = [[1.0, inf], [inf, 1.0], [1.0, inf]]
    assert call_path_bound(offload_table(rows, ROW)) == inf
    assert bound_s(offload_table([[first, *row] for first, row in zip((1, inf, 1), rows, strict=True)], ROW)) == 13


def test_without_accelerators_the_host_works_through_the_longest_path() -> None:
    assert bound_s(make_offload([[2], [3], [4]], [(0, (1, 2), 1.0)], hosts=[0])) == 2 + 4


def test_too_many_operators_get_no_bound() -> None:
    assert call_path_bound(make_offload([[1, 1]] * (MOST_OPS + 1), hosts=[1])) == 0


@given(offloads(max_ops=5) | offload_tables(max_ops=5))
def test_no_placement_beats_it(table: OffloadTable) -> None:
    assert call_path_bound(table) <= brute_force(Problem(table, Goal.LATENCY)) * (1 + ROUNDING)
