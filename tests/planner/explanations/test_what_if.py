"""Moves and other means, against the evaluator's sums by hand."""

from math import inf

import numpy as np

from planner.explanations.cuts import CutMove, move
from planner.explanations.what_if import Method, Remedy, helps
from planner.plans.plan import Plan
from planner.problem.blocks import merge_blocks
from planner.problem.problem import Goal
from tests.planner.explanations.small import diamond, make_graph, make_plan, with_costs


def moved(plan: Plan, op: str, to: int) -> CutMove:
    return move(plan, merge_blocks(plan.table), plan.graph.index[op], to)


def test_a_move_is_judged_for_the_goal() -> None:
    # all on cpu0: 2 + 3 + 4 + 1
    assert moved(diamond(), "c", 0) == CutMove("c", 1, "cpu0", 10.0, "")
    # d on cpu1: a 0..2, sent 2..4, c 4..8, d 8..9; b was there at 6
    assert moved(diamond(Goal.LATENCY), "d", 1) == CutMove("d", 1, "cpu1", 9.0, "", better=True)


def test_the_order_stays() -> None:
    # cpu0 runs c before b in this order: a 0..2, c 2..6, b 6..9 (alone on cpu0), d 9..10
    plan = diamond(Goal.LATENCY, order=(0, 2, 1, 3))
    assert moved(plan, "c", 0).objective_s == 10.0


def test_what_shares_a_parameter_moves_along() -> None:
    # b and c read p: all but d on cpu1 is 2 + 3 + 4, for a comes along with neither
    graph = make_graph(dict.fromkeys("abcd", "m"), {"b": "a", "c": "a", "d": "b c"}, parameters={"b": "p", "c": "p"})
    plan = make_plan(graph, (2, 3, 4, 1), "0000", n_devices=2)
    assert moved(plan, "b", 1) == CutMove("b", 2, "cpu1", 3.0 + 4.0, "", better=True)


def test_a_move_without_room_says_by_how_much_and_what_it_would_be_worth() -> None:
    # d has a parameter of 10 bytes; the activations are 4 bytes at once (x, a, b and c, while c is written) in
    # 1 micro-batch
    graph = make_graph(
        {"a": "m", "b": "m", "c": "m", "d": "m"}, {"b": "a", "c": "a", "d": "b c"}, parameters={"c": "p", "d": "q"}
    )
    plan = make_plan(graph, (2, 3, 4, 1), "0010", memory_bytes=16.0, in_flight=1)
    assert plan.table.working_bytes == 4
    found = moved(plan, "d", 1)  # 10 + 10 + 4 bytes
    assert found == CutMove("d", 1, "cpu1", 5.0, "'cpu1' is over by 8 bytes")


def test_a_move_that_cannot_run() -> None:
    plan = make_plan(diamond().graph, ((2, inf), 3, 4, 1), "0010")
    assert moved(plan, "a", 1) == CutMove("a", 1, "cpu1", None, "operator 'a' cannot run on 'cpu1'")
    one_way = with_costs(
        diamond(placed="0011"), link_class=np.array([[-1, 0], [-1, -1]]), channel=np.array([[-1, 0], [-1, -1]])
    )
    told = "tensor 'a' must go from 'cpu1' to 'cpu0', but there is no link; add a [[link]] to cluster.toml"
    assert moved(one_way, "a", 1) == CutMove("a", 1, "cpu1", None, told)


def helped(plan: Plan, *moves: CutMove) -> dict[str, Remedy]:
    return {found.change: found for found in helps(plan, moves)}


def test_free_transfers_are_judged_with_the_placement_as_it_is() -> None:
    # cpu0 without overlap: 6 + 2 + 1 = 9; for nothing 6
    free = "transfers that cost nothing"
    assert helped(diamond(overlap=False))[free] == Remedy(free, 6.0, 9.0, Method.JUDGED)
    # with overhead of 1 s for each of two tensors: 6 + 2
    assert helped(diamond(overhead_s=1.0))[free] == Remedy(free, 6.0, 8.0, Method.JUDGED)


def test_a_placement_that_sends_nothing_has_no_use_for_free_transfers() -> None:
    assert helped(diamond(placed="0000", n_devices=2)) == {}


def test_missing_links_stay_missing() -> None:
    one_way = with_costs(
        diamond(placed="0011"), link_class=np.array([[-1, 0], [-1, -1]]), channel=np.array([[-1, 0], [-1, -1]])
    )
    assert helped(one_way)["transfers that cost nothing"].seconds == 5.0


def test_a_better_neighbour_without_room_shows_that_memory_binds() -> None:
    barred = CutMove("d", 1, "cpu1", 5.0, "'cpu1' is over by 8 bytes")
    worse = CutMove("a", 1, "cpu1", 7.0, "'cpu1' is over by 1 bytes")
    best = helped(diamond(), worse, barred)["more memory on cpu1, for d"]
    assert best == Remedy("more memory on cpu1, for d", 5.0, 6.0, Method.JUDGED, "'cpu1' is over by 8 bytes")
    assert not any("memory" in change for change in helped(diamond(), worse))


def test_more_in_flight_where_devices_wait_for_each_other() -> None:
    # one in flight: each takes 10 s alone; two: the busiest device 6 s; working memory is 5 bytes for each
    plan = diamond(in_flight=1)
    assert (plan.period_s, plan.table.working_bytes) == (10.0, 5)
    found = helped(plan)["2 micro-batches in flight, not 1"]
    assert (found.how, found.now_s, found.remark) == (Method.SIMULATED, 10.0, "5 B more on each device")
    assert found.seconds < 10.0
    full = diamond(in_flight=1, memory_bytes=8.0)
    assert helped(full)["2 micro-batches in flight, not 1"].remark.endswith("for which 'cpu0' has no room")
    assert not any("in flight" in change for change in helped(diamond(Goal.LATENCY, in_flight=1)))
