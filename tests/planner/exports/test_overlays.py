"""Overlays for other viewers: node data that fits a .pt2, and an .onnx that onnx checks and the planner still reads."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from costmodels.cluster.file import read_cluster
from graphs.common.errors import InputError
from graphs.importers.load import load_graph
from planner.cli import main
from planner.exports import export
from planner.planning.find_plan import plan
from planner.planning.make_plan import Search
from planner.plans.files import save_plan
from planner.plans.plan import Plan
from tests.graphs.onnx_models import model_of, value_info
from tests.planner.exports.nets import chain

PAIR = read_cluster("2xT4:PCIe3")


def planned(model: str, rewrites: str = "none") -> Plan:
    return plan(load_graph(model), cluster=PAIR, search=Search(rewrites=rewrites))


def test_node_data_has_the_names_of_the_exported_program(tmp_path: Path) -> None:
    program = torch.export.export(chain(3), (torch.ones(2, 8),))
    torch.export.save(program, tmp_path / "chain.pt2")
    found = planned(str(tmp_path / "chain.pt2"))
    nodes = {node.name for node in program.graph.nodes}
    for target in ("model-explorer-devices", "model-explorer-seconds"):
        results = json.loads(export(found, target).text)["graph"]["results"]
        assert len(results) == len(found.graph.ops)
        assert results.keys() <= nodes
    assert all(result["value"] > 0 for result in results.values())
    devices = json.loads(export(found, "model-explorer-devices").text)["graph"]["results"]
    assert {name: result["value"] for name, result in devices.items()} == {
        op.name: found.device_of(op.name) for op in found.graph.ops
    }


@pytest.fixture
def _saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of four nodes, of which the last has no name."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    weights = {name: rng.random((64, 64), dtype=np.float32) for name in ("w", "v")}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="/first/MatMul"),
        helper.make_node("Relu", ["a"], ["b"], name="/first/Relu"),
        helper.make_node("MatMul", ["b", "v"], ["c"], name="/second/MatMul"),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    onnx.save(model_of(nodes, [value_info("x", [8, 64])], ["y"], weights), "model.onnx")


@pytest.mark.usefixtures("_saved")
def test_an_onnx_model_says_where_its_nodes_run() -> None:
    found = planned("model.onnx")
    save_plan(found, "plan.json")
    command = ["export", "plan.json", "--to", "onnx-devices", "--model", "model.onnx", "-o", "placed.onnx"]
    assert main(command) == 0
    placed = onnx.load("placed.onnx")
    onnx.checker.check_model(placed)
    assert placed.ir_version >= 11
    (configuration,) = placed.configuration
    assert (configuration.name, list(configuration.device)) == ("placement", ["gpu0", "gpu1"])
    homes = {op.module: found.device_of(op.name) for op in found.graph.ops}
    for node in placed.graph.node:
        (own,) = node.device_configurations
        (spec,) = own.sharding_spec
        device = configuration.device[spec.device[0]]
        assert (own.configuration_id, spec.tensor_name) == ("placement", node.output[0])
        assert device == node.metadata_props[0].value
        assert device in homes.values()
    assert load_graph("placed.onnx").fingerprint == found.graph.fingerprint


@pytest.mark.usefixtures("_saved")
def test_what_cannot_be_placed_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    save_plan(planned("model.onnx"), "plan.json")
    assert main(["export", "plan.json", "--to", "onnx-devices", "-o", "placed.onnx"]) == 2
    assert "give its .onnx with --model and a file with -o" in capsys.readouterr().err
    from planner.exports.onnx_devices import onnx_devices

    foreign = planned("examples.networks:mnist")
    with pytest.raises(InputError, match=r"no node of model\.onnx is an operator of the plan of "):
        onnx_devices(foreign, Path("model.onnx"))
