"""Latency on accelerators that are called once: the kernel against the evaluator, the search against brute force."""

from itertools import product
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.table import CostTable
from planner.literature.placement import kernel as kernel
from planner.literature.placement.evaluate import offload_latency_s
from planner.literature.placement.kernel import latency_s
from planner.literature.placement.offload_latency import OffloadLatency, kernel_costs
from planner.literature.placement.public_format import read_problem
from planner.problem.blocks import merge_blocks
from planner.problem.evaluate import evaluate
from planner.problem.problem import Goal, Problem
from planner.problem.reporter import Reporter
from planner.solvers.base import Budget
from simulator.placement import Placement
from tests.planner.literature.placement.offloads import offload_table, offload_tables
from tests.planner.problem.problems import make_table, value

PUBLIC = Path(__file__).parents[4] / ".." / "shared" / "bench" / "msr" / "latency"
SOLVER = OffloadLatency()


def budget(time_limit_s: float = 0.02, **fields: object) -> Budget:
    """As many steps as the limit allows on a machine like the one that was measured, however slow this one is."""
    return Budget(time_limit_s, start_s=inf, **fields)  # type: ignore[arg-type]  # fields of a budget


def chain(n_ops: int = 6, **fields: object) -> CostTable:
    """Operators one after the other: 1 s on an accelerator, 10 s on the host; 2 s to move anything."""
    return offload_table(
        [[1, 1, 10]] * n_ops,
        [(op, (op + 1,), 2) for op in range(n_ops - 1)],
        **fields,  # type: ignore[arg-type]  # of offload_table
    )


def best_of_all(problem: Problem) -> float:
    table = problem.table
    return min(value(problem, Placement(device)) for device in product(range(table.n_devices), repeat=table.n_ops))


@given(st.data())
def test_the_kernel_sees_what_the_judge_sees(data: st.DataObject) -> None:
    table = data.draw(offload_tables())
    blocks = merge_blocks(table)
    costs = kernel_costs(blocks)
    work = kernel.workplace(costs)
    home = np.zeros(blocks.n, dtype=np.int64)
    for block in range(blocks.n):
        able = np.flatnonzero(np.isfinite(blocks.forward_s[block])).tolist()
        home[block] = data.draw(st.sampled_from(able))
    kernel.place(costs, home, work.state)
    placement = blocks.spread(home)
    assert tuple(work.state.device.tolist()) == placement.device
    assert latency_s(costs, work.state.device, work.room) == pytest.approx(offload_latency_s(table, placement))
    used = np.zeros(table.n_devices)
    np.add.at(used, home, blocks.n_bytes)
    assert work.state.used_bytes.tolist() == used.tolist()


@settings(max_examples=40)
@given(offload_tables(max_ops=5))
def test_it_finds_what_brute_force_finds(table: CostTable) -> None:
    problem = Problem(table, Goal.LATENCY)
    answer = SOLVER.search(problem, budget())
    expected = best_of_all(problem)
    if expected == inf:  # never: the host has room for everything
        assert answer.placement is None
    else:
        assert answer.placement is not None
        assert value(problem, answer.placement) == pytest.approx(expected)
    assert answer.bound_s == 0
    assert not answer.complete


class TestByHand:
    def test_one_accelerator_takes_a_chain(self) -> None:
        answer = SOLVER.search(Problem(chain(), Goal.LATENCY), budget())
        assert answer.placement is not None
        assert evaluate(Problem(chain(), Goal.LATENCY), answer.placement).objective_s == 6

    def test_memory_splits_it_in_two(self) -> None:
        table = chain(op_bytes=[1] * 6, capacity_bytes=4)
        answer = SOLVER.search(Problem(table, Goal.LATENCY), budget())
        assert answer.placement is not None
        # two runs of at most 4: 6 computing, and what is between them is stored and fetched for 2 each
        assert evaluate(Problem(table, Goal.LATENCY), answer.placement).objective_s == 10

    def test_what_runs_beside_it_stays_on_the_host(self) -> None:
        # d takes 3 s on the host while a, b and c take 3 s on an accelerator; fetching and storing would add to that
        flows = [(0, (1,), 5), (1, (2,), 5)]
        problem = Problem(offload_table([[1, 9], [1, 9], [1, 9], [2, 3]], flows), Goal.LATENCY)
        answer = SOLVER.search(problem, budget())
        assert answer.placement == Placement((0, 0, 0, 1))

    def test_a_group_moves_as_one(self) -> None:
        table = chain(together=((0, 5),), op_bytes=[3, 0, 0, 0, 0, 3], capacity_bytes=4)
        answer = SOLVER.search(Problem(table, Goal.LATENCY), budget())
        assert answer.placement is not None
        # the group needs 6 bytes, so it is on the host: 10, the others 4 + fetch 2 + store 2, 10
        assert evaluate(Problem(table, Goal.LATENCY), answer.placement).objective_s == 28
        assert answer.placement.device[0] == answer.placement.device[5] == 2

    def test_without_a_host_it_fills_one_accelerator_after_the_other(self) -> None:
        table = offload_table([[1, 1]] * 4, [(0, (1,), 2)], n_hosts=0, op_bytes=[1] * 4, capacity_bytes=2)
        problem = Problem(table, Goal.LATENCY)
        answer = SOLVER.search(problem, budget())
        assert answer.placement is not None
        assert evaluate(problem, answer.placement).feasible

    def test_no_start_no_answer(self) -> None:
        table = offload_table([[1, 1]] * 4, n_hosts=0, op_bytes=[3] * 4, capacity_bytes=2)
        assert SOLVER.search(Problem(table, Goal.LATENCY), budget()).placement is None


class TestSearch:
    def test_the_seed_decides(self) -> None:
        problem = Problem(chain(12, op_bytes=[1] * 12, capacity_bytes=5), Goal.LATENCY)
        first, again = (SOLVER.search(problem, budget(seed=3)) for _ in range(2))
        assert first == again

    def test_it_goes_on_from_the_incumbent_and_tells(self) -> None:
        told: list[tuple[str, float, float, float]] = []

        class Listen(Reporter):
            def on_incumbent(self, solver: str, objective_s: float, bound_s: float, wall_s: float) -> None:
                told.append((solver, objective_s, bound_s, wall_s))

        start = Placement((2,) * 6)
        SOLVER.search(Problem(chain(), Goal.LATENCY), budget(incumbent=start, reporter=Listen()))
        assert [objective for _, objective, _, _ in told] == sorted(
            (objective for _, objective, _, _ in told), reverse=True
        )
        assert told[-1][:3] == ("offload-latency", 6, 0)

    def test_it_stops_at_the_bound(self) -> None:
        start = Placement((0,) * 6)
        answer = SOLVER.search(Problem(chain(), Goal.LATENCY), budget(incumbent=start, bound_s=6.0))
        assert answer.placement is start

    def test_time_that_is_out_returns_the_start(self) -> None:
        start = Placement((2,) * 6)
        answer = SOLVER.search(Problem(chain(), Goal.LATENCY), Budget(1.0, start_s=-10.0, incumbent=start))
        assert answer.placement is start


class TestRefuses:
    def test_other_tables(self) -> None:
        problem = Problem(make_table([[1, 1]]), Goal.LATENCY)
        assert SOLVER.refuses(problem) == "devices that exchange tensors without a host between them"

    def test_contiguous_operators(self) -> None:
        problem = Problem(chain(), Goal.LATENCY, frozenset({0}))
        assert SOLVER.refuses(problem) == "operators that must be contiguous"

    def test_nothing_else(self) -> None:
        assert SOLVER.refuses(Problem(chain(), Goal.LATENCY)) == ""


@pytest.mark.slow
@pytest.mark.skipif(not PUBLIC.exists(), reason="the public problems are not here")
@pytest.mark.parametrize(
    ("name", "best_ms"),
    [("layer-bert24", 100.2185), ("op-bert_l-3", 408.475), ("op-bert_l-6", 438.063)],
)
def test_public_problems(name: str, best_ms: float) -> None:
    problem = read_problem(PUBLIC / f"{name}_inference.json", Goal.LATENCY).problem
    on_host = Placement((problem.table.n_devices - 1,) * problem.table.n_ops)
    answer = SOLVER.search(problem, budget(0.5, incumbent=on_host))
    assert answer.placement is not None
    assert evaluate(problem, answer.placement).objective_s * 1e3 <= best_ms
