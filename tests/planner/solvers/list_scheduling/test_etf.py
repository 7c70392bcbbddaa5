"""Earliest task first within memory, by hand and on the example of the paper."""

import json
from math import inf
from pathlib import Path

import pytest
from hypothesis import given

from costmodels.table import CostTable
from planner.problem.problem import Goal, Problem
from planner.solvers.base import Budget
from planner.solvers.list_scheduling.heft import M_ETF, M_SCT, favourites
from planner.solvers.list_scheduling.schedule import ListSchedule, ListScheduler
from tests.planner.problem.problems import make_table, tables, value

CANONICAL = Path(__file__).parents[5] / "shared" / "bench" / "dag" / "canonical.json"
FOREVER = Budget(time_limit_s=1e9)
SCHEDULERS: list[ListScheduler] = [M_ETF, M_SCT]
ETF, SCT = SCHEDULERS


def schedule(table: CostTable, scheduler: ListScheduler, book_transfers: bool = False) -> ListSchedule:
    found = scheduler.schedule(table, book_transfers, FOREVER)
    assert found is not None
    return found


def test_the_example_of_the_paper() -> None:
    # Jeon et al., SoCC 2020. op0 (2) fills half of dev0, op1 (3) starts at 0 too; op2 has t0 at 3 on dev1, where op1
    # ends then: 3 + 5. On dev0, it would wait for t1 until 6, and there would be room: 5 + 2.
    table = make_table(
        [[2, 2], [3, 3], [5, 5]], [(0, (2,), 1), (1, (2,), 3)], op_bytes=[5, 6, 2], capacity_bytes=[10, 10]
    )
    for scheduler in SCHEDULERS:
        found = schedule(table, scheduler)
        assert (found.placement.device, found.makespan_s) == ((0, 1, 1), 8)


def test_no_room_no_choice() -> None:
    # as above, but op2 has no room on dev1: 6 + 5
    table = make_table(
        [[2, 2], [3, 3], [5, 5]], [(0, (2,), 1), (1, (2,), 3)], op_bytes=[5, 6, 5], capacity_bytes=[10, 10]
    )
    found = schedule(table, ETF)
    assert (found.placement.device, found.makespan_s) == ((0, 1, 0), 11)


def test_what_starts_first_goes_first() -> None:
    # dev0  |op3|op0|  |op2|      op0 and op3 can start at 0, and op3 ends first; op2 waits for t0, sent from 5 to 6
    # dev1  |op1      |t0
    table = make_table([[3, inf], [inf, 5], [3, inf], [2, inf]], [(1, (2,), 1)])
    assert schedule(table, ETF).start_s == (2, 0, 6, 0)


def test_the_favourite_is_the_reader_that_would_wait_longest() -> None:
    # the path by op2 is the longest even without sending: op2 must follow op0 at once
    table = make_table([[1, 1], [1, 1], [9, 9]], [(0, (1,), 4), (0, (2,), 4)])
    assert favourites(table, 10.0) == {0: (2, 4.0)}


def test_no_operator_is_the_favourite_of_two() -> None:
    table = make_table([[1, 1], [1, 1], [9, 9]], [(0, (2,), 4), (1, (2,), 3)])
    assert favourites(table, 10.0) in ({0: (2, 4.0)}, {1: (2, 3.0)}, {})


def test_without_edges_or_time_there_are_no_favourites() -> None:
    assert favourites(make_table([[1, 1]] * 2), 10.0) == {}
    assert favourites(make_table([[1, 1]] * 2, [(0, (1,), 4)]), 0.0) == {}


def test_a_device_waits_for_the_favourite() -> None:
    # op0 (1) on dev0 and op1 (2) on dev1 write for op2 (9), whose tensors take 8 and 1; op3 (5) reads op0 too (1)
    # ETF: op3 can start at 1 on dev0, at 2 on dev1; op2 comes behind it on dev0: 1 + 5 + 9
    # SCT: op2 is the favourite of op0, so op3 may not start on dev0 before 1 + 8; dev1 has it at 2, op2 starts at 2 + 1
    table = make_table([[1, inf], [inf, 2], [9, 9], [5, 5]], [(0, (2,), 8), (1, (2,), 1), (0, (3,), 1)])
    assert favourites(table, 10.0) == {0: (2, 8.0)}
    assert schedule(table, ETF).start_s == (0, 0, 6, 1)
    assert schedule(table, SCT).start_s == (0, 0, 3, 2)
    assert [schedule(table, scheduler).makespan_s for scheduler in SCHEDULERS] == [15, 12]


def test_a_device_does_not_wait_while_something_urgent_is_there() -> None:
    # as above, but op3 has its input everywhere at 1: it runs on dev0 at once
    table = make_table([[1, inf], [inf, 2], [9, 9], [5, 5]], [(0, (2,), 8), (1, (2,), 1), (0, (3,), 0)])
    assert schedule(table, SCT).start_s == (0, 0, 6, 1)


def test_without_a_link_or_room_or_time_there_is_no_schedule() -> None:
    cut_off = make_table([[1, inf], [inf, 1]], [(0, (1,), 1)], link_s=inf)
    too_big = make_table([[1, 1]] * 3, op_bytes=[6, 6, 6], capacity_bytes=[10, 10])
    for scheduler in SCHEDULERS:
        for table in (cut_off, too_big):
            assert scheduler.search(Problem(table, Goal.LATENCY), FOREVER).placement is None
        assert scheduler.schedule(make_table([[1, 1]]), False, Budget(time_limit_s=0)) is None


@given(tables(max_ops=8))
def test_every_schedule_is_feasible_and_keeps_the_memory(table: CostTable) -> None:
    for scheduler in SCHEDULERS:
        for book_transfers in (False, True):
            found = scheduler.schedule(table, book_transfers, FOREVER)
            if found is not None:
                assert value(Problem(table, Goal.LATENCY), found.placement) < inf


@given(tables(max_ops=8))
def test_nobody_has_two_favourites_and_nobody_is_the_favourite_of_two(table: CostTable) -> None:
    found = favourites(table, 10.0)
    assert len({reader for reader, _ in found.values()}) == len(found)
    assert {(writer, reader) for writer, (reader, _) in found.items()} <= set(table.edges)


@pytest.mark.skipif(not CANONICAL.exists(), reason="needs the literature's examples beside the repository")
def test_the_makespan_of_the_literature() -> None:
    example = json.loads(CANONICAL.read_text())["memory_constrained_etf"]
    flows = [(writer, (reader,), cost) for writer, reader, cost in example["edges"]]
    table = make_table(example["compute"], flows, op_bytes=example["memory"], capacity_bytes=example["device_memory"])
    found = schedule(table, ETF)
    assert found.makespan_s == example["makespan"]["m-ETF"]
    used = [sum(example["memory"][op] for op in range(3) if found.placement.device[op] == device) for device in (0, 1)]
    assert used == example["used_memory"]
