"""Bounds by hand; that none is ever above the truth is tested in test_solvers_agree.py."""

import numpy as np
import pytest

from costmodels.table import CostTable
from planner.bounds import infeasible_because, load_bound, lower_bound, lp_bound, packing_bound, path_bound
from planner.problem import Goal, Problem
from planner.solvers.blocks import merge_blocks
from tests.planner.problems import make_table

GIB = 2.0**30


def lp(table: CostTable) -> float:
    return lp_bound(merge_blocks(table))


def packing(table: CostTable) -> float:
    return packing_bound(merge_blocks(table))


def advice(table: CostTable) -> str:
    return infeasible_because(table, lower_bound(Problem(table, Goal.THROUGHPUT)))


def test_identical_devices_share_the_work() -> None:
    assert lp(make_table([[1, 1], [2, 2], [3, 3]])) == pytest.approx((1 + 2 + 3) / 2)


def test_faster_devices_take_more() -> None:
    # 6 s on dev0 or 3 s on dev1: dev0 takes a third, 6 / 3 = 3 * 2 / 3
    assert lp(make_table([[3, 1.5], [3, 1.5]])) == pytest.approx(2)


def test_each_goes_where_it_is_relatively_fast() -> None:
    # op0 on dev0 takes 2; op1 on dev1 takes 4, of which dev0 takes x at 6: 2 + 6 x = 4 (1 - x), x = 0.2
    assert lp(make_table([[2, 9], [6, 4]])) == pytest.approx(2 + 6 * 0.2)


def test_memory_pushes_work_to_the_slow_device() -> None:
    # two operators of 5 bytes, 1 s on dev0 and 10 s on dev1; dev0 has room for one
    rows, sizes = [[1, 10], [1, 10]], [5, 5]
    assert lp(make_table(rows, op_bytes=sizes, capacity_bytes=[10, 10])) == pytest.approx(2 * 10 / 11)
    assert lp(make_table(rows, op_bytes=sizes, capacity_bytes=[5, 10])) == pytest.approx(10)
    # the working memory takes room too
    assert lp(make_table(rows, op_bytes=sizes, capacity_bytes=[7, 12], working_bytes=2.0)) == pytest.approx(10)


def test_a_device_that_cannot_run_it_does_not_help() -> None:
    assert lp(make_table([[4, np.inf], [4, np.inf], [1, 1]])) == pytest.approx(8)


def test_operators_cannot_be_torn() -> None:
    # two of the three must share one of the two devices; five of 3, 3, 2, 2, 2 have three on one: 2 + 2 + 2
    assert packing(make_table([[2, 2]] * 3)) == 2 + 2
    assert packing(make_table([[3, 3], [3, 3], [2, 2], [2, 2], [2, 2]])) == max(3, 3 + 2, 2 + 2 + 2)
    assert packing(make_table([[5, 7, 6], [1, 1, 1]])) == 5  # alone, on its fastest device


def test_a_group_is_one_operator() -> None:
    table = make_table([[2, 2], [1, 1], [4, 4]], together=((0, 2),))
    assert load_bound(merge_blocks(table)) == 2 + 4


def test_a_path_must_be_worked_through() -> None:
    # op0 ─► op1 ─► op3, op0 ─► op2 ─► op3, each on its fastest device: 2 + max(3, 1) + 5
    table = make_table([[2, 4], [9, 3], [1, 1], [5, 6]], [(0, (1, 2), 9), (1, (3,), 9), (2, (3,), 9)])
    assert path_bound(table) == 2 + 3 + 5
    assert lower_bound(Problem(table, Goal.LATENCY)) == 10
    assert lower_bound(Problem(table, Goal.THROUGHPUT)) < 10


def test_many_independent_operators_bound_the_latency_by_the_load() -> None:
    table = make_table([[1, 1]] * 10)
    assert path_bound(table) == 1
    assert lower_bound(Problem(table, Goal.LATENCY)) == pytest.approx(5)


def test_nothing_to_do_takes_no_time() -> None:
    assert load_bound(merge_blocks(make_table(np.zeros((0, 2))))) == 0
    assert lower_bound(Problem(make_table([[0, 0], [0, 0]]), Goal.LATENCY)) == 0


def test_no_limit_of_memory() -> None:
    assert lp(make_table([[1, 1]] * 4, op_bytes=[5] * 4, capacity_bytes=[np.inf, np.inf])) == pytest.approx(2)


def test_a_bound_may_be_as_small_as_the_costs() -> None:
    assert lp(make_table([[1e-9, 1e-9], [3e-9, 3e-9]])) == pytest.approx(2e-9, rel=1e-9)


def test_five_thousand_operators_on_eight_different_devices() -> None:
    rng = np.random.default_rng(0)
    rows = rng.lognormal(size=(5000, 1)) * rng.uniform(1, 3, size=(5000, 8))
    table = make_table(rows, op_bytes=rng.lognormal(size=5000), capacity_bytes=[1700.0] * 8)
    # dividing everything evenly is worse, everything on its fastest device at once is better
    assert rows.min(axis=1).sum() / 8 <= lp(table) <= (rows / 8).sum(axis=0).max()


def test_a_feasible_problem_gets_no_advice() -> None:
    assert advice(make_table([[1, 1]] * 2, [(0, (1,), 1)])) == ""


def test_advice_for_an_operator_that_fits_nowhere() -> None:
    table = make_table([[1, 1]], op_bytes=[3 * GIB], capacity_bytes=[2 * GIB, GIB], working_bytes=GIB / 2)
    assert lower_bound(Problem(table, Goal.THROUGHPUT)) == np.inf
    assert advice(table) == (
        "operator 'op0' needs 3.00 GiB, but no device that can run it has more than 1.50 GiB for it; "
        "take a device with more memory, or smaller micro-batches"
    )


def test_advice_for_a_group_that_fits_nowhere() -> None:
    table = make_table([[1, 1]] * 2, op_bytes=[600, 600], capacity_bytes=[1000, 1000], together=((0, 1),))
    assert advice(table).startswith(
        "operator 'op0' and 1 more that share its device need 1,200 bytes, but no device that can run it has more"
    )


def test_advice_for_a_group_that_no_device_can_run() -> None:
    table = make_table([[1, np.inf], [np.inf, 1]], together=((0, 1),))
    assert advice(table) == (
        "operator 'op0' and 1 more that share its device have no device that can run them all; "
        "give them one, or take the group apart"
    )


def test_advice_for_too_little_memory_in_all() -> None:
    table = make_table([[1, 1]] * 3, op_bytes=[GIB] * 3, capacity_bytes=[1.5 * GIB, GIB])
    assert advice(table) == "the operators need 3.00 GiB in all, the devices have 2.50 GiB; add memory or devices"


def test_advice_for_too_little_memory_where_it_is_needed() -> None:
    table = make_table([[1, np.inf]] * 2, op_bytes=[600, 600], capacity_bytes=[1000, 9000])
    assert advice(table) == (
        "the operators need 1,200 bytes in all and the devices have 10,000 bytes, but those that can run only "
        "on some devices do not fit there; add memory to those, or let more devices run them"
    )


def test_advice_for_a_missing_link() -> None:
    table = make_table([[1, np.inf], [np.inf, 1]], [(0, (1,), 4)], link_s=np.inf)
    assert advice(table) == ("tensor 't0' must go from 'op0' to 'op1', but their devices have no link; add a [[link]]")
