"""Devices alike as one: its bound holds for them, and its placement is divided among them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.literature.placement.ilp import OffloadILP
from planner.literature.placement.program import karmarkar_karp, pool_of
from planner.problem.problem import Goal, Problem
from planner.problem.result import Status
from planner.solvers.base import Budget, objective_of
from planner.solvers.solve import solve
from simulator.placement import Placement
from tests.planner.literature.placement.offloads import make_offload
from tests.planner.solvers.law.random_problems import random_problem
from tests.planner.solvers.law.truth import Truth


def beside_hosts(n_ops: int, n_hosts: int, seed: int) -> Problem:
    """An accelerator with hosts that are slower, and transfers that take longer than operators."""
    rng = np.random.default_rng(seed)
    flows = []
    for op in range(n_ops - 1):
        readers = {op + 1 + int(rng.integers(min(9, n_ops - op - 1))) for _ in range(2)}
        flows.append((op, tuple(sorted(readers)), float(rng.choice([10, 20, 40]))))
    quick, slow = np.round(rng.uniform(0.5, 3.0, n_ops), 2), np.round(rng.uniform(1.5, 9.0, n_ops), 2)
    rows = [[float(one), *[float(other)] * n_hosts] for one, other in zip(quick, slow, strict=True)]
    return Problem(make_offload(rows, flows, hosts=range(1, n_hosts + 1)), Goal.THROUGHPUT)


def test_four_hosts_as_one() -> None:
    problem = beside_hosts(6, 4, seed=0)
    pool = pool_of(problem)
    assert pool is not None
    assert pool.members == (1, 2, 3, 4)
    table, pooled = problem.table, pool.problem.table
    assert pooled.devices == table.devices[:2]
    np.testing.assert_array_equal(pooled.forward_s, table.forward_s[:, :2] / [1, 4])
    np.testing.assert_array_equal(pooled.capacity_bytes, table.capacity_bytes[:2] * [1, 4])
    assert pool.pooled(Placement((0, 1, 2, 3, 4, 0))).device == (0, 1, 1, 1, 1, 0)
    divided = pool.divided(Placement((0, 1, 1, 1, 1, 0))).device
    assert (divided[0], sorted(divided[1:5]), divided[5]) == (0, [1, 2, 3, 4], 0)


def test_there_is_nothing_to_pool_without_two_devices_alike_that_pay_nothing() -> None:
    assert pool_of(beside_hosts(6, 1, seed=0)) is None
    alike_but_paying = make_offload([[1, 1, 2]] * 2, [(0, (1,), 1)], hosts=[2])
    assert pool_of(Problem(alike_but_paying, Goal.THROUGHPUT)) is None
    different = make_offload([[1, 2, 3]] * 2, [(0, (1,), 1)], hosts=[1, 2])
    assert pool_of(Problem(different, Goal.THROUGHPUT)) is None


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 5))
def test_parts_have_everything_once_and_differ_by_one_number_at_most(numbers: list[int], n_parts: int) -> None:
    parts = karmarkar_karp(numbers, n_parts)
    assert len(parts) == n_parts
    assert sorted(one for part in parts for one in part) == list(range(len(numbers)))
    sums = [sum(numbers[one] for one in part) for part in parts]
    assert max(sums) - min(sums) <= max(numbers, default=0)


@pytest.mark.attack("proof")
@pytest.mark.parametrize("kind", ["throughput beside a host", "public throughput"])
def test_no_placement_is_below_the_bound_of_the_pool(kind: str) -> None:
    n_pools = 0
    for seed in range(60):
        problem = random_problem(kind, seed)
        pool = pool_of(problem)
        if pool is None:
            continue
        n_pools += 1
        answer = OffloadILP().search(pool.problem, Budget(1e3, 0.0))
        assert answer.bound_s <= Truth(problem).least_s * (1 + 1e-9)
        if answer.placement is not None and not problem.table.together:
            assert pool.pooled(pool.divided(answer.placement)).device == answer.placement.device
    assert n_pools >= 5


@pytest.mark.attack("proof")
def test_with_several_hosts_the_gap_is_small() -> None:
    # with a variable for each host, the gap is a fourteenth after eight seconds, and shrinks slowly
    problem = beside_hosts(40, 4, seed=3)
    found = solve(problem, "ilp", time_limit_s=20.0, gap=0.01)
    assert found.status in (Status.FEASIBLE, Status.OPTIMAL)
    assert found.gap <= 0.011  # the last thousandth may be rounding
    assert found.placement is not None
    assert objective_of(problem, found.placement) == found.objective_s
