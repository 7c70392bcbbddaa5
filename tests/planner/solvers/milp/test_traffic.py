"""The bound of cut nets: by hand, and never above any placement."""

from math import inf

import pytest

from costmodels.table import CostTable
from planner.problem.blocks import merge_blocks
from planner.problem.bounds import lower_bound
from planner.problem.problem import Goal, Problem
from planner.solvers.base import Budget
from planner.solvers.milp.traffic import traffic_bound
from tests.planner.literature.placement.offloads import make_offload
from tests.planner.problem.problems import make_table
from tests.planner.solvers.law.random_problems import random_problem
from tests.planner.solvers.law.truth import Truth


def bound_s(table: CostTable, upper_s: float, time_limit_s: float = 1e3) -> float:
    problem = Problem(table, Goal.THROUGHPUT)
    blocks = merge_blocks(table)
    return traffic_bound(blocks, (min(lower_bound(problem), upper_s), upper_s), Budget(time_limit_s))[0]


def test_a_chain_that_must_be_cut_pays_on_both_devices() -> None:
    # 4 s and 4 s: 8 on one device, or 4 + 1 on each of two
    table = make_table([[4, 4], [4, 4]], [(0, (1,), 1)], overlap=False)
    assert lower_bound(Problem(table, Goal.THROUGHPUT)) == 4
    assert bound_s(table, 8.0) == pytest.approx(5)


def test_equal_devices_pay_for_a_cut_wherever_it_is() -> None:
    # 6 blocks of 2 s on 3 devices: the middle one pays for two of the cuts, 1 s each; 4 + 4 / 3 on average
    table = make_table([[2] * 3] * 6, [(op, (op + 1,), 1) for op in range(5)], overlap=False)
    assert bound_s(table, 12.0) >= 4 + 4 / 3 - 1e-6
    assert bound_s(table, 12.0) <= 6


def test_a_cut_behind_which_little_is_does_not_help() -> None:
    # a heavy block of 10 s and four leaves of 1 s, 1 s to send: whatever leaves it, it stays as busy
    table = make_table([[10, 10]] + [[1, 1]] * 4, [(0, (leaf,), 1) for leaf in range(1, 5)], overlap=False)
    assert bound_s(table, 14.0) == pytest.approx(14)


def test_a_net_to_a_host_keeps_one_device_busy() -> None:
    # 4 s or 100 s, and 4 s or 5 s; 2 s to store or to fetch: the host takes the second one, and does not pay
    table = make_offload([[4, 100], [4, 5]], [(0, (1,), 2)], hosts=[1])
    assert 5 <= bound_s(table, 8.0) <= 6


def test_without_time_transfers_or_room_the_known_bound_stays() -> None:
    chain = make_table([[4, 4], [4, 4]], [(0, (1,), 1)], overlap=False)
    assert bound_s(chain, 8.0, time_limit_s=0.0) == 4
    assert bound_s(chain, 4.0) == 4
    assert bound_s(make_table([[4, 4], [4, 4]]), 8.0) == 4
    assert bound_s(make_table([[4], [4]], [(0, (1,), 1)], overlap=False), 9.0) == 8


@pytest.mark.attack("proof")
@pytest.mark.parametrize("kind", ["throughput", "throughput beside a host", "public throughput"])
def test_no_placement_is_below_the_bound(kind: str) -> None:
    better = 0
    for seed in range(15):
        problem = random_problem(kind, seed).contended
        least_s = Truth(problem).least_s
        known_s = lower_bound(problem)
        for factor in (1.0, 1.05, 1.5, 5.0) if least_s < inf else ():
            upper_s = factor * least_s
            blocks = merge_blocks(problem.table)
            found_s, _ = traffic_bound(blocks, (min(known_s, upper_s), upper_s), Budget(1e3))
            better += found_s > known_s * (1 + 1e-6)
            assert found_s <= least_s * (1 + 1e-9), f"random_problem({kind!r}, {seed}) by {factor}"
    assert better > 0
