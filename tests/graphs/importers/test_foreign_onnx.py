"""ONNX files from strangers: names are names, and weights lie beside the file."""

import os
import re
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from graphs.common.errors import InputError
from graphs.importers.load import load_program
from planner.runtime.stages.compile import compile_stages
from simulator.placement import Placement
from simulator.stages import split_stages
from tests.planner.runtime.small import desk, make_plan

pytestmark = pytest.mark.attack("file")

CODE = "x=__import__('os').system('touch pwned')"


def file_of(folder: Path, weight: TensorProto, name: str = "y") -> Path:
    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, [2, 4]) for end in (f"{name} in", f"{name} out")]
    nodes = [
        helper.make_node("Mul", [f"{name} in", "w"], [name], name),
        helper.make_node("Relu", [name], [f"{name} out"]),
    ]
    graph = helper.make_graph(nodes, name, ends[:1], ends[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 10
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    return folder / "net.onnx"


@pytest.mark.parametrize("name", [CODE, f"'); {CODE} #", f'"""\n{CODE}\n"""', "self", "__class__", "lambda", "../../x"])
def test_names_are_no_code(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = load_program(str(file_of(tmp_path, helper.make_tensor("w", TensorProto.FLOAT, [4], [1.0] * 4), name)))
    plan = make_plan(program, Placement((0,) * len(program.graph.ops)), desk(1))
    compiled, _ = compile_stages(program, split_stages(plan.table, plan.placement), plan.cluster.devices)
    (found,) = compiled[0].call(torch.ones(2, 4))
    assert torch.equal(found, torch.ones(2, 4))
    assert os.listdir() == ["net.onnx"]


@pytest.mark.parametrize(("kind", "shown"), [("Odd", "Odd"), ("Odd*\v\naxis", r"'Odd*\x0b\naxis'")])
def test_an_unknown_node_without_a_name_and_outputs_is_refused(kind: str, shown: str, tmp_path: Path) -> None:
    path = file_of(tmp_path, helper.make_tensor("w", TensorProto.FLOAT, [4], [1.0] * 4))
    model = onnx.load(path)
    model.graph.node.append(onnx.NodeProto(op_type=kind))
    path.write_bytes(model.SerializeToString())
    said = re.escape(f"uses operators that are not supported: {shown} (opset 18, node '')")
    with pytest.raises(InputError, match=said):
        load_program(str(path))


@pytest.mark.parametrize("place", ["../secret", "{}/secret", "in/../../secret", "link", "fifo", "."])
def test_weights_lie_beside_the_file(place: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(16))
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", place.format(tmp_path)), ("offset", "0"), ("length", "16")):
        weight.external_data.append(onnx.StringStringEntryProto(key=key, value=value))
    with pytest.raises(InputError, match="keeps weights in separate files, and one can't be read"):
        load_program(str(file_of(folder, weight)))
