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
from costmodels.cluster import Cluster, Device, Link
from costmodels.table import Source
from costmodels.tabulate import OperatorTimes, assemble
from costmodels.workload import Workload
from graphs.errors import InputError
from graphs.ir import Graph, Op, Role, Tensor
from planner.constraints import forbid, pin
from planner.plans import Plan
from planner.problem import Goal
from planner.result import NoPlanError, Result, Status
from planner.split_cpu import AUTO, MARGIN, Choice, choose, predicted_s, widths
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
        choice = Choice(plans)
        assert choice.plan is plans[1]
        assert choice.why == "predicted to be the fastest"

    def test_more_devices_must_be_clearly_faster(self) -> None:
        plans = plan_of(1, 1.0), plan_of(2, 1 - MARGIN + 0.001)
        assert Choice(plans).plan is plans[0]
        assert Choice(plans).why == "more devices are less than 3% faster, which the costs are not sure of"
        plans = plan_of(1, 1.0), plan_of(2, 1 - MARGIN - 0.001)
        assert Choice(plans).plan is plans[1]

    @given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=3))
    def test_nobody_loses_more_than_the_margin_nor_has_devices_for_nothing(self, seconds: list[float]) -> None:
        plans = tuple(plan_of(n, s) for n, s in zip((1, 2, 4), seconds, strict=False))
        chosen = plans.index(Choice(plans).plan)
        assert seconds[chosen] * (1 - MARGIN) <= min(seconds)
        assert all(s * (1 - MARGIN) > min(seconds) for s in seconds[:chosen])

    def test_a_guess_does_not_win_against_a_measurement(self) -> None:
        guessed, measured = plan_of(1, 0.1, measured=(False, False)), plan_of(2, 2.0)
        assert Choice((guessed, measured)).plan is measured
        assert Choice((guessed, measured)).why == "the operators of the others were not measured"
        assert Choice((guessed,)).plan is guessed
        both = guessed, plan_of(2, 0.01, measured=(False, False))
        assert Choice(both).plan is both[1]  # two guesses compare

    def test_throughput_is_about_the_time_between_micro_batches(self) -> None:
        plan = plan_of(2, 2.0, goal=Goal.THROUGHPUT)
        assert predicted_s(plan) == plan.period_s == 2.0

    def test_there_must_be_a_plan(self) -> None:
        with pytest.raises(InputError, match="there is no plan to choose from; give at least one cluster"):
            Choice(())


def no_plan(cluster: Cluster) -> Plan:
    nothing = Result(Status.INFEASIBLE, None, inf, inf, 0.0, "made up", f"{len(cluster.devices)} too small")
    raise NoPlanError(nothing)


class TestChoose:
    def test_fewest_devices_come_first_whatever_the_order(self) -> None:
        choice = choose([division(4), division(1), division(2)], lambda one: plan_of(len(one.devices), 1.0))
        assert [len(plan.cluster.devices) for plan in choice.plans] == [1, 2, 4]
        assert choice.plan is choice.plans[0]

    def test_a_division_without_a_plan_is_left_out(self) -> None:
        choice = choose(
            [division(1), division(2)], lambda one: plan_of(2, 1.0) if len(one.devices) > 1 else no_plan(one)
        )
        assert [len(plan.cluster.devices) for plan in choice.plans] == [2]

    def test_without_any_plan_the_largest_devices_say_why(self) -> None:
        with pytest.raises(NoPlanError, match="1 too small"):
            choose([division(2), division(1)], no_plan)

    def test_devices_that_a_constraint_names_must_be_there(self) -> None:
        divisions = [division(1), division(2), division(4)]

        def counts(*names: str) -> list[int]:
            asked = [pin("a", *names), forbid("b", "cpu0")]
            plans = choose(divisions, lambda one: plan_of(len(one.devices), 1.0), asked).plans
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
        return planner.plan(self.model, self.inputs, cluster=clusters, goal=goal)

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
        assert planner.plans.plan_to_dict(self.plan(1.5e9, "throughput")) == planner.plans.plan_to_dict(alone)

    def test_no_cluster_is_refused(self) -> None:
        with pytest.raises(InputError, match="there is no plan to choose from"):
            planner.plan(self.model, self.inputs, cluster=())
