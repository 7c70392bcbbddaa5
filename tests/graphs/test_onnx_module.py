"""The module that an ONNX file becomes: names, weights, and what it can be put through."""

import copy
import pickle
from pathlib import Path

import torch
from onnx import helper

from graphs.importers.from_onnx import onnx_module
from graphs.importers.onnx.module import unique_paths
from tests.graphs.onnx_models import model_of, reals, saved, tied_model, value_info


def test_modules_and_parameters_are_named_after_the_nodes(tmp_path: Path) -> None:
    module, _ = onnx_module(saved(tied_model(), tmp_path))
    names = [name for name, part in module.named_modules() if type(part).__name__ == "OnnxNode"]
    assert sorted(names) == ["block.0.MatMul", "block.act.Relu", "embed.Gather", "head.MatMul", "head.Transpose"]
    assert repr(module.get_submodule("block.act.Relu")) == "OnnxNode(Relu)"


def test_a_weight_with_two_readers_stays_one(tmp_path: Path) -> None:
    module, inputs = onnx_module(saved(tied_model(), tmp_path))
    assert {name: tuple(value.shape) for name, value in module.named_parameters()} == {
        "block.0.MatMul.W": (4, 4),
        "embed.Gather.table": (7, 4),
    }
    assert not any(parameter.requires_grad for parameter in module.parameters())
    exported = torch.export.export(module, inputs, strict=False)
    assert sorted(exported.graph_signature.parameters) == ["block.0.MatMul.W", "embed.Gather.table"]
    stacks = {
        n.name: list(n.meta["nn_module_stack"].values())[-1][0] for n in exported.graph.nodes if n.op[:4] == "call"
    }
    assert stacks == {
        "lt": "embed.Gather",  # a negative position counts from the back: where(tokens < 0, tokens + 7, tokens)
        "add": "embed.Gather",
        "where": "embed.Gather",
        "embedding": "embed.Gather",
        "matmul": "block.0.MatMul",
        "relu": "block.act.Relu",
        "permute": "head.Transpose",
        "matmul_1": "head.MatMul",
    }


def test_a_bias_with_two_readers_becomes_two(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", [x, "bias"], [y], name=y) for x, y in (("x", "first"), ("first", "y"))]
    model = model_of(nodes, [value_info("x", [3])], ["y"], {"bias": reals(0, 0, 0)})
    module, inputs = onnx_module(saved(model, tmp_path))
    assert sorted(dict(module.named_parameters())) == ["first.bias", "y.bias"]
    assert torch.equal(module(*inputs), inputs[0])


def test_names_of_pytorchs_newer_exporter_become_the_same_tree(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"], name="node_relu_3")
    scopes = node.metadata_props.add()
    scopes.key, scopes.value = "pkg.torch.onnx.name_scopes", "['', 'layer1', 'layer1.0', 'layer1.0.act', 'relu_3']"
    module, _ = onnx_module(saved(model_of([node], [value_info("x", [1])], ["y"]), tmp_path))
    assert [name for name, part in module.named_modules() if type(part).__name__ == "OnnxNode"] == [
        "layer1.0.act.node_relu_3"
    ]


def test_paths_are_made_unique() -> None:
    paths = [("a", "b"), ("a", "b"), ("a",), ("a", "b_1"), ("a", "b", "c")]
    #                                  "a" and "a.b" are modules around others, so no node may have these names.
    assert unique_paths(paths) == ["a.b_1", "a.b_2", "a_1", "a.b_1_1", "a.b.c"]


def test_names_that_a_module_needs_itself_get_an_underscore(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["h"], name="/train/forward"),
        helper.make_node("Relu", ["h"], ["y"], name="a b:c"),
    ]
    module, _ = onnx_module(saved(model_of(nodes, [value_info("x", [1])], ["y"]), tmp_path))
    assert list(dict(module.named_modules())) == ["", "train_", "train_.forward_", "a_b_c"]


def test_a_module_can_be_copied_and_pickled(tmp_path: Path) -> None:
    module, inputs = onnx_module(saved(tied_model(), tmp_path))
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin(*inputs), module(*inputs))
