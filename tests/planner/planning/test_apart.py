"""Experts apart where the whole network fits no devices, and plans of them that run."""

from dataclasses import replace

import pytest
import torch

import planner
from costmodels.cluster.cluster import Cluster, Device
from graphs.ir import STATE
from graphs.program.program import Program
from graphs.rewrites.split import Split
from planner.planning.make_plan import Search
from planner.plans.files import plan_from_dict, plan_to_dict
from planner.plans.plan import Plan
from planner.problem.constraints import pin
from tests.graphs.rewrites.mixtures import imported, tokens
from tests.planner.runtime.small import cpu, desk


def small(**sizes: int) -> Program:
    """Weights of 0.52 MB for gates and 0.26 MB for what follows them in each of two layers, and little else."""
    return imported("mixtral", intermediate_size=64, num_local_experts=32, **sizes)


def unequal(*memory_bytes: float) -> Cluster:
    """A card and a host that share this host's cores; on paper the card is faster."""
    cluster = desk(len(memory_bytes))

    def device(number: int, n_bytes: float) -> Device:
        speed = 3e10 if number == 0 else 1e10
        own = cpu(f"cpu{number}")
        return replace(
            own, kind=f"kind{number}", memory_bytes=n_bytes, flops_per_s={"float32": speed}, memory_bytes_per_s=speed
        )

    return replace(cluster, devices=tuple(device(*each) for each in enumerate(memory_bytes)))


def weights_by_device(plan: Plan) -> list[set[str]]:
    """The parameters that each device holds, by name."""
    held: list[set[str]] = [set() for _ in plan.cluster.devices]
    for number, op in enumerate(plan.graph.ops):
        held[plan.placement.device[number]].update(tensor.name for tensor in plan.graph.state(op))
    return held


def test_the_experts_of_a_layer_are_on_a_card_and_on_a_host() -> None:
    """1.62 MB of weights, of which operators as a whole fit in no way; with their memory to work in, halves do."""
    program, cluster = small(), unequal(1.13e6, 0.83e6)
    with pytest.raises(planner.NoPlanError):
        planner.plan(program, cluster=cluster, search=Search(rewrites="none", time_limit_s=2.0))
    plan = planner.plan(program, cluster=cluster, search=Search(time_limit_s=5.0))
    (split,) = plan.rewrites
    assert isinstance(split, Split)
    assert plan.evaluation.feasible
    apart = [
        tensor.name
        for tensor in program.graph.tensors
        if tensor.role in STATE
        and all(any(name.startswith(f"{tensor.name}[") for name in held) for held in weights_by_device(plan))
    ]
    assert apart
    given = tokens(seed=4)
    wanted = program.module(input_ids=given, use_cache=False).logits
    for processes in (False, True):
        with planner.start(plan, program, processes=processes) as runner:
            assert torch.equal(runner(input_ids=given, use_cache=False).logits, wanted)
    assert planner.verify(plan, program).equal
    document = plan_to_dict(plan)
    assert plan_to_dict(plan_from_dict(document)) == document


def test_three_equal_devices_hold_a_layer_that_none_of_them_holds() -> None:
    """One layer, whose gates need 0.52 MB of 0.5 MB, of which 0.2 MB are to work in."""
    program, cluster = small(num_hidden_layers=1), desk(3)
    devices = tuple(replace(device, memory_bytes=0.5e6) for device in cluster.devices)
    for goal in ("throughput", "latency"):
        search = Search(time_limit_s=3.0)
        plan = planner.plan(program, cluster=replace(cluster, devices=devices), goal=goal, search=search)
        assert any(isinstance(rewrite, Split) for rewrite in plan.rewrites)
        assert len(plan.placement.used) == 3
        given = tokens(seed=5)
        with planner.start(plan, program) as runner:
            got = runner(input_ids=given, use_cache=False).logits
        torch.testing.assert_close(got, program.module(input_ids=given, use_cache=False).logits, rtol=1e-4, atol=1e-4)
        assert planner.verify(plan, program).equal


def test_a_split_that_was_asked_for_on_unequal_devices_is_one_of_experts() -> None:
    """Equal devices are needed for other splits alone; what no mixture has, stays whole."""
    program, cluster = small(), unequal(1e9, 1e9)
    plan = planner.plan(program, cluster=cluster, search=Search(rewrites="split", time_limit_s=1.0))
    whole = planner.plan(program, cluster=cluster, search=Search(rewrites="none", time_limit_s=1.0))
    assert plan.predicted_s <= whole.predicted_s
    pinned = (pin(program.graph.ops[0].name, "cpu0"),)
    with pytest.raises(planner.NoPlanError):  # a constraint names whole operators
        planner.plan(program, cluster=unequal(1.13e6, 0.83e6), constraints=pinned, search=Search(time_limit_s=2.0))
