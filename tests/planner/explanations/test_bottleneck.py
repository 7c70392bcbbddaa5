"""What limits, against loads by hand; the numbers are those of `small.DIAMOND`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.table import CostTable
from graphs.common.errors import InputError
from planner.explanations.bottleneck import Bottleneck, bottleneck
from planner.explanations.regions import TimeShare
from planner.problem.problem import Goal
from simulator.placement import Placement
from tests.planner.explanations.small import diamond, make_plan, plan_of
from tests.planner.problem.problems import tables


def test_a_device_with_what_it_computes() -> None:
    # cpu0: a 2 + b 3 + d 1 = 6, cpu1: c 4, the channels: a 2 and c 1
    assert bottleneck(diamond()) == Bottleneck(
        "device",
        ("cpu0",),
        6.0,
        (TimeShare("block.left", 3.0, 3 / 6, 1), TimeShare("stem", 2.0, 2 / 6, 1), TimeShare("head", 1.0, 1 / 6, 1)),
    )


def test_a_device_with_its_transfers_where_they_occupy_it() -> None:
    # cpu0: 6 + 2 for a + 1 for c = 9
    limit = bottleneck(diamond(overlap=False))
    assert (limit.names, limit.seconds) == (("cpu0",), 9.0)
    assert limit.parts[:2] == (
        TimeShare("block.left", 3.0, 3 / 9, 1),
        TimeShare("sending and receiving", 3.0, 3 / 9, 0),
    )


def test_hand_over_occupies_a_device_as_well() -> None:
    # cpu0 hands over two tensors: 6 + 2 × 4 = 14
    limit = bottleneck(diamond(overhead_s=4.0))
    assert (limit.seconds, limit.parts[0]) == (14.0, TimeShare("sending and receiving", 8.0, 8 / 14, 0))


def test_of_several_the_first() -> None:
    # d on cpu1: a 2 + b 3 = 5 and c 4 + d 1 = 5
    assert bottleneck(diamond(placed="0011")).names == ("cpu0",)


def test_a_link_with_its_tensors() -> None:
    # a needs 2 s and b 1 s from cpu0 to cpu1, computing takes no time
    plan = make_plan(diamond().graph, (0, 0, 0, 0), "0011")
    assert bottleneck(plan) == Bottleneck(
        "link", ("cpu0 → cpu1",), 3.0, (TimeShare("a", 2.0, 2 / 3, 0), TimeShare("b", 1.0, 1 / 3, 0))
    )


def test_the_critical_path_by_module() -> None:
    # a 2, sent 2, c 4, sent 1, d 1: 10 s, of which 3 s on links
    limit = bottleneck(diamond(Goal.LATENCY))
    assert (limit.kind, limit.names, limit.seconds, len(limit.path)) == ("path", ("cpu0", "cpu1"), 10.0, 5)
    assert limit.parts == (
        TimeShare("block.right", 4.0, 4 / 10, 1),
        TimeShare("sending and receiving", 3.0, 3 / 10, 0),
        TimeShare("stem", 2.0, 2 / 10, 1),
        TimeShare("head", 1.0, 1 / 10, 1),
    )


@given(tables(), st.sampled_from(Goal), st.data())
def test_the_parts_sum_to_the_objective(table: CostTable, goal: Goal, data: st.DataObject) -> None:
    placement = Placement(tuple(data.draw(st.integers(0, table.n_devices - 1)) for _ in range(table.n_ops)))
    try:
        placement.check(table)
    except InputError:
        return
    plan = plan_of(table, placement, goal)
    try:
        limit = bottleneck(plan)
    except InputError:  # no pipeline
        assert goal is Goal.TRAINING
        return
    assert limit.seconds == plan.objective_s
    assert sum(part.seconds for part in limit.parts) == pytest.approx(plan.objective_s)
