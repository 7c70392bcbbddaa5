"""hf-device-map: what it writes, what it refuses, that accelerate takes it, and the way back."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from graphs.errors import InputError
from planner.export import export, map_of
from tests.planner.export.nets import CPUS, GPUS, Block, Decoder, X, chain, cluster, graph_of, plan_of

SPLIT = {"embed": 0, "layers.0": 0, "layers.1": 0, "layers.2": 1, "layers.3": 1, "norm": 1, "head": 1}


def test_one_device_is_one_entry() -> None:
    plan = plan_of(graph_of(Decoder()), {"": 1}, GPUS)
    assert export(plan, "hf-device-map").document == {"": 1}


def test_outermost_whole_modules() -> None:
    plan = plan_of(graph_of(Decoder()), SPLIT, GPUS)
    assert export(plan, "hf-device-map").document == SPLIT
    by_list = {**dict.fromkeys(["embed", "layers"], 0), "norm": 1, "head": 1}
    assert export(plan_of(graph_of(Decoder()), by_list, GPUS), "hf-device-map").document == by_list


def test_processors_are_numbered_where_there_are_several() -> None:
    plan = plan_of(graph_of(chain(2)), {"0": 0, "1": 2, "2": 2})
    assert export(plan, "hf-device-map").document == {"0": "cpu:0", "1": "cpu:2", "2": "cpu:2"}
    assert export(plan, "hf-device-map").notes == ()


def test_a_processor_beside_gpus_is_said_to_compute_elsewhere() -> None:
    plan = plan_of(graph_of(chain(2)), {"0": 1, "1": 0, "2": 0}, cluster("gpu0", "cpu"))
    exported = export(plan, "hf-device-map")
    assert exported.document == {"0": 1, "1": 1, "2": 1} or exported.document == {"0": "cpu", "1": "cpu:0"}


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


def refused(plan: object, text: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        export(plan, "hf-device-map")  # type: ignore[arg-type]


def test_a_module_on_two_devices_is_named() -> None:
    graph = graph_of(nn.Sequential(Block(), Block()))
    assert [op.module for op in graph.ops[:4]] == ["0.up", "0", "0.down", "0"]
    refused(
        plan_of(graph, (0, 1, 1, 1, 1, 1, 1, 1)),
        "module '0' is on cpu0 and cpu1; hf-device-map places whole modules: plan with --together '0'",
    )
    refused(  # x + ...: x, of cpu0, meets what came from cpu1; no module brings them together
        plan_of(nn_graph := graph_of(nn.Sequential(nn.Linear(8, 8), Block())), {"0": 0, "1.up": 0, "1.down": 1}),
        "module '1' is on cpu0 and cpu1; hf-device-map places whole modules: plan with --together '1'",
    )
    assert len(nn_graph.ops) == 5


def test_an_operator_outside_of_modules_is_named() -> None:
    graph = graph_of(Token())
    refused(
        plan_of(graph, (0, 1, 0), GPUS),
        "operator 'mul' on gpu1 is in no module that is on one device, and 'linear' is on gpu0; "
        "hf-device-map places whole modules: plan with --together 'mul,linear'",
    )


def draw_modules(draw: st.DrawFn) -> nn.Module:
    n_layers = draw(st.integers(1, 4))
    return Decoder(n_layers) if draw(st.booleans()) else chain(n_layers + 1)


@st.composite
def aligned(draw: st.DrawFn) -> tuple[nn.Module, dict[str, int]]:
    """A model, and a device for each of its modules at some depth."""
    module = draw_modules(draw)
    paths = [path for path, part in module.named_modules() if path and not isinstance(part, nn.ModuleList)]
    outer = [path for path in paths if not path.endswith((".up", ".down"))]
    return module, {path: draw(st.integers(0, 2)) for path in outer}


@given(aligned(), st.sampled_from([CPUS, GPUS]))
def test_the_way_there_and_back_is_the_same_placement(drawn: tuple[nn.Module, dict[str, int]], on: object) -> None:
    module, device = drawn
    plan = plan_of(graph_of(module), device, on)  # type: ignore[arg-type]
    back = map_of(export(plan, "hf-device-map").document).placement(plan.graph, plan.cluster)
    assert back == plan.placement


@given(st.lists(st.integers(0, 1), min_size=5, max_size=5))
def test_what_is_not_refused_comes_back(devices: list[int]) -> None:
    """Any placement of single operators: refused, or the same again."""
    plan = plan_of(graph_of(nn.Sequential(nn.Linear(8, 8), Block())), tuple(devices))
    try:
        document = export(plan, "hf-device-map").document
    except InputError:
        assert len(set(devices[1:])) > 1  # the block is divided
        return
    assert map_of(document).placement(plan.graph, plan.cluster) == plan.placement


@pytest.mark.parametrize("device", [SPLIT, {"": 0}, {"embed": 1, "layers": 0, "norm": 2, "head": 1}])
def test_accelerate_takes_it(device: dict[str, int]) -> None:
    accelerate = pytest.importorskip("accelerate")
    model = Decoder().eval()
    expected = model(X)
    document = export(plan_of(graph_of(model), device), "hf-device-map").document
    accelerate.utils.modeling.check_device_map(model, document)
    dispatched = accelerate.dispatch_model(model, document)
    assert torch.equal(dispatched(X), expected)
    if len(document) > 1:
        hooked = {path: str(part._hf_hook.execution_device) for path, part in model.named_modules() if path in document}
        assert hooked == document
