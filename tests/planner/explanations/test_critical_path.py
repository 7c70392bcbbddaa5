"""The critical path against schedules drawn by hand."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.table import CostTable
from graphs.common.errors import InputError
from planner.explanations.bottleneck import critical_path
from planner.explanations.regions import Region
from planner.plans.plan import Plan
from planner.problem.evaluate import evaluate
from planner.problem.problem import Goal, Problem
from simulator.placement import Placement
from tests.planner.explanations.small import diamond, make_graph, make_plan, plan_of
from tests.planner.problem.problems import tables


def legs(plan: Plan) -> list[tuple[str, str, float, float, float]]:
    """(where, what, start, seconds, wait) of each leg."""
    return [
        (leg.resource, leg.tensor or " ".join(leg.ops), leg.start_s, leg.seconds, leg.wait_s)
        for leg in critical_path(plan)
    ]


def test_the_path_goes_through_what_was_waited_for() -> None:
    # cpu0   aabbb....d       a is sent from 2 to 4, c from 8 to 9
    # cpu1   ....cccc..
    assert legs(diamond(Goal.LATENCY)) == [
        ("cpu0", "a", 0, 2, 0),
        ("cpu0 → cpu1", "a", 2, 2, 0),
        ("cpu1", "c", 4, 4, 4),  # cpu1 stood still from 0 to 4
        ("cpu1 → cpu0", "c", 8, 1, 0),
        ("cpu0", "d", 9, 1, 9 - 5),  # cpu0 from 5 to 9
    ]
    leg = critical_path(diamond(Goal.LATENCY))[2]
    assert (leg.kind, leg.holds) == ("compute", (Region("block.right", "block.right", 1, 1),))


def test_stages_of_one_device_that_follow_each_other_are_one_leg() -> None:
    # b takes 9 s, from 2 to 11: c is back at 9, so cpu0 never waits although its stages are a | b | d
    plan = make_plan(diamond().graph, (2, 9, 4, 1), "0010", Goal.LATENCY)
    assert legs(plan) == [("cpu0", "a b d", 0, 12, 0)]
    assert [str(region) for region in critical_path(plan)[0].holds] == ["stem", "block.left", "head"]


def test_one_device_is_one_leg() -> None:
    assert legs(diamond(Goal.LATENCY, "0000")) == [("cpu0", "a b c d", 0, 2 + 3 + 4 + 1, 0)]


def test_without_overlap_a_device_may_be_held_by_a_transfer() -> None:
    # cpu0   aa>>bbbbbbbbbb<d      > sends a from 2 to 4, so b runs from 4 to 14; c is written at 8, but sent at 14
    # cpu1   ..>>cccc......<       when cpu0 is free again: it lay there for 6 s
    plan = make_plan(diamond().graph, (2, 10, 4, 1), "0010", Goal.LATENCY, overlap=False)
    assert legs(plan) == [
        ("cpu0", "a", 0, 2, 0),
        ("cpu0 → cpu1", "a", 2, 2, 0),
        ("cpu0", "b", 4, 10, 0),
        ("cpu1 → cpu0", "c", 14, 1, 14 - 8),
        ("cpu0", "d", 15, 1, 0),
    ]


def test_tensors_may_queue_for_one_channel() -> None:
    # a (1 s) and b (1 s) write 5 bytes each for c: a is sent from 1 to 6, b waits from 2 to 6 and arrives at 11
    graph = make_graph({"a": "m", "b": "m", "c": "m"}, {"c": "a b"}, {"a": 5, "b": 5})
    assert legs(make_plan(graph, (1, 1, 1), "001", Goal.LATENCY)) == [
        ("cpu0", "a", 0, 1, 0),
        ("cpu0 → cpu1", "a", 1, 5, 0),
        ("cpu0 → cpu1", "b", 6, 5, 6 - 2),
        ("cpu1", "c", 11, 1, 11),
    ]


def test_hand_over_belongs_to_the_stage() -> None:
    # each end takes 1 s more for each tensor: a 0..3, sent 3..5, c 5..11 (1 + 4 + 1), sent 11..12, d 12..14 (1 + 1)
    assert legs(diamond(Goal.LATENCY, overhead_s=1.0)) == [
        ("cpu0", "a", 0, 3, 0),
        ("cpu0 → cpu1", "a", 3, 2, 0),
        ("cpu1", "c", 5, 6, 5),
        ("cpu1 → cpu0", "c", 11, 1, 0),
        ("cpu0", "d", 12, 2, 12 - 6),  # b ran from 3 to 6
    ]


def test_nothing_takes_time() -> None:
    plan = make_plan(diamond().graph, (0, 0, 0, 0), "0000", Goal.LATENCY)
    assert legs(plan)[-1][2:] == (0, 0, 0)


@given(tables(), st.data())
def test_the_legs_leave_no_gap_and_sum_to_the_latency(table: CostTable, data: st.DataObject) -> None:
    placement = Placement(tuple(data.draw(st.integers(0, table.n_devices - 1)) for _ in range(table.n_ops)))
    try:
        latency_s = evaluate(Problem(table, Goal.LATENCY), placement).objective_s
    except InputError:  # a link is missing, or an operator cannot run there
        return
    found = critical_path(plan_of(table, placement, Goal.LATENCY))
    assert found[0].start_s == 0
    for leg, after in pairwise(found):
        assert leg.start_s + leg.seconds == pytest.approx(after.start_s)
        assert leg.kind == "transfer" or (leg.kind, leg.resource) != (after.kind, after.resource)
    assert sum(leg.seconds for leg in found) == pytest.approx(latency_s)
    assert all(leg.wait_s >= 0 for leg in found)
