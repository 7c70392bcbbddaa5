"""A placement that no solver made, as a plan."""

from pathlib import Path
from typing import Any

from torch import nn

from planner.plans.files import load_plan, save_plan
from planner.plans.plan import plan_by_hand
from simulator.placement import Placement
from tests.planner.exports.nets import GPUS, chain, graph_of, plan_of

CHAIN = graph_of(chain(3))


def test_a_plan_by_hand(tmp_path: Path) -> None:
    """x @ w takes the same on either device, so 2 + 1 of 3 layers is 2/3 of what one device takes."""
    found = plan_of(CHAIN, {"": 0}, GPUS)
    plan = plan_by_hand(found, Placement((0, 0, 0, 1, 1)))
    assert (plan.solver, plan.status, plan.evaluation.violations) == ("by hand", "feasible", ())
    assert plan.evaluation.load_s[1] < plan.evaluation.load_s[0] < found.evaluation.load_s[0]
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json").placement == plan.placement


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.b.weight = self.a.weight

    def forward(self, x: Any) -> Any:
        return self.b(self.a(x))


def test_a_plan_by_hand_that_breaks_a_rule_says_so() -> None:
    graph = graph_of(Tied())
    plan = plan_by_hand(plan_of(graph, {"": 0}, GPUS), Placement((0, 1)))
    assert plan.status == "unknown"
    assert plan.evaluation.violations == ("'linear' and 1 more must share a device but are on 'gpu0' and 'gpu1'",)
