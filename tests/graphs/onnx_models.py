"""Small ONNX models for the importer's tests, and ways to run one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from graphs.importers.onnx.control_flow import KINDS, nodes_of
from graphs.importers.onnx.fold import fold
from graphs.importers.onnx.module import OnnxModel
from graphs.importers.onnx.operators import OPERATORS
from graphs.importers.onnx.operators.registry import node_kind, tensor_of
from graphs.importers.onnx.reading import opset_of

OLDEST_IR = 8  # old enough for every opset here, new enough for the checker


def ints(*values: Any) -> np.ndarray:
    """What shapes and positions are made of."""
    return np.array(values, dtype=np.int64)


def reals(*values: Any) -> np.ndarray:
    """What weights are made of."""
    return np.array(values, dtype=np.float32)


def value_info(name: str, shape: Sequence[int | str | None] | None, dtype: int = TensorProto.FLOAT) -> Any:
    """What a graph declares about an input or output."""
    return helper.make_tensor_value_info(name, dtype, shape)


def model_of(
    nodes: Sequence[NodeProto],
    inputs: Sequence[Any],
    outputs: Sequence[str],
    weights: Mapping[str, np.ndarray] | None = None,
    opset: int = 21,
    **graph_parts: Any,
) -> ModelProto:
    """A model; what its outputs declare means nothing."""
    graph = helper.make_graph(
        nodes,
        "graph",
        list(inputs),
        [value_info(name, [None]) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items()],
        **graph_parts,
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=OLDEST_IR)


def single(
    kind: str, operands: Sequence[Any], attributes: Mapping[str, Any], opset: int, n_outputs: int = 1
) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """A model of one node, and what to feed it with; None is an operand left out."""
    arrays = {f"x{i}": np.asarray(value) for i, value in enumerate(operands) if value is not None}
    names = ["" if value is None else f"x{i}" for i, value in enumerate(operands)]
    outputs = [f"y{i}" for i in range(n_outputs)]
    node = helper.make_node(kind, names, outputs, name="node", **attributes)
    inputs = [
        value_info(name, array.shape, helper.np_dtype_to_tensor_dtype(array.dtype)) for name, array in arrays.items()
    ]
    return model_of([node], inputs, outputs, opset=opset), arrays


def saved(model: ModelProto, folder: Path, **options: Any) -> Path:
    """The model as a file."""
    path = folder / "model.onnx"
    onnx.save(model, path, **options)
    return path


#   tokens ─► Gather ─► /block/MatMul ─► /block/act/Relu ─► /head/MatMul ─► scores
#    table ──────┘        ^ W                                  ^ Transpose ◄─ table
def tied_model() -> ModelProto:
    """As drawn above: one weight with two readers."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["e"], name="/embed/Gather"),
        helper.make_node("MatMul", ["e", "block.0.W"], ["h"], name="/block/block.0/MatMul"),
        helper.make_node("Relu", ["h"], ["r"], name="/block/act/Relu"),
        helper.make_node("Transpose", ["table"], ["t"], name="/head/Transpose"),
        helper.make_node("MatMul", ["r", "t"], ["scores"], name="/head/MatMul"),
    ]
    weights = {
        "table": rng.random((7, 4), dtype=np.float32),
        "block.0.W": rng.random((4, 4), dtype=np.float32),
    }
    return model_of(nodes, [value_info("tokens", ["batch", 5], TensorProto.INT64)], ["scores"], weights)


def names_to_know(graph: GraphProto) -> set[str]:
    """The values that must be known when the file is read: those that shapes follow from, and recurrent weights."""
    names: set[str] = set()
    for node in nodes_of(graph):
        if node.op_type in KINDS:
            names.update(node.input[:2] if node.op_type != "Scan" else ())
            continue
        traits = OPERATORS[node_kind(node)]
        if traits.folded:
            names.update(node.input)
        else:
            rest = [i for i in range(len(node.input)) if i not in traits.weights]
            known = [i for place, i in enumerate(rest) if place in traits.known]
            names.update(node.input[i] for i in (*known, *traits.weights) if i < len(node.input))
    return names - {""}


def with_weights(model: ModelProto, arrays: Mapping[str, np.ndarray]) -> ModelProto:
    """A copy in which these inputs are weights of the file."""
    copy = ModelProto()
    copy.CopyFrom(model)
    copy.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in arrays.items())
    rest = [info for info in copy.graph.input if info.name not in arrays]
    del copy.graph.input[:]
    copy.graph.input.extend(rest)
    return copy


def run(model: ModelProto, feeds: Mapping[str, np.ndarray]) -> tuple[torch.Tensor, ...]:
    """The outputs by way of our importer; inputs that must be known become weights of the file."""
    known = names_to_know(model.graph) & feeds.keys()
    model = with_weights(model, {name: value for name, value in feeds.items() if name in known})
    inputs = {name: tensor_of(numpy_helper.from_array(value)) for name, value in feeds.items() if name not in known}
    module = OnnxModel(fold(model.graph, opset_of(model), inputs))
    results = module(*inputs.values())
    return results if isinstance(results, tuple) else (results,)


def assert_close(results: Sequence[torch.Tensor], expected: Sequence[Any], rtol: float = 1e-4) -> None:
    """Same number, types, shapes and, within a tolerance, values."""
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected, strict=True):
        truth = tensor_of(numpy_helper.from_array(np.asarray(wanted)))
        assert result.dtype == truth.dtype
        assert result.shape == truth.shape
        torch.testing.assert_close(result, truth, rtol=rtol, atol=1e-5, equal_nan=True)
