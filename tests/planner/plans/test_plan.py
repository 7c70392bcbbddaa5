"""The figures of a plan, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.units import format_seconds
from costmodels.workload import Workload
from graphs.common.errors import InputError
from planner.plans.prediction import predict
from planner.problem.problem import Goal, Problem
from simulator.placement import Placement
from simulator.training import TrainingStep
from tests.costmodels.parts import table_with
from tests.planner.explanations.small import diamond
from tests.planner.sample import PLAN
from tests.planner.view.samples import chain_plan


def test_the_figures_of_a_plan() -> None:
    # a on gpu0: 1 s; 4·2·4 = 32 bytes to cpu0: 0.5 + 32 / 16 = 2.5 s, which occupies both; b and c on cpu0: 1 + 2 s
    assert PLAN.evaluation.load_s.tolist() == [1 + 2 + 2.5, 1 + 2.5, 0]
    assert PLAN.objective_s == PLAN.period_s == 5.5
    assert PLAN.gap == 1 - 1.3 / 5.5
    assert PLAN.samples_per_s == 4 / 5.5
    assert PLAN.latency_s == 1 + 2.5 + 2  # b runs beside a
    assert [PLAN.device_of(op) for op in "abc"] == ["gpu0", "cpu0", "cpu0"]
    assert PLAN.simulate(5).micro_batches == 5
    latency = replace(PLAN, goal=Goal.LATENCY)
    assert (latency.objective_s, latency.period_s) == (5.5, 5.5)
    assert replace(PLAN, bound_s=9.0).gap == 0


def test_what_counts_is_what_the_simulator_sees() -> None:
    assert diamond(in_flight=1).predicted_s == 10.0  # one after the other, though the busiest device has 6 s
    assert diamond(Goal.LATENCY).predicted_s == 10.0


def test_a_device_is_slowed_down_only_while_others_compute() -> None:
    slow = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])  # b and c on cpu0 take twice the time
    group = np.array([0, 0, 1])  # of cpu0 and gpu0
    contended = replace(PLAN, table=table_with(PLAN.table, slowdown=slow, contention_group=group))
    assert contended.period_s == pytest.approx(5.5 + 3 * 1 / 6)  # b and c have 6 s of work, a has 1
    assert contended.latency_s == PLAN.latency_s  # alone
    latency = replace(contended, goal=Goal.LATENCY)  # made to use devices at the same time
    assert latency.latency_s == latency.objective_s == 2 + 4 + 2.5
    one_device = replace(contended, placement=Placement((0, 0, 0)))
    assert one_device.period_s == one_device.objective_s == 4 + 1 + 2
    assert one_device.evaluation.load_s.tolist() == [4 + 1 + 2, 0, 0]
    assert predict(one_device, 5).timeline == one_device.simulate(5)
    assert predict(contended, 1).timeline.makespan_s == contended.latency_s


def test_in_training_a_device_is_slowed_down_only_if_others_have_a_part() -> None:
    forward_s = PLAN.table.forward_s
    costs = table_with(PLAN.table, backward_s=forward_s * 2, slowdown=np.full(forward_s.shape, 0.5))
    contended = replace(PLAN, goal=Goal.TRAINING, workload=Workload("training", micro_batches=3), table=costs)
    alone_s = 3 * 3 * PLAN.table.forward_s[:, 0].sum()  # three micro-batches, there and twice that long back
    one_device = replace(contended, placement=Placement((0, 0, 0)))
    assert one_device.latency_s == pytest.approx(alone_s)
    assert one_device.period_s == pytest.approx(alone_s / 3)
    assert one_device.simulate().makespan_s == pytest.approx(alone_s)
    assert predict(one_device).timeline == one_device.simulate()
    assert one_device.objective_s == one_device.latency_s
    assert one_device.evaluation.load_s.tolist() == pytest.approx([alone_s / 3, 0, 0])
    assert contended.latency_s == contended.objective_s == contended.simulate().makespan_s


def test_a_turn_on_one_device_is_where_it_takes_equally_long_alone() -> None:
    # a, b, c take 4, 1, 2 s on cpu0 alone, so the turn is behind a; under contention they take 4, 4, 8 s: behind b
    slow = np.array([[0.0] * 3, [3.0] * 3, [3.0] * 3])
    costs = table_with(PLAN.table, slowdown=slow)
    work = Workload("training", micro_batches=2, schedule="zbv")
    plan = replace(PLAN, goal=Goal.TRAINING, workload=work, table=costs, placement=Placement((0, 0, 0)))
    assert plan.training_run.stages == ((0,), (1, 2))
    assert plan.training_run.pipeline.timeline == plan.simulate()


@pytest.mark.attack("process")
def test_a_simulation_is_bounded_and_says_what_more_would_take() -> None:
    plan = chain_plan(["stem", "stem", "block", "block"], 2)
    with pytest.raises(InputError) as error:
        predict(plan, 10**6)
    told = str(error.value)
    assert "1,000,000 micro-batches of 3 stages and transfers each are more than the 500,000 that a simulation" in told
    assert "give 166,666 micro-batches at most; in the long run one takes" in told
    assert f"so 1,000,000 take about {format_seconds(10**6 * plan.period_s)}" in told


@pytest.mark.attack("process")
def test_any_number_may_be_in_flight() -> None:
    plan = chain_plan(["stem", "stem", "block", "block"], 2)
    many = replace(plan, workload=replace(plan.workload, in_flight=10**9))
    few = replace(plan, workload=replace(plan.workload, in_flight=64))
    assert many.period_s == pytest.approx(few.period_s, rel=0.01)


@pytest.mark.attack("process")
def test_a_step_of_a_million_micro_batches_is_refused_by_name() -> None:
    plan = chain_plan(["stem", "stem", "block", "block"], 2)
    with pytest.raises(InputError, match=r"a step of 1,000,000 micro-batches is .* give 65,536 at most"):
        Problem(plan.table, Goal.TRAINING, step=TrainingStep(micro_batches=10**6))
