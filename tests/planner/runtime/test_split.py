"""Split networks run with their parts on different devices, and answer as the user's network does."""

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from math import inf
from pathlib import Path

import pytest
import torch
from torch import nn

import planner
from costmodels.cluster.cluster import Cluster, Link
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from graphs.program.rewritten import rewritten_program
from graphs.rewrites.fuse import find_fusions
from graphs.rewrites.network_shardings import network_shardings
from graphs.rewrites.split import Split
from planner.planning.make_plan import Search, search_plan
from planner.planning.splitting import side_by_side
from planner.planning.team import Team
from planner.plans.files import plan_from_dict, plan_to_dict
from planner.plans.plan import Plan
from planner.runtime.benchmark.check import compare_outputs
from planner.runtime.checkpoint.shards import read_shard, write_shards
from planner.runtime.inference.runner import Runner
from planner.runtime.verification.verify import verify
from simulator.placement import Placement
from tests.graphs.rewrites.test_sharding import CASES, Case, imported
from tests.graphs.rewrites.test_split import Attention, Convolutional, Gated, followed
from tests.planner.plans.schemas.validation import objections
from tests.planner.runtime.small import cpu, make_plan

NETS = {
    "convolutional": (
        Convolutional,
        torch.randn(2, 3, 12, 12),
        {"conv2d": "output channels", "linear": "output features"},
    ),
    "rows": (Convolutional, torch.randn(2, 3, 12, 12), dict.fromkeys(["conv2d", "conv2d_1", "conv2d_2"], "rows")),
    "separate": (
        lambda: Attention(joint=False),
        torch.randn(2, 5, 24),
        dict.fromkeys(["linear", "linear_1", "linear_2"], "output features") | {"linear_3": "input features"},
    ),
    "joint": (
        lambda: Attention(joint=True),
        torch.randn(1, 5, 24),
        {"linear": "output features in 3 runs", "linear_1": "input features", "layer_norm": "replicated"},
    ),
    "gated": (
        Gated,
        torch.arange(5).reshape(1, 5),
        {"embedding": "output features", "linear": "output features", "linear_1": "output features"}
        | {"linear_2": "input features"},
    ),
}
"""Networks, their inputs, and shardings that the others follow."""


def desk(quick: bool) -> Cluster:
    """Three devices that share this host's processors."""
    devices = [replace(cpu(f"cpu{i}", (i % 2,)), kernels="quick" if quick else "exact") for i in range(3)]
    return Cluster("desk", tuple(devices), tuple(Link(a.name, b.name, inf) for a in devices for b in devices if a != b))


def split_plan(program: Program, anchors: Mapping[str, str], parts: int, quick: bool) -> Plan:
    """A plan with part i of every operator on device i, and what stands between with the operator before it."""
    split = Split(followed(program.graph, anchors, parts))
    divided = rewritten_program(program, [split])
    rewrites: tuple[Split, ...] = (split,)
    if quick:
        fusions = find_fusions(divided.graph)
        divided, rewrites = rewritten_program(divided, [fusions]), (split, fusions)  # type: ignore[assignment]
    devices: list[int] = []
    for op in divided.graph.ops:
        at = op.name.rfind("[")
        part = op.name[at + 1 :].split("/")[0] if at > 0 else ""
        devices.append(int(part) if part.isdigit() else (devices or [0])[-1])
    plan = make_plan(divided, Placement(tuple(devices)), desk(quick))
    return replace(plan, rewrites=rewrites)


@pytest.mark.parametrize("quick", [False, True], ids=["exact", "quick"])
@pytest.mark.parametrize("name", NETS)
def test_parts_on_several_devices_answer_as_the_network_does(name: str, quick: bool) -> None:
    make, x, anchors = NETS[name]
    torch.manual_seed(0)
    model = make().eval()
    program = program_from_module(model, x)
    for parts in (2, 3):
        plan = split_plan(program, anchors, parts, quick)
        assert len(plan.placement.used) == parts
        document = json.loads(json.dumps(plan_to_dict(plan)))
        assert objections("plan", document) == []
        plan = plan_from_dict(document)
        with Runner(plan, program) as runner, torch.no_grad():
            torch.testing.assert_close(runner(x), model(x), rtol=1e-5, atol=1e-5)
            assert compare_outputs(runner).wrong == ()
            for got in runner.stream([x, x]):
                torch.testing.assert_close(got, model(x), rtol=1e-5, atol=1e-5)
        verification = verify(plan, program)
        assert verification.equal
        assert verification.n_imported


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_verification_goes_through_every_sharding_of_every_rule(case: Case) -> None:
    """Each operator by itself, in as many parts as there are devices, with PyTorch's kernels and with quick ones."""
    function, inputs, weights, _ = case
    program = imported(function, inputs, *weights, dtype=torch.float32)
    for op, own in network_shardings(program.graph).items():
        for sharding, quick in product(own, (False, True)):
            cluster = desk(quick)
            cluster = cluster.first(min(len(cluster.devices), sharding.units))
            split = Split({op: (sharding.name, len(cluster.devices))})
            divided, team = rewritten_program(program, [split]), Team.of(cluster)
            assert team
            plan = make_plan(divided, Placement(side_by_side(divided.graph, team)), cluster)
            assert len(plan.placement.used) == len(cluster.devices)
            verification = verify(replace(plan, rewrites=(split,)), program)
            assert verification.equal
            assert verification.n_imported


def test_verification_compares_with_the_network_as_it_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    make, x, anchors = NETS["separate"]
    program = program_from_module(make().eval(), x)
    plan = split_plan(program, anchors, 2, quick=False)
    right = rewritten_program(program, plan.rewrites)
    first, second = "out.weight[:, 0:12]", "out.weight[:, 12:24]"
    wrong = replace(right, state={**right.state, first: right.state[second], second: right.state[first]})
    monkeypatch.setattr("planner.runtime.verification.verify.rewritten_for", lambda *_: wrong)
    found = verify(plan, program)
    assert found.finding
    assert found.finding.tensor == "linear_3"


def test_a_layer_larger_than_any_device_runs_in_parts() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 8)).eval()
    x = torch.randn(1, 64)
    program = program_from_module(model, x)
    layer_bytes = 4 * 512 * 64
    devices = [replace(cpu(f"cpu{i}"), memory_bytes=layer_bytes - 1) for i in range(2)]
    cluster = Cluster(
        "small", tuple(devices), tuple(Link(a.name, b.name, 1e9) for a in devices for b in devices if a != b)
    )

    def search(asked: Program, *rewrites: Split) -> Plan:
        nowhere = Placement((0,) * len(asked.graph.ops))
        plan = replace(make_plan(asked, nowhere, cluster, in_flight=1), rewrites=rewrites)
        return search_plan(plan.task, Search())

    with pytest.raises(planner.NoPlanError, match="memory"):
        search(program)
    split = Split(followed(program.graph, {"linear": "output features", "linear_1": "input features"}, 2))
    plan = search(rewritten_program(program, [split]), split)
    assert len(plan.placement.used) == 2
    with Runner(plan, program, share_weights=True) as runner, torch.no_grad():
        torch.testing.assert_close(runner(x), model(x))
        for device in plan.placement.used:
            held = runner._state.owned(device)
            assert sum(tensor.nbytes for tensor in held.values()) < layer_bytes
            assert "0.weight" not in held
        assert runner._state.owned(0)["0.weight[0:256]"].data_ptr() == program.state["0.weight"].data_ptr()


def test_shards_have_the_slices_of_their_device(tmp_path: Path) -> None:
    make, x, anchors = NETS["joint"]
    program = program_from_module(make().eval(), x)
    plan = split_plan(program, anchors, 2, quick=False)
    write_shards(plan, program, tmp_path / "shards")
    _, part = read_shard(tmp_path / "shards", "cpu1")
    held = {name for name, tensor in part.state.items() if not tensor.is_meta}
    assert "projections.0.weight[12:24,36:48,60:72]" in held
    assert {"projections.0.weight[0:12,24:36,48:60]", "norm.weight"}.isdisjoint(held)
