"""The same plan on other hardware, or for another workload: times by hand, and what is refused."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import planner
from costmodels.cluster import Cluster, Device, Link
from costmodels.replicas import Replicas
from costmodels.table import Source
from graphs.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.ir import Graph
from planner.changes import KNOWN, Changes, Setting, add_device, apply_changes, apply_setting, obstacle, replan
from planner.plans import Plan
from simulator.placement import Placement


def desk(memory_bytes: float = 1e9) -> Cluster:
    """Two devices of 1 GFLOP/s whose memory takes no time, and a link of 1 MB/s each way."""
    devices = tuple(Device(f"dev{i}", "cpu", memory_bytes, {"float32": 1e9}, 1e18, cores=(i,)) for i in range(2))
    links = (Link("dev0", "dev1", 1e6, 1e-3, points=((1.0, 5.0),)), Link("dev1", "dev0", 1e6, 1e-3))
    return Cluster("desk", devices, links)


def line(batch: int) -> Graph:
    """100 → 500 → 40: 100 k, then 40 k FLOP of a sample."""
    layers = nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in pairwise([100, 500, 40])))
    return program_from_module(layers, (torch.ones(batch, 100),)).graph


def planned(goal: str = "latency", batch: int = 8) -> Plan:
    return planner.plan(line(batch), cluster=desk(), goal=goal)


PLAN = planned()


def after(*settings: str, **changes: object) -> Plan:
    return apply_changes(PLAN, Changes(settings=tuple(map(Setting.parse, settings)), **changes))  # type: ignore[arg-type]


def test_nothing_changes_nothing() -> None:
    assert not Changes().anything
    same = apply_changes(PLAN, Changes())
    assert (same.objective_s, same.cluster, same.placement) == (PLAN.objective_s, PLAN.cluster, PLAN.placement)


def test_twice_the_peak_takes_half_the_time() -> None:
    #  8 samples · 2 · (100 · 500 + 500 · 40) FLOP = 1.12 MFLOP at 1 GFLOP/s
    assert PLAN.objective_s == pytest.approx(1.12e-3)
    faster = after("dev*.flops.float32=2GFLOP/s")
    assert faster.objective_s == pytest.approx(0.56e-3)
    assert faster.bound_s <= faster.objective_s
    np.testing.assert_allclose(faster.table.forward_s, PLAN.table.forward_s / 2)


def test_what_was_measured_is_scaled_by_the_ratio_of_the_rooflines() -> None:
    measured = replace(PLAN.table, forward_s=10 * PLAN.table.forward_s, source=np.full((2, 2), Source.MEASURED))
    changes = Changes(settings=(Setting("dev1", "flops.float32", "4GFLOP/s"),))
    table = apply_changes(replace(PLAN, table=measured), changes).table
    np.testing.assert_allclose(table.forward_s, measured.forward_s * [1, 1 / 4])
    assert table.source.tolist() == [[Source.MEASURED, Source.ROOFLINE]] * 2


def test_memory_changes_no_times_and_may_be_too_small() -> None:
    smaller = after("dev0.memory=1KiB", "dev1.memory=1 KiB")
    assert smaller.objective_s == PLAN.objective_s
    assert obstacle(smaller).startswith("'dev")
    np.testing.assert_array_equal(smaller.table.source, PLAN.table.source)


def test_links_are_set_by_both_their_ends_and_forget_what_was_measured() -> None:
    cluster = apply_setting(desk(), Setting.parse("dev0->*.bandwidth=8Mb/s"))
    assert [(link.bytes_per_s, link.points) for link in cluster.links] == [(1e6, ()), (1e6, ())]
    cluster = apply_setting(desk(), Setting.parse("link.latency=5us"))
    assert [link.latency_s for link in cluster.links] == [5e-6, 5e-6]
    assert not apply_setting(desk(), Setting.parse("cluster.overlap=false")).overlap


def test_another_device_has_the_times_and_the_links_of_the_one_it_is_like() -> None:
    wider = after(added=(("dev0", "new"),))
    assert wider.table.devices == ("dev0", "dev1", "new")
    np.testing.assert_array_equal(wider.table.forward_s[:, 2], PLAN.table.forward_s[:, 0])
    assert wider.table.linked.all()
    assert wider.cluster.devices[2].cores == ()
    assert wider.objective_s == PLAN.objective_s
    assert add_device(desk(), "dev1").devices[2].name == "dev1-2"


def test_a_device_of_the_catalogue_has_its_own_times() -> None:
    wider = after("gpu.memory=1GB", added=(("A100-SXM-80GB", "gpu"),))
    device = wider.cluster.devices[2]
    assert (device.kind, device.memory_bytes) == ("A100-SXM-80GB", 1e9)
    assert wider.table.forward_s[0, 2] < PLAN.table.forward_s[0, 0] / 10
    assert wider.table.linked.all()


def test_another_batch_scales_every_time() -> None:
    twice = after(graph=line(16))
    assert twice.workload.batch == 16
    np.testing.assert_allclose(twice.table.forward_s, 2 * PLAN.table.forward_s)
    np.testing.assert_allclose(twice.table.flow_bytes, 2 * PLAN.table.flow_bytes)


def test_replicas_change_what_their_gradients_take() -> None:
    # 50,000 and 20,000 parameters of 4 bytes; without replicas no sync, with 2 of them 2 rounds of half of it at 1 MB/s
    workload = planner.Workload("training", 8, micro_batches=4)
    cluster = replace(desk(), replicas=Replicas(2, 1e6))
    plan = planner.plan(line(8), cluster=cluster, goal="training", workload=workload)
    alone, faster, more = (
        apply_changes(plan, Changes(settings=(Setting.parse(f"replicas.{text}"),)))
        for text in ("count=1", "bandwidth=2MB/s", "count=4")
    )
    sync_s = 280_000 / 1e6
    assert alone.cluster.replicas is None
    assert plan.objective_s == pytest.approx(alone.objective_s + sync_s)
    assert faster.objective_s == pytest.approx(alone.objective_s + sync_s / 2)
    assert more.objective_s == pytest.approx(alone.objective_s + 1.5 * sync_s)
    assert more.samples_per_s == pytest.approx(4 * 32 / more.objective_s)
    for text in ("replicas.count=0", "replicas.count=two"):
        with pytest.raises(InputError, match=r"replicas\.count is '.*'; it must be a whole number of 1 or more"):
            apply_changes(plan, Changes(settings=(Setting.parse(text),)))


def test_planning_again_is_never_worse_than_staying() -> None:
    plan = planned("throughput")
    for settings in ((), ("dev1.flops.float32=9GFLOP/s",), ("link.bandwidth=1GB/s",)):
        changed = apply_changes(plan, Changes(settings=tuple(map(Setting.parse, settings))))
        again = replan(changed, planner.Search(gap=0.0))
        assert again.evaluation.feasible
        assert again.period_s <= changed.period_s
    assert again.period_s < changed.period_s  # two devices, now that the link is fast


def test_planning_again_says_when_there_is_no_plan() -> None:
    with pytest.raises(planner.NoPlanError, match="memory"):
        replan(after("dev*.memory=1KiB"), planner.Search())


def test_a_training_plan_takes_another_schedule_and_more_micro_batches() -> None:
    workload = planner.Workload("training", 8, micro_batches=4)
    plan = planner.plan(line(8), cluster=desk(), goal="training", workload=workload)
    longer = apply_changes(plan, Changes(micro_batches=8, schedule="gpipe"))
    assert (longer.workload.micro_batches, longer.problem.step.schedule) == (8, "gpipe")
    assert longer.objective_s == pytest.approx(2 * plan.objective_s)  # all of it is on one device
    assert obstacle(apply_changes(plan, Changes(schedule="zbv"))) == ""  # it has a turn on one device too
    apart = replace(plan, placement=Placement((0, 1)))
    assert obstacle(apply_changes(apart, Changes(schedule="zbv"))) == (
        "the placement has 2 stages on 2 devices, in the order 0 1; the schedule 'zbv' cannot run that: "
        "a schedule of 1 stages a device; this one is for 2"
    )
    with pytest.raises(InputError) as error:
        apply_changes(plan, Changes(in_flight=2))
    assert str(error.value) == "the plan's goal is training; in-flight can be changed for inference only"


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("gpu.memory=1GiB", "there is no device 'gpu'; known: dev0, dev1"),
        ("gpu->*.latency=1us", "there is no link 'gpu->*'; known: dev0->dev1, dev1->dev0"),
        ("dev0.memory=1", "dev0.memory is '1'; write a number and a unit, for example '16 GiB'"),
        ("cluster.overlap=no", "cluster.overlap is 'no'; it must be true or false"),
        (
            "replicas.count=2",
            "replicas.count cannot be set: the cluster has no replicas; add [replicas] to cluster.toml",
        ),
        ("dev0.count=2", f"dev0.count cannot be set; known: {KNOWN}"),
        (
            "dev0.size=1GiB",
            f"'dev0.size=1GiB' sets nothing; write for example gpu0.memory=40GiB. Known: {KNOWN}",
        ),
        (
            "dev0.overlap=true",
            f"dev0.overlap cannot be set; known: {KNOWN}",
        ),
    ],
)
def test_what_cannot_be_set_is_named(setting: str, text: str) -> None:
    with pytest.raises(InputError) as error:
        after(setting)
    assert str(error.value) == text


def test_a_device_that_nothing_is_like_is_refused() -> None:
    with pytest.raises(
        InputError, match="there is no device 'x' to add another one of; the cluster has dev0, dev1, the"
    ):
        add_device(desk(), "x")
    with pytest.raises(
        InputError, match="there is a device 'dev1' already; give the new one another name, as in dev0=NAME"
    ):
        add_device(desk(), "dev0", "dev1")


def test_another_model_is_refused() -> None:
    other = program_from_module(nn.Sequential(nn.Linear(100, 40), nn.ReLU()), (torch.ones(8, 100),)).graph
    with pytest.raises(InputError, match="the model is not the one of the plan"):
        after(graph=other)


@pytest.mark.parametrize(
    ("text", "told"),
    [("cpu0.memroy=1GiB", "; did you mean 'memory'?"), ("link.bandwith=1GB/s", "; did you mean 'bandwidth'?")],
)
def test_a_field_with_a_typo_is_told_the_nearest(text: str, told: str) -> None:
    with pytest.raises(InputError, match=r"sets nothing; write for example gpu0\.memory=40GiB") as refused:
        Setting.parse(text)
    assert str(refused.value).endswith(told)
