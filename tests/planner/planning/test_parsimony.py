"""Of plans whose predicted times differ by less than is known of them, the simplest is taken, and the plan says so."""

from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.table import Source
from planner.planning.make_plan import Search, search_plan
from planner.planning.parsimony import MOST_SLOWER, simplest, slack_of
from planner.plans.files import plan_from_dict, plan_to_dict
from planner.plans.plan import Plan, plan_by_hand
from planner.plans.simplification import SentTensors, Simplification, sent_tensors
from planner.problem.evaluate import evaluate
from planner.problem.problem import Goal, Problem
from planner.solvers.dp.chains.fewest_cuts import fewest_cuts
from planner.solvers.islands import islands_of
from simulator.placement import Placement
from tests.planner.explanations.small import make_graph, make_plan

NAMES = ("op0", "op1", "op2", "op3")


def skipping(placed: str = "0011", source: Source = Source.ROOFLINE, goal: Goal = Goal.THROUGHPUT) -> Plan:
    """Return a plan for four operators on two devices; one byte takes a second.

    ::

        100 s   100 s   2 s    198 s        two tensors of 9 bytes in all before op2: devices take 200 and 200 s
        op0 ──► op1 ──► op2 ──► op3         one tensor of 1 byte before op3: devices take 202 and 198 s
          └──────────────┘
    """
    graph = make_graph(dict.fromkeys(NAMES, ""), {"op1": "op0", "op2": "op1 op0", "op3": "op2"}, {"op1": 8})
    seconds, of = (100.0, 100.0, 2.0, 198.0), [[source] * 2] * 4
    plan = make_plan(graph, seconds, placed, goal, n_devices=2, in_flight=8, source=of, bound_s=200.0)
    return replace(plan, table=replace(plan.table, spread=np.full((4, 2), 0.35)))


def test_one_percent_of_an_estimate_buys_a_simpler_plan() -> None:
    plan = skipping()
    assert (plan.predicted_s, sent_tensors(plan.table, plan.placement)) == (200.0, SentTensors(2, 9.0, 2))
    simple = simplest(plan, 1.0)
    assert simple.placement.device == (0, 0, 0, 1)
    assert simple.predicted_s == 202.0
    assert simple.simplification == Simplification(202 / 200 - 1, 2, 9.0, 2)
    assert simple.simpler == "1.00% slower on paper, 1 tensor between devices (1 B) instead of 2 (9 B)"
    assert (simple.bound_s, simple.status) == (200.0, "feasible")
    assert plan_from_dict(plan_to_dict(simple)).simplification == simple.simplification
    assert plan_by_hand(simple, plan.placement).simplification is None


def test_measured_costs_are_known_too_well_for_one_percent() -> None:
    plan = skipping(source=Source.MEASURED)
    assert slack_of(plan) < 0.01 < slack_of(skipping()) <= MOST_SLOWER
    assert simplest(plan, 1.0) is plan


@pytest.mark.parametrize("search", [Search(gap=0.0, rewrites="none"), Search(solver="ilp", rewrites="none")])
def test_a_gap_of_0_or_a_solver_gets_the_optimum(search: Search) -> None:
    found = search_plan(skipping().task, search)
    assert (found.objective_s, found.simplification) == (200.0, None)


def test_a_search_takes_the_simplest_plan() -> None:
    found = search_plan(skipping().task, Search(rewrites="none"))
    assert found.placement.device in {(0, 0, 0, 1), (1, 1, 1, 0)}


def test_an_island_joins_its_neighbours() -> None:
    """For latency, op1 on another device takes 8 + 1 s of messages and nothing else."""
    plan = skipping("0100", goal=Goal.LATENCY)
    assert islands_of(plan.table, plan.placement) == [([1], [0]), ([0, 2, 3], [1])]
    simple = simplest(plan, 1.0)
    assert set(simple.placement.device) == {0}
    assert (
        simple.simpler == "2.20% faster on paper, no tensor between devices instead of 2 (9 B), 1 device instead of 2"
    )


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_simpler_plan_is_within_the_slack(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 9))
    names = [f"op{i}" for i in range(n)]
    reads = {
        name: " ".join(data.draw(st.sets(st.sampled_from(names[:i]), min_size=1, max_size=2)))
        for i, name in enumerate(names)
        if i
    }
    sizes = {name: data.draw(st.integers(1, 9)) for name in names}
    seconds = [float(data.draw(st.integers(1, 60))) for _ in names]
    placed = "".join(str(data.draw(st.integers(0, 2))) for _ in names)
    goal = data.draw(st.sampled_from([Goal.THROUGHPUT, Goal.LATENCY]))
    source = [[Source.ROOFLINE] * 3] * n
    plan = make_plan(
        make_graph(dict.fromkeys(names, ""), reads, sizes), seconds, placed, goal, n_devices=3, source=source
    )
    plan = replace(plan, table=replace(plan.table, spread=np.full((n, 3), 0.35)))
    simple = simplest(plan, 1.0)
    assert simple.evaluation.feasible
    assert simple.predicted_s <= plan.predicted_s * (1 + slack_of(plan)) * (1 + 1e-12)
    assert sent_tensors(simple.table, simple.placement) <= sent_tensors(plan.table, plan.placement)
    assert (simple.simplification is None) == (simple is plan)


@settings(max_examples=60, deadline=None)
@given(
    seconds=st.lists(st.integers(1, 9), min_size=3, max_size=7),
    sizes=st.lists(st.integers(1, 9), min_size=7, max_size=7),
    skips=st.sets(st.integers(0, 3)),
    most=st.integers(8, 40),
)
def test_no_division_of_the_line_within_the_limit_has_fewer_cuts(
    seconds: list[int], sizes: list[int], skips: set[int], most: int
) -> None:
    """Every division of the graph's own order among three devices in their order, by the evaluator."""
    names = [f"op{i}" for i in range(len(seconds))]
    reads = {name: names[i - 1] + (f" {names[0]}" if i in skips and i > 1 else "") for i, name in enumerate(names) if i}
    graph = make_graph(dict.fromkeys(names, ""), reads, dict(zip(names, sizes, strict=False)))
    n = len(names)
    plan = make_plan(graph, [float(each) for each in seconds], "012" + "2" * (n - 3), n_devices=3)
    problem = Problem(plan.table, Goal.THROUGHPUT)
    best = None
    for first, second in combinations_with_replacement(range(n + 1), 2):
        placement = Placement((0,) * first + (1,) * (second - first) + (2,) * (n - second))
        if evaluate(problem, placement).objective_s <= most:
            tensors = len(list(placement.cuts(plan.table)))
            best = tensors if best is None else min(best, tensors)
    found = [
        len(list(placement.cuts(plan.table)))
        for placement in fewest_cuts(problem, plan.placement, most)
        if evaluate(problem, placement).objective_s <= most
    ]
    if skips:
        assert not found or best is not None
    else:  # a chain: each cut is one tensor between neighbours, charged exactly
        assert min(found, default=None) == best
