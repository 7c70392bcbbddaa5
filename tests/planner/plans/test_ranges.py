"""Ranges: what makes them wide, and that as many runs are within as they say."""

from dataclasses import replace
from math import exp, hypot, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.operators.pace import PACE_NAMES
from costmodels.table import QUARTILES, Source
from planner.plans.files import plan_from_dict, plan_to_dict
from planner.plans.plan import Plan
from planner.plans.ranges import LEFT, MODEL_IN_TURN, MODEL_ONE, MODEL_SEVERAL, UNKNOWN_PACE, Range, Spread
from planner.problem.problem import Goal
from simulator.placement import Placement
from tests.planner.sample import PLAN

SPREADS = st.floats(0.0, 0.5)
MEASURED = replace(PLAN, table=replace(PLAN.table, source=np.full((3, 3), str(Source.MEASURED))))


def placed(plan: Plan, *device: int) -> Plan:
    return replace(plan, placement=Placement(device))


@given(SPREADS, SPREADS, SPREADS, st.floats(1e-6, 1e6))
def test_a_range_is_around_the_prediction_and_as_wide_as_the_sum_of_the_squares(
    pace: float, costs: float, model: float, predicted_s: float
) -> None:
    spread = Spread(pace, costs, model)
    found = spread.range(predicted_s)
    assert predicted_s in found or spread.total == 0
    assert log(found.high_s / found.low_s) == pytest.approx(2 * 1.2816 * hypot(pace, costs, model), abs=1e-9)
    assert found.low_s * found.high_s == pytest.approx(predicted_s**2)
    assert spread.without_pace().total <= spread.total


def test_a_spread_of_any_size_is_a_range() -> None:
    assert Spread(0.0, 4924.0, 0.0).range(1.0).low_s > 0


def test_a_range_holds_four_of_five_runs() -> None:
    spread, drawn = Spread(0.1, 0.05, 0.07), np.random.default_rng(0)
    runs = 2.0 * np.exp(sum(drawn.normal(0, each, 20_000) for each in (spread.pace, spread.costs, spread.model)))
    assert np.mean([run in spread.range(2.0) for run in runs.tolist()]) == pytest.approx(0.8, abs=0.01)


def test_a_range_for_people_and_for_files() -> None:
    assert str(Range(0.0175, 0.0241)) == "17.5 ms – 24.1 ms"
    assert Range(0.0175, 0.0241).ends == [0.0175, 0.0241]


def test_the_model_is_surer_of_one_device_than_of_several_in_turn() -> None:
    several, one = placed(MEASURED, 0, 0, 2), placed(MEASURED, 0, 0, 0)
    assert several.spread() == Spread(UNKNOWN_PACE, 0.0, MODEL_SEVERAL)
    assert several.spread(alone=True) == Spread(UNKNOWN_PACE, 0.0, MODEL_IN_TURN)
    assert one.spread() == one.spread(alone=True) == Spread(UNKNOWN_PACE, 0.0, MODEL_ONE)


def test_kinds_of_operators_that_were_not_measured_are_wrong_apart() -> None:
    spread = np.full((3, 3), QUARTILES)  # a standard deviation of all there is
    guessed = replace(PLAN, table=replace(PLAN.table, spread=spread, source=np.full((3, 3), str(Source.ROOFLINE))))
    assert placed(guessed, 0, 0, 0).spread().costs == pytest.approx(hypot(4, 1, 2) / 7)
    sources = guessed.table.source.copy()
    sources[0, 0] = str(Source.MEASURED)
    known = replace(guessed, table=replace(guessed.table, source=sources))
    assert placed(known, 0, 0, 0).spread().costs == pytest.approx(hypot(1, 2) / 7)
    ops = tuple(replace(op, kind="aten.cat.default") for op in guessed.graph.ops)
    alike = replace(guessed, graph=replace(guessed.graph, ops=ops))
    assert placed(alike, 0, 0, 0).spread().costs == pytest.approx(1.0)


def test_the_pace_spreads_as_that_of_the_kinds_of_operators() -> None:
    spreads = dict.fromkeys(PACE_NAMES, 0.2) | {"computing on 2": 0.3}  # no operator of the sample streams
    paced = replace(MEASURED, pace_spread={"cpu": spreads})
    assert placed(paced, 0, 0, 2).spread(alone=True).pace == pytest.approx(0.2)
    assert placed(paced, 0, 0, 2).spread().pace == pytest.approx(0.3)
    assert placed(paced, 0, 0, 0).spread().pace == pytest.approx(0.2)
    read = plan_from_dict(plan_to_dict(placed(paced, 0, 0, 2)))
    assert read.period_range == placed(paced, 0, 0, 2).period_range


def test_a_host_whose_passes_differ_is_expected_to_go_on_so() -> None:
    noisy = replace(MEASURED, table=replace(MEASURED.table, spread=np.full((3, 3), 0.2 * QUARTILES)))
    spread = placed(noisy, 0, 0, 2).spread()
    assert spread.pace == pytest.approx(hypot(UNKNOWN_PACE, LEFT * 0.2))
    assert (spread.costs, spread.model) == (0.0, MODEL_SEVERAL)


def test_ranges_of_a_plan() -> None:
    plan = placed(MEASURED, 0, 0, 2)
    factor = exp(1.2816 * hypot(UNKNOWN_PACE, MODEL_SEVERAL))
    assert plan.period_range.ends == pytest.approx([plan.period_s / factor, plan.period_s * factor])
    in_turn = exp(1.2816 * hypot(UNKNOWN_PACE, MODEL_IN_TURN))
    assert plan.latency_range.high_s == pytest.approx(plan.latency_s * in_turn)


def test_plans_differ_surely_if_one_is_outside_the_range_of_the_other() -> None:
    table, plan = MEASURED.table, replace(placed(MEASURED, 0, 0, 0), goal=Goal.LATENCY)
    for factor, sure in ((1.0, False), (1.01, False), (1.2, True), (1 / 1.01, False), (1 / 1.2, True)):
        other = replace(plan, table=replace(table, forward_s=table.forward_s * factor))
        assert plan.surely_differs(other) is sure
        assert other.surely_differs(plan) is sure
