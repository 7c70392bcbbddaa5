"""Every operator against ONNX's reference implementation, or against values worked out by hand."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from graphs.common.errors import InputError
from graphs.importers.onnx.operators import OPERATORS
from graphs.importers.onnx.operators.registry import operator
from tests.graphs.onnx_models import assert_close, ints, reals, run, single, with_weights

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    """Numbers between −3 and 3."""
    return RANDOM.uniform(-3, 3, shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    """Numbers between 0.1 and 0.9: in the domain of every function here."""
    return RANDOM.uniform(0.1, 0.9, shape).astype(np.float32)


def bools(*shape: int) -> np.ndarray:
    """A coin for each element."""
    return RANDOM.random(shape) < 0.5


X, IMAGE, SEQUENCE = floats(2, 3, 4), floats(2, 4, 9, 8), floats(5, 2, 3)
UNARY = """
    Abs Atan Asinh Ceil Cos Cosh Erf Exp Floor HardSwish Identity Mish Neg Relu Round Sigmoid Sign Sin Sinh
    Softplus Softsign Tan Tanh LeakyRelu Elu Celu Selu ThresholdedRelu HardSigmoid
"""
ONE_OPERAND = dict.fromkeys(re.findall(r"\w+", UNARY), X)
ONE_OPERAND |= {"BitwiseNot": ints(1, -5), "Not": bools(3), "IsNaN": reals(1, np.nan)}
ONE_OPERAND |= {"IsInf": reals(1, -np.inf, np.inf)}
ONE_OPERAND |= {kind: positive(2, 3) for kind in ("Acos", "Asin", "Atanh", "Log", "Reciprocal", "Sqrt")}
ONE_OPERAND |= {"Acosh": positive(2, 3) + 1}
TWO_FLOATS = ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean"]
TWO_FLOATS += ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"]
REDUCTIONS = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]

Case = tuple[str, list[Any], dict[str, Any], int]  # operator, operands, attributes, opset
CASES: list[Case] = [(kind, [value], {}, 21) for kind, value in ONE_OPERAND.items()]
CASES += [(kind, [positive(2, 3, 4), positive(3, 1)], {}, 21) for kind in TWO_FLOATS]
CASES += [(kind, [positive(2, 3), np.float32(0.5)], {}, 21) for kind in ("Add", "Sub", "Mul", "Div", "Pow")]
CASES += [(kind, [bools(2, 3), bools(3)], {}, 21) for kind in ("And", "Or", "Xor")]
CASES += [(f"Bitwise{kind}", [ints(12, 5, -1), ints(10)], {}, 21) for kind in ("And", "Or", "Xor")]
CASES += [(f"Reduce{kind}", [positive(2, 3, 4)], {"axes": [0, -1], "keepdims": 0}, 12) for kind in REDUCTIONS]
CASES += [(f"Reduce{kind}", [positive(2, 3, 4), ints(1)], {"keepdims": 1}, 18) for kind in REDUCTIONS]
CASES += [
    ("ArgMax", [X], {"axis": 1}, 21),
    ("ArgMin", [reals([1, 0, 0])], {"axis": -1, "keepdims": 0, "select_last_index": 1}, 21),
    ("AveragePool", [IMAGE], {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 0]}, 21),
    ("AveragePool", [IMAGE], {"kernel_shape": [3, 3], "pads": [0, 1, 2, 1], "count_include_pad": 1}, 21),
    ("AveragePool", [IMAGE], {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER", "strides": [2, 3]}, 21),
    ("AveragePool", [IMAGE], {"kernel_shape": [2, 2], "dilations": [2, 3], "pads": [1, 1, 1, 1]}, 21),
    ("BatchNormalization", [IMAGE, positive(4), floats(4), floats(4), positive(4)], {"epsilon": 0.01}, 15),
    ("BitCast", [X], {"to": onnx.TensorProto.INT32}, 26),
    ("Cast", [X], {"to": onnx.TensorProto.INT64}, 21),
    ("Cast", [reals(0, 2)], {"to": onnx.TensorProto.BOOL}, 9),
    ("CastLike", [X, ints(1)], {}, 21),
    ("Clip", [X, np.float32(-1), np.float32(1)], {}, 21),
    ("Clip", [X, None, np.float32(1)], {}, 13),
    ("Clip", [X], {"min": -1.0, "max": 1.0}, 7),
    ("Concat", [X, floats(2, 1, 4)], {"axis": 1}, 21),
    ("Constant", [], {"value_floats": [1.0, 2.0]}, 21),
    ("Constant", [], {"value_int": 3}, 21),
    ("ConstantOfShape", [ints(2, 3)], {"value": numpy_helper.from_array(ints(7))}, 21),
    ("Conv", [IMAGE, floats(6, 2, 3, 3), floats(6)], {"group": 2, "strides": [2, 1], "pads": [1, 2, 1, 2]}, 21),
    ("Conv", [IMAGE, floats(5, 4, 3, 2)], {"pads": [0, 1, 2, 0], "dilations": [2, 3]}, 21),
    ("Conv", [IMAGE, floats(5, 4, 3, 2)], {"auto_pad": "SAME_LOWER", "strides": [2, 3]}, 21),
    ("Conv", [X, floats(5, 3, 2)], {"kernel_shape": [2]}, 7),
    ("Conv", [floats(1, 2, 4, 5, 6), floats(3, 2, 2, 2, 2)], {"pads": [1] * 6}, 21),
    ("ConvTranspose", [floats(1, 2, 4), floats(2, 3, 2), floats(3)], {"strides": [3], "auto_pad": "SAME_UPPER"}, 21),
    ("ConvTranspose", [IMAGE, floats(4, 2, 3, 3), floats(2)], {"strides": [2, 3], "output_padding": [1, 1]}, 21),
    ("ConvTranspose", [IMAGE, floats(4, 2, 3, 3)], {"pads": [1, 0, 0, 2]}, 21),
    ("CumSum", [X, np.int64(1)], {"exclusive": 1, "reverse": 1}, 21),
    ("DepthToSpace", [floats(1, 8, 2, 3)], {"blocksize": 2}, 21),
    ("DepthToSpace", [floats(1, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}, 21),
    ("Div", [ints(7, -7), ints(2)], {}, 21),
    ("Dropout", [X], {"ratio": 0.5}, 10),
    ("Dropout", [X, np.float32(0.5)], {}, 21),
    ("Einsum", [X, floats(4, 5)], {"equation": "abc,cd->adb"}, 21),
    ("Expand", [floats(3, 1), ints(2, 1, 4)], {}, 21),
    ("EyeLike", [floats(3, 4)], {"k": 1, "dtype": onnx.TensorProto.INT64}, 21),
    ("Flatten", [X], {"axis": 2}, 21),
    ("Flatten", [X], {"axis": 0}, 21),
    ("GRU", [SEQUENCE, floats(1, 12, 3), floats(1, 12, 4), floats(1, 24)], {"linear_before_reset": 1}, 21),
    ("Gather", [X, ints([0, 2], [-1, 1])], {"axis": 1}, 21),
    ("Gather", [X, np.int64(1)], {"axis": -1}, 21),
    ("GatherElements", [X, ints([[1, -1, 0, 1]], [[0, 0, 2, 2]])], {"axis": 1}, 21),
    ("GatherND", [X, ints([[0, 1], [1, 2]])], {}, 21),
    ("GatherND", [X, ints([1], [2])], {"batch_dims": 1}, 21),
    ("Gelu", [X], {}, 21),
    ("Gelu", [X], {"approximate": "tanh"}, 21),
    ("Gemm", [floats(2, 3), floats(5, 3), floats(5)], {"transB": 1}, 21),
    ("Gemm", [floats(3, 2), floats(3, 5), floats(2, 1)], {"transA": 1, "alpha": 0.5, "beta": 2.0}, 21),
    ("Gemm", [floats(2, 3), floats(3, 5)], {}, 21),
    ("GlobalAveragePool", [IMAGE], {}, 21),
    ("GlobalMaxPool", [IMAGE], {}, 21),
    ("GroupNormalization", [IMAGE, floats(4), floats(4)], {"num_groups": 2}, 21),
    ("InstanceNormalization", [IMAGE, floats(4), floats(4)], {}, 21),
    ("LRN", [floats(4, 4, 3, 2)], {"size": 3}, 21),
    ("LSTM", [SEQUENCE, floats(1, 16, 3), floats(1, 16, 4), floats(1, 32)], {"hidden_size": 4}, 21),
    ("LayerNormalization", [X, floats(4), floats(4)], {}, 21),
    ("LayerNormalization", [X, floats(3, 4)], {"axis": 1}, 21),
    ("LogSoftmax", [X], {}, 21),
    ("MatMul", [X, floats(4, 5)], {}, 21),
    ("MaxPool", [IMAGE], {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 1, 1, 1]}, 21),
    ("MaxPool", [floats(1, 2, 4)], {"kernel_shape": [3], "strides": [3], "ceil_mode": 1, "auto_pad": "VALID"}, 21),
    ("Mod", [ints(5, -5), ints(3)], {}, 21),
    ("Mod", [reals(5, -5), reals(3)], {"fmod": 1}, 21),
    ("NonZero", [reals([1, 0], [2, 3])], {}, 21),
    ("OneHot", [ints(0, -1, 7), np.int64(4), reals(0, 5)], {"axis": 0}, 21),
    ("PRelu", [IMAGE, positive(4, 1, 1)], {}, 21),
    ("PRelu", [X, positive(4)], {}, 21),
    ("Pad", [X, ints(0, 1, 2, 0, 0, 1), np.float32(7)], {}, 21),
    ("Pad", [X, ints(1, 2), None, ints(2)], {"mode": "edge"}, 18),
    ("Pad", [IMAGE, ints(0, 0, 2, 1, 0, 0, 1, 3)], {"mode": "reflect"}, 21),
    ("Pad", [X, ints(1, 0, 0, 0, 1, 1)], {"mode": "wrap"}, 21),
    ("RMSNormalization", [X, floats(4)], {}, 23),
    ("RNN", [SEQUENCE, floats(1, 4, 3), floats(1, 4, 4)], {"hidden_size": 4}, 21),
    ("BitShift", [np.array([1, 6], "uint8"), np.array([2, 1], "uint8")], {"direction": "RIGHT"}, 21),
    ("Col2Im", [floats(1, 4, 4), ints(3, 3), ints(2, 2)], {}, 21),
    ("CumProd", [floats(2, 3), np.int64(1)], {"exclusive": 1, "reverse": 1}, 26),
    ("ConvInteger", [np.uint8(ints([[[1, 2, 9, 4]]])), np.uint8(ints([[[1, 200]]])), np.uint8(3)], {}, 21),
    ("DequantizeLinear", [np.int8(ints([1, -7], [3, 4])), reals(0.5, 2), np.int8(ints(1, 2))], {"axis": 0}, 21),
    ("Det", [floats(2, 3, 3)], {}, 21),
    ("GridSample", [IMAGE, positive(2, 3, 3, 2)], {"align_corners": 1}, 21),
    ("Hardmax", [reals([1, 3, 3], [2, 2, 1])], {}, 21),
    ("LpNormalization", [positive(2, 3, 4)], {"axis": 1, "p": 1}, 21),
    ("LpPool", [IMAGE], {"kernel_shape": [2, 2], "pads": [1, 0, 0, 1]}, 21),
    ("MatMulInteger", [np.uint8(ints([1, 200])), np.int8(ints([3], [-7])), np.uint8(5)], {}, 21),
    ("QuantizeLinear", [floats(2, 3), reals(0.5, 0.25), np.uint8(ints(1, 2))], {"axis": 0}, 21),
    ("ReverseSequence", [X, ints(1, 2, 2)], {}, 21),
    ("Shrink", [X], {"lambd": 1.0, "bias": 0.5}, 21),
    ("Range", [ints(1).reshape(()), ints(9).reshape(()), ints(3).reshape(())], {}, 21),
    ("ReduceLogSum", [positive(2, 3)], {"noop_with_empty_axes": 1}, 18),
    ("ReduceSumSquare", [X, ints()], {"noop_with_empty_axes": 1, "keepdims": 0}, 18),
    ("ReduceMax", [X], {"noop_with_empty_axes": 1}, 18),
    ("Reshape", [X, ints(0, -1)], {}, 21),
    ("Reshape", [floats(0, 3), ints(3, 0)], {"allowzero": 1}, 21),
    ("Resize", [IMAGE, None, reals(1, 1, 2, 3)], {"mode": "nearest"}, 21),
    ("Resize", [IMAGE, None, None, ints(2, 4, 5, 20)], {"mode": "linear"}, 21),
    ("Resize", [X[..., :1], None, reals(1, 1, 0.5)], {"mode": "linear"}, 21),  # to nothing
    ("Resize", [IMAGE, None, None, ints(2, 4, 5, 20)], {"mode": "cubic"}, 21),
    ("RotaryEmbedding", [floats(2, 3, 10), floats(9, 2), floats(9, 2), ints([0, 1, 2], [3, 4, 8])],
     {"num_heads": 2, "rotary_embedding_dim": 4}, 23),
    ("RotaryEmbedding", [floats(2, 2, 3, 4), floats(2, 3, 2), floats(2, 3, 2)], {"interleaved": 1}, 23),
    ("ScatterElements", [X, ints([[0, 1, -1, 0]]), floats(1, 1, 4)], {"axis": 1}, 21),
    ("ScatterElements", [X, ints([[0, 1, 1, 0]]), floats(1, 1, 4)], {"axis": 1, "reduction": "add"}, 18),
    ("ScatterND", [X, ints([0, 1], [1, 2]), floats(2, 4)], {}, 21),
    ("Shape", [X], {"start": 1}, 21),
    ("Size", [X], {}, 21),
    ("Slice", [X, ints(0, 3), ints(2, -9), ints(1, 2), ints(1, -2)], {}, 21),
    ("Slice", [X], {"starts": [1, 0], "ends": [9, 2], "axes": [1, 2]}, 9),
    ("Softmax", [X], {"axis": 1}, 13),
    ("SpaceToDepth", [floats(1, 2, 4, 6)], {"blocksize": 2}, 21),
    ("Squeeze", [floats(1, 3, 1), ints(-1)], {}, 21),
    ("Squeeze", [floats(1, 3, 1)], {"axes": [0]}, 11),
    ("Squeeze", [floats(1, 3, 1)], {}, 21),
    ("Swish", [X], {"alpha": 2.0}, 24),
    ("Tile", [X, ints(1, 2, 3)], {}, 21),
    ("TensorScatter", [floats(2, 2, 4, 3), floats(2, 2, 2, 3), ints(3, 1)], {"mode": "circular"}, 24),
    ("TensorScatter", [X, floats(2, 3, 1), ints(0, 3)], {"axis": 2}, 24),
    ("Transpose", [X], {}, 21),
    ("Transpose", [X], {"perm": [1, 2, 0]}, 21),
    ("Trilu", [floats(4, 4), ints(1).reshape(())], {}, 21),
    ("Trilu", [floats(4, 4)], {"upper": 0}, 21),
    ("Unsqueeze", [X, ints(-1, 0)], {}, 21),
    ("Unsqueeze", [X], {"axes": [1]}, 11),
    ("Upsample", [IMAGE, reals(1, 1, 2, 3)], {}, 9),
    ("Where", [bools(2, 1), floats(2, 3), floats(3)], {}, 21),
    ("Where", [bools(2, 3), np.float64(1), np.float64(2)], {}, 21),
]  # fmt: skip


def reference(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[Any]:
    """The outputs by ONNX's own implementation."""
    outputs = ReferenceEvaluator(model).run(None, feeds)
    assert isinstance(outputs, list)
    return outputs


@pytest.mark.parametrize(("kind", "operands", "attributes", "opset"), CASES, ids=[case[0] for case in CASES])
def test_an_operator_computes_what_the_reference_does(
    kind: str, operands: list[Any], attributes: dict[str, Any], opset: int
) -> None:
    model, feeds = single(kind, operands, attributes, opset)
    assert_close(run(model, feeds), reference(model, feeds))


def test_the_cases_above_and_those_below_cover_the_whole_table() -> None:
    by_hand = {"Attention", "QLinearConv", "QLinearMatMul", "Scatter", "Split", "TopK"}
    assert {case[0] for case in CASES} | by_hand == {kind for kind in OPERATORS if "::" not in kind}


def test_the_page_names_every_operator() -> None:
    page = (Path(__file__).parents[2] / "docs/onnx.md").read_text()
    standard, microsoft = re.findall(r"## Operators of .*?\n\n(.*?)[.;]", page, re.S)
    assert standard.split() == sorted(kind for kind in OPERATORS if "::" not in kind)
    assert microsoft.split() == sorted(kind.split("::")[1] for kind in OPERATORS if "::" in kind)


def test_a_kind_is_entered_once() -> None:
    with pytest.raises(ValueError, match="operator 'Relu' is in the table already; give each kind one function"):
        operator("Relu")(torch.relu)


def outputs_of(kind: str, operands: list[Any], n_outputs: int = 1, opset: int = 21, **attributes: Any) -> list[Any]:
    """What our operator gives, as nested lists."""
    model, feeds = single(kind, operands, attributes, opset, n_outputs)
    return [result.tolist() for result in run(model, feeds)]


def test_positions_count_from_the_back_in_weights_and_in_what_is_computed() -> None:
    rows, picked = reals([1, 2], [3, 4], [5, 6]), ints(-1, 0, -3)
    model, feeds = single("Gather", [rows, picked], {}, 21)
    for weights in ({}, {"x0": rows}):
        rest = {name: value for name, value in feeds.items() if name not in weights}
        (result,) = run(with_weights(model, weights), rest)
        assert result.tolist() == [[5, 6], [1, 2], [1, 2]]


def test_the_first_of_equal_elements_counts() -> None:
    for x in (reals(2, 5, 5, 2, 5), ints(2, 5, 5, 2, 5), np.zeros(40, np.float32)):
        for largest, order in ((1, [1, 2, 4, 0, 3]), (0, [0, 3, 1, 2, 4])):
            wanted = list(range(5)) if x.size == 40 else order
            assert outputs_of("TopK", [x, ints(5)], 2, largest=largest)[1] == wanted
            assert outputs_of("ArgMax" if largest else "ArgMin", [x], axis=-1) == [[wanted[0]]]


def test_a_sum_without_the_element_itself_is_not_what_is_left_of_one_with_it() -> None:
    inf = float("inf")
    assert outputs_of("CumSum", [reals(1, 1e10, 1, -inf), np.int64(0)], exclusive=1) == [[0, 1, 1e10, 1e10]]
    assert outputs_of("CumSum", [reals(inf, 2, 3), np.int64(0)], exclusive=1, reverse=1) == [[5, 3, 0]]


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
def test_unsigned_numbers_wrap_around(dtype: str) -> None:
    a, b = np.array([1, 7], dtype), np.array([3, 2], dtype)
    largest = int(np.iinfo(dtype).max)
    assert outputs_of("Sub", [a, b]) == [[largest - 1, 5]]  # 1 − 3 = −2
    assert outputs_of("Mul", [np.array([largest], dtype), b]) == [[largest - 2, largest - 1]]  # −3 and −2
    if dtype != "uint64":
        assert outputs_of("Greater", [np.array([largest], dtype), b]) == [[True, True]]
        assert outputs_of("TopK", [np.array([2, largest], dtype), ints(1)], 2) == [[largest], [1]]


def test_split_takes_sizes_from_wherever_the_opset_keeps_them() -> None:
    x = ints(0, 1, 2, 3, 4)
    assert outputs_of("Split", [x], 2, opset=11, split=[2, 3]) == [[0, 1], [2, 3, 4]]
    assert outputs_of("Split", [x, ints(4, 1)], 2) == [[0, 1, 2, 3], [4]]
    assert outputs_of("Split", [x], 2, num_outputs=2) == [[0, 1, 2], [3, 4]]
    assert outputs_of("Split", [ints([0, 1], [2, 3])], 2, opset=13, axis=1) == [[[0], [2]], [[1], [3]]]


def test_top_k_takes_k_from_an_attribute_or_an_operand() -> None:
    x = reals([3, 1, 2])
    assert outputs_of("TopK", [x], 2, opset=9, k=2) == [[[3, 2]], [[0, 2]]]
    assert outputs_of("TopK", [x, ints(2)], 2, largest=0) == [[[1, 2]], [[1, 2]]]


def test_scatter_is_an_old_name() -> None:
    assert outputs_of("Scatter", [ints(5, 6, 7), ints(2), ints(0)], opset=10) == [[5, 6, 0]]


def test_softmax_before_opset_13_runs_over_the_axis_and_all_behind_it() -> None:
    # Over (0, ln 3) and (ln 4, 0) together: e^x = 1, 3, 4, 1, whose sum is 9.
    x = np.log(reals([[1, 3], [4, 1]]))
    (result,) = outputs_of("Softmax", [x], opset=11, axis=1)
    np.testing.assert_allclose(result, [[[1 / 9, 3 / 9], [4 / 9, 1 / 9]]], rtol=1e-6)
    (result,) = outputs_of("Softmax", [x], opset=13, axis=-1)
    np.testing.assert_allclose(result, [[[1 / 4, 3 / 4], [4 / 5, 1 / 5]]], rtol=1e-6)


def test_batch_normalization_of_old_files_uses_the_running_statistics() -> None:
    # (x − mean) / sqrt(var + eps)·scale + bias = (5 − 1) / sqrt(3 + 1)·10 + 2 = 22
    operands = [reals([5]), *(reals(value) for value in (10, 2, 1, 3))]
    assert outputs_of("BatchNormalization", operands, opset=9, epsilon=1.0) == [[[22]]]


def test_old_files_say_how_to_pad_in_attributes() -> None:
    assert outputs_of("Pad", [ints(1, 2, 3)], opset=7, pads=[1, -1], value=9.0) == [[9, 1, 2]]


def test_an_average_pool_that_pytorch_has_not_counts_as_the_file_says() -> None:
    # Windows of (1, 2, 3) padded by one 0 at the end: (1, 2), (2, 3), (3, 0).
    x = reals([[1, 2, 3]])
    traits: dict[str, Any] = {"kernel_shape": [2], "pads": [0, 1]}
    assert outputs_of("AveragePool", [x], **traits) == [[[[1.5, 2.5, 3.0]]]]
    assert outputs_of("AveragePool", [x], **traits, count_include_pad=1) == [[[[1.5, 2.5, 1.5]]]]


def test_a_max_pool_that_pytorch_has_not_ignores_the_padding() -> None:
    x = reals([[-1, -2, -3]])
    assert outputs_of("MaxPool", [x], kernel_shape=[2], pads=[0, 2]) == [[[[-1, -2, -3, float("-inf")]]]]
    assert outputs_of("MaxPool", [x], kernel_shape=[2], strides=[2], pads=[0, 1], ceil_mode=1) == [[[[-1, -3]]]]


def test_attention_masks_and_shares_heads() -> None:
    # Equal scores, so every step is the mean of the values that it may look at: 1, (1 + 3) / 2.
    query, key, value = np.zeros((1, 2, 2, 1)), np.zeros((1, 1, 2, 1)), np.array([1.0, 3.0]).reshape(1, 1, 2, 1)
    operands = [x.astype(np.float32) for x in (query, key, value)]
    assert outputs_of("Attention", operands, opset=23, is_causal=1) == [[[[[1], [2]], [[1], [2]]]]]


def test_lstm_and_gru_agree_with_the_modules_of_pytorch_in_both_directions() -> None:
    torch.manual_seed(0)
    for module, kind, order in ((torch.nn.LSTM, "LSTM", [0, 3, 1, 2]), (torch.nn.GRU, "GRU", [1, 0, 2])):
        ours = module(3, 4, bidirectional=True)
        weights = [dict(ours.named_parameters())[name] for name in dict(ours.named_parameters())]
        stacked = []
        for parts in (weights[0::4], weights[1::4], weights[2::4], weights[3::4]):  # ih, hh, bias ih, bias hh
            gates = [[part.detach().chunk(len(order))[gate] for gate in order] for part in parts]
            stacked.append(np.stack([torch.cat(part).numpy() for part in gates]))
        x = torch.rand(5, 2, 3)
        expected, final = ours(x)
        states = final if isinstance(final, tuple) else (final,)
        operands = [x.numpy(), stacked[0], stacked[1], np.concatenate([stacked[2], stacked[3]], axis=1)]
        attributes = {"hidden_size": 4, "direction": "bidirectional"}
        attributes |= {"linear_before_reset": 1} if kind == "GRU" else {}
        model, feeds = single(kind, operands, attributes, 21, n_outputs=1 + len(states))
        results = run(model, feeds)
        directions = expected.detach().reshape(5, 2, 2, 4).transpose(1, 2)
        assert_close(results, [value.detach().numpy() for value in (directions, *states)])


sizes = st.integers(1, 9)


@given(st.lists(sizes, min_size=1, max_size=2), st.data())
def test_convolutions_of_any_shape(size: list[int], data: st.DataObject) -> None:
    def draw(low: int, high: int) -> list[int]:
        return [data.draw(st.integers(low, high)) for _ in size]

    kernel, stride, dilation, begin, end = draw(1, 3), draw(1, 3), draw(1, 2), draw(0, 2), draw(0, 2)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    assume(all(n + b + e >= r for n, b, e, r in zip(size, begin, end, reach, strict=True)))
    attributes = {"strides": stride, "dilations": dilation, "pads": begin + end}
    model, feeds = single("Conv", [floats(1, 2, *size), floats(3, 2, *kernel)], attributes, 21)
    assert_close(run(model, feeds), reference(model, feeds), rtol=1e-3)


@given(st.sampled_from(["MaxPool", "AveragePool"]), sizes, st.booleans(), st.booleans(), st.data())
def test_pools_of_any_shape(kind: str, size: int, ceil: bool, counted: bool, data: st.DataObject) -> None:
    kernel, stride = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    begin, end = data.draw(st.integers(0, kernel - 1)), data.draw(st.integers(0, kernel - 1))
    assume(size + begin + end >= kernel)
    attributes: dict[str, Any] = {
        "kernel_shape": [kernel],
        "strides": [stride],
        "pads": [begin, end],
        "ceil_mode": int(ceil),
    }
    attributes |= {"count_include_pad": int(counted)} if kind == "AveragePool" else {}
    x = np.arange(1, size + 1, dtype=np.float32)
    model, feeds = single(kind, [x.reshape(1, 1, -1)], attributes, 22)
    (result,) = run(model, feeds)
    assert result.flatten().tolist() == pytest.approx(windows_by_hand(x.tolist(), kind, **attributes))


def windows_by_hand(
    x: list[float], kind: str, kernel_shape: list[int], strides: list[int], pads: list[int], **traits: int
) -> list[float]:
    """A pool over one dimension, window by window, as the specification words it."""
    (kernel,), (stride,), (begin, end) = kernel_shape, strides, pads
    padded: list[float | None] = [None] * begin + [*x] + [None] * end
    starts = range(0, len(padded) - kernel + 1, stride)
    if traits["ceil_mode"] and starts[-1] + kernel < len(padded) and starts[-1] + stride < begin + len(x):
        starts = range(0, starts[-1] + stride + 1, stride)
    results = []
    for start in starts:
        window = padded[start : start + kernel]
        values = [value for value in window if value is not None]
        if kind == "MaxPool":
            results.append(max(values, default=float("-inf")))
        else:
            count = len(window) if traits["count_include_pad"] else len(values)
            results.append(sum(values) / count)
    return results


@given(st.lists(sizes, min_size=1, max_size=3), st.data())
def test_slices_of_any_range(shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    start, end = data.draw(st.integers(-12, 12)), data.draw(st.integers(-12, 12))
    step = data.draw(st.integers(-3, 3).filter(bool))
    x = np.arange(np.prod(shape)).reshape(shape)
    key = [slice(None)] * len(shape)
    key[axis] = slice(start, end, step)
    assert outputs_of("Slice", [x, ints(start), ints(end), ints(axis), ints(step)]) == [x[tuple(key)].tolist()]


@given(st.lists(sizes, max_size=3), st.lists(sizes, max_size=3))
def test_arithmetic_broadcasts_as_numpy_does(left: list[int], right: list[int]) -> None:
    assume(all(1 in (a, b) or a == b for a, b in zip(reversed(left), reversed(right), strict=False)))
    a, b = floats(*left), floats(*right)
    model, feeds = single("Sub", [a, b], {}, 21)
    assert_close(run(model, feeds), [a - b])


@given(st.lists(sizes, min_size=1, max_size=3), st.sampled_from(["reflect", "edge", "wrap", "constant"]), st.data())
def test_pads_of_any_amount(shape: list[int], mode: Any, data: st.DataObject) -> None:
    amounts = [(data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, n - 1))) for n in shape]
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    pads = ints(*[begin for begin, _ in amounts], *[end for _, end in amounts])
    assert outputs_of("Pad", [x, pads], mode=mode) == [np.pad(x, amounts, mode=mode).tolist()]


@given(sizes, sizes, st.sampled_from(["nearest", "linear"]), st.data())
def test_resizes_to_any_size(size: int, target: int, mode: str, data: st.DataObject) -> None:
    counting = data.draw(st.sampled_from(["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"]))
    rounding = data.draw(st.sampled_from(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]))
    attributes = {"mode": mode, "coordinate_transformation_mode": counting, "nearest_mode": rounding}
    model, feeds = single("Resize", [floats(1, 2, size), None, None, ints(1, 2, target)], attributes, 19)
    assert_close(run(model, feeds), reference(model, feeds), rtol=1e-3)


REFUSED = [
    ("MaxPool", [IMAGE], {"kernel_shape": [2, 2]}, 2, "the second output (Indices)"),
    ("Dropout", [X, np.float32(0.5), np.bool_(True)], {}, 1, "training_mode=1"),
    (
        "GRU",
        [SEQUENCE, floats(1, 12, 3), floats(1, 12, 4)],
        {"activations": ["Sin", "Tanh"]},
        1,
        "activations=['sin', ",
    ),
    ("Cast", [X], {"to": onnx.TensorProto.FLOAT8E8M0}, 1, "a result of float8e8m0"),
    ("BitCast", [X], {"to": onnx.TensorProto.INT8}, 1, "a change from torch.float32 to torch.int8"),
    ("Resize", [IMAGE, None, None, ints(2, 4, 3, 3)], {"mode": "area"}, 1, "mode='area' with"),
    (
        "Max",
        [np.array([1, 2], "uint64"), np.uint64(3)],
        {},
        1,
        "an operand of uint64, whose large numbers PyTorch can't put in",
    ),
    ("Relu", [X], {"slope": 2}, 1, "the attribute slope=2"),
]


@pytest.mark.parametrize(
    ("kind", "operands", "attributes", "what"),
    [
        ("Add", [X], {}, "lacks its operand 'B'"),
        ("Where", [X > 0, None, X], {}, "lacks its operand 'X'"),
        ("Conv", [IMAGE, None], {}, "lacks its operand 'W'"),
        ("Concat", [], {"axis": 0}, "lacks its operand 0, counted from 0"),
        ("Relu", [X, X], {}, "has 2 operands and takes at most 1"),
    ],
)
def test_operands_are_named_as_the_standard_does(
    kind: str, operands: list[Any], attributes: dict[str, Any], what: str
) -> None:
    model, feeds = single(kind, operands, attributes, 21, 1)
    with pytest.raises(
        InputError, match=re.escape(f"node 'node' ({kind}, opset 21) {what}; check the model with onnx.ch")
    ):
        run(model, feeds)


@pytest.mark.parametrize(
    ("kind", "operands", "attributes"),
    [
        ("DequantizeLinear", [np.int8(ints([1, -7], [3, 4])), reals(0.5, 2), np.int8(ints(1, 2))], {"axis": 3}),
        ("QuantizeLinear", [X, reals(*[1.0] * X.shape[-1])], {"axis": -4}),
        ("Gather", [X, ints(0)], {"axis": 7}),
        ("ReduceSum", [X, ints(5)], {}),
        ("Hardmax", [X], {"axis": 9}),
        ("Slice", [X, ints(0), ints(1), ints(4)], {}),
        ("LayerNormalization", [X, reals(1.0)], {"axis": 8}),
    ],
)
def test_an_axis_that_a_tensor_does_not_have_is_refused(
    kind: str, operands: list[Any], attributes: dict[str, Any]
) -> None:
    model, feeds = single(kind, operands, attributes, 21, 1)
    with pytest.raises(InputError, match=rf"node 'node' \({kind}, opset 21\): a tensor of \d axes has no axis -?\d"):
        run(model, feeds)


@pytest.mark.parametrize(("kind", "operands", "attributes", "n_outputs", "what"), REFUSED)
def test_a_variant_that_is_not_covered_is_refused(
    kind: str, operands: list[Any], attributes: dict[str, Any], n_outputs: int, what: str
) -> None:
    model, feeds = single(kind, operands, attributes, 21, n_outputs)
    start = re.escape(f"node 'node' ({kind}, opset 21): {what}")
    way_out = re.escape("is not supported; export the PyTorch model itself (.pt2 or package.module:factory), or add it")
    with pytest.raises(InputError, match=f"^{start}.*{way_out}"):
        run(model, feeds)
