"""Plans with copies of the network, fused and split operators, for every target."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from torch import nn

from graphs.common.errors import InputError
from graphs.importers.load import load_graph
from graphs.ir import Graph
from graphs.rewrites.fuse import Fuse
from graphs.rewrites.rewrite import Rewrite, rewritten
from graphs.rewrites.split import Split
from planner.cli import main
from planner.exports import TARGETS, export
from planner.exports.onnx_devices import onnx_devices
from planner.plans.files import save_plan
from planner.plans.plan import Plan
from simulator.placement import Placement
from tests.graphs.onnx_models import model_of, value_info
from tests.planner.exports.nets import GPUS, chain, graph_of, plan_of

MAPS = ("hf-device-map", "torch-split-spec", "megatron-layout", "deepspeed", "torchgpipe")
CHAIN = graph_of(chain(2))  # linear, relu, linear_1
SPLIT = Split({"linear": ("output features", 2), "relu": ("axis 1", 2), "linear_1": ("input features", 2)})
FUSE = Fuse((("linear", "relu"),))


def made(graph: Graph, devices: str, *rewrites: Rewrite) -> Plan:
    plan = plan_of(rewritten(graph, rewrites), tuple(map(int, devices)), GPUS)
    return replace(plan, rewrites=rewrites, network=graph.fingerprint)


WHOLE, FUSED = made(CHAIN, "001"), made(CHAIN, "01", FUSE)
DIVIDED = made(CHAIN, "0101010", SPLIT)
COPIES = replace(WHOLE, placement=Placement((0, 0, 0), others=(Placement((0, 1, 1)),)))


@pytest.mark.parametrize("target", MAPS)
def test_fused_operators_are_where_their_group_is(target: str) -> None:
    """As in the plan of the whole network with the same placement."""
    if target == "megatron-layout":
        deep = graph_of(chain(4))
        fused, whole = made(deep, "000111", FUSE), made(deep, "0000111")
    else:
        fused, whole = FUSED, WHOLE
    assert export(fused, target) == export(whole, target)


@pytest.mark.parametrize("target", MAPS)
def test_parts_and_copies_are_refused_with_the_way_out(target: str) -> None:
    with pytest.raises(InputError) as error:
        export(DIVIDED, target)
    assert str(error.value) == (
        f"operator 'linear' is in 2 by output features, on gpu0 and gpu1; {target} has one device for each operator: "
        "plan with --rewrites copies,fuse, or export to networkx, model-explorer-devices or onnx-devices, which show "
        "parts"
    )
    with pytest.raises(InputError) as error:
        export(COPIES, target)
    assert str(error.value) == (
        f"the plan has 2 copies of the network, which take turns; {target} has one device for each operator: export "
        "each of them, as --copy 1, or plan with --rewrites none"
    )


def test_one_of_several_copies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(COPIES, "hf-device-map", copy=1).document == {"": 0}
    assert export(COPIES, "hf-device-map", copy=2).document == {"0": 0, "1": 1, "2": 1}
    with pytest.raises(InputError, match=r"^copy 3 is asked for, and the plan has the copies 1 to 2$"):
        export(COPIES, "hf-device-map", copy=3)
    with pytest.raises(InputError, match=r"^copy 2 is asked for, and the plan has no copies of the network: leave the"):
        export(WHOLE, "networkx", copy=2)
    save_plan(COPIES, tmp_path / "plan.json")
    command = ["export", str(tmp_path / "plan.json"), "--to", "torchgpipe", "--copy", "2"]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out) == {"balance": [1, 2], "devices": [0, 1]}


def test_viewers_show_what_was_rewritten() -> None:
    def shown(plan: Plan, target: str) -> dict[str, object]:
        results = export(plan, target).document["graph"]["results"]
        return {name: result["value"] for name, result in results.items()}

    assert shown(DIVIDED, "model-explorer-devices") == {
        "linear": "gpu0 and gpu1, in 2 by output features",
        "relu": "gpu0 and gpu1, in 2 by axis 1",
        "linear_1": "gpu0 and gpu1, in 2 by input features",
    }
    assert shown(COPIES, "model-explorer-devices") == {
        "linear": "gpu0",
        "relu": "gpu0 and gpu1",
        "linear_1": "gpu0 and gpu1",
    }
    seconds = DIVIDED.table.forward_s[:, 0]
    assert shown(DIVIDED, "model-explorer-seconds") == {
        "linear": seconds[0],
        "relu": seconds[2],
        "linear_1": seconds[4],
    }
    assert list(shown(FUSED, "model-explorer-seconds").values())[1] == 0.0
    nodes = {node["id"]: node for node in export(DIVIDED, "networkx").document["nodes"]}
    assert (nodes["linear[1/2]"]["part_of"], nodes["linear[1/2]"]["device"]) == ("linear", "gpu1")
    assert "part_of" not in nodes["linear_1"]
    assert export(FUSED, "networkx").document["nodes"][0]["members"] == ["linear", "relu"]
    assert export(COPIES, "networkx").document["nodes"][1]["devices"] == ["gpu0", "gpu1"]


def test_every_target_was_tried() -> None:
    shown = {"graph-json", "networkx", "model-explorer-devices", "model-explorer-seconds"}
    assert TARGETS.keys() - shown - {*MAPS} == {"torch-schedule-csv"}  # of stages, in which parts are operators


@pytest.fixture
def _saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    weights = {"w": rng.random((64, 32), dtype=np.float32), "v": rng.random((32, 64), dtype=np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="/first/MatMul"),
        helper.make_node("Relu", ["a"], ["b"], name="/first/Relu"),
        helper.make_node("MatMul", ["b", "v"], ["y"], name="/second/MatMul"),
    ]
    onnx.save(model_of(nodes, [value_info("x", [8, 64])], ["y"], weights), "model.onnx")


@pytest.mark.usefixtures("_saved")
def test_onnx_has_shards_and_copies() -> None:
    network = load_graph("model.onnx")
    first, relu, last = (op.name for op in network.ops)
    split = Split({first: ("output features", 2), relu: ("axis 1", 2), last: ("input features", 2)})
    placed = onnx_devices(made(network, "0101010", split), Path("model.onnx"))
    onnx.checker.check_model(placed)
    specs = {
        spec.tensor_name: (
            list(spec.device),
            [(dim.axis, *((s.dim_value, s.num_shards) for s in dim.simple_sharding)) for dim in spec.sharded_dim],
        )
        for node in placed.graph.node
        for spec in node.device_configurations[0].sharding_spec
    }
    assert specs == {
        "x": ([0, 1], []),
        "a": ([0, 1], [(1, (32, 2))]),
        "b": ([0, 1], [(1, (32, 2))]),
        "y": ([0, 1], []),
    }
    assert [node.metadata_props[1].value for node in placed.graph.node][2] == "in 2 by input features"

    copies = made(network, "000")
    copies = replace(copies, placement=Placement((0, 0, 0), others=(Placement((0, 1, 1)),)))
    placed = onnx_devices(copies, Path("model.onnx"))
    onnx.checker.check_model(placed)
    assert [each.name for each in placed.configuration] == ["copy 1", "copy 2"]
    *_, node = placed.graph.node
    assert [list(each.sharding_spec[0].device) for each in node.device_configurations] == [[0], [1]]
    assert node.metadata_props[0].value == "gpu0, gpu1"

    fused = onnx_devices(made(network, "01", Fuse(((first, relu),))), Path("model.onnx"))
    homes = [node.device_configurations[0].sharding_spec[0].device[0] for node in fused.graph.node]
    assert homes == [0, 0, 1]


@pytest.mark.usefixtures("_saved")
def test_an_onnx_model_that_is_not_what_was_split() -> None:
    with pytest.raises(InputError, match=r"the plan divides operators of a network with the fingerprint \w{12}, and"):
        onnx_devices(
            made(graph_of(nn.Linear(8, 8)), "01", Split({"linear": ("output features", 2)})),
            Path("model.onnx"),
        )
