"""The search for layer-wise plans, against all plans."""

from itertools import combinations_with_replacement, product
from math import inf
from typing import Any

import pytest

from planner.literature.layerwise.plan import LayerwisePlan, price_of
from planner.literature.layerwise.prices import StagePrices
from planner.literature.layerwise.setting import LayerwiseSetting, layerwise_setting
from planner.literature.layerwise.solve import solve_layerwise
from planner.problem.result import Status
from tests.planner.literature.layerwise.settings import small


def all_plans(setting: LayerwiseSetting) -> list[LayerwisePlan]:
    """Layers of a stage are equal, so their order does not matter."""
    found = []
    for stages in (1, 2):
        prices = StagePrices(setting, stages)
        for outer in [strategy for strategy in prices.strategies if not strategy.recompute]:
            for parts in product(*(combinations_with_replacement(prices.strategies, n) for n in prices.stage_layers)):
                found.append(LayerwisePlan(stages, outer, tuple(strategy for part in parts for strategy in part)))
    return found


def layers(number: int) -> dict[str, int]:
    return {"layers": number, "hidden": 512, "sequence": 1024}


def memory(mb: int) -> dict[str, Any]:
    cluster: dict[str, Any] = small()["cluster"]
    return cluster | {"memory_MB": mb}


COLLECTIVES: dict[str, Any] = small()["collective_ms"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model": layers(3), "cluster": memory(2400)},
        {"model": layers(3), "cluster": memory(1900)},
        {"cluster": memory(1500)},
        {"cluster": memory(1200)},
        {"cluster": memory(3000), "allreduce_MB_per_ms": {"2": {"near": 0.1, "spread": 0.1}}, "chunks": 4},
        {"collective_ms": COLLECTIVES | {"allreduce": {"2": [9, 9, 9]}, "all2all": {"2": [9, 9, 9]}}},
        {"cluster": memory(1500), "p2p_MB_per_ms": {"2": 1e-30}},  # numbers that stand for infinity
        {"model": layers(3), "cluster": memory(1900), "allreduce_MB_per_ms": {"2": {"near": 1e-30, "spread": 5.0}}},
        {"model": layers(3), "cluster": memory(1900), "collective_ms": COLLECTIVES | {"allreduce": {"2": [1e30] * 3}}},
        {"layer_memory": small()["layer_memory"] | {"recomputed_activation_MB_per_sample": 1e30}},
    ],
)
def test_no_plan_is_better(fields: dict[str, Any]) -> None:
    setting = layerwise_setting(small(**fields))
    prices = [price_of(setting, plan) for plan in all_plans(setting)]
    best_ms = min((price.step_ms for price in prices if price.feasible), default=inf)
    result = solve_layerwise(setting)
    assert result.step_ms == pytest.approx(best_ms, rel=1e-9)
    assert result.bound_ms == pytest.approx(best_ms, rel=1e-5)
    assert result.status is (Status.OPTIMAL if best_ms < inf else Status.INFEASIBLE)


def test_one_strategy_for_all() -> None:
    setting = layerwise_setting(small(uniform=True, cluster=memory(1500)))
    uniform = [
        plan
        for plan in all_plans(setting)
        if len(set(plan.layers)) == 1 and plan.layers[0]._replace(recompute=False) == plan.outer
    ]
    prices = [price_of(setting, plan) for plan in uniform]
    result = solve_layerwise(setting)
    assert result.step_ms == min(price.step_ms for price in prices if price.feasible)
    assert result.plan in uniform
