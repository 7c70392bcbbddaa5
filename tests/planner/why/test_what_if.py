"""Moves and other means, against the judge's sums by hand."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from planner.bounds import lower_bound
from planner.plans import Plan
from planner.problem import Goal, Problem
from planner.solvers.blocks import merge_blocks
from planner.why.what_if import Help, How, Move, helps, move
from tests.planner.why.small import diamond, make_graph, make_plan, with_costs


def moved(plan: Plan, op: str, to: int) -> Move:
    return move(plan, merge_blocks(plan.table), plan.graph.index[op], to)


def test_a_move_is_judged_for_the_goal() -> None:
    # all on cpu0: 2 + 3 + 4 + 1
    assert moved(diamond(), "c", 0) == Move("c", 1, "cpu0", 10.0, "")
    # d on cpu1: a 0..2, sent 2..4, c 4..8, d 8..9; b was there at 6
    assert moved(diamond(Goal.LATENCY), "d", 1) == Move("d", 1, "cpu1", 9.0, "")


def test_the_order_stays() -> None:
    # cpu0 runs c before b in this order: a 0..2, c 2..6, b 6..9 (alone on cpu0), d 9..10
    plan = diamond(Goal.LATENCY, order=(0, 2, 1, 3))
    assert moved(plan, "c", 0).objective_s == 10.0


def test_what_shares_a_parameter_moves_along() -> None:
    # b and c read p: all but d on cpu1 is 2 + 3 + 4, for a comes along with neither
    graph = make_graph(dict.fromkeys("abcd", "m"), {"b": "a", "c": "a", "d": "b c"}, parameters={"b": "p", "c": "p"})
    plan = make_plan(graph, (2, 3, 4, 1), "0000", n_devices=2)
    assert moved(plan, "b", 1) == Move("b", 2, "cpu1", 3.0 + 4.0, "")


def test_a_move_without_room_says_by_how_much_and_what_it_would_be_worth() -> None:
    # d has a parameter of 10 bytes; the activations are 4 bytes at once (x, a, b and c, while c is written) in
    # 1 micro-batch
    graph = make_graph(
        {"a": "m", "b": "m", "c": "m", "d": "m"}, {"b": "a", "c": "a", "d": "b c"}, parameters={"c": "p", "d": "q"}
    )
    plan = make_plan(graph, (2, 3, 4, 1), "0010", memory_bytes=16.0, in_flight=1)
    assert plan.table.working_bytes == 4
    found = moved(plan, "d", 1)  # 10 + 10 + 4 bytes
    assert found == Move("d", 1, "cpu1", 5.0, "'cpu1' is over by 8 bytes")


def test_a_move_that_cannot_run() -> None:
    plan = make_plan(diamond().graph, ((2, inf), 3, 4, 1), "0010")
    assert moved(plan, "a", 1) == Move("a", 1, "cpu1", None, "operator 'a' cannot run on 'cpu1'")
    one_way = with_costs(
        diamond(placed="0011"), wire=np.array([[-1, 0], [-1, -1]]), channel=np.array([[-1, 0], [-1, -1]])
    )
    told = "tensor 'a' must go from 'cpu1' to 'cpu0', but there is no link; add a [[link]] to cluster.toml"
    assert moved(one_way, "a", 1) == Move("a", 1, "cpu1", None, told)


def helped(plan: Plan, *moves: Move) -> dict[str, Help]:
    return {found.change: found for found in helps(plan, moves)}


def test_one_more_device_lowers_the_bound() -> None:
    # 10 s of work on two devices: 5; on three it could be 10 / 3, but c is one operator of 4
    found = helped(diamond())["one more device like cpu0"]
    assert found.how == How.BOUND
    assert [found.now_s, found.seconds] == pytest.approx([5.0, 4.0])


def test_the_kind_of_device_that_lowers_it_most() -> None:
    # cpu1 is twice as slow. Speeds 1 + 1/2: 10 / 1.5; one more cpu0: 10 / 2.5, one more cpu1: 10 / 2
    rows = [(2, 4), (3, 6), (4, 8), (1, 2)]
    found = helped(make_plan(diamond().graph, rows, "0000", n_devices=2, kinds=("fast", "slow")))
    (name,) = (name for name in found if name.startswith("one more"))
    assert name == "one more device like cpu0"
    assert [found[name].now_s, found[name].seconds] == pytest.approx([10 / 1.5, 10 / 2.5])
    rows = [(b, a) for a, b in rows]
    found = helped(make_plan(diamond().graph, rows, "0000", n_devices=2, kinds=("slow", "fast")))
    assert "one more device like cpu1" in found


def test_one_more_device_is_no_help_against_the_longest_path() -> None:
    # a 2, c 4, d 1
    found = helped(diamond(Goal.LATENCY))["one more device like cpu0"]
    assert (found.now_s, found.seconds) == (7.0, 7.0)


def test_faster_links_are_judged_with_the_placement_as_it_is() -> None:
    # cpu0 without overlap: 6 + 2 + 1 = 9; at twice the bandwidth 6 + 1 + 0.5; for nothing 6
    found = helped(diamond(overlap=False))
    assert found["links of twice the bandwidth"] == Help("links of twice the bandwidth", 7.5, 9.0, How.JUDGED)
    assert found["transfers that cost nothing"] == Help("transfers that cost nothing", 6.0, 9.0, How.JUDGED)
    # with hand-over of 1 s for each of two tensors: 6 + 2, which more bandwidth does not change
    found = helped(diamond(handover_s=1.0))
    assert found["links of twice the bandwidth"].seconds == 8.0
    assert found["transfers that cost nothing"].seconds == 6.0


def test_a_placement_that_sends_nothing_has_no_use_for_faster_links() -> None:
    assert list(helped(diamond(placed="0000", n_devices=2))) == ["one more device like cpu0"]


def test_missing_links_stay_missing() -> None:
    one_way = with_costs(
        diamond(placed="0011"), wire=np.array([[-1, 0], [-1, -1]]), channel=np.array([[-1, 0], [-1, -1]])
    )
    assert helped(one_way)["transfers that cost nothing"].seconds == 5.0


def test_more_memory_only_where_it_binds() -> None:
    assert not any("memory" in change for change in helped(diamond()))
    # cpu0 is twice as fast and has room for one of the two parameters of 10 bytes
    graph = make_graph({"a": "m", "b": "m"}, {}, parameters={"a": "p", "b": "q"})
    plan = make_plan(graph, ((1, 9), (1, 9)), "01", memory_bytes=14.0, in_flight=1)
    roomy = replace(plan.table, capacity_bytes=np.full(2, inf))
    found = helped(plan)["memory without limits"]
    assert (found.how, found.now_s) == (How.BOUND, lower_bound(Problem(plan.table, plan.goal)))
    assert found.seconds == lower_bound(Problem(roomy, plan.goal)) < found.now_s


def test_a_better_neighbour_without_room_shows_that_memory_binds() -> None:
    barred = Move("d", 1, "cpu1", 5.0, "'cpu1' is over by 8 bytes")
    worse = Move("a", 1, "cpu1", 7.0, "'cpu1' is over by 1 bytes")
    best = helped(diamond(), worse, barred)["more memory on cpu1, for d"]
    assert best == Help("more memory on cpu1, for d", 5.0, 6.0, How.JUDGED, "'cpu1' is over by 8 bytes")
    assert not any("memory" in change for change in helped(diamond(), worse))


def test_more_in_flight_where_devices_wait_for_each_other() -> None:
    # one in flight: each takes 10 s alone; two: the busiest device 6 s; working memory is 5 bytes for each
    plan = diamond(in_flight=1)
    assert (plan.period_s, plan.table.working_bytes) == (10.0, 5)
    found = helped(plan)["2 micro-batches in flight, not 1"]
    assert (found.how, found.now_s, found.remark) == (How.SIMULATED, 10.0, "5 B more on each device")
    assert found.seconds < 10.0
    full = diamond(in_flight=1, memory_bytes=8.0)
    assert helped(full)["2 micro-batches in flight, not 1"].remark.endswith("for which 'cpu0' has no room")
    assert not any("in flight" in change for change in helped(diamond(Goal.LATENCY, in_flight=1)))
