"""List scheduling by hand and on the literature's examples."""

import json
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from hypothesis import given

from costmodels.table import CostTable
from planner.problem.blocks import by_priority
from planner.problem.problem import Goal, Problem
from planner.solvers.base import Budget
from planner.solvers.list_scheduling.heft import CPOP, HEFT, PEFT
from planner.solvers.list_scheduling.schedule import (
    ListSchedule,
    ListScheduler,
    downward_rank,
    longest_path,
    optimistic_costs,
    upward_rank,
)
from simulator.simulate import simulate
from tests.planner.problem.problems import make_table, tables, value
from tests.planner.solvers.literature import ARABNEJAD, TOPCUOGLU, Example, table_of

CANONICAL = Path(__file__).parents[5] / "shared" / "bench" / "dag" / "canonical.json"
FOREVER = Budget(time_limit_s=1e9)


SCHEDULERS: list[ListScheduler] = [HEFT, CPOP, PEFT]


def schedule(table: CostTable, book_transfers: bool = False, scheduler: ListScheduler = HEFT) -> ListSchedule:
    found = scheduler.schedule(table, book_transfers, FOREVER)
    assert found is not None
    return found


def test_the_upward_rank_is_the_longest_way_to_the_end_on_average() -> None:
    # op2: (1 + 3) / 2 = 2; op1: 4 + 6 sent + 2 = 12; op0 runs on dev0 alone: 5 + max(1 sent + 2, 2 sent + 12) = 19
    table = make_table([[5, inf], [4, 4], [1, 3]], [(0, (2,), 1), (0, (1,), 2), (1, (2,), 6)])
    assert upward_rank(table) == [19, 12, 2]


def test_the_mean_of_unequal_links() -> None:
    # 3 bytes at 1 s or 2 s each: 4.5 s on average
    table = make_table([[1, 1], [1, 1]], [(0, (1,), 3)], per_byte=[[0, 1], [2, 0]])
    assert upward_rank(table) == [1 + 4.5 + 1, 1]


def test_a_hole_is_filled() -> None:
    # dev0  |op0 |op3 |      |op2 (3)|    op1 and op2 are the most urgent: op2 waits for t0, sent from 5 to 6;
    # dev1  |op1 (5)    |t0|              op0 (2) and op3 (2) go into the hole that it leaves
    table = make_table([[2, inf], [inf, 5], [3, inf], [2, inf]], [(1, (2,), 1)])
    found = schedule(table)
    assert found.start_s == (0, 0, 6, 2)
    assert found.placement.order == (0, 1, 3, 2)
    assert found.makespan_s == 6 + 3 == simulate(table, found.placement).makespan_s


def test_a_flow_is_sent_once_to_a_device() -> None:
    # op1 and op2 run on dev1 alone; the second reader finds the tensor there: 1 + 4 sent + 2 + 2
    table = make_table([[1, inf], [inf, 2], [inf, 2]], [(0, (1, 2), 4)])
    assert schedule(table, book_transfers=True).finish_s == (1, 7, 9)


def test_booked_transfers_wait_for_their_channel() -> None:
    # two flows of 4 s from dev0 to dev1: at once, or one after the other
    table = make_table([[1, inf], [1, inf], [inf, 2]], [(0, (2,), 4), (1, (2,), 4)])
    assert schedule(table).start_s[2] == 2 + 4
    assert schedule(table, book_transfers=True).start_s[2] == 1 + 4 + 4


def test_booked_transfers_occupy_both_devices_without_overlap() -> None:
    # dev0: op0 (1), op2 (3) would run while t0 (4 s) is sent; without overlap it waits until 5
    table = make_table([[1, inf], [inf, 9], [3, inf]], [(0, (1,), 4)], overlap=False)
    assert schedule(table).start_s[2] == 1
    assert schedule(table, book_transfers=True).start_s[2] == 1 + 4


def test_an_operator_goes_where_there_is_room() -> None:
    table = make_table([[1, 9], [1, 9], [1, 9]], op_bytes=[4, 4, 4], capacity_bytes=[9, 9])
    assert sorted(schedule(table).placement.device) == [0, 0, 1]


def test_a_group_follows_its_first_member() -> None:
    table = make_table([[1, 9], [5, 1], [9, 1]], [(0, (1,), 0), (1, (2,), 0)], together=((0, 2),))
    assert schedule(table).placement.device == (0, 1, 0)


def test_without_a_link_or_room_or_time_there_is_no_schedule() -> None:
    cut_off = make_table([[1, inf], [inf, 1]], [(0, (1,), 1)], link_s=inf)
    too_big = make_table([[1, 1]] * 3, op_bytes=[6, 6, 6], capacity_bytes=[10, 10])
    for scheduler in SCHEDULERS:
        for table in (cut_off, too_big):
            assert scheduler.schedule(table, False, FOREVER) is None
            assert scheduler.search(Problem(table, Goal.LATENCY), FOREVER).placement is None
        assert scheduler.schedule(make_table([[1, 1]]), False, Budget(time_limit_s=0)) is None


def test_the_critical_path_stays_on_the_device_that_computes_it_fastest() -> None:
    # the path op0, op1, op3: 3 + 3 + 3 on dev0, 1 + 4 + 2 on dev1; HEFT ends op1 first on dev0: 1 + 3 < 1 + 4
    table = make_table([[3, 1], [3, 4], [1, 1], [3, 2]], [(0, (1, 2), 0), (1, (3,), 0), (2, (3,), 0)])
    assert schedule(table).placement.device[1] == 0
    assert longest_path(
        table, [up + down for up, down in zip(upward_rank(table), downward_rank(table), strict=True)]
    ) == [
        0,
        1,
        3,
    ]
    assert schedule(table, scheduler=CPOP).placement.device == (1, 1, 0, 1)


def test_the_critical_path_leaves_its_device_when_that_is_full() -> None:
    table = make_table([[1, 9], [1, 9]], [(0, (1,), 1)], op_bytes=[5, 5], capacity_bytes=[9, 9])
    assert schedule(table, scheduler=CPOP).placement.device == (0, 1)


def test_the_downward_rank_is_the_longest_way_from_the_beginning() -> None:
    # op2: by op0 alone 3 + 5 sent; by op1 (3 + 1 sent) + 2 + 4 sent = 10
    table = make_table([[2, 4], [1, 3], [7, 7]], [(0, (2,), 5), (0, (1,), 1), (1, (2,), 4)])
    assert downward_rank(table) == [0, 4, 10]


def test_the_optimistic_cost_looks_ahead() -> None:
    # op1 to op2: 1 on dev1, so 0 + 1 there, and 3 sent + 1 < 9 from dev0
    # op0 to op1: from dev0 min(4 + 4, 2 sent + 5 + 1) = 8 either way; from dev1 5 + 1 = 6
    table = make_table([[1, 1], [4, 5], [9, 1]], [(0, (1,), 2), (1, (2,), 3)])
    assert optimistic_costs(table).tolist() == [[8, 6], [4, 1], [0, 0]]
    assert schedule(table, scheduler=PEFT).placement.device == (1, 1, 1)


def test_of_the_ready_operators_the_one_with_the_highest_priority_goes_first() -> None:
    table = make_table([[1]] * 4, [(0, (3,), 0)])
    assert by_priority([1, 2, 2, 9], table.edges) == [1, 2, 0, 3]


@given(tables(max_ops=8))
def test_every_schedule_is_a_feasible_placement(table: CostTable) -> None:
    for scheduler in SCHEDULERS:
        for book_transfers in (False, True):
            found = scheduler.schedule(table, book_transfers, FOREVER)
            if found is not None:
                assert value(Problem(table, Goal.LATENCY), found.placement) < inf


@given(tables(max_ops=8))
def test_without_transfers_the_simulator_agrees(table: CostTable) -> None:
    free = make_table(
        table.forward_s, [(f.writer, f.readers, 0.0) for f in table.flows], capacity_bytes=[1e9] * table.n_devices
    )
    for scheduler in SCHEDULERS:
        found = schedule(free, scheduler=scheduler)
        assert simulate(free, found.placement).makespan_s == pytest.approx(found.makespan_s)


def test_the_example_of_heft_and_cpop() -> None:
    table = table_of(TOPCUOGLU)
    assert upward_rank(table) == pytest.approx([108, 77, 80, 80, 69, 63.333, 42.667, 35.667, 44.333, 14.667], abs=1e-3)
    assert schedule(table).makespan_s == 80
    assert schedule(table).placement.device == (2, 0, 2, 1, 2, 1, 2, 0, 1, 1)
    assert schedule(table, scheduler=CPOP).makespan_s == 86


def test_the_example_of_peft() -> None:
    table = table_of(ARABNEJAD)
    assert optimistic_costs(table).tolist()[:3] == [[64, 68, 86], [42, 39, 42], [27, 41, 43]]
    assert schedule(table, scheduler=PEFT).makespan_s == 122
    assert schedule(table).makespan_s == 133


@pytest.mark.parametrize(
    ("example", "scheduler", "makespan_s"),
    [(TOPCUOGLU, HEFT, 80), (TOPCUOGLU, CPOP, 86), (ARABNEJAD, PEFT, 122), (ARABNEJAD, HEFT, 133)],
)
def test_the_judge_says_the_same_where_channels_are_free(
    example: Example, scheduler: ListScheduler, makespan_s: float
) -> None:
    problem = Problem(replace(table_of(example), sharing="unlimited"), Goal.LATENCY)
    assert value(problem, schedule(problem.table, scheduler=scheduler).placement) == makespan_s


@pytest.mark.skipif(not CANONICAL.exists(), reason="needs the literature's examples beside the repository")
@pytest.mark.parametrize("name", ["topcuoglu_2002", "arabnejad_2014"])
def test_the_makespans_of_the_literature(name: str) -> None:
    example = json.loads(CANONICAL.read_text())[name]
    table = make_table(example["compute"], [(writer, (reader,), cost) for writer, reader, cost in example["edges"]])
    found = {scheduler.name.upper(): schedule(table, scheduler=scheduler) for scheduler in SCHEDULERS}
    for algorithm in found.keys() & example["makespan"].keys():
        assert found[algorithm].makespan_s == example["makespan"][algorithm]
    if "upward_rank" in example:
        assert upward_rank(table) == pytest.approx(example["upward_rank"], abs=1e-3)
    if "optimistic_cost_table" in example:
        assert optimistic_costs(table).tolist() == example["optimistic_cost_table"]
    for op, device, start_s, finish_s in example.get("heft_schedule", []):
        heft = found["HEFT"]
        assert (heft.placement.device[op], heft.start_s[op], heft.finish_s[op]) == (device, start_s, finish_s)
