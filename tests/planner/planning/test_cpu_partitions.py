"""Divisions of a CPU: what can be asked for, and which plan is chosen."""

from collections.abc import Sequence
from math import inf

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import planner
from costmodels.cluster.cluster import Cluster, Device, Link
from costmodels.operator_times import OperatorTimes
from costmodels.table import Source
from costmodels.tabulate import assemble
from costmodels.workload import Workload
from graphs.common.errors import InputError
from graphs.ir import Graph, Op, Role, Tensor
from planner.planning.autotune import TIE, Autotuning
from planner.planning.cpu_partitions import AUTO, MARGIN, PartitionChoice, choose_partition, widths
from planner.plans.plan import Plan
from planner.problem.constraints import forbid, pin
from planner.problem.problem import Goal
from planner.problem.result import NoPlanError, Result, Status
from simulator.placement import Placement

FOUR = {1: 4, 2: 2, 4: 1}
GRAPH = Graph(
    name="two",
    ops=(Op("a", "aten.relu.default", ("x",), ("a",)), Op("b", "aten.relu.default", ("a",), ("b",))),
    tensors=(
        Tensor("x", (1, 2), "float32", Role.INPUT),
        Tensor("a", (1, 2), "float32", Role.ACTIVATION),
        Tensor("b", (1, 2), "float32", Role.ACTIVATION),
    ),
    inputs=("x",),
    outputs=("b",),
)


def division(n_devices: int, rate: float = 1e9, cores: int = 4) -> Cluster:
    """Equal devices that share some cores."""
    width = cores // n_devices
    devices = tuple(
        Device(f"cpu{i}", "cpu", 1e9, {"float32": rate}, 1e15, cores=tuple(range(i * width, (i + 1) * width)))
        for i in range(n_devices)
    )
    return Cluster("desk", devices, tuple(Link(a.name, b.name, inf) for a in devices for b in devices if a is not b))


def plan_of(n_devices: int, seconds: float, measured: Sequence[bool] = (True, True), goal: Goal = Goal.LATENCY) -> Plan:
    """One operator of ``seconds`` and one of none; on two devices, if there are two."""
    cluster, workload = division(n_devices), Workload()
    times = np.repeat([[seconds], [0.0]], n_devices, axis=1)
    source = np.array([[str(Source.MEASURED if known else Source.ROOFLINE)] * n_devices for known in measured])
    return Plan(
        graph=GRAPH,
        cluster=cluster,
        workload=workload,
        table=assemble(GRAPH, cluster, workload, OperatorTimes(times, source)),
        goal=goal,
        placement=Placement((0, n_devices - 1)),
        status="optimal",
        solver="given",
        bound_s=0.0,
    )


class TestWidths:
    def test_auto_is_every_division_in_the_order_given(self) -> None:
        assert widths(AUTO, FOUR) == (4, 2, 1)

    @pytest.mark.parametrize(("split", "width"), [(1, 4), (2, 2), (4, 1)])
    def test_a_number_is_one_of_them(self, split: int, width: int) -> None:
        assert widths(split, FOUR) == (width,)

    def test_what_does_not_go_up_is_refused_with_what_does(self) -> None:
        with pytest.raises(InputError) as error:
            widths(3, FOUR)
        assert str(error.value) == (
            "the CPU cannot be divided into 3 equal devices; it can be into 1, 2, 4, or say auto"
        )


class TestChoice:
    def test_the_fastest_is_chosen(self) -> None:
        plans = plan_of(1, 3.0), plan_of(2, 2.0), plan_of(4, 2.5)
        choice = PartitionChoice(plans)
        assert choice.plan is plans[1]
        assert choice.why == "predicted to be the fastest"

    def test_more_devices_must_be_clearly_faster(self) -> None:
        plans = plan_of(1, 1.0), plan_of(2, 1 - MARGIN + 0.001)
        assert PartitionChoice(plans).plan is plans[0]
        assert PartitionChoice(plans).why == "more devices are less than 3% faster, which the costs are not sure of"
        plans = plan_of(1, 1.0), plan_of(2, 1 - MARGIN - 0.001)
        assert PartitionChoice(plans).plan is plans[1]

    @given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=3))
    def test_nobody_loses_more_than_the_margin_nor_has_devices_for_nothing(self, seconds: list[float]) -> None:
        plans = tuple(plan_of(n, s) for n, s in zip((1, 2, 4), seconds, strict=False))
        chosen = plans.index(PartitionChoice(plans).plan)
        assert seconds[chosen] * (1 - MARGIN) <= min(seconds)
        assert all(s * (1 - MARGIN) > min(seconds) for s in seconds[:chosen])

    def test_a_guess_does_not_win_against_a_measurement(self) -> None:
        guessed, measured = plan_of(1, 0.1, measured=(False, False)), plan_of(2, 2.0)
        assert PartitionChoice((guessed, measured)).plan is measured
        assert PartitionChoice((guessed, measured)).why == "the operators of the others were not measured"
        assert PartitionChoice((guessed,)).plan is guessed
        both = guessed, plan_of(2, 0.01, measured=(False, False))
        assert PartitionChoice(both).plan is both[1]  # two guesses compare

    def test_throughput_is_about_the_time_between_micro_batches(self) -> None:
        plan = plan_of(2, 2.0, goal=Goal.THROUGHPUT)
        assert plan.predicted_s == plan.period_s == 2.0

    def test_there_must_be_a_plan(self) -> None:
        with pytest.raises(InputError, match="there is no plan to choose from; give at least one cluster"):
            PartitionChoice(())


class TestTrial:
    def test_rounds_compare_one_by_one(self) -> None:
        # of the second to the first 8/4, 1/1 and 3/2, whose median is 1.5
        autotuning = Autotuning(((4.0, 1.0, 2.0), (8.0, 1.0, 3.0)))
        assert (autotuning.ratio(1, 0), autotuning.ratio(1, 1)) == (1.5, 1.0)
        assert autotuning.ratio(0, 1) == pytest.approx(1 / 1.5)
        assert (autotuning.seconds, autotuning.rounds) == ((2.0, 3.0), 3)

    def test_the_median_of_the_ratios_decides_not_the_ratio_of_the_medians(self) -> None:
        # the machine is three times as slow in the second round: 1.2/1, 3/3.3, 1/1.1 have the median 1/1.1
        autotuning = Autotuning(((1.0, 3.3, 1.1), (1.2, 3.0, 1.0)))
        assert autotuning.seconds == (1.1, 1.2)
        assert (autotuning.quickest, autotuning.chosen) == (1, 1)

    def test_more_devices_must_be_faster(self) -> None:
        clearly, hardly = 1 - TIE - 0.001, 1 - TIE + 0.001
        assert Autotuning(((1.0,) * 3, (clearly,) * 3)).chosen == 1
        tie = Autotuning(((1.0,) * 3, (hardly,) * 3))
        assert (tie.quickest, tie.chosen) == (1, 0)
        assert tie.why == "more devices are less than 1% faster"

    @pytest.mark.parametrize(("rounds", "why"), [(1, "the fastest in 1 round"), (3, "the fastest in 3 rounds")])
    def test_what_decided(self, rounds: int, why: str) -> None:
        assert Autotuning(((1.0,) * rounds, (2.0,) * rounds)).why == why

    def test_who_drops_out_is_not_chosen(self) -> None:
        # in the one round that both had, the first was not slower
        autotuning = Autotuning(((1.0,), (1.0, 1.0, 1.0), (1.5, 0.9, 0.9)))
        assert (autotuning.rounds, autotuning.quickest, autotuning.chosen) == (3, 2, 2)
        assert autotuning.ratio(0, 2) == pytest.approx(1 / 1.5)

    @given(st.lists(st.lists(st.floats(0.5, 2.0), min_size=3, max_size=3), min_size=1, max_size=4))
    def test_nobody_loses_more_than_a_tie(self, turns_s: list[list[float]]) -> None:
        autotuning = Autotuning(tuple(map(tuple, turns_s)))
        assert autotuning.ratio(autotuning.chosen, autotuning.quickest) <= 1 + TIE
        assert autotuning.chosen <= autotuning.quickest

    @given(
        st.lists(st.floats(0.1, 10.0), min_size=1, max_size=5), st.lists(st.floats(0.1, 10.0), min_size=3, max_size=3)
    )
    def test_how_fast_the_machine_was_in_a_round_does_not_matter(self, own_s: list[float], speeds: list[float]) -> None:
        drifting = Autotuning(tuple(tuple(s * speed for speed in speeds) for s in own_s))
        calm = Autotuning(tuple((s,) * 3 for s in own_s))
        assert own_s[drifting.chosen] == pytest.approx(own_s[calm.chosen], rel=TIE + 1e-9)

    @pytest.mark.parametrize("turns_s", [(), ((),), ((1.0,), ())])
    def test_every_plan_has_a_turn(self, turns_s: tuple[tuple[float, ...], ...]) -> None:
        with pytest.raises(InputError, match="autotuning needs plans, and a turn of each of them"):
            Autotuning(turns_s)


class TestTried:
    def test_the_trial_decides_against_the_prediction(self) -> None:
        plans = plan_of(1, 1.0), plan_of(2, 3.0)
        choice = PartitionChoice(plans, Autotuning(((2.0, 2.2), (1.0, 1.1))))
        assert choice.plan is plans[1]
        assert choice.why == "the fastest in 2 rounds"
        assert choice.measured_s == pytest.approx((2.1, 1.05))

    def test_a_guess_may_win_where_it_is_tried(self) -> None:
        plans = plan_of(1, 9.0, measured=(False, False)), plan_of(2, 2.0)
        assert PartitionChoice(plans).plan is plans[1]
        assert PartitionChoice(plans, Autotuning(((1.0,), (2.0,)))).plan is plans[0]

    def test_without_a_trial_nothing_is_measured(self) -> None:
        choice = PartitionChoice((plan_of(1, 1.0), plan_of(2, 3.0)), untried="somebody said so")
        assert choice.measured_s == (None, None)
        assert choice.plan is choice.plans[0]

    def test_a_trial_is_of_all_plans(self) -> None:
        with pytest.raises(InputError, match="1 of 2 plans were tried; try all or none"):
            PartitionChoice((plan_of(1, 1.0), plan_of(2, 3.0)), Autotuning(((1.0,),)))


def no_plan(cluster: Cluster) -> Plan:
    nothing = Result(Status.INFEASIBLE, None, inf, inf, 0.0, "made up", f"{len(cluster.devices)} too small")
    raise NoPlanError(nothing)


class TestChoose:
    def test_fewest_devices_come_first_whatever_the_order(self) -> None:
        choice = choose_partition([division(4), division(1), division(2)], lambda one: plan_of(len(one.devices), 1.0))
        assert [len(plan.cluster.devices) for plan in choice.plans] == [1, 2, 4]
        assert choice.plan is choice.plans[0]

    def test_a_division_without_a_plan_is_left_out(self) -> None:
        choice = choose_partition(
            [division(1), division(2)], lambda one: plan_of(2, 1.0) if len(one.devices) > 1 else no_plan(one)
        )
        assert [len(plan.cluster.devices) for plan in choice.plans] == [2]

    def test_without_any_plan_the_largest_devices_say_why(self) -> None:
        with pytest.raises(NoPlanError, match="1 too small"):
            choose_partition([division(2), division(1)], no_plan)

    def test_devices_that_a_constraint_names_must_be_there(self) -> None:
        divisions = [division(1), division(2), division(4)]

        def counts(*names: str) -> list[int]:
            asked = [pin("a", *names), forbid("b", "cpu0")]
            plans = choose_partition(divisions, lambda one: plan_of(len(one.devices), 1.0), asked).plans
            return [len(plan.cluster.devices) for plan in plans]

        assert counts("cpu1") == [2, 4]
        assert counts("cpu3") == [4]
        assert counts("cpu") == counts("cpu9") == [1, 2, 4]  # a kind; a name that is nowhere, which planning refuses


class TestPlan:
    """The choice through `planner.plan`: two equal layers; costs follow from the peaks."""

    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    inputs = (torch.ones(64, 64),)

    def plan(self, wide_rate: float, goal: str) -> Plan:
        clusters = (division(1, wide_rate, 2), division(2, 1e9, 2))
        copies = planner.Search(rewrites="copies")  # with operators in parts, latency would always be for two
        return planner.plan(self.model, self.inputs, cluster=clusters, goal=goal, search=copies)

    @pytest.mark.parametrize(
        ("wide_rate", "throughput", "latency"),
        [
            (2.1e9, 1, 1),
            (1.97e9, 1, 1),  # two devices stream 1.5 % faster, which is not enough
            (1.5e9, 2, 1),
            (0.9e9, 2, 2),  # threads may cost more than they bring
        ],
    )
    def test_the_goal_decides(self, wide_rate: float, throughput: int, latency: int) -> None:
        plans = [self.plan(wide_rate, goal) for goal in ("throughput", "latency")]
        assert [len(plan.cluster.devices) for plan in plans] == [throughput, latency]

    def test_micro_batches_in_flight_follow_from_the_chosen_devices(self) -> None:
        assert self.plan(2.1e9, "throughput").workload.in_flight == 2
        assert self.plan(1.5e9, "throughput").workload.in_flight == 4

    def test_a_plan_is_as_if_its_cluster_had_been_given(self) -> None:
        alone = planner.plan(self.model, self.inputs, cluster=division(2, 1e9, 2))
        assert planner.plans.files.plan_to_dict(self.plan(1.5e9, "throughput")) == planner.plans.files.plan_to_dict(
            alone
        )

    def test_no_cluster_is_refused(self) -> None:
        with pytest.raises(InputError, match="there is no cluster; give at least one"):
            planner.plan(self.model, self.inputs, cluster=())
