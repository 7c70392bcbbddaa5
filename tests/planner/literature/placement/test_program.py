"""The integer programs for offloading, and what reduces them; that they are exact is tested in tests/planner/law."""

from collections.abc import Sequence
from itertools import product
from math import inf
from typing import Any

import numpy as np
import pytest

from planner.literature.placement.bounds import call_bound
from planner.literature.placement.ilp import OffloadILP
from planner.literature.placement.offload import Offload, OffloadTable
from planner.literature.placement.program import OffloadModel
from planner.literature.placement.reduce import AcceleratorCosts, Hypergraph, bound_together, cohesive, reduce_blocks
from planner.problem.blocks import merge_blocks
from planner.problem.bounds import lower_bound, path_bound
from planner.problem.problem import Goal, Problem
from planner.solvers.base import Answer, Budget, Incumbent
from planner.solvers.milp.probing import Prober
from simulator.placement import Placement
from tests.planner.literature.placement.offloads import make_offload, with_offload
from tests.planner.problem.problems import make_table
from tests.planner.solvers.law.random_problems import random_problem
from tests.planner.solvers.law.truth import Truth

TOLERANCE = 1e-5


def contends(
    work: list[float],
    host_s: list[float],
    flows: Sequence[tuple[int, tuple[int, ...], float]],
    k: int = 2,
    **fields: Any,
) -> OffloadTable:
    """``k`` equal accelerators and one host; a flow's last number is what it takes to store or to fetch it."""
    store_s = np.asarray([[cost] * k + [0.0] for _, _, cost in flows]).reshape(-1, k + 1)
    rows = [[seconds] * k + [slow] for seconds, slow in zip(work, host_s, strict=True)]
    offload = Offload(store_s, store_s, np.arange(k + 1) == k)
    return with_offload(make_table(rows, flows, **fields), offload)


def search(problem: Problem, incumbent: Placement | None = None) -> Answer:
    return OffloadILP().search(problem, Budget(1e3, 0.0, incumbent=incumbent, bound_s=lower_bound(problem)))


@pytest.mark.attack("proof")
def test_on_two_hosts_nobody_pays() -> None:
    # an accelerator and two hosts: 6 + 6 there, or 3 on either host, without a transfer of 100 s
    table = make_offload([[6, 3, 3], [6, 3, 3]], [(0, (1,), 100)], hosts=[1, 2])
    answer = search(Problem(table, Goal.THROUGHPUT), Placement((1, 1)))
    assert answer.placement is not None
    assert sorted(answer.placement.device) == [1, 2]
    assert answer.bound_s == pytest.approx(3, rel=TOLERANCE)


@pytest.mark.attack("proof")
@pytest.mark.parametrize("kind", ["throughput beside a host", "public throughput"])
def test_a_reduction_keeps_a_best_placement(kind: str) -> None:
    for seed in range(60):
        problem = random_problem(kind, seed)
        truth, table = Truth(problem), problem.table
        if truth.least_s == inf:
            continue
        for factor in (0.9, 1.0, 1.1, 2.0):
            blocks = reduce_blocks(table, truth.least_s * factor)
            devices = product(range(table.n_devices), repeat=blocks.n)
            best = min(truth.seconds(blocks.spread(device).device) for device in devices)
            assert best == pytest.approx(truth.least_s) or factor < 1, f"random_problem({kind!r}, {seed}) by {factor}"


def test_with_several_hosts_a_piece_is_bound_if_no_host_can_run_a_part_of_it() -> None:
    # 8 s for the accelerator, of which it needs 4: op0 and op1 would cost 9 s to part
    work, flows = [4.0, 4.0], [(0, (1,), 9.0)]
    for slow_s, bound in ((99.0, [(0, 1)]), (4.0, [])):
        table = make_offload([[4, slow_s, slow_s], [4, 4, 4]], flows, hosts=[1, 2])
        assert list(bound_together(AcceleratorCosts(merge_blocks(table), 8.0))) == bound
    assert list(bound_together(AcceleratorCosts(merge_blocks(contends(work, work, flows, k=1)), 8.0))) == [(0, 1)]


def test_cohesion_by_hand() -> None:
    # op0 ═7═ op1 ─1─ op2: op1 joins op0, for 7 >= 2 of its own + 1 to op2; op2 is free to leave: 1 < 2
    table = contends([9, 2, 2], [99, 9, 9], [(0, (1,), 7), (1, (2,), 1)])
    view = AcceleratorCosts(merge_blocks(table), 20.0)
    assert view.never_free.tolist() == [True, False, False]
    assert cohesive(view, [0, 1])
    assert not cohesive(view, [1, 2])
    assert not cohesive(view, [0, 1, 2])
    assert reduce_blocks(table, 20.0).members == ((0, 1), (2,))


def test_what_costs_more_than_the_slack_is_bound_together() -> None:
    # 2 * 8 s for all accelerators, 12 s of work, none for the host: 4 s to spend on transfers, 2 for each end
    work, host_s = [4.0, 4.0, 4.0], [99.0, 99.0, 99.0]
    flows = [(0, (1,), 2.1), (1, (2,), 1.9)]
    view = AcceleratorCosts(merge_blocks(contends(work, host_s, flows)), 8.0)
    assert view.slack_s == pytest.approx(4)
    assert list(bound_together(view)) == [(0, 1)]


def test_the_host_relieves_the_accelerators() -> None:
    # within 8 s the host takes op2 (2 s) whole and a quarter of op1 (4 s): 16 - 12 + 2 + 1
    view = AcceleratorCosts(merge_blocks(contends([6, 4, 2], [99, 8, 6], [(0, (1,), 1)])), 8.0)
    assert view.slack_s == pytest.approx(16 - 12 + 4)  # the better way: all of op1, which saves 4 in 8 s


def test_minimum_cuts_of_a_path() -> None:
    graph = Hypergraph(4, ((0, 1), (1, 2), (2, 3), (0, 1, 2)), np.asarray([3.0, 1.0, 5.0, 1.0]))
    seconds, side = graph.min_cut(0, 3)
    assert seconds == pytest.approx(1 + 1, rel=1e-6)
    assert side.tolist() == [True, True, False, False]
    tree = sorted(round(value, 3) for _, _, value in graph.cut_tree())
    assert tree == [2, 4, 5]  # {0, 1} from {2, 3}; 0 from the rest; 3 from the rest


def test_nets_with_the_same_ends_are_one_where_storing_costs_as_much_as_fetching() -> None:
    table = contends([1, 1], [9, 9], [(0, (1,), 1), (0, (1,), 2)], together=())
    blocks = merge_blocks(table)
    assert [share.writer for share in OffloadModel(blocks, 1.0, 9.0).shares] == [-1]
    dear = Offload(np.ones((1, 3)), np.full((1, 3), 2.0), table.offload.host)
    dearer = with_offload(make_table(table.forward_s, [(0, (1,), 1.0)]), dear)
    assert [share.writer for share in OffloadModel(merge_blocks(dearer), 1.0, 9.0).shares] == [0]


def test_probes_close_in_from_both_sides() -> None:
    # 3 + 3 | 2 + 2 + 2; the probes start halfway between 4 and 12
    table = contends([3, 2, 3, 2, 2], [99.0] * 5, [])
    problem, budget = Problem(table, Goal.THROUGHPUT), Budget(1e3, 0.0, incumbent=Placement((0,) * 5))
    best = Incumbent(problem, budget, "ilp")
    posed: list[tuple[float, float]] = []

    def pose(lower_s: float, upper_s: float) -> OffloadModel:
        posed.append((lower_s, upper_s))
        return OffloadModel(merge_blocks(table), lower_s, upper_s)

    answer = Prober(budget, best, 4.0, 12.0, pose).search()
    assert best.objective_s == 6
    assert answer.bound_s == pytest.approx(6, rel=TOLERANCE)
    assert posed[0][0] == pytest.approx((4 + 12) / 2)
    assert all(lower_s == upper_s for lower_s, upper_s in posed)


def test_no_time_leaves_the_incumbent_and_the_bound() -> None:
    problem = Problem(contends([1] * 6, [9] * 6, [(i, (i + 1,), 1) for i in range(5)]), Goal.THROUGHPUT)
    start = Placement((0,) * 6)
    answer = OffloadILP().search(problem, Budget(0.0, incumbent=start, bound_s=2.0))
    assert (answer.placement, answer.complete) == (start, False)
    assert 2 <= answer.bound_s <= 3


def test_the_same_input_gives_the_same_answer() -> None:
    flows = [(op, (op + 1, min(op + 4, 11)) if op < 10 else (op + 1,), 1.0) for op in range(11)]
    table = contends([7, 3, 5, 9, 2, 4, 6, 8, 3, 5, 7, 2], [50.0] * 12, flows, k=3)
    for goal in (Goal.THROUGHPUT, Goal.COST):
        assert search(Problem(table, goal)) == search(Problem(table, goal))


def test_the_latency_beside_a_host_and_contiguity_are_refused() -> None:
    table = contends([1, 1], [1, 1], [(0, (1,), 1)])
    assert OffloadILP().refuses(Problem(table, Goal.LATENCY)) == "the latency of a host with accelerators"
    assert OffloadILP().refuses(Problem(table, Goal.COST)) == ""
    assert OffloadILP().refuses(Problem(table, Goal.COST, frozenset({0}))) == "contiguous operators"


def test_memory_pushes_work_to_the_slow_host() -> None:
    # a chain of two, 1 s or 10 s; one accelerator holds one of them: 1 + 10
    table = contends([1, 1], [10, 10], [(0, (1,), 0)], k=1, op_bytes=[5, 5], capacity_bytes=[5, inf])
    assert path_bound(table) == 2
    assert call_bound(merge_blocks(table)) == pytest.approx(11)


def test_a_call_lasts_for_all_its_operators() -> None:
    # side by side, 4 s or 100 s each; two accelerators share 12 s, and the host takes y of each: 6 - 6 y = 4 + 96 y
    table = contends([4, 4, 4], [100, 100, 100], [])
    assert call_bound(merge_blocks(table)) == pytest.approx(6 - 6 * 2 / 102)
    # the host runs them all at once
    assert call_bound(merge_blocks(contends([4, 4, 4], [5, 5, 5], []))) <= 5
