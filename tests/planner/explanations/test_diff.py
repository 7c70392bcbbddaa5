"""Two plans for `small.DIAMOND` side by side."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from costmodels.cluster.cluster import Cluster, Device, Link, Replicas
from costmodels.workload import Workload
from graphs.common.errors import InputError
from planner.explanations.diff import Change, CostChange, Cuts, CutTensor, MovedOperators, PlanDifference, diff
from planner.explanations.regions import Region
from planner.plans.plan import Plan
from planner.problem.constraints import contiguous, pin
from planner.problem.problem import Goal
from tests.planner.explanations.small import DIAMOND, diamond, make_graph, make_plan


def test_a_plan_and_itself() -> None:
    difference = diff(diamond(), diamond())
    assert difference.same
    assert (difference.changes, difference.costs, difference.moved, difference.reordered) == ((), (), (), False)
    assert difference.cuts == Cuts(3.0, 3.0, (), (), 2)


def test_moved_operators_and_what_they_take() -> None:
    # d from cpu0 to cpu1: c stays there and b is sent instead
    difference = diff(diamond(), diamond(placed="0011"))
    assert difference.moved == (MovedOperators("cpu0", "cpu1", 1, 1.0, 1.0, (Region("head", "head", 1, 1),)),)
    assert difference.cuts == Cuts(
        3.0, 3.0, (CutTensor("c", "cpu1", "cpu0", 1.0, 1.0),), (CutTensor("b", "cpu0", "cpu1", 1.0, 1.0),), 1
    )
    assert (difference.before.objective_s, difference.after.objective_s) == (6.0, 5.0)
    assert not difference.same
    assert not difference.same_placement


def test_operators_are_grouped_by_where_they_went() -> None:
    # a and b change places with c; each pair of devices in the order of its first operator
    difference = diff(diamond(), diamond(placed="1100"))
    assert [(m.src, m.dst, m.n_ops, m.before_s, ", ".join(map(str, m.what))) for m in difference.moved] == [
        ("cpu0", "cpu1", 2, 5.0, "stem, block.left"),
        ("cpu1", "cpu0", 1, 4.0, "block.right"),
    ]


def test_each_end_counts_by_its_own_costs() -> None:
    before = make_plan(DIAMOND, ((2, 7), 3, 4, 1), "0000", n_devices=2)
    after = make_plan(DIAMOND, ((2, 9), 3, 4, 1), "1000", n_devices=2)
    (moved,) = diff(before, after).moved
    assert (moved.before_s, moved.after_s) == (2.0, 9.0)


def test_devices_are_known_by_their_names() -> None:
    """The same placement in numbers, on a cluster whose devices stand in the other order."""
    before, numbered = diamond(), diamond(placed="1101")
    swapped = replace(numbered.cluster, devices=numbered.cluster.devices[::-1])
    after = replace(numbered, cluster=swapped, table=replace(numbered.table, devices=("cpu1", "cpu0")))
    assert diff(before, after).same


def test_cuts_that_are_gone_the_largest_first() -> None:
    cuts = diff(diamond(), diamond(placed="0000", n_devices=2)).cuts
    assert [(cut.tensor, cut.n_bytes) for cut in cuts.gone] == [("a", 2.0), ("c", 1.0)]
    assert (cuts.before_bytes, cuts.after_bytes, cuts.new, cuts.n_kept) == (3.0, 0.0, (), 0)


def test_the_order_alone() -> None:
    difference = diff(diamond(Goal.LATENCY), diamond(Goal.LATENCY, order=(0, 2, 1, 3)))
    assert (difference.reordered, difference.moved) == (True, ())
    assert not difference.same_placement


def test_the_proof_alone() -> None:
    difference = diff(diamond(bound_s=4.0), diamond(bound_s=6.0, status="optimal", solver="ilp"))
    assert difference.same_placement
    assert not difference.same
    before, after = difference.before, difference.after
    assert (before.bound_s, before.gap, before.solver, before.status) == (4.0, 1 - 4 / 6, "by hand", "feasible")
    assert (after.bound_s, after.gap, after.solver, after.status) == (6.0, 0.0, "ilp", "optimal")


def test_costs_that_changed() -> None:
    # on cpu0 a 2 to 1 and c 4 to 5; on cpu1 d, which can no longer run there
    before = make_plan(DIAMOND, ((2, 2), (3, 3), (4, 4), (1, 1)), "0010")
    after = make_plan(DIAMOND, ((1, 2), (3, 3), (5, 4), (1, inf)), "0010")
    assert diff(before, after).costs == (CostChange("cpu0", 2, 6.0, 6.0), CostChange("cpu1", 1, 1.0, inf))


def test_costs_that_were_measured_meanwhile() -> None:
    before = diamond(source=[["roofline"] * 2] * 4)
    after = diamond(source=[["measured"] * 2] * 4)
    difference = diff(before, after)
    assert (difference.before.measured, difference.after.measured) == (0.0, 1.0)
    assert not difference.same


def given(plan: Plan, **fields: Any) -> tuple[Change, ...]:
    return diff(plan, replace(plan, **fields)).changes


def test_what_was_asked_for() -> None:
    assert given(diamond(), goal=Goal.LATENCY) == (Change("goal", "throughput", "latency"),)
    assert given(diamond(), workload=Workload(batch=8, in_flight=2)) == (
        Change("batch", "1", "8"),
        Change("micro-batches in flight", "4", "2"),
    )
    assert given(diamond(), constraints=(pin("a", "cpu0"), contiguous())) == (
        Change("constraints", "", f"{pin('a', 'cpu0')}; {contiguous()}"),
    )
    cluster = diamond().cluster
    assert given(diamond(), cluster=replace(cluster, sharing="fair")) == (
        Change("sharing of channels", "fifo", "fair"),
    )


def test_what_was_asked_of_training() -> None:
    plan = replace(diamond(), workload=Workload("training", micro_batches=4))
    other = Workload("training", micro_batches=8, schedule="gpipe", recompute="full", optimizer="adam")
    cluster = replace(plan.cluster, replicas=Replicas(2, 1e9))
    assert given(plan, workload=other, cluster=cluster) == (
        Change("micro-batches of a step", "4", "8"),
        Change("schedule", "1f1b", "gpipe"),
        Change("recomputation", "none", "full"),
        Change("optimizer", "sgd", "adam"),
        Change("replicas", "1", "2"),
    )
    first, *others = given(plan, workload=Workload())
    assert first == Change("mode", "training", "inference")
    assert others[-1] == Change("micro-batches in flight", "", "4")


def test_what_was_asked_of_generation() -> None:
    work = Workload("generation", 2, 2, prompt=20, output=10, context=40)
    plan = replace(diamond(), workload=work)
    other = replace(work, batch=3, in_flight=1, free=1, prompt=21, output=11, context=41)
    assert given(plan, workload=other) == (
        Change("rows of a group", "2", "3"),
        Change("sequences", "4", "2"),
        Change("tokens of a prompt", "20", "21"),
        Change("tokens after it", "10", "11"),
        Change("positions of a cache", "40", "41"),
    )


def described(devices: tuple[Device, ...], links: tuple[Link, ...], overlap: bool = True) -> Plan:
    return replace(diamond(placed="0000"), cluster=Cluster("desk", devices, links, overlap))


CPU0 = Device("cpu0", "core", 2**30, {"float32": 1e11}, 1e10)
CPU1 = replace(CPU0, name="cpu1")
THERE = Link("cpu0", "cpu1", 1e9, 1e-5)


def test_what_the_devices_are() -> None:
    other = replace(
        CPU0, memory_bytes=2**31, flops_per_s={"float32": 2e11, "int8": 1e12}, launch_s=5e-6, cores=(0, 2), profile="p"
    )
    assert diff(described((CPU0,), ()), described((other,), ())).changes == (
        Change("device cpu0: memory", "1 GiB", "2 GiB"),
        Change("device cpu0: float32 peak", "100 GFLOP/s", "200 GFLOP/s"),
        Change("device cpu0: launch", "0 s", "5 us"),
        Change("device cpu0: cores", "", "0, 2"),
        Change("device cpu0: profile", "", "p"),
        Change("device cpu0: int8 peak", "", "1 TFLOP/s"),
    )
    other = replace(CPU0, kind="GPU", memory_bytes_per_s=1e12, overhead_s=2e-5, request_s=1e-4, cuda=0)
    assert diff(described((CPU0,), ()), described((other,), ())).changes == (
        Change("device cpu0: kind", "core", "GPU"),
        Change("device cpu0: memory bandwidth", "10 GB/s", "1 TB/s"),
        Change("device cpu0: overhead", "0 s", "20 us"),
        Change("device cpu0: request", "0 s", "100 us"),
        Change("device cpu0: cuda", "", "0"),
    )


def test_devices_and_links_that_come_and_go() -> None:
    isolated, both = described((CPU0,), ()), described((CPU0, CPU1), (THERE,))
    assert diff(isolated, both).changes == (Change("device cpu1", "", "core"), Change("link cpu0 → cpu1", "", "1 GB/s"))
    assert diff(both, isolated).changes == (Change("device cpu1", "core", ""), Change("link cpu0 → cpu1", "1 GB/s", ""))


def test_what_the_links_are() -> None:
    before = described((CPU0, CPU1), (THERE,))
    after = described((CPU0, CPU1), (Link("cpu0", "cpu1", inf, 2e-5, "bus"),), overlap=False)
    assert diff(before, after).changes == (
        Change("devices compute while they send", "yes", "no"),
        Change("link cpu0 → cpu1: bandwidth", "1 GB/s", "unlimited"),
        Change("link cpu0 → cpu1: latency", "10 us", "20 us"),
        Change("link cpu0 → cpu1: channel", "", "bus"),
    )


def test_plans_for_different_networks() -> None:
    other = make_graph({"a": "m", "b": "m"}, {"b": "a"})
    with pytest.raises(InputError) as error:
        diff(diamond(), make_plan(other, (1, 1), "00"))
    assert str(error.value) == (
        f"the plans are for different networks, 'net' (fingerprint {DIAMOND.fingerprint}) and 'net' (fingerprint "
        f"{other.fingerprint}); plan both for the same one, with the same batch"
    )


def test_the_name_of_the_network_does_not_count() -> None:
    renamed = replace(diamond(), graph=replace(DIAMOND, name="other"))
    difference: PlanDifference = diff(diamond(), renamed)
    assert difference.same
    assert difference.model == "other"
