"""Types of 8 bits and fewer: quantization, casts and weights in files, as ONNX's reference has them."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from graphs.importers.from_onnx import onnx_module
from graphs.importers.load import load_program
from graphs.importers.onnx.operators.registry import FLOAT8, tensor_of
from tests.graphs.onnx_models import ints, model_of, reals, run, saved, value_info

INTEGERS = [TensorProto.INT4, TensorProto.UINT4, TensorProto.INT2, TensorProto.UINT2, TensorProto.INT8]
FLOATS = [TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2FNUZ]
FLOATS += [TensorProto.FLOAT4E2M1]
OPSET = 25
EDGES = [np.nan, np.inf, -np.inf, -0.0, 0.25, 0.75, 2.5, 5.0, 7.5, 8.5, -9.0, 239.9, 448.0, 465.0, 6e4, 7e4]
TYPES = pytest.mark.parametrize("kind", [*INTEGERS, *FLOATS], ids=lambda kind: TensorProto.DataType.Name(kind).lower())


def random_tensor(name: str, kind: int, shape: tuple[int, ...], seed: int = 0) -> TensorProto:
    """Every number of a type is possible, but NaN and infinities."""
    rng, dtype = np.random.default_rng(seed), helper.tensor_dtype_to_np_dtype(kind)
    values = rng.integers(-8, 8, shape) if kind in INTEGERS else rng.normal(size=shape) * 3
    return numpy_helper.from_array(np.asarray(values).astype(np.float32).astype(dtype), name)


def agree(model: ModelProto, feeds: dict[str, np.ndarray]) -> None:
    """Check that we compute what the reference does."""
    outputs = ReferenceEvaluator(model).run(None, feeds)
    assert isinstance(outputs, list)
    for result, wanted in zip(run(model, feeds), outputs, strict=True):
        truth = tensor_of(numpy_helper.from_array(np.asarray(wanted)))
        assert result.dtype == truth.dtype
        if truth.dtype in FLOAT8:
            result, truth = result.float(), truth.float()
        torch.testing.assert_close(result, truth, rtol=1e-6, atol=1e-6, equal_nan=True)


def shaped(axis: int | None, block: int) -> tuple[int, ...]:
    """The shape of scales for a tensor [4, 6]."""
    if axis is None:
        return ()
    return tuple(-(-n // block) if dim == axis % 2 else n for dim, n in enumerate((4, 6))) if block else ((4, 6)[axis],)


@TYPES
def test_weights_of_few_bits_become_real_numbers(kind: int) -> None:
    for (axis, block), zero in itertools.product([(None, 0), (0, 0), (1, 0), (-1, 2), (1, 4), (0, 2)], (True, False)):
        shape = shaped(axis, block)
        scales = numpy_helper.from_array(np.random.default_rng(1).random(shape).astype(np.float32), "scale")
        zero = zero and kind in INTEGERS
        graph_weights = [random_tensor("w", kind, (4, 6)), scales]
        graph_weights += [random_tensor("zero", kind, shape, 2)] if zero else []
        names = ["w", "scale"] + ["zero"] * zero
        keys: dict[str, Any] = {} if axis is None else {"axis": axis}
        node = helper.make_node("DequantizeLinear", names, ["real"], block_size=block, **keys)
        model = model_of([node, helper.make_node("Add", ["x", "real"], ["y"])], [value_info("x", [4, 6])], ["y"])
        model.graph.initializer.extend(graph_weights)
        model.opset_import[0].version = OPSET
        agree(model, {"x": np.zeros((4, 6), np.float32)})


@TYPES
@pytest.mark.parametrize("saturate", [1, 0])
def test_real_numbers_become_few_bits_and_real_again(kind: int, saturate: int) -> None:
    x = np.array(EDGES if kind in FLOATS else [value for value in EDGES if abs(value) < 250], np.float32)
    for axis, way in itertools.product([None, 0], ["zero", "zero moved", "output_dtype"]):
        scale = np.random.default_rng(1).random(() if axis is None else x.shape).astype(np.float32) + 0.5
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        weights = [numpy_helper.from_array(scale, "s"), numpy_helper.from_array(ints(*scale.shape), "shape")]
        weights.append(numpy_helper.from_array(np.zeros((*scale.shape, 1)).astype(dtype), "given"))
        keys: dict[str, Any] = {"axis": 0, "saturate": saturate}
        keys |= {"output_dtype": kind} if way == "output_dtype" else {}
        nodes = [helper.make_node("Reshape", ["given", "shape"], ["z"])] if way != "output_dtype" else []
        operands = ["x", "s", "z"] if way != "output_dtype" else ["x", "s"]
        if way == "zero":
            nodes, weights[-1] = [], numpy_helper.from_array(np.zeros(scale.shape).astype(dtype), "z")
        nodes.append(helper.make_node("QuantizeLinear", operands, ["q"], **keys))
        nodes.append(helper.make_node("DequantizeLinear", ["q", "s"], ["y"], axis=0))
        model = model_of(nodes, [value_info("x", x.shape)], ["q", "y"])
        model.graph.initializer.extend(weights)
        model.opset_import[0].version = OPSET
        agree(model, {"x": x})


@TYPES
@pytest.mark.parametrize("saturate", [1, 0])
def test_casts_are_the_references(kind: int, saturate: int) -> None:
    x = np.array(EDGES if kind in FLOATS else [value for value in EDGES if abs(value) < 250], np.float32)
    nodes = [
        helper.make_node("Cast", ["x"], ["q"], to=kind, saturate=saturate),
        helper.make_node("Unsqueeze", ["q", "axis"], ["moved"]),
        helper.make_node("CastLike", ["x", "moved"], ["again"], saturate=saturate),
        helper.make_node("Cast", ["again"], ["y"], to=TensorProto.FLOAT),
    ]
    model = model_of(nodes, [value_info("x", x.shape)], ["q", "y"], {"axis": ints(0)})
    model.opset_import[0].version = OPSET
    agree(model, {"x": x})


@TYPES
@pytest.mark.parametrize("outside", [False, True])
def test_weights_of_few_bits_in_files(kind: int, outside: bool, tmp_path: Path) -> None:
    weights = random_tensor("w", kind, (5, 3))  # an odd number of elements, whose last byte is not full
    model = model_of([helper.make_node("DequantizeLinear", ["w", "s"], ["real"], "dequantize"),
                      helper.make_node("MatMul", ["x", "real"], ["y"], "product")],
                     [value_info("x", [2, 5])], ["y"], {"s": reals(0.5).reshape(())})  # fmt: skip
    model.graph.initializer.append(weights)
    model.opset_import[0].version = OPSET
    x = np.random.default_rng(3).normal(size=(2, 5)).astype(np.float32)
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    path = saved(model, tmp_path, save_as_external_data=outside, size_threshold=0)
    assert (tmp_path / "model.onnx").exists()
    assert any(onnx.external_data_helper.uses_external_data(each) for each in
               onnx.load(path, load_external_data=False).graph.initializer) == outside  # fmt: skip
    program = load_program(str(path))
    assert [op.kind for op in program.graph.ops] == ["aten.matmul.default"]
    torch.testing.assert_close(program.run(torch.from_numpy(x)), torch.from_numpy(np.asarray(wanted)))


def test_inputs_of_few_bits_have_a_byte_for_each_element(tmp_path: Path) -> None:
    node = helper.make_node("DequantizeLinear", ["q", "s"], ["y"])
    for kind, dtype in ((TensorProto.UINT4, torch.uint8), (TensorProto.FLOAT8E5M2FNUZ, torch.float8_e5m2fnuz)):
        model = model_of([node], [value_info("q", [3], kind)], ["y"], {"s": reals(2).reshape(())})
        path = saved(model, tmp_path)
        _, (example,) = onnx_module(path)
        assert example.dtype == dtype
        assert load_program(str(path)).run(torch.tensor([1.0, 2.0, 3.0]).to(dtype)).tolist() == [2, 4, 6]
