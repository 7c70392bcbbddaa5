"""hf-device-map: what it writes, what it refuses, that accelerate takes it, and the backward pass."""

import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from costmodels.cluster.cluster import Cluster
from graphs.common.errors import InputError
from graphs.ir import Graph
from planner.exports import Export, export, map_of
from planner.plans.plan import Plan
from tests.planner.exports.nets import CPUS, GPUS, MIXED, Block, Decoder, X, chain, graph_of, plan_of

SPLIT = {"embed": 0, "layers.0": 0, "layers.1": 0, "layers.2": 1, "layers.3": 1, "norm": 1, "head": 1}


def test_one_device_is_one_entry() -> None:
    plan = plan_of(graph_of(Decoder()), {"": 1}, GPUS)
    assert export(plan, "hf-device-map").document == {"": 1}


def test_outermost_whole_modules() -> None:
    plan = plan_of(graph_of(Decoder()), SPLIT, GPUS)
    assert export(plan, "hf-device-map").document == SPLIT
    by_list = {**dict.fromkeys(["embed", "layers"], 0), "norm": 1, "head": 1}
    assert export(plan_of(graph_of(Decoder()), by_list, GPUS), "hf-device-map") == Export(by_list)


def test_processors_are_numbered_where_there_are_several() -> None:
    plan = plan_of(graph_of(chain(2)), {"0": 0, "1": 2, "2": 2})
    assert export(plan, "hf-device-map").document == {"0": "cpu:0", "1": "cpu:2", "2": "cpu:2"}
    (note,) = export(plan, "hf-device-map").notes
    assert note == "torch has one CPU: cpu:0 and cpu:2 are for the backward pass by import-map, accelerate wants 'cpu'"


def test_a_processor_beside_gpus_is_said_to_compute_elsewhere() -> None:
    exported = export(plan_of(graph_of(chain(2)), {"0": 1, "1": 0, "2": 0}, MIXED), "hf-device-map")
    assert exported.document == {"0": "cpu", "1": 0, "2": 0}
    assert exported.notes == (
        "accelerate keeps modules on 'cpu' there and computes them on a GPU; the plan computes them on the CPU",
    )


class Token(nn.Module):
    """A parameter that no module reads."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.ones(8))
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(self.a(x) * self.token)
        return y


def test_a_parameter_outside_has_its_own_entry() -> None:
    graph = graph_of(Token())
    plan = plan_of(graph, {"a": 0, "token": 0, "b": 1}, GPUS)
    assert export(plan, "hf-device-map").document == {"a": 0, "b": 1, "token": 0}


def refused(plan: Plan, text: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        export(plan, "hf-device-map")


def test_a_module_on_two_devices_is_named() -> None:
    graph = graph_of(nn.Sequential(Block(), Block()))
    assert [op.module for op in graph.ops[:4]] == ["0.up", "0", "0.down", "0"]
    refused(
        plan_of(graph, (0, 1, 1, 1, 1, 1, 1, 1)),
        "module '0' is on cpu0 and cpu1; hf-device-map places whole modules: plan with --whole '*'",
    )
    refused(  # x + ...: x, of cpu0, meets what came from cpu1; no module brings them together
        plan_of(traced_pair(), {"0": 0, "1.up": 0, "1.down": 1}),
        "module '1' is on cpu0 and cpu1; hf-device-map places whole modules: plan with --whole '*'",
    )


class Stack(nn.Module):
    """Layers in a module that computes something itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers[1](self.layers[0](x) * 2)
        return y


def test_layers_are_kept_whole_and_not_what_holds_all_of_them() -> None:
    graph = graph_of(Stack())
    named = replace(graph, ops=tuple(replace(op, module=f"body.{op.module}".rstrip(".")) for op in graph.ops))
    assert [op.module for op in named.ops][3:6] == ["body.layers.0", "body", "body.layers.1.up"]
    refused(
        plan_of(named, (0, 0, 0, 0, 1, 0, 1, 1, 1)),
        "module 'body.layers.1' is on cpu0 and cpu1; hf-device-map places whole modules: "
        "plan with --whole 'body.layers.*'",
    )
    refused(
        plan_of(named, (0, 0, 0, 0, 1, 0, 0, 0, 0)),
        "operator 'mul' on cpu1 is in no module that is on one device, and 'add' is on cpu0; "
        "hf-device-map places whole modules: plan with --together 'mul,add'",
    )


def test_an_operator_outside_of_modules_is_named() -> None:
    graph = graph_of(Token())
    refused(
        plan_of(graph, (0, 1, 0), GPUS),
        "operator 'mul' on gpu1 is in no module that is on one device, and 'linear' is on gpu0; "
        "hf-device-map places whole modules: plan with --together 'mul,linear'",
    )


@cache
def traced(kind: str, n_layers: int) -> tuple[Graph, tuple[str, ...]]:
    """A model's graph, and its modules down to whole blocks."""
    module = Decoder(n_layers) if kind == "decoder" else chain(n_layers)
    paths = [path for path, part in module.named_modules() if path and not isinstance(part, nn.ModuleList)]
    return graph_of(module), tuple(path for path in paths if not path.endswith((".up", ".down")))


@st.composite
def aligned(draw: st.DrawFn) -> tuple[Graph, dict[str, int]]:
    """A model, and a device for each of its modules."""
    graph, paths = traced(draw(st.sampled_from(["decoder", "chain"])), draw(st.integers(2, 4)))
    return graph, {path: draw(st.integers(0, 2)) for path in paths}


@given(aligned(), st.sampled_from([CPUS, GPUS]))
def test_the_way_there_and_back_is_the_same_placement(drawn: tuple[Graph, dict[str, int]], on: Cluster) -> None:
    plan = plan_of(*drawn, on)
    back = map_of(export(plan, "hf-device-map").document).placement(plan.graph, plan.cluster)
    assert back == plan.placement


@cache
def traced_pair() -> Graph:
    return graph_of(nn.Sequential(nn.Linear(8, 8), Block()))


@given(st.lists(st.integers(0, 1), min_size=5, max_size=5))
def test_what_is_not_refused_comes_back(devices: list[int]) -> None:
    """Any placement of single operators: refused, or the same again."""
    plan = plan_of(traced_pair(), tuple(devices))
    try:
        document = export(plan, "hf-device-map").document
    except InputError:
        assert len(set(devices[1:])) > 1  # the block is divided
        return
    assert map_of(document).placement(plan.graph, plan.cluster) == plan.placement


@pytest.mark.parametrize("device", [SPLIT, {"embed": 1, "layers": 0, "norm": 2, "head": 1}])
def test_accelerate_takes_it(device: dict[str, int]) -> None:
    """Its hooks are on the planned modules; this host may have no GPU, so all of them are for the CPU."""
    accelerate = pytest.importorskip("accelerate")
    model = Decoder().eval()
    expected = model(X)
    document = export(plan_of(graph_of(model), device, GPUS), "hf-device-map").document
    accelerate.utils.modeling.check_device_map(model, document)
    dispatched = accelerate.dispatch_model(model, dict.fromkeys(document, "cpu"), force_hooks=True)
    assert torch.equal(dispatched(X), expected)
    hooks = {path: part._hf_hook for path, part in model.named_modules() if hasattr(part, "_hf_hook")}
    assert {path for path, hook in hooks.items() if getattr(hook, "place_submodules", False)} == document.keys()


def test_accelerate_tells_numbered_processors_apart() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = chain(2).eval()
    expected = model(X)
    document = export(plan_of(graph_of(model), {"0": 0, "1": 2, "2": 2}), "hf-device-map").document
    dispatched = accelerate.dispatch_model(model, document)
    assert torch.equal(dispatched(X), expected)
    hooks: list[Any] = [part._hf_hook for part in model]
    assert [str(hook.execution_device) for hook in hooks] == ["cpu:0", "cpu:2", "cpu:2"]
