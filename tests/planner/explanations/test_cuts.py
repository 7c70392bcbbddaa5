"""What the cuts of `small.DIAMOND` cost and do, and what moving their ends would."""

from planner.explanations.bottleneck import bottleneck
from planner.explanations.cuts import Cut, CutEffect, CutMove, cuts
from planner.plans.plan import Plan
from planner.problem.problem import Goal
from tests.planner.explanations.small import diamond, make_graph, make_plan


def effects(plan: Plan) -> dict[str, str]:
    return {cut.tensor: str(cut.effect) for cut in cuts(plan, bottleneck(plan), 0)}


def test_a_cut_says_what_goes_from_where_to_where() -> None:
    plan = diamond()
    first, second = cuts(plan, bottleneck(plan), 0)
    assert first == Cut("a", "cpu0", "cpu1", "a", "stem", ("c",), "block.right", 2.0, 2.0, 0.0, CutEffect.HIDDEN)
    assert second == Cut("c", "cpu1", "cpu0", "c", "block.right", ("d",), "head", 1.0, 1.0, 0.0, CutEffect.HIDDEN)


def test_readers_are_in_the_order_in_which_they_run() -> None:
    plan = diamond(placed="0110", order=(0, 2, 1, 3))
    (first, *_) = cuts(plan, bottleneck(plan), 0)
    assert (first.tensor, first.readers, first.read_in) == ("a", ("c", "b"), "block.right")


def test_both_ends_of_a_border_are_moved() -> None:
    # writer a on cpu1: cpu0 b 3 + d 1, cpu1 a 2 + c 4 = 6 as before; reader c on cpu0: 10
    # writer c on cpu0: 10; reader d on cpu1: cpu0 a 2 + b 3, cpu1 c 4 + d 1: 5
    plan = diamond()
    first, second = cuts(plan, bottleneck(plan), 2)
    assert first.moves == (CutMove("a", 1, "cpu1", 6.0, ""), CutMove("c", 1, "cpu0", 10.0, ""))
    assert second.moves == (CutMove("c", 1, "cpu0", 10.0, ""), CutMove("d", 1, "cpu1", 5.0, "", better=True))


def test_moves_are_judged_only_for_the_first() -> None:
    plan = diamond()
    assert [len(cut.moves) for cut in cuts(plan, bottleneck(plan), 1)] == [2, 0]


def test_with_overlap_a_transfer_is_hidden_unless_its_link_limits() -> None:
    assert effects(diamond()) == {"a": "hidden", "c": "hidden"}
    assert effects(make_plan(diamond().graph, (0, 0, 0, 0), "0011")) == {"a": "limits", "b": "limits"}


def test_without_overlap_a_transfer_limits_if_an_end_is_the_bottleneck() -> None:
    # cpu0: a 2; cpu1: b 3 + c 4; cpu2: d 1; and the transfers: a to cpu1 2, b and c to cpu2 1 each
    assert effects(diamond(overlap=False)) == {"a": "limits", "c": "limits"}
    # the bottleneck is cpu0 with b 30 + a 2 + 1; a goes to cpu1, c from there to cpu2, b to cpu2
    plan = make_plan(diamond().graph, (2, 30, 4, 1), "0012", overlap=False)
    assert effects(plan) == {"a": "limits", "b": "limits", "c": "slack"}


def test_hand_over_limits_where_it_occupies_the_bottleneck() -> None:
    assert effects(diamond(overhead_s=0.1)) == {"a": "limits", "c": "limits"}
    plan = make_plan(diamond().graph, (2, 30, 4, 1), "0012", overhead_s=0.1)
    assert effects(plan) == {"a": "limits", "b": "limits", "c": "hidden"}


def test_on_the_critical_path_or_not() -> None:
    # a goes to cpu1 and cpu2 from 2 to 4, for each link has its own channel; b is back at 4 + 3 + 1, c at 4 + 4 + 1
    plan = diamond(Goal.LATENCY, "0120")
    found = {(cut.tensor, cut.dst): str(cut.effect) for cut in cuts(plan, bottleneck(plan), 0)}
    assert found == {("a", "cpu1"): "hidden", ("a", "cpu2"): "limits", ("b", "cpu0"): "hidden", ("c", "cpu0"): "limits"}


def test_hand_over_of_stages_on_the_critical_path() -> None:
    # cpu0 runs a, b, d without waiting; c is aside, but cpu0 hands over a and c
    plan = make_plan(diamond().graph, (2, 20, 4, 1), "0010", Goal.LATENCY)
    assert effects(plan) == {"a": "hidden", "c": "hidden"}
    plan = make_plan(diamond().graph, (2, 20, 4, 1), "0010", Goal.LATENCY, overhead_s=0.1)
    assert effects(plan) == {"a": "limits", "c": "limits"}


def test_those_that_limit_come_first_then_the_longest() -> None:
    graph = make_graph(dict.fromkeys("abcd", "m"), {"b": "a", "c": "b", "d": "c"}, {"a": 1, "b": 3, "c": 2})
    plan = make_plan(graph, (1, 1, 9, 9), "0123", overlap=False)  # cpu2: 9 + 3 + 2 = 14, cpu3: 9 + 2 = 11
    assert [(cut.tensor, cut.effect) for cut in cuts(plan, bottleneck(plan), 0)] == [
        ("b", CutEffect.LIMITS),
        ("c", CutEffect.LIMITS),
        ("a", CutEffect.SLACK),
    ]
