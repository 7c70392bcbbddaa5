"""Bounds by linear programs, by hand; that none is ever above the truth is tested in tests/planner/law."""

import numpy as np
import pytest
from scipy.optimize import linprog

from costmodels.table import CostTable
from planner.problem.blocks import merge_blocks
from planner.problem.linear_bounds import lp_bound, time_prices
from tests.planner.problem.problems import make_table


def lp(table: CostTable) -> float:
    return lp_bound(merge_blocks(table))


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


@pytest.mark.parametrize("slow_s", [1e9, 1e15, 1e24])
def test_a_device_that_is_far_too_slow_does_not_help(slow_s: float) -> None:
    assert lp_bound(merge_blocks(make_table([[1.0, slow_s], [2.0, slow_s]]))) == pytest.approx(3.0)


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


@pytest.mark.parametrize("copies", [1, 2500])  # of the rows; of many blocks, the program has a sample
def test_the_bound_and_the_prices_are_of_one_program(copies: int, monkeypatch: pytest.MonkeyPatch) -> None:
    solved: list[object] = []

    def counted(**given: object) -> object:
        solved.append(given)
        return linprog(**given)

    monkeypatch.setattr("scipy.optimize.linprog", counted)
    blocks = merge_blocks(make_table([[2, 9, 9], [6, 4, 9], [9, 9, 5]] * copies))
    seconds, price = lp_bound(blocks), time_prices(blocks)
    assert len(solved) == 1
    assert (blocks.forward_s * price).min(axis=1).sum() == pytest.approx(seconds), "no memory is short"
    assert np.ptp(price) > 0.1
