"""The evaluator against sums by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.table import CostTable
from graphs.common.errors import InputError
from planner.problem.evaluate import evaluate, loads, memory
from planner.problem.problem import Goal, Problem
from simulator.placement import Placement
from tests.planner.problem.problems import make_table, tables


def throughput(table: CostTable, *device: int) -> float:
    return evaluate(Problem(table, Goal.THROUGHPUT), Placement(device)).objective_s


def latency(table: CostTable, device: tuple[int, ...], order: tuple[int, ...] = ()) -> float:
    return evaluate(Problem(table, Goal.LATENCY), Placement(device, order)).objective_s


def test_without_overlap_a_transfer_occupies_both_ends() -> None:
    # 4 bytes: 1 s for the message + 4 s = 5 s; sender 2 + 5 = 7, receiver 3 + 5 = 8
    table = make_table([[2, 2], [3, 3]], [(0, (1,), 4)], link_s=1.0, overlap=False)
    assert throughput(table, 0, 1) == 8
    assert loads(table, Placement((0, 1)))[0].tolist() == [7, 8]
    assert throughput(table, 0, 0) == 2 + 3


def test_with_overlap_a_transfer_occupies_its_channel_alone() -> None:
    table = make_table([[2, 2], [3, 3]], [(0, (1,), 4)], link_s=1.0)
    load_s, channel_s = loads(table, Placement((0, 1)))
    assert (load_s.tolist(), channel_s.tolist()) == ([2, 3], [5, 0])
    assert throughput(table, 0, 1) == 5


def test_a_flow_is_sent_once_to_a_device_however_many_read_it_there() -> None:
    table = make_table([[1, 1, 1]] * 4, [(0, (1, 2, 3), 4)], overlap=False)
    assert loads(table, Placement((0, 1, 1, 1)))[0].tolist() == [1 + 4, 3 + 4, 0]
    # to two devices: the writer sends twice
    assert loads(table, Placement((0, 1, 1, 2)))[0].tolist() == [1 + 4 + 4, 2 + 4, 1 + 4]


def test_links_that_share_a_channel_add_up() -> None:
    flows = [(0, (1,), 4.0), (1, (2,), 3.0)]
    own = make_table([[1, 1, 1]] * 3, flows)
    shared = make_table([[1, 1, 1]] * 3, flows, channel="bus")
    assert throughput(own, 0, 1, 2) == 4
    assert throughput(shared, 0, 1, 2) == 4 + 3


def test_each_pair_of_devices_has_its_own_link() -> None:
    table = make_table([[1, 1, 1]] * 2, [(0, (1,), 2)], [[0, 9, 1], [0, 0, 0], [0, 0, 0]], overlap=False)
    assert throughput(table, 0, 1) == 1 + 9 + 2
    assert throughput(table, 0, 2) == 1 + 1 + 2


def test_latency_is_the_makespan_in_the_order_of_the_placement() -> None:
    #  op0 (2) ─► op1 (3) ─┬─► op3 (1)      dev0: op0 op1 op3, dev1: op2; both transfers take 1
    #        └──► op2 (4) ─┘                0..2, op1 2..5, sent 2..3, op2 3..7, sent 7..8, op3 8..9
    table = make_table([[2, 2], [3, 3], [4, 4], [1, 1]], [(0, (1, 2), 1), (1, (3,), 1), (2, (3,), 1)])
    assert latency(table, (0, 0, 1, 0)) == 9
    assert latency(table, (0, 0, 0, 0)) == 2 + 3 + 4 + 1


def test_latency_depends_on_the_order() -> None:
    # op0 (5) and op1 (1) share a device, op2 (5) waits for op1 on the other one; nothing to send
    table = make_table([[5, 5], [1, 1], [5, 5]], [(1, (2,), 0)])
    assert latency(table, (0, 0, 1)) == 5 + 1 + 5
    assert latency(table, (0, 0, 1), (1, 0, 2)) == 1 + 5


def test_working_memory_counts_on_devices_that_are_used() -> None:
    table = make_table([[1, 1, 1]] * 3, op_bytes=[10, 20, 30], working_bytes=5.0, capacity_bytes=[40, 40, 1])
    assert memory(table, Placement((0, 0, 1))).tolist() == [10 + 20 + 5, 30 + 5, 0]
    assert evaluate(Problem(table, Goal.THROUGHPUT), Placement((0, 0, 1))).feasible


def test_too_little_memory_is_a_violation_that_says_by_how_much() -> None:
    table = make_table([[1, 1]] * 2, op_bytes=[1000, 2000], working_bytes=500.0, capacity_bytes=[2000, 9000])
    judged = evaluate(Problem(table, Goal.THROUGHPUT), Placement((0, 0)))
    assert judged.violations == ("'dev0' is over by 1,500 bytes",)
    assert not judged.feasible


def test_a_torn_group_is_a_violation() -> None:
    table = make_table([[1, 1]] * 3, together=((0, 2),))
    judged = evaluate(Problem(table, Goal.THROUGHPUT), Placement((0, 0, 1)))
    assert judged.violations == ("'op0' and 1 more must share a device but are on 'dev0' and 'dev1'",)


@pytest.mark.parametrize(
    ("goal", "alone_s", "divided_s"),
    # op0 ─► op1: isolated 2 + 3 s, contended 4 + 9 s; 1 s to send 1 byte
    [
        (Goal.THROUGHPUT, 2 + 3, pytest.approx(3 + 6 * 4 / 9)),  # op0 computes for 4 of the 9 s
        (Goal.LATENCY, 2 + 3, 4 + 1 + 9),
        (Goal.COST, 2 + 3, 4 + 1 + 9),
        (Goal.TRAINING, 8 * 2 * (2 + 3), 4 + 8 * 2 * 9 + 4 + 1),
    ],
)
def test_a_placement_on_one_device_finds_the_others_idle(goal: Goal, alone_s: float, divided_s: float) -> None:
    seconds = np.array([[2.0, 2.0], [3.0, 3.0]])
    slow = np.array([[1.0, 1.0], [2.0, 2.0]])
    table = make_table(seconds, [(0, (1,), 1)], slowdown=slow, backward_s=seconds)
    problem = Problem(table, goal)
    one_device = evaluate(problem, Placement((1, 1)))
    assert one_device.objective_s == alone_s
    assert one_device.load_s.tolist() == [0, (1 + (goal is Goal.TRAINING)) * (2 + 3)]
    assert evaluate(problem, Placement((0, 1))).objective_s == divided_s


def test_what_does_not_fit_the_table_is_refused() -> None:
    table = make_table([[1, np.inf], [1, 1]], [(0, (1,), 4)], link_s=np.inf)
    with pytest.raises(InputError, match="operator 'op0' cannot run on 'dev1'"):
        throughput(table, 1, 1)
    with pytest.raises(InputError, match=r"tensor 't0' must go from 'dev0' to 'dev1', but there is no link; add a \["):
        throughput(table, 0, 1)
    with pytest.raises(InputError, match="the placement has 1 operators, the graph has 2"):
        throughput(table, 0)


@given(tables(), st.data())
def test_the_makespan_is_at_least_what_any_device_or_channel_works(table: CostTable, data: st.DataObject) -> None:
    device = tuple(data.draw(st.integers(0, table.n_devices - 1)) for _ in range(table.n_ops))
    try:
        Placement(device).check(table)
    except InputError:
        return
    assert latency(table, device) >= throughput(table, *device) - 1e-9
