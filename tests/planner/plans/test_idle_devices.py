"""What is said of a plan on one device: the others are idle, whatever operators take beside them."""

from dataclasses import replace

import numpy as np
import pytest

from planner.explanations.diff import diff
from planner.explanations.explain import SingleDevice, explain
from planner.exports.targets import export
from planner.plans.plan import Plan
from planner.plans.prediction import predict
from planner.problem.bottleneck import busiest
from planner.problem.problem import Goal
from planner.view.dot import dot_text
from planner.view.payload import payload
from simulator.placement import Placement
from tests.planner.explanations.small import diamond, with_costs
from tests.planner.view.samples import training_plan

IDLE = {
    **{str(goal): diamond(goal, "0000", n_devices=2) for goal in (Goal.THROUGHPUT, Goal.LATENCY, Goal.COST)},
    "training": replace(training_plan(), placement=Placement((0,) * training_plan().table.n_ops)),
}


def with_contention(plan: Plan) -> Plan:
    """The plan where operators take twice as long while other devices compute."""
    table = plan.table
    one_group = np.zeros(table.n_devices, dtype=np.int64)
    return with_costs(plan, slowdown=np.ones_like(table.forward_s), contention_group=one_group)


@pytest.mark.parametrize("goal", IDLE)
def test_nothing_that_is_said_of_it_counts_company(goal: str) -> None:
    idle, beside = IDLE[goal], with_contention(IDLE[goal])
    assert (beside.objective_s, beside.latency_s, beside.period_s) == (idle.objective_s, idle.latency_s, idle.period_s)
    assert payload(beside, predict(beside)) == payload(idle, predict(idle))
    assert dot_text(beside) == dot_text(idle)
    assert export(beside, "networkx") == export(idle, "networkx")
    assert busiest(beside.problem, beside.placement) == busiest(idle.problem, idle.placement)
    told, expected = explain(beside), explain(idle)
    for what in ("objective_s", "period_s", "latency_s", "bottleneck", "isolated", "devices", "sources", "estimated"):
        assert getattr(told, what) == getattr(expected, what), what


def test_a_divided_plan_is_compared_with_a_device_that_is_left_alone() -> None:
    plan = with_contention(diamond())  # a, b and d on cpu0, c on cpu1
    assert plan.objective_s == pytest.approx((2 + 3 + 1) + 4)  # cpu1 computes for 8 s, half of which cpu0 loses
    assert explain(plan).isolated == SingleDevice("cpu0", 2 + 3 + 4 + 1)
    assert payload(plan, predict(plan))["summary"]["alone"]["seconds"] == 2 + 3 + 4 + 1
    (moved,) = diff(plan, replace(plan, placement=Placement((0,) * 4))).moved
    assert (moved.src, moved.dst, moved.before_s, moved.after_s) == ("cpu1", "cpu0", 2 * 4, 4)
