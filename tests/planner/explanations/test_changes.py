"""The same plan on other hardware, or for another workload: times by hand, and what is refused."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import planner
from costmodels.cluster.cluster import Replicas
from costmodels.table import Source
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.ir import Graph
from planner.explanations.changes import Changes, apply_changes, obstacle, replan
from planner.explanations.settings import Setting, add_device
from planner.plans.plan import Plan
from simulator.placement import Placement
from tests.planner.explanations.test_settings import desk


def line(batch: int) -> Graph:
    """100 → 500 → 40: 100 k, then 40 k FLOP of a sample."""
    layers = nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in pairwise([100, 500, 40])))
    return program_from_module(layers, (torch.ones(batch, 100),)).graph


ONE_COPY = planner.Search(rewrites="none", gap=0.0)


def planned(goal: str = "latency", batch: int = 8) -> Plan:
    return planner.plan(line(batch), cluster=desk(), goal=goal, search=ONE_COPY)


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
    isolated, faster, more = (
        apply_changes(plan, Changes(settings=(Setting.parse(f"replicas.{text}"),)))
        for text in ("count=1", "bandwidth=2MB/s", "count=4")
    )
    sync_s = 280_000 / 1e6
    assert isolated.cluster.replicas is None
    assert plan.objective_s == pytest.approx(isolated.objective_s + sync_s)
    assert faster.objective_s == pytest.approx(isolated.objective_s + sync_s / 2)
    assert more.objective_s == pytest.approx(isolated.objective_s + 1.5 * sync_s)
    assert more.samples_per_s == pytest.approx(4 * 32 / more.objective_s)
    for text in ("replicas.count=0", "replicas.count=two"):
        with pytest.raises(InputError, match=r"replicas\.count is '.*'; it must be a whole number of 1 or more"):
            apply_changes(plan, Changes(settings=(Setting.parse(text),)))


def test_planning_again_is_never_worse_than_staying() -> None:
    plan = planned("throughput")
    for settings in ((), ("dev1.flops.float32=9GFLOP/s",), ("link.bandwidth=1GB/s",)):
        changed = apply_changes(plan, Changes(settings=tuple(map(Setting.parse, settings))))
        again = replan(changed, ONE_COPY)
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


def test_another_model_is_refused() -> None:
    other = program_from_module(nn.Sequential(nn.Linear(100, 40), nn.ReLU()), (torch.ones(8, 100),)).graph
    with pytest.raises(InputError, match="the model is not the one of the plan"):
        after(graph=other)
